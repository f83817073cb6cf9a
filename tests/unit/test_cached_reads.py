"""Which reads would wait for the disk, and that a fetch brings in what they read."""

import ctypes
import functools
import gc
import mmap
import os
import tempfile
from pathlib import Path

import pytest
from patience import until

import rmqcore
from rmqcore.errors import ArgumentError, StoreClosedError

pytestmark = pytest.mark.engine

#: what counts as written lately
HOT_TAIL_SIZE = 32 << 20
FILE = 8 << 20
SMALL = {
    "mapped_file_size_commit_log": FILE,
    "mapped_file_size_consume_queue": 20 * 5000,
    # an opening that compares queues with the log maps its files and touches their pages
    "open_check_bytes": 0,
}
#: messages of T, one in 20 of them with the tag b; they lie in the first two log files
COUNT, BODY = 10_000, 1000
#: on a disk as a rule, where temporary files may lie in memory
ON_DISK = Path(__file__).parents[2] / "build"


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    """A directory whose file system forgets what nobody maps, where there is one."""
    path = tmp_path_factory.mktemp("cached")
    if can_forget(path):
        yield path
        return
    ON_DISK.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ON_DISK) as path:
        yield Path(path)


@pytest.fixture(scope="module")
def written(on_disk):
    """A store whose first log files were written long ago."""
    path = on_disk / "store"
    with rmqcore.open_store(path, **SMALL) as store:
        for number in range(COUNT):
            store.put("T", b"x" * BODY, tags="b" if number % 20 == 0 else "a", queue_id=0)
        for _ in range(HOT_TAIL_SIZE // (1 << 20) + 2):
            store.put("Bulk", b"x" * (1 << 20), queue_id=0)
    return path


def in_memory(file, position):
    """Whether the system has a page of a file in memory; nothing is read."""
    page = position // mmap.PAGESIZE * mmap.PAGESIZE
    with (
        file.open("rb") as stream,
        mmap.mmap(stream.fileno(), 1, access=mmap.ACCESS_COPY, offset=page) as mapped,
    ):
        first, found = ctypes.c_char.from_buffer(mapped), ctypes.c_ubyte()
        assert not ctypes.CDLL(None).mincore(
            ctypes.byref(first), ctypes.c_size_t(1), ctypes.byref(found)
        )
        del first
    return bool(found.value & 1)


def forget(file):
    """Ask the system to forget what a file holds."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@functools.cache
def can_forget(path):
    """Whether a file system forgets what nobody maps: one that is all memory does not."""
    file = path / "forgotten"
    file.write_bytes(b"x")
    for _ in range(100):
        forget(file)
        if not in_memory(file, 0):
            return True
    return False


def forgotten(path, *pages):
    """Let the system forget what files hold, but for pages that somebody who maps them has read.

    Args:
        path: below it they are.
        pages: (file, position) that have to be forgotten then.
    """
    if not can_forget(path.parent):
        pytest.skip("this file system forgets nothing")
    gc.collect()

    def are_forgotten():
        for file in path.glob("**/[0-9]*[0-9]"):
            forget(file)
        return not any(in_memory(path / file, position) for file, position in pages)

    until(are_forgotten, "the system has forgotten the pages")


def page_of(offset):
    """A page of the first log file with a message that is there."""
    return "0" * 20, offset * 1100


@pytest.fixture
def store(written):
    """The store, of whose files nothing is in memory."""
    with rmqcore.open_store(written, **SMALL) as store:
        forgotten(written / "commitlog", page_of(4000))
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
    for _ in range(2):
        # the second time its file is mapped
        assert not store.is_cached("T", 0, 4000, **wanted)
        assert taken(store, 4000) is None
        store.fetch("T", 0, 4000, **wanted)
        assert store.is_cached("T", 0, 4000, **wanted)
        # nothing has touched the mapped pages yet, so they can be forgotten
        forgotten(store.path / "commitlog", page_of(4000))


def test_a_get_from_memory_hands_out_what_a_get_does(store):
    store.fetch("T", 0, 100, **bounds())
    assert taken(store, 100) == list(range(100, 132))
    assert taken(store, 100, 3) == [100, 101, 102]
    assert taken(store, COUNT) is None
    assert store.get_cached("Unknown", 0, 0, 32, 1 << 18) is None


def test_no_more_is_asked_for_than_is_read(store):
    assert len(store.get_message("T", 0, 0, max_messages=10).messages) == 10
    # their pages stay
    forgotten(store.path / "commitlog", page_of(4000))
    many = bounds(max_messages=5000, max_bytes=1 << 30)
    assert store.is_cached("T", 0, 0, **bounds(max_messages=5))
    assert store.is_cached("T", 0, 0, **{**many, "max_bytes": 1})
    assert not store.is_cached("T", 0, 0, **many)
    # one message of twenty has the tag
    assert store.is_cached("T", 0, 0, **{**many, "tags": "b", "max_scanned": 5})
    assert not store.is_cached("T", 0, 0, **{**many, "tags": "b", "max_scanned": 5000})


def test_units_of_two_files_are_looked_at(store):
    """Those of a get that begins in one file of units and ends in the next."""
    store.fetch("T", 0, 4990, **bounds())
    assert store.is_cached("T", 0, 4990, **bounds())
    forgotten(store.path / "commitlog", page_of(4990))
    assert not store.is_cached("T", 0, 4990, **bounds())


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
    [{"max_messages": 1 << 70}, {"max_bytes": "x"}, {"tags": 7}],
)
def test_what_is_no_bound_is_refused(written, wrong):
    with rmqcore.open_store(written, **SMALL) as store:
        for call in (store.is_cached, store.fetch):
            with pytest.raises(ArgumentError):
                call("T", 0, 0, **{**bounds(), **wrong})
