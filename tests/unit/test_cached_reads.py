"""Which reads would wait for the disk, and that a fetch brings in what they read."""

import gc
import os
import time

import pytest

import rmqcore
from rmqcore.errors import ArgumentError, StoreClosedError

#: what counts as written lately
LATELY = 32 << 20
FILE = 8 << 20
SMALL = {
    "mapped_file_size_commit_log": FILE,
    "mapped_file_size_consume_queue": 20 * 5000,
    # an opening that reads the log has it in memory then
    "open_check_bytes": 0,
}
#: messages of T, one in 20 of them with the tag b; they lie in the first two log files
COUNT, BODY = 10_000, 1000


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A store whose first log files were written long ago."""
    path = tmp_path_factory.mktemp("cached") / "store"
    with rmqcore.open_store(path, **SMALL) as store:
        for number in range(COUNT):
            store.put("T", b"x" * BODY, tags="b" if number % 20 == 0 else "a", queue_id=0)
        for _ in range(LATELY // (1 << 20) + 2):
            store.put("Bulk", b"x" * (1 << 20), queue_id=0)
    return path


def is_forgotten(file):
    """Let the system forget what a file holds; whether it did."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            os.preadv(stream.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False


def forgotten(path):
    """The same for the files of a store; they are not while a store that is gone maps them."""
    gc.collect()
    deadline = time.monotonic() + 5
    for file in sorted(path.glob("**/[0-9]*[0-9]")):
        while not is_forgotten(file):
            if time.monotonic() > deadline:
                pytest.skip(f"this file system does not forget {file}")
            time.sleep(0.05)


@pytest.fixture
def store(written):
    """The store as after a restart of the machine, its first log file mapped by a first get."""
    forgotten(written)
    with rmqcore.open_store(written, **SMALL) as store:
        yield store


def bounds(max_messages=32, max_bytes=1 << 18, tags=None, max_scanned=800):
    return {
        "max_messages": max_messages,
        "max_bytes": max_bytes,
        "tags": tags,
        "max_scanned": max_scanned,
    }


def taken(store, offset, count=32):
    result = store.get_cached("T", 0, offset, count, 1 << 18)
    return None if result is None else [each.queue_offset for each in result.messages]


@pytest.mark.parametrize("tags", [None, "b", "a || b"])
def test_what_is_fetched_is_in_memory(store, tags):
    wanted = bounds(tags=tags)
    assert not store.is_cached("T", 0, 0, **wanted)
    store.fetch("T", 0, 0, **wanted)
    # the file is not mapped yet
    store.get_message("T", 0, 0, **wanted)
    assert store.is_cached("T", 0, 0, **wanted)
    # in the same file, further on than the system reads ahead
    assert not store.is_cached("T", 0, 4000, **wanted)
    assert taken(store, 4000) is None
    store.fetch("T", 0, 4000, **wanted)
    assert store.is_cached("T", 0, 4000, **wanted)
    assert not store.is_cached("T", 0, 7000, **wanted)


def test_a_get_from_memory_hands_out_what_a_get_does(store):
    store.fetch("T", 0, 100, **bounds())
    store.get_message("T", 0, 100)
    assert taken(store, 100) == list(range(100, 132))
    assert taken(store, 100, 3) == [100, 101, 102]
    assert taken(store, COUNT) is None
    assert store.get_cached("Unknown", 0, 0, 32, 1 << 18) is None


def test_no_more_is_asked_for_than_is_read(store):
    store.get_message("T", 0, 0, max_messages=1)
    some = bounds(max_messages=2, max_bytes=1)
    assert store.is_cached("T", 0, 0, **some)
    assert not store.is_cached("T", 0, 0, **bounds(max_messages=2000, max_bytes=1 << 30))
    # of the first 20 messages one has the tag, and is in memory
    assert store.is_cached("T", 0, 0, **bounds(tags="b", max_scanned=20))
    assert not store.is_cached("T", 0, 0, **bounds(tags="b", max_scanned=4000))


def test_the_queues_own_units_count_too(written):
    """The second file of units is in nobody's memory, whatever the log is."""
    for file in sorted(written.glob("commitlog/*")):
        file.read_bytes()
    with rmqcore.open_store(written, **SMALL) as store:
        for offset in range(0, COUNT, 1000):
            store.get_message("T", 0, offset)
        assert store.is_cached("T", 0, 5000, **bounds())
    queue = written / "consumequeue" / "T" / "0"
    forgotten(queue)
    with rmqcore.open_store(written, **SMALL) as store:
        store.get_message("T", 0, 100)
        assert store.is_cached("T", 0, 100, **bounds())
        assert taken(store, 100) == list(range(100, 132))


def test_what_was_written_lately_is_taken_for_cached(store):
    assert store.is_cached("Bulk", 0, 20, **bounds())


def test_where_nothing_can_be_said_it_is_taken_for_cached(store, written):
    for topic, queue_id, offset in (("Unknown", 0, 0), ("T", 9, 0), ("T", 0, COUNT)):
        assert store.is_cached(topic, queue_id, offset, **bounds())
        store.fetch(topic, queue_id, offset, **bounds())
    with rmqcore.open_store(written, mode="r", **SMALL) as reader:
        assert reader.is_cached("T", 0, 0, **bounds())
        assert reader.get_cached("T", 0, 0, 32, 1 << 18) is None
        reader.fetch("T", 0, 0, **bounds())


def test_a_store_that_is_closed_fetches_nothing(written):
    store = rmqcore.open_store(written, **SMALL)
    store.close()
    with pytest.raises(StoreClosedError):
        store.fetch("T", 0, 0, **bounds())


@pytest.mark.parametrize(
    "wrong",
    [{"max_messages": 0}, {"max_messages": 1 << 70}, {"max_bytes": "x"}, {"tags": 7}],
)
def test_what_is_no_bound_is_refused(written, wrong):
    with rmqcore.open_store(written, **SMALL) as store:
        for call in (store.is_cached, store.fetch):
            with pytest.raises(ArgumentError):
                call("T", 0, 0, **{**bounds(), **wrong})
