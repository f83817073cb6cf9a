"""The disk refuses a flush: the store says so, and acknowledges nothing any more."""

import asyncio
import contextlib
import errno
import os
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from patience import TIMEOUT_S, until
from syncs import watched

import rmqcore
from crash.small_store import SETTINGS, check_against_log, numbers_in, put
from rmqcore import PutMessageError, PutMessageStatus, StoreNotWritableError
from rmqcore.derived import consume_queue_store, index_service
from rmqcore.files.index_file import IndexFile
from rmqcore.files.mapped_file import MappedFile

pytestmark = pytest.mark.engine


class Disk:
    """Refuses to flush from the moment that it is told to."""

    def __init__(self, monkeypatch):
        self.broken = False
        for method in ("flush", "sync"):
            self.wrap(monkeypatch, method)

    def wrap(self, monkeypatch, method):
        original = getattr(MappedFile, method)

        def refusing(file):
            if self.broken:
                raise OSError(errno.EIO, "Input/output error", str(file.path))
            return original(file)

        monkeypatch.setattr(MappedFile, method, refusing)


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


def check_refuses(store, path):
    """No put is taken any more, whatever the disk says now; the reason names call and file."""
    reason = store.why_not_writable()
    assert "Input/output error" in reason
    assert str(path) in reason
    for durability in (None, "disk", "page_cache"):
        with pytest.raises(StoreNotWritableError, match="Input/output error"):
            store.put("T0", b"x", durability=durability)
    result = store.put_message(rmqcore.Message("T0", b"x"))
    assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    depths = set()
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output error") as caught:
            store.flush()
        depths.add(len(caught.traceback))
    assert len(depths) == 1


def test_a_put_that_waits_for_the_disk_is_not_acknowledged(store_path, disk):
    store = rmqcore.open_store(store_path, flush_disk_type="SYNC_FLUSH", **SETTINGS)
    for number in range(30):
        assert put(store, number).durability == "disk"
    disk.broken = True
    with pytest.raises(PutMessageError, match="Input/output error"):
        put(store, 30)
    disk.broken = False  # a flush that works later proves nothing: the pages may be gone
    check_refuses(store, store_path)
    assert numbers_in(store)[:30] == list(range(30))
    with pytest.raises(OSError, match="Input/output error"):
        store.close()
    assert (store_path / "abort").exists()
    with rmqcore.open_store(store_path) as store:
        assert store.why_not_writable() is None
        assert numbers_in(store)[:30] == list(range(30))
        assert put(store, 31).ok
        check_against_log(store)


def test_the_background_flush_fails(store_path, disk):
    settings = {"flush_interval_commit_log_ms": 10, "flush_commit_log_least_pages": 0}
    store = rmqcore.open_store(store_path, **SETTINGS, **settings)
    disk.broken = True
    assert store.put("T0", b"0 " * 1).durability == "page_cache"
    until(store.why_not_writable, "the flush in the background is refused")
    disk.broken = False
    check_refuses(store, store_path)
    with pytest.raises(OSError, match="Input/output error"):
        store.close()
    with rmqcore.open_store(store_path) as store:
        assert [bytes(m.body) for m in store.messages()] == [b"0 "]


def test_consume_queues_cannot_be_flushed(store_path, monkeypatch):
    broken = []

    def sync(file):
        if broken:
            raise OSError(errno.EIO, "Input/output error", str(file.path))

    monkeypatch.setattr(MappedFile, "sync", sync)
    store = rmqcore.open_store(store_path, flush_interval_consume_queue_ms=10, **SETTINGS)
    broken.append(True)
    put(store, 0)
    until(store.why_not_writable, "the flush of the queues is refused")
    assert "consumequeue" in store.why_not_writable()
    with pytest.raises(StoreNotWritableError):
        put(store, 1)
    broken.clear()
    with pytest.raises(OSError, match="Input/output error"):
        store.close()
    assert (store_path / "abort").exists()
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        assert numbers_in(store) == [0]
        check_against_log(store)


def refuse_once(monkeypatch, owner, method, part):
    """The next sync of something below the directory ``part`` fails, later ones do as they do."""
    original, refused = getattr(owner, method), []

    def sync(it):
        path = it if isinstance(it, Path) else it.path
        if part in path.parts and not refused:
            refused.append(path)
            raise OSError(errno.EIO, "Input/output error", str(path))
        return original(it)

    monkeypatch.setattr(owner, method, sync)
    return refused


@pytest.mark.parametrize(
    ("owner", "method", "part"),
    [
        (MappedFile, "sync", "consumequeue"),
        (consume_queue_store, "sync_directory", "consumequeue"),
        (IndexFile, "flush", "index"),
        (index_service, "sync_directory", "index"),
    ],
)
def test_what_a_refused_flush_has_dropped_is_not_taken_as_stored(
    store_path, monkeypatch, owner, method, part
):
    store = rmqcore.open_store(store_path, **SETTINGS)
    assert store.parts.upkeep.runner.stop(store.parts.log_services.flush_queues)
    # a checkpoint is written
    store.flush()
    for number in range(30):
        put(store, number)
    store.max_queue_offset("T0", 0)
    before = (store_path / "checkpoint").read_bytes()[:24]
    refused = refuse_once(monkeypatch, owner, method, part)
    depths = []
    for _ in range(4):
        with pytest.raises(OSError, match="Input/output error") as caught:
            store.flush()
        depths.append(len(caught.traceback))
    # who is told again is told nothing of who was told before
    assert len(set(depths[1:])) == 1
    with pytest.raises(OSError, match="Input/output error"):
        store.close()
    assert len(refused) == 1
    assert (store_path / "abort").exists()
    after = (store_path / "checkpoint").read_bytes()[:24]
    number = 1 if part == "consumequeue" else 2
    assert struct.unpack(">3q", before)[number] == struct.unpack(">3q", after)[number]
    with rmqcore.open_store(store_path) as store:
        assert numbers_in(store) == list(range(30))
        check_against_log(store)


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENOSPC])
@pytest.mark.parametrize(
    ("number", "part"), [(1, "commitlog"), (2, "consumequeue"), (3, "index")], ids=str
)
def test_a_sync_that_fails_is_final_whatever_its_code(store_path, number, part, code):
    """Over a network or for a program a sync fails with codes that an opening has, too."""
    store = rmqcore.open_store(store_path, **SETTINGS)
    for service in store.parts.log_services.timed:
        assert store.parts.upkeep.runner.stop(service)
    put(store, 0)
    syncs = []

    def refuse(call, _):
        syncs.extend([call] * (call != "fsync"))
        return code if len(syncs) == number else None

    with watched(refuse), pytest.raises(OSError, match=os.strerror(code)):
        store.flush()
    reason = store.why_not_writable()
    assert os.strerror(code) in reason
    assert str(store_path / part) in reason
    with pytest.raises(OSError, match=os.strerror(code)):
        store.flush()
    with pytest.raises(OSError, match=os.strerror(code)):
        store.close()
    assert (store_path / "abort").exists()


def test_every_waiter_hears_of_it(store_path, disk):
    store = rmqcore.open_store(store_path, flush_disk_type="SYNC_FLUSH", **SETTINGS)
    acknowledged, refused = [], []

    def write(mark):
        for number in range(mark, 10**6, 16):
            try:
                put(store, number)
            except (PutMessageError, StoreNotWritableError) as error:
                refused.append(str(error))
                return
            acknowledged.append(number)

    threads = [threading.Thread(target=write, args=(mark,)) for mark in range(16)]
    for thread in threads:
        thread.start()
    until(lambda: len(acknowledged) >= 100, "a hundred puts are acknowledged")
    disk.broken = True
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    assert len(refused) == 16
    assert all("Input/output error" in reason for reason in refused)
    with pytest.raises(OSError, match="Input/output error"):
        store.close()
    disk.broken = False
    with rmqcore.open_store(store_path) as store:
        assert set(acknowledged) <= set(numbers_in(store))


def test_who_flushes_next_while_a_refusal_is_on_its_way_hears_of_it(store_path, disk, monkeypatch):
    store = rmqcore.open_store(store_path, **SETTINGS)
    for service in store.parts.log_services.timed:
        assert store.parts.upkeep.runner.stop(service)
    put(store, 0)
    disk.broken = True
    flush, refused = type(store.parts.files.writer).flush, threading.Event()
    second = []

    def flush_again():
        refused.wait(TIMEOUT_S)
        try:
            second.append(put(store, 1, durability="disk"))
        except (PutMessageError, StoreNotWritableError) as error:
            second.append(error)

    def flushing(writer):
        try:
            return flush(writer)
        except OSError:
            if not refused.is_set():
                # nobody has heard of the refusal yet; the disk tells of it only once
                disk.broken = False
                refused.set()
                other.join(TIMEOUT_S)
            raise

    other = threading.Thread(target=flush_again)
    monkeypatch.setattr(type(store.parts.files.writer), "flush", flushing)
    other.start()
    with pytest.raises(OSError, match="Input/output error"):
        store.flush()
    other.join()
    assert isinstance(second[0], PutMessageError), second
    with pytest.raises(OSError, match="Input/output error"):
        store.close()


def test_a_coroutine_that_waits_hears_of_it(store_path, disk):
    async def main():
        store = rmqcore.open_store(store_path, flush_disk_type="SYNC_FLUSH", **SETTINGS)
        assert (await store.put_async("T0", b"0 ")).durability == "disk"
        disk.broken = True
        with pytest.raises(PutMessageError, match="Input/output error"):
            await store.put_async("T0", b"1 1 ")
        with pytest.raises(StoreNotWritableError):
            await store.put_async("T0", b"2 2 2 ")
        with pytest.raises(OSError, match="Input/output error"):
            store.close()

    asyncio.run(main())


def test_a_slow_disk_times_out(store_path, monkeypatch):
    flush = MappedFile.flush
    begun, may_end = threading.Event(), threading.Event()

    def flushing(file):
        begun.set()
        may_end.wait(TIMEOUT_S)
        return flush(file)

    settings = SETTINGS | {"flush_disk_type": "SYNC_FLUSH", "sync_flush_timeout_ms": 20}
    with rmqcore.open_store(store_path, **settings) as store:
        for service in store.parts.log_services.timed:
            assert store.parts.upkeep.runner.stop(service)
        answers = []
        leader = threading.Thread(target=lambda: answers.append(store.put_message(message())))
        with monkeypatch.context() as patch:
            patch.setattr(MappedFile, "flush", flushing)
            leader.start()
            assert begun.wait(TIMEOUT_S)
            late = store.put_message(message())
            assert answers == []
            may_end.set()
            leader.join()
        assert late.status is PutMessageStatus.FLUSH_DISK_TIMEOUT
        assert late.durability == "page_cache"
        assert [answer.durability for answer in answers] == ["disk"]
        assert store.why_not_writable() is None
        assert store.put_message(message()).durability == "disk"
        assert len(list(store.messages())) == 3


def message():
    return rmqcore.Message("T0", b"x", queue_id=0)


@pytest.mark.parametrize(
    "name",
    ["topics", "consumerOffset", "delayOffset", "deletedTopics", "storeMark"],
)
def test_what_a_kill_left_of_a_small_file_goes_with_the_next_opening(store_path, name):
    with rmqcore.open_store(store_path, deliver_delayed=True, **SETTINGS) as store:
        put(store, 0)
    left = store_path / "config" / f"{name}.json.tmp"
    left.write_text('{"half')
    rmqcore.open_store(store_path, mode="r").close()
    assert left.exists()
    with rmqcore.open_store(store_path, deliver_delayed=True, **SETTINGS):
        assert not left.exists()


#: Puts until it hears of a refusal; says what was acknowledged.
TRACED = """
import os, sys, rmqcore
from crash.small_store import SETTINGS, put
store = rmqcore.open_store(sys.argv[1], flush_disk_type="SYNC_FLUSH", warm_mapped_file_enable=False,
    **SETTINGS)
try:
    for number in range(200):
        put(store, number)
        print(number, flush=True)
except rmqcore.PutMessageError as error:
    assert "Input/output error" in str(error), error
else:
    sys.exit("no put was refused")
assert "Input/output error" in store.why_not_writable()
os._exit(0)
"""


@pytest.mark.process
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("when", [3, 17])
def test_the_system_refuses_msync(store_path, when):
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject=msync:error=EIO:when={when}",
         sys.executable, "-c", TRACED, str(store_path)],
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    if b"PTRACE" in done.stderr or b"Operation not permitted" in done.stderr:
        pytest.skip("strace is not allowed here")
    assert done.returncode == 0, done.stderr.decode()
    acknowledged = [int(line) for line in done.stdout.split()]
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        assert numbers_in(store)[: len(acknowledged)] == acknowledged
        check_against_log(store)


@pytest.mark.parametrize("refused", [1, 2, 3])
def test_an_opening_that_the_disk_refuses_gives_the_store_back(tmp_path, refused):
    """Whoever tries again in the same process would be told for ever that it is open."""
    with rmqcore.open_store(tmp_path, **SETTINGS) as store:
        put(store, 0)
    left = refused

    def refuse(_name, _fd):
        nonlocal left
        left -= 1
        return errno.EIO if left <= 0 else None

    with contextlib.suppress(OSError), watched(refuse):
        rmqcore.open_store(tmp_path, **SETTINGS).close()
    assert left <= 0
    with rmqcore.open_store(tmp_path, **SETTINGS) as store:
        assert len(list(store.messages())) == 1
