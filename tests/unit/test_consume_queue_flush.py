"""Which consume queues a round of flushes writes through, and what the checkpoint may say then."""

from __future__ import annotations

import shutil
import threading

import pytest
from patience import TIMEOUT_S, rounds, until

from rmqcore import open_store
from rmqcore.derived import consume_queue_store
from rmqcore.files.index_file import IndexFile
from rmqcore.files.mapped_file import MappedFile

pytestmark = pytest.mark.engine

QUEUES = 150
TWO_PAGES = 2 * 4096
SETTINGS = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 200_000,
    "flush_interval_consume_queue_ms": 3_600_000,
}


@pytest.fixture
def synced(monkeypatch):
    """The queues whose files were synced, in order."""
    done, original = [], MappedFile.sync

    def sync(file):
        if "consumequeue" in file.path.parts:
            done.append(int(file.path.parent.name))
        original(file)

    monkeypatch.setattr(MappedFile, "sync", sync)
    return done


@pytest.fixture
def store(tmp_path, synced):
    with open_store(tmp_path / "store", **SETTINGS) as store:
        # its first round is over, and the next is far away
        rounds(store.parts.log_services.flush_queues)
        yield store


def put_to_each(store):
    """A message to each queue; their store times."""
    times = []
    for number in range(QUEUES):
        times.append(store.put("T", b"x", queue_id=number).store_timestamp_ms)
        # dispatched one by one
        assert store.max_queue_offset("T", number) > 0
    return times


def test_many_queues_take_their_turns_and_the_time_says_so(store, synced):
    times = put_to_each(store)
    queues = store.consume_queues
    time_ms, whole = queues.flush_some(TWO_PAGES)
    first_left = len(synced)
    assert not whole
    assert 0 < first_left < QUEUES
    assert synced == list(range(first_left))
    assert time_ms == times[first_left - 1]
    # one that comes again meanwhile takes its turn behind those that wait
    store.put("T", b"x", queue_id=0)
    store.max_queue_offset("T", 0)
    rounds = 1
    while not whole:
        time_ms, whole = queues.flush_some(TWO_PAGES)
        rounds += 1
    assert rounds <= 4
    assert synced == [*range(QUEUES), 0]
    assert time_ms == queues.dispatched_timestamp_ms
    assert queues.flush_some(TWO_PAGES) == (time_ms, True)
    assert len(synced) == QUEUES + 1


@pytest.mark.parametrize("pages", [1, 2])
def test_a_queue_with_so_many_pages_does_not_wait(store, synced, pages):
    if pages != 2:
        store.change_settings(flushConsumeQueueLeastPages=pages)
    put_to_each(store)
    for number, size in ((QUEUES - 1, pages * 4096), (QUEUES - 2, pages * 4096 - 40)):
        for _ in range(size // 20):
            store.put("T", b"x", queue_id=number)
        store.max_queue_offset("T", number)
    store.parts.log_services.flush_queues.flush(thorough=False)
    assert QUEUES - 1 in synced
    assert QUEUES - 2 not in synced


def test_a_whole_flush_leaves_none_out(store, synced):
    put_to_each(store)
    store.flush()
    assert sorted(synced) == list(range(QUEUES))
    assert store.consume_queues.flush_some(TWO_PAGES)[1]
    assert len(synced) == QUEUES


class Noted:
    """A lock that counts who comes to it."""

    def __init__(self, lock):
        self.lock = lock
        self.came = 0

    def within(self, *seconds):
        self.came += 1
        return self.lock.within(*seconds)


def test_a_second_flush_waits_for_the_first(store, monkeypatch):
    store.put("T", b"x")
    assert store.max_queue_offset("T", 0) == 1
    begun, go_on, sync = threading.Event(), threading.Event(), MappedFile.sync
    service, checkpoint, told = (
        store.parts.log_services.flush_queues,
        store.parts.files.checkpoint,
        [],
    )
    service._flushing = lock = Noted(service._flushing)

    def slow(file):
        begun.set()
        assert go_on.wait(TIMEOUT_S)
        sync(file)

    def flush():
        store.flush()
        told.append(checkpoint.logics_msg_timestamp_ms)

    monkeypatch.setattr(MappedFile, "sync", slow)
    before = checkpoint.logics_msg_timestamp_ms
    flushes = [threading.Thread(target=flush) for _ in range(2)]
    flushes[0].start()
    assert begun.wait(TIMEOUT_S)
    flushes[1].start()
    until(lambda: lock.came == 2, "the second flush")
    still = told.copy(), checkpoint.logics_msg_timestamp_ms
    go_on.set()
    for each in flushes:
        each.join()
    assert still == ([], before)
    assert min(told) > before


@pytest.mark.parametrize(
    ("owner", "name"),
    [(MappedFile, "sync"), (consume_queue_store, "sync_directory"), (IndexFile, "flush")],
)
def test_a_flush_that_was_interrupted_begins_again(store, monkeypatch, owner, name):
    times = put_to_each(store)
    store.put("T", b"x", keys="key")
    store.max_queue_offset("T", 0)
    original, done, interrupted = getattr(owner, name), [], []

    def interrupt(it):
        if len(done) == 1 and not interrupted:
            interrupted.append(it)
            raise KeyboardInterrupt
        done.append(it)
        return original(it)

    monkeypatch.setattr(owner, name, interrupt)
    if owner is IndexFile:
        done.append(None)
    with pytest.raises(KeyboardInterrupt):
        store.flush()
    if owner is MappedFile:
        assert store.consume_queues.flush_some(TWO_PAGES)[0] < times[-1]
    store.flush()
    assert interrupted[0] in done


def test_a_topic_that_is_deleted_beside_a_flush_does_no_harm(store, monkeypatch):
    put_to_each(store)
    original = consume_queue_store.sync_directory

    def late(directory):
        shutil.rmtree(store.path / "consumequeue/T", ignore_errors=True)
        original(directory)

    monkeypatch.setattr(consume_queue_store, "sync_directory", late)
    store.flush()
    assert store.why_not_writable() is None


def test_every_file_of_a_queue_that_was_written_to_is_written_through(store_path, monkeypatch):
    done, original = set(), MappedFile.sync

    def sync(file):
        done.add(file.path)
        original(file)

    with open_store(store_path, **SETTINGS | {"mapped_file_size_consume_queue": 400}) as store:
        rounds(store.parts.log_services.flush_queues)
        for _ in range(50):
            store.put("T", b"x")
        assert store.max_queue_offset("T", 0) == 50
        monkeypatch.setattr(MappedFile, "sync", sync)
        store.consume_queues.flush()
        files = set((store_path / "consumequeue" / "T" / "0").iterdir())
    assert len(files) == 3
    assert files <= done
