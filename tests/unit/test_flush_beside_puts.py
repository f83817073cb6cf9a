"""A flush and the checkpoint say nothing of what is put while the flush is under way."""

import pytest
from held_time import HeldTime

from rmqcore import StoreConfig, open_store
from rmqcore.files.index_file import IndexFile
from rmqcore.files.mapped_file import MappedFile
from rmqcore.files.store_checkpoint import StoreCheckpoint, later_of
from rmqcore.recovery import recovery
from rmqcore.store.message_store import DefaultMessageStore

pytestmark = pytest.mark.engine

AN_HOUR_MS = 3_600_000
SETTINGS = {
    "mapped_file_size_commit_log": 1 << 16,
    "flush_disk_type": "ASYNC_FLUSH",
    "flush_interval_commit_log_ms": AN_HOUR_MS,
    "flush_interval_consume_queue_ms": AN_HOUR_MS,
}


@pytest.fixture
def store(store_path):
    """A store none of whose services has its first round beside the test."""
    held, config = HeldTime(), StoreConfig.embedded(**SETTINGS)
    with DefaultMessageStore(store_path, config, world=held.world, runner=held.services) as store:
        yield store


def put(store, time_ms):
    """Put a message of a store time, and dispatch it; returns the receipt."""
    store.parts.files.tail.fixed_time_ms = time_ms
    receipt = store.put("T", b"x", keys="k")
    store.parts.log_services.reput.catch_up()
    return receipt


def beside(monkeypatch, owner, name, work):
    """Do some work once, just when what a flush covers is settled."""
    original, left = getattr(owner, name), [work]

    def flush(self):
        done = original(self)
        if left:
            left.pop()()
        return done

    monkeypatch.setattr(owner, name, flush)


def test_a_flush_of_the_log_tells_of_what_was_put_before(store, monkeypatch):
    first = put(store, 1_700_000_000_000)
    beside(monkeypatch, MappedFile, "flush", lambda: put(store, 1_700_000_001_000))
    assert store.parts.log_services.flusher.flush() == first.phy_offset + first.store_size
    assert store.parts.log_services.flusher.pending > 0
    assert store.parts.files.checkpoint.physic_msg_timestamp_ms == first.store_timestamp_ms


def test_a_flush_of_the_queues_tells_of_what_was_dispatched_before(store, monkeypatch):
    first = put(store, 1_700_000_000_000)
    beside(monkeypatch, MappedFile, "sync", lambda: put(store, 1_700_000_001_000))
    assert store.consume_queues.flush() == first.store_timestamp_ms
    assert store.consume_queues.flush() == first.store_timestamp_ms + 1000


def test_a_flush_of_the_index_tells_of_what_was_filed_before(store, monkeypatch):
    first = put(store, 1_700_000_000_000)
    beside(monkeypatch, IndexFile, "flush", lambda: put(store, 1_700_000_001_000))
    assert store.index.flush() == first.store_timestamp_ms
    assert store.index.flush() == first.store_timestamp_ms + 1000


def test_the_checkpoint_follows_the_queues_and_the_index(store, monkeypatch):
    """When it is written they are on the disk up to the times that it says."""
    put(store, 1_700_000_000_000)
    flushed = []
    for owner, name in (
        (MappedFile, "sync"),
        (IndexFile, "flush"),
        (type(store.parts.files.checkpoint), "flush"),
    ):
        original = getattr(owner, name)

        def flush(self, original=original):
            flushed.append(type(self).__name__)
            return original(self)

        monkeypatch.setattr(owner, name, flush)
    store.parts.log_services.flush_queues.flush()
    assert flushed == ["MappedFile", "IndexFile", "StoreCheckpoint"]


def test_a_full_index_file_is_on_the_disk_before_the_next_is_begun(store_path, monkeypatch):
    flushed, original = [], IndexFile.flush

    def flush(file):
        flushed.append(file.path)
        original(file)

    with open_store(store_path, **SETTINGS, max_hash_slot_num=16, max_index_num=8) as store:
        monkeypatch.setattr(IndexFile, "flush", flush)
        for number in range(8):
            put(store, 1_700_000_000_000 + number)
        assert [file.path for file in store.index.files[:-1]] == flushed
        assert len(flushed) == 1


def test_times_go_back_with_a_clock_that_was_set_back_far():
    assert later_of(1_000_000, 1_000_001) == 1_000_001
    assert later_of(1_000_000, 995_000) == 1_000_000
    assert later_of(1_000_000, 900_000) == 900_000
    assert later_of(1_000_000, 0) == 1_000_000


def test_the_mark_waits_for_the_log(store, store_path):
    """It tells ends of queues only when the records are on the disk, too."""
    put(store, 1_700_000_000_000)
    marker, mark = store.parts.log_services.marker, store.parts.files.mark
    marker._seen, marker._due_at = None, 0
    marker.queues_flushed()
    end = store.max_phy_offset
    marker.queues_flushed()
    assert mark.log_end < end
    store.parts.log_services.flusher.flush()
    put(store, 1_700_000_001_000)
    marker.queues_flushed()
    assert mark.log_end == end
    assert mark.ends == {("T", 0): 1}


def test_an_opening_notes_its_progress_when_what_it_walked_is_on_the_disk(store_path, monkeypatch):
    with open_store(store_path, **SETTINGS | {"mapped_file_size_commit_log": 1 << 12}) as store:
        for _ in range(40):
            store.put("T", b"x" * 300)
    (store_path / "abort").touch()
    (store_path / "checkpoint").unlink()
    flushed, original = [], MappedFile.sync

    def sync(file):
        flushed.append(file.path)
        original(file)

    def noted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(recovery, "SAVE_EVERY_S", 0)
    monkeypatch.setattr(MappedFile, "sync", sync)
    monkeypatch.setattr(StoreCheckpoint, "flush", noted)
    with pytest.raises(KeyboardInterrupt):
        open_store(store_path)
    assert store_path / "commitlog" / f"{0:020d}" in flushed


def test_under_sync_flush_an_opening_writes_through_what_a_kill_has_left(store_path, monkeypatch):
    """Readers see it, and what they see is on the disk."""
    with open_store(store_path, **SETTINGS) as store:
        store.put("T", b"x")
    (store_path / "abort").touch()
    flushed, original = [], MappedFile.sync

    def sync(file):
        flushed.append(file.path)
        original(file)

    monkeypatch.setattr(MappedFile, "sync", sync)
    with open_store(store_path, flush_disk_type="SYNC_FLUSH"):
        assert store_path / "commitlog" / f"{0:020d}" in flushed
