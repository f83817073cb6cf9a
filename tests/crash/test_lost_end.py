"""A log that has lost its end and goes on without: nothing derived knows more than it."""

import pytest
from killed_copy import copy_as_killed, written_apart
from patience import until

from rmqcore import open_store
from rmqcore.doctor.verify import verify
from rmqcore.files.store_checkpoint import StoreCheckpoint
from rmqcore.files.store_mark import StoreMark
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine


SIZE = 1 << 16


def lose_behind(store_path, end):
    (file,) = (store_path / "commitlog").iterdir()
    with file.open("r+b") as log:
        log.seek(end)
        log.write(bytes(SIZE - end))


def test_keys_of_what_is_put_next_are_filed(store_path):
    with open_store(store_path, mapped_file_size_commit_log=SIZE) as store:
        receipts = [store.put("T", b"x" * 50, keys=f"k{number}") for number in range(6)]
    end = receipts[3].phy_offset
    lose_behind(store_path, end)
    with open_store(store_path, on_corruption="truncate") as store:
        assert store.max_phy_offset == end
        again = [store.put("T", b"x" * 50, keys=f"n{number}") for number in range(3)]
        assert [one.phy_offset for one in again] == [one.phy_offset for one in receipts[3:]]
        for number in range(3):
            assert len(store.query_message("T", f"n{number}").messages) == 1
            assert len(store.query_message("T", f"k{number}").messages) == 1
            assert not store.query_message("T", f"k{number + 3}").messages
        assert store.max_queue_offset("T", 0) == 6


def test_a_queue_goes_on_at_its_new_end_also_behind_a_kill(store_path, tmp_path, monkeypatch):
    """The mark tells where each queue ended: of the log as it is, before anything is put."""
    written_apart(monkeypatch)
    with open_store(store_path, mapped_file_size_commit_log=SIZE) as store:
        receipts = [store.put("T", b"x" * 50) for _ in range(6)]
    lose_behind(store_path, receipts[3].phy_offset)
    with open_store(store_path, on_corruption="truncate") as store:
        assert store.put("T", b"x" * 50).queue_offset == 3
        copy_as_killed(store_path, tmp_path / "killed")
    with open_store(tmp_path / "killed") as store:
        assert store.recovery_report.findings == []
        assert store.max_queue_offset("T", 0) == 4
        assert store.put("T", b"x").queue_offset == 4


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "power cut"])
def test_the_checkpoint_knows_nothing_later_than_the_log(store_path, tmp_path, monkeypatch, clean):
    """Zeros where the log had been: no byte is cut there."""
    damaged = store_path if clean else tmp_path / "killed"
    with open_store(store_path, mapped_file_size_commit_log=SIZE) as store:
        store.put("T", b"x" * 50, keys="k")
        first_ms = store.message_at(0).store_timestamp_ms
        until(lambda: wall_clock_ms() > first_ms, "the next millisecond")
        end = store.put("T", b"x" * 50, keys="k").phy_offset
        store.flush()
        if not clean:
            copy_as_killed(store_path, damaged)
    lose_behind(damaged, end)
    monkeypatch.setattr(StoreMark, "this_machine", lambda _: "started anew")
    with open_store(damaged, on_corruption="truncate"):
        pass
    checkpoint = StoreCheckpoint(damaged / "checkpoint")
    assert checkpoint.load()
    assert checkpoint.times_ms == (first_ms,) * 3
    assert verify(damaged).findings == []


@pytest.mark.parametrize("left", [b"", b"torn"], ids=["zeros", "torn"])
def test_it_knows_as_much_as_a_log_that_has_lost_its_last_file(store_path, monkeypatch, left):
    """The part of the log that is walked last has no record."""
    with open_store(store_path, mapped_file_size_commit_log=SIZE) as store:
        last_ms = store.message_at(store.put("T", b"x" * 40_000).phy_offset).store_timestamp_ms
        until(lambda: wall_clock_ms() > last_ms, "the next millisecond")
        assert store.put("T", b"x" * 40_000).phy_offset == SIZE
    log = store_path / "commitlog" / f"{SIZE:020d}"
    log.write_bytes(left.ljust(SIZE, b"\0"))
    monkeypatch.setattr(StoreMark, "this_machine", lambda _: "started anew")
    with open_store(store_path, on_corruption="truncate") as store:
        assert store.max_phy_offset == SIZE
    checkpoint = StoreCheckpoint(store_path / "checkpoint")
    assert checkpoint.load()
    assert checkpoint.times_ms == (last_ms, last_ms, 0)


@pytest.mark.parametrize("files_too", [False, True], ids=["zeros", "no file"])
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "power cut"])
def test_the_checkpoint_of_a_log_that_lost_all_knows_nothing(
    store_path, tmp_path, monkeypatch, clean, files_too
):
    damaged = store_path if clean else tmp_path / "killed"
    with open_store(store_path, mapped_file_size_commit_log=SIZE) as store:
        store.put("T", b"x" * 50, keys="k")
        store.flush()
        if not clean:
            copy_as_killed(store_path, damaged)
    if files_too:
        for file in (damaged / "commitlog").iterdir():
            file.unlink()
    else:
        lose_behind(damaged, 0)
    monkeypatch.setattr(StoreMark, "this_machine", lambda _: "started anew")
    with open_store(damaged, on_corruption="truncate"):
        pass
    checkpoint = StoreCheckpoint(damaged / "checkpoint")
    assert checkpoint.load()
    assert checkpoint.times_ms == (0, 0, 0)
    assert verify(damaged).findings == []


def test_a_deletion_takes_nothing_that_is_put_where_it_was(store_path):
    with open_store(store_path, mapped_file_size_commit_log=SIZE) as store:
        store.put("T", b"old")
        end = store.put("Other", b"x" * 500).phy_offset
        assert store.delete_topic("T")
    lose_behind(store_path, end)
    with open_store(store_path, on_corruption="truncate") as store:
        assert store.put("T", b"new").phy_offset == end
    with open_store(store_path) as store:
        assert [message.body for message in store.messages("T", 0)] == [b"new"]
