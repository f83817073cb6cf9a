"""The world of this process: held time reaches native code, syncs can be watched and refused."""

import errno
import os
import threading
from dataclasses import FrozenInstanceError

import pytest

import rmqcore
from rmqcore.native.base._mapped import MappedRegion
from rmqcore.native.base._world import held_time, pass_time
from rmqcore.world import (
    REAL,
    World,
    hold_time,
    monotonic_s,
    release_time,
    sleep,
    sync_data,
    sync_fd,
    wall_clock_ms,
    wall_clock_ns,
    watch_syncs,
)

SMALL = {"mapped_file_size_commit_log": 1 << 20}
MOMENT_NS = 1_700_000_000_123_456_789


@pytest.fixture(autouse=True)
def real_again():
    yield
    release_time()
    watch_syncs(None)


class Watcher:
    """Notes every sync of this thread; the one of number `fails_at` fails."""

    def __init__(self, fails_at=None, failure=errno.EIO):
        self.calls, self.results = [], []
        self.fails_at, self.failure = fails_at, failure
        self.thread = threading.get_ident()

    def before(self, call, fd, at, size, path):
        if threading.get_ident() != self.thread:
            return 0
        self.calls.append((call, fd, at, size))
        return self.failure if len(self.calls) - 1 == self.fails_at else 0

    def after(self, call, fd, at, size, result):
        if threading.get_ident() == self.thread:
            self.results.append(result)


class Refuser:
    """Refuses to sync what is mapped."""

    def before(self, call, fd, at, size, path):
        return errno.EIO if call == "msync" else 0

    def after(self, call, fd, at, size, result):
        assert result == (-1 if call == "msync" else 0)


@pytest.mark.logic
def test_held_clocks_stand_until_they_are_released():
    hold_time(MOMENT_NS, 5_000_000_000)
    assert (wall_clock_ns(), wall_clock_ms()) == (MOMENT_NS, MOMENT_NS // 1_000_000)
    assert monotonic_s() == 5.0
    assert (REAL.clock_ms(), REAL.monotonic_s()) == (MOMENT_NS // 1_000_000, 5.0)
    release_time()
    assert wall_clock_ns() > MOMENT_NS
    assert held_time() == (0, 0)


@pytest.mark.logic
def test_each_clock_is_held_alone():
    hold_time(MOMENT_NS)
    assert wall_clock_ns() == MOMENT_NS
    assert not pass_time(3600)
    assert held_time() == (MOMENT_NS, 0)
    hold_time(0, 7)
    assert wall_clock_ns() > MOMENT_NS
    with pytest.raises(ValueError, match="above 0"):
        hold_time(-1)


@pytest.mark.logic
def test_a_sleep_moves_held_time_on():
    hold_time(MOMENT_NS, 1_000_000_000)
    sleep(3600)
    assert held_time() == (MOMENT_NS + 3600 * 10**9, 3601 * 10**9)
    sleep(-1)
    assert held_time() == (MOMENT_NS + 3600 * 10**9, 3601 * 10**9)


@pytest.mark.logic
def test_a_world_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        REAL.sleep = None
    assert World() == REAL


@pytest.mark.engine
def test_records_are_of_the_held_time(store_path):
    hold_time(MOMENT_NS)
    with rmqcore.open_store(store_path, **SMALL) as store:
        store.put("T", b"body")
        (message,) = store.get_message("T", 0, 0).messages
    assert message.store_timestamp_ms == message.born_timestamp_ms == MOMENT_NS // 1_000_000


@pytest.mark.engine
def test_a_put_whose_sync_is_refused_makes_the_store_read_only(store_path):
    settings = {**SMALL, "flush_disk_type": "SYNC_FLUSH"}
    store = rmqcore.open_store(store_path, **settings)
    store.put("T", b"body")
    watch_syncs(Refuser())
    with pytest.raises(rmqcore.PutMessageError, match="Input/output"):
        store.put("T", b"body")
    watch_syncs(None)
    with pytest.raises(rmqcore.StoreNotWritableError):
        store.put("T", b"body")
    with pytest.raises(OSError, match="Input/output"):
        store.close()


@pytest.mark.logic
def test_every_kind_of_sync_is_seen_before_and_after(tmp_path):
    (tmp_path / "file").write_bytes(bytes(8192))
    fd = os.open(tmp_path / "file", os.O_RDWR)
    region = MappedRegion(fd, 8192)
    address = None
    watcher = Watcher()
    watch_syncs(watcher)
    sync_fd(fd)
    sync_data(fd)
    region.sync(4096, 100)
    region.warm_up(sync_every=4096, way="touch")
    (_, _, address, _) = watcher.calls[-2]
    assert watcher.calls == [
        ("fsync", fd, 0, 0),
        ("fdatasync", fd, 0, 0),
        ("msync", -1, address + 4096, 100),
        ("msync", -1, address, 4096),
        ("msync", -1, address + 4096, 4096),
    ]
    assert watcher.results == [0] * 5
    watcher.fails_at, watcher.failure = 5, errno.ENOSPC
    with pytest.raises(OSError, match="No space"):
        sync_fd(fd)
    assert watcher.results[5] == -1
    os.close(fd)
    with pytest.raises(OSError, match="Bad file"):
        sync_data(fd)
    assert watcher.results[6] == -1


@pytest.mark.logic
def test_what_a_watcher_raises_ends_the_sync(tmp_path):
    class Broken:
        def before(self, call, fd, at, size, path):
            raise RuntimeError(call)

    (tmp_path / "file").write_bytes(bytes(4096))
    fd = os.open(tmp_path / "file", os.O_RDWR)
    region = MappedRegion(fd, 4096)
    watch_syncs(Broken())
    with pytest.raises(RuntimeError, match="fsync"):
        sync_fd(fd)
    with pytest.raises(RuntimeError, match="msync"):
        region.sync()
    with pytest.raises(RuntimeError, match="msync"):
        region.warm_up(sync_every=4096, way="touch")
    os.close(fd)
    region.close()
