"""A store opened for reading ends where its last record ends, whatever empty files lie behind."""

import pytest

import rmqcore


@pytest.mark.parametrize("release", ["5.5.0", "4.9.7"])
def test_empty_files_behind_the_last_record_are_not_counted(golden_store, release):
    golden = golden_store(release, "basic")
    size = golden.manifest["mappedFileSizeCommitLog"]
    last = max(int(path.name) for path in (golden.path / "commitlog").iterdir())
    with rmqcore.open_store(golden.path, mode="r") as store:
        end = store.max_phy_offset
        count = sum(1 for _ in store.messages())
    for number in (1, 2):
        (golden.path / "commitlog" / f"{last + number * size:020d}").write_bytes(bytes(size))
    with rmqcore.open_store(golden.path, mode="r") as store:
        assert store.max_phy_offset == end
        assert sum(1 for _ in store.messages()) == count
