"""How the pages of the log file that is written are kept, and what that costs the disk."""

import os
import re
from pathlib import Path

import pytest

from rmqcore import open_store

pytestmark = pytest.mark.engine

LOG = 64 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")


def advised(path):
    """(position, flags) of each mapping of a file, "rr" for random and "hg" for large folios."""
    inode = str(path.stat().st_ino)
    text = Path("/proc/self/smaps").read_text("utf-8")
    found = []
    for part in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", text):
        fields = part.splitlines()[0].split()
        if fields[4] == inode:
            flags = re.search(r"VmFlags: (.*)", part).group(1).split()
            found.append((int(fields[2], 16), {"rr", "hg"} & set(flags)))
    return sorted(found)


def open_log(path, **settings):
    return open_store(path, mapped_file_size_commit_log=LOG, **settings)


def fill(store, size):
    """Put so many bytes without waiting for the disk."""
    body = bytes(1 << 20)
    for _ in range(size >> 20):
        store.put("Fill", body, durability="page_cache")


def dirtied_by_puts(store, count=20):
    """Bytes that each of some puts which wait for the disk has made dirty."""
    store.put("Topic", b"body", durability="disk")
    before = dirtied_bytes()
    for _ in range(count):
        store.put("Topic", b"body", durability="disk")
    return (dirtied_bytes() - before) / count


def dirtied_bytes():
    """By this thread; other threads warm the next file up meanwhile."""
    text = Path("/proc/thread-self/io").read_text("ascii")
    return int(re.search(r"^write_bytes: (\d+)", text, re.MULTILINE).group(1))


def test_a_put_that_waits_for_the_disk_writes_pages_not_folios(store_path):
    with open_log(store_path, flush_disk_type="SYNC_FLUSH") as store:
        fill(store, 45 << 20)
        store.flush()
        assert dirtied_by_puts(store) < 16 * PAGE


def test_so_it_is_when_reading_has_filled_the_page_cache(store_path):
    with open_log(store_path) as store:
        fill(store, 45 << 20)
        log = store.log.queue.last.path
    os.sync()
    with log.open("rb") as file:
        while file.read(1 << 20):
            pass
    with open_log(store_path, flush_disk_type="SYNC_FLUSH") as store:
        assert dirtied_by_puts(store) < 16 * PAGE


def test_what_was_written_before_is_read_ahead(store_path):
    with open_log(store_path) as store:
        fill(store, 5 << 20)
    with open_log(store_path, flush_disk_type="SYNC_FLUSH") as store:
        store.put("Topic", b"body")
        assert advised(store.log.queue.last.path) == [(0, set()), (4 << 20, {"rr"})]


def test_a_full_file_is_read_ahead(store_path):
    settings = {"flush_disk_type": "SYNC_FLUSH", "mapped_file_size_commit_log": 1 << 20}
    with open_store(store_path, **settings) as store:
        for _ in range(3):
            store.put("Topic", bytes(600_000))
        full, written = store.log.queue.files[0], store.log.queue.last
        assert full is not written
        assert advised(full.path) == [(0, set())]
        assert advised(written.path) == [(0, {"rr"})]


def test_large_folios_where_a_flush_covers_many_records(store_path):
    with open_log(store_path, flush_disk_type="ASYNC_FLUSH") as store:
        store.put("Topic", b"body")
        assert advised(store.log.queue.last.path) == [(0, {"hg"})]
