"""A resync's cut that is interrupted between two files leaves a log, and goes on."""

import pytest

from rmqcore.ha import resync

pytestmark = pytest.mark.logic


def test_a_cut_that_is_interrupted_leaves_no_hole_in_the_log(tmp_path, monkeypatch):
    log, kept = tmp_path / "commitlog", tmp_path / "kept"
    log.mkdir()
    kept.mkdir()
    for number in range(4):
        (log / f"{number * 100:020d}").write_bytes(b"x" * 100)
    move, moved = resync._move, []

    def once(path, to):
        if moved:
            raise KeyboardInterrupt
        moved.append(path)
        move(path, to)

    monkeypatch.setattr(resync, "_move", once)
    with pytest.raises(KeyboardInterrupt):
        resync._cut_files(log, kept, 150)
    assert sorted(int(path.name) for path in log.iterdir()) == [0, 100, 200]
    monkeypatch.setattr(resync, "_move", move)
    resync._cut_files(log, kept, 150)
    assert sorted(int(path.name) for path in log.iterdir()) == [0, 100]
    assert (log / f"{100:020d}").read_bytes() == b"x" * 50 + bytes(50)
    assert sorted(int(path.name) for path in kept.iterdir()) == [100, 200, 300]
