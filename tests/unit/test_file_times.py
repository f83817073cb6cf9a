"""What changes of a store has another time then, so that a copy that goes by times gets it."""

import os
import shutil

import pytest

import rmqcore
from rmqcore.adapters.queuelib import FifoQueue

pytestmark = pytest.mark.engine

SMALL = {"mapped_file_size_commit_log": 65536}
#: what an opening makes of a store is no message
NOT_COPIED = ("abort", "lock", "storeTrace")


def copy_changed(source, target):
    """Copy as ``rsync -a`` does: files of the same size and time are passed over."""
    for path in source.rglob("*"):
        copy = target / path.relative_to(source)
        if path.is_dir() or path.name in NOT_COPIED:
            continue
        facts = path.stat()
        if copy.exists():
            before = copy.stat()
            if (before.st_size, before.st_mtime_ns) == (facts.st_size, facts.st_mtime_ns):
                continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)


def make_old(directory):
    """As if all was written long ago; pages that have been written to stay as they are."""
    for path in directory.rglob("*"):
        if path.is_file():
            os.utime(path, (1_700_000_000, 1_700_000_000))


def put(store, first, count=3):
    for number in range(first, first + count):
        store.put("T", b"%d" % number, keys=f"k{number}")


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_second_copy_gets_what_was_put_before_the_store_was_closed(tmp_path, flush):
    path, copy = tmp_path / "store", tmp_path / "copy"
    store = rmqcore.open_store(path, flush_disk_type=flush, **SMALL)
    with store:
        put(store, 0)
        make_old(path)
        copy_changed(path, copy)
        put(store, 3)
    copy_changed(path, copy)
    with rmqcore.open_store(copy, **SMALL) as copied:
        assert [bytes(m.body) for m in copied.messages()] == [b"%d" % n for n in range(6)]
        assert len(copied.query_message("T", "k5").messages) == 1


def test_a_second_copy_of_an_open_store_gets_what_was_flushed_and_files_that_are_full(tmp_path):
    path, copy = tmp_path / "store", tmp_path / "copy"
    with rmqcore.open_store(path, **SMALL) as store:
        put(store, 0)
        make_old(path)
        copy_changed(path, copy)
        put(store, 3)
        store.flush()
        copy_changed(path, copy)
        first = path / "commitlog" / f"{0:020d}"
        assert first.read_bytes() == (copy / "commitlog" / first.name).read_bytes()
        make_old(path)
        copy_changed(path, copy)
        store.put("T", b"." * 60_000)
        store.put("T", b"." * 60_000)
        copy_changed(path, copy)
        assert first.read_bytes() == (copy / "commitlog" / first.name).read_bytes()


def test_a_second_copy_of_named_queues_gets_what_was_popped(tmp_path):
    path, copy = tmp_path / "queue", tmp_path / "copy"
    queue = FifoQueue(path)
    for number in range(3):
        queue.push(b"%d" % number)
    assert queue.pop() == b"0"
    make_old(path)
    copy_changed(path, copy)
    assert queue.pop() == b"1"
    queue.close()
    copy_changed(path, copy)
    copied = FifoQueue(copy)
    assert copied.pop() == b"2"
    copied.close()
