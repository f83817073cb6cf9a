"""What the system refuses without any loss is tried again, and the store goes on by itself."""

import contextlib
import errno
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from patience import rounds, until
from syncs import watched

import rmqcore
from crash.small_store import SETTINGS, check_against_log, numbers_in, put
from rmqcore import PutMessageStatus
from rmqcore.derived import consume_queue_store, index_service
from rmqcore.files import commit_log_writer, index_file, kept_dirty, mapped_file
from rmqcore.files.index_file import IndexFile
from rmqcore.files.kept_dirty import keep_dirty
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.files.store_checkpoint import StoreCheckpoint
from rmqcore.files.zeros import PAGE_SIZE
from rmqcore.services import flush, runner

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(runner, "RETRY_INTERVAL_S", 0.01)


def refusing(monkeypatch, owner, method, code, where=""):
    """A list: as long as something is in it, the system refuses a method what it asks for."""
    refuses, original = [], getattr(owner, method)

    def call(*arguments, **named):
        path = str(getattr(arguments[0], "path", arguments[0]))
        if refuses and where in path:
            raise OSError(code, os.strerror(code), path)
        return original(*arguments, **named)

    monkeypatch.setattr(owner, method, call)
    return refuses


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.EACCES])
@pytest.mark.parametrize(
    ("owner", "method", "where"),
    [
        (MappedFile, "sync", "consumequeue"),
        (MappedFile, "flush", "commitlog"),
        (consume_queue_store, "sync_directory", "consumequeue"),
        (IndexFile, "flush", "index"),
        (index_service, "sync_directory", "index"),
        (StoreCheckpoint, "flush", "checkpoint"),
    ],
)
def test_a_file_that_cannot_be_opened_for_a_flush_ends_nothing(
    store_path, monkeypatch, code, owner, method, where
):
    """No descriptor for a moment, and no put was taken until somebody opened the store anew."""
    refuses = refusing(monkeypatch, owner, method, code, where)
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        for number in range(30):
            put(store, number)
        store.parts.log_services.reput.catch_up()
        refuses.append(True)
        with pytest.raises(OSError, match=os.strerror(code)):
            store.flush()
        assert store.why_not_writable() is None
        refuses.clear()
        put(store, 30)
        assert store.flush() == store.max_phy_offset
    with rmqcore.open_store(store_path) as store:
        assert store.recovery_report.clean_shutdown
        assert numbers_in(store) == list(range(31))
        check_against_log(store)


def test_what_waits_for_no_disk_is_flushed_once_the_system_allows_it(store_path, monkeypatch):
    """Its only flush was refused; nobody was told of it until somebody else had put."""
    monkeypatch.setattr(flush, "_AGAIN_S", 0.01)
    flush_file, refused = MappedFile.flush, []

    def refusing_twice(file):
        if len(refused) < 2:
            refused.append(file)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(file.path))
        return flush_file(file)

    monkeypatch.setattr(MappedFile, "flush", refusing_twice)
    with rmqcore.open_store(store_path, flush_disk_type="SYNC_FLUSH", **SETTINGS) as store:
        for service in store.parts.log_services.timed:
            assert store.parts.upkeep.runner.stop(service)
        arrived = []
        store.on_arrival(arrived.extend)
        store.put("T0", b"x", durability="page_cache")
        until(lambda: arrived, "the message is on the disk, and can be read")
        assert len(refused) == 2


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_a_checkpoint_that_cannot_be_written_is_written_later(store_path, monkeypatch, code):
    """It is written whole each time, so what was refused once is lost with nothing."""
    settings = SETTINGS | {"flush_interval_consume_queue_ms": 10}
    refuses = refusing(monkeypatch, StoreCheckpoint, "flush", code)
    with rmqcore.open_store(store_path, **settings) as store:
        # the first is written
        store.flush()
        refuses.append(True)
        put(store, 0)
        rounds(store.parts.log_services.flush_queues, 2)
        with pytest.raises(OSError, match=os.strerror(code)):
            store.flush()
        assert store.why_not_writable() is None
        before = (store_path / "checkpoint").read_bytes()
        refuses.clear()
        put(store, 1)
        rounds(store.parts.log_services.flush_queues, 2)
        assert store.flush() == store.max_phy_offset
        assert (store_path / "checkpoint").read_bytes() != before


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.EACCES, errno.ENOSPC])
@pytest.mark.parametrize("ahead", [0, 2])
def test_a_log_file_that_cannot_be_made_is_made_later(store_path, monkeypatch, code, ahead):
    """The service that makes it ahead of need ended, and no put was taken any more."""
    refuses = refusing(monkeypatch, MappedFile, "create", code, "commitlog")
    with rmqcore.open_store(store_path, allocate_ahead=ahead, **SETTINGS) as store:
        put(store, 0)
        refuses.append(True)
        acknowledged = [0]
        for number in range(1, 1000):
            receipt = store.put_message(rmqcore.Message("T0", b"%d " % number))
            if not receipt.ok:
                break
            acknowledged.append(number)
        assert receipt.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        assert os.strerror(code) in receipt.reason
        with pytest.raises(rmqcore.StoreNotWritableError, match=os.strerror(code)):
            store.put("T0", b"refused")
        assert store.why_not_writable() is None
        refuses.clear()
        assert store.put("T0", b"1000 ").ok
        acknowledged.append(1000)
    with rmqcore.open_store(store_path) as store:
        assert [int(bytes(message.body)) for message in store.messages()] == acknowledged


def test_a_log_file_that_could_not_be_mapped_is_not_made(store_path, monkeypatch):
    made, refuses = [], []
    set_length, real = MappedFile._set_length, mapped_file.MappedRegion

    def region(*arguments, path, **named):
        if refuses and "commitlog" in str(path):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(path))
        return real(*arguments, path=path, **named)

    def counted(file, *arguments, **named):
        if file.path.parent.name == "commitlog":
            made.append(file.path.name)
        set_length(file, *arguments, **named)

    monkeypatch.setattr(MappedFile, "_set_length", counted)
    monkeypatch.setattr(mapped_file, "MappedRegion", region)
    with rmqcore.open_store(store_path, allocate_ahead=0, **SETTINGS) as store:
        assert put(store, 0).ok
        made.clear()
        refuses.append(True)
        for number in range(1, 1000):
            with contextlib.suppress(rmqcore.StoreNotWritableError):
                assert put(store, number).ok
                continue
            break
        for _ in range(3):
            with pytest.raises(rmqcore.StoreNotWritableError, match="Cannot allocate memory"):
                put(store, number)
        assert not made
        assert numbers_in(store) == list(range(number))
        refuses.clear()
        assert put(store, number).ok
        assert numbers_in(store) == list(range(number + 1))


def test_a_queue_file_is_made_where_nothing_can_be_mapped(store_path, monkeypatch):
    real = mapped_file.MappedRegion

    def region(*arguments, path, **named):
        if "consumequeue" in str(path):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(path))
        return real(*arguments, path=path, **named)

    monkeypatch.setattr(mapped_file, "MappedRegion", region)
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        assert store.put("T", b"x").ok
        assert [bytes(message.body) for message in store.messages("T", 0)] == [b"x"]


def test_an_index_file_that_cannot_be_removed_goes_with_the_next_round(store_path, monkeypatch):
    """It was forgotten instead, and lay there until the store was opened again."""
    refuses = refusing(monkeypatch, IndexFile, "destroy", errno.EIO)
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        for number in range(200):
            put(store, number)
        index = store.parts.files.index
        store.flush()
        names = [file.path.name for file in index.files]
        assert len(names) > 3
        end = index.files[1].header.end_phy_offset + 1
        refuses.append(True)
        with pytest.raises(OSError, match="Input/output error"):
            index.delete_before(end)
        assert [file.path.name for file in index.files] == names
        assert store.query_message("T0", "k0").messages
        refuses.clear()
        assert index.delete_before(end) == 2
        assert sorted(path.name for path in (store_path / "index").iterdir()) == names[2:]


def test_a_queue_whose_file_cannot_be_removed_keeps_no_other_from_it(store_path, monkeypatch):
    refuses = refusing(monkeypatch, MappedFile, "destroy", errno.EIO, "consumequeue/T0/0")
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        for number in range(100):
            put(store, number)
        queues = store.parts.files.consume_queues
        store.flush()

        def first_files():
            return [queues.find(topic, 0).queue.files[0].file_from_offset for topic in ("T0", "T1")]

        assert first_files() == [0, 0]
        refuses.append(True)
        with pytest.raises(OSError, match="Input/output error"):
            queues.delete_before(store.max_phy_offset)
        assert first_files() == [0, 400]
        refuses.clear()
        queues.delete_before(store.max_phy_offset)
        assert first_files() == [400, 400]


def test_a_full_index_file_that_does_not_reach_the_disk_ends_puts_and_no_dispatch(
    store_path, monkeypatch
):
    """Dispatch would try it again for ever, and a later sync that works proves nothing."""
    refuses = refusing(monkeypatch, IndexFile, "flush", errno.EIO)
    store = rmqcore.open_store(store_path, flush_interval_consume_queue_ms=10, **SETTINGS)
    refuses.append(True)
    acknowledged = []
    while not store.why_not_writable():
        with contextlib.suppress(rmqcore.StoreNotWritableError):
            put(store, len(acknowledged))
            acknowledged.append(len(acknowledged))
    assert "open it again" in store.why_not_writable()
    refuses.clear()
    assert numbers_in(store) == acknowledged
    with pytest.raises(OSError, match="Input/output error"):
        store.close()
    with rmqcore.open_store(store_path) as store:
        assert numbers_in(store) == acknowledged
        check_against_log(store)


def dirty_bytes(path):
    """How much of a mapped file this process has written to, as the system counts it."""
    found, is_it, inode = 0, False, str(path.stat().st_ino)
    for line in Path("/proc/self/smaps").read_text("utf-8").splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_it = line.split()[4] == inode
        elif is_it and line.startswith(("Shared_Dirty:", "Private_Dirty:")):
            found += int(line.split()[1])
    return found << 10


@pytest.mark.parametrize(
    ("part", "number", "where"),
    [("commitlog", 1, commit_log_writer), ("0", 2, kept_dirty), ("index", 3, index_file)],
    ids=["log", "queue", "index"],
)
def test_what_a_sync_has_not_brought_to_the_disk_is_still_to_be(
    store_path, part, number, where, monkeypatch
):
    """The system took it for written, showed it to the next opening, and synced nothing of it."""
    kept, syncs = [], []

    def keep(file, error, start=0):
        before = file.path.read_bytes()
        keep_dirty(file, error, start)
        kept.append((file.path.parent.name, file.path.read_bytes() == before))

    monkeypatch.setattr(where, "keep_dirty", keep)
    store = rmqcore.open_store(store_path, **SETTINGS)
    for service in store.parts.log_services.timed:
        assert store.parts.upkeep.runner.stop(service)
    put(store, 0)
    store.parts.log_services.reput.catch_up()

    def refuse(call, _):
        syncs.extend([call] * (call != "fsync"))
        return errno.EIO if len(syncs) == number else None

    with watched(refuse), pytest.raises(OSError, match="Input/output error"):
        store.flush()
    assert kept == [(part, True)]
    with pytest.raises(OSError, match="Input/output error"):
        store.close()


def test_an_opening_whose_sync_fails_leaves_it_to_the_next_one(store_path, tmp_path, monkeypatch):
    """The system tells of a page that it could not write once: the next opening's sync succeeds."""
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        put(store, 0)
        shutil.copytree(store_path, tmp_path / "killed")
    log, kept = tmp_path / "killed" / "commitlog" / f"{0:020d}", []
    monkeypatch.setattr(kept_dirty, "keep_dirty", lambda file, _: kept.append(file.path))

    def refuse(call, fd):
        return errno.EIO if os.path.samestat(os.fstat(fd), log.stat()) else None

    with watched(refuse), pytest.raises(OSError, match="Input/output error"):
        rmqcore.open_store(tmp_path / "killed", flush_disk_type="SYNC_FLUSH", **SETTINGS)
    assert kept == [log]


def test_only_what_is_in_memory_is_brought_to_the_disk_again(tmp_path):
    """A hole gets no page, which might find no room; what is on the disk is not written again."""
    file = MappedFile(tmp_path / "file", 16 * PAGE_SIZE, 0, OpenFiles())
    file.create(whole=False)
    for page in (2, 3, 7):
        file.write(page * PAGE_SIZE, b"x")
    keep_dirty(file, OSError(errno.EIO, "Input/output error"), 3 * PAGE_SIZE + 9)
    assert dirty_bytes(file.path) == 2 * PAGE_SIZE
    keep_dirty(file, OSError(errno.EIO, "Input/output error"))
    assert dirty_bytes(file.path) == 3 * PAGE_SIZE
    file.close()


#: Has a part of a file kept that the disk does not give any more: it was cut off.
UNREADABLE = """
import errno, os, sys
from pathlib import Path
from rmqcore.files.kept_dirty import keep_dirty
from rmqcore.files.mapped_file import MappedFile, OpenFiles
file = MappedFile(Path(sys.argv[1]), 1 << 16, 0, OpenFiles())
file.create(whole=True)
file.write(0, bytes(1 << 16))
file.region
os.truncate(file.path, 1 << 15)
keep_dirty(file, OSError(errno.EIO, "Input/output error"))
"""


@pytest.mark.process
def test_a_disk_that_gives_nothing_any_more_ends_no_process(tmp_path):
    """Each page of the file was read, and what cannot be read by a mapping is a signal."""
    done = subprocess.run(
        [sys.executable, "-c", UNREADABLE, str(tmp_path / "file")],
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()


def test_an_acknowledgement_behind_half_a_record_that_stayed_survives_a_kill(
    store_path, tmp_path, monkeypatch
):
    """No entry counted behind the half record of one that found no room."""
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        for number in range(3):
            store.put("T", b"%d" % number)
        consumer = rmqcore.Consumer(store, "G", {"T": "*"})
        first, second, _ = consumer.receive(max_messages=3)
        with monkeypatch.context() as patched:
            write = os.write
            patched.setattr(os, "write", lambda fd, raw: write(fd, bytes(raw)[: len(raw) // 2]))
            refusing(patched, os, "ftruncate", errno.EIO).append(True)
            with pytest.raises(rmqcore.DiskFullError):
                consumer.ack(first)
        consumer.ack(second)
        shutil.copytree(store_path, tmp_path / "killed")
        consumer.close()
    with rmqcore.open_store(tmp_path / "killed", **SETTINGS) as store:
        consumer = rmqcore.Consumer(store, "G", {"T": "*"})
        assert [each.ready + each.leased for each in consumer.lag()] == [2]
        consumer.close()


def test_leases_whose_journal_was_not_synced_once_are_written_anew(store_path):
    """A later sync of the same file proves nothing of what the failed one has dropped."""
    with rmqcore.open_store(store_path, **SETTINGS) as store:
        for number in range(4):
            store.put("T", b"%d" % number)
        consumer = rmqcore.Consumer(store, "G", {"T": "*"})
        consumer.receive(max_messages=4)
        journal = store_path / "config" / "consumerLeases.log"

        def refuse(path, call, fd):
            return errno.EIO if os.path.samestat(os.fstat(fd), path.stat()) else None

        # then the name of the new one, in whose place a power cut may bring the former one back
        for path in (journal, journal.parent):
            with watched(partial(refuse, path)), pytest.raises(OSError, match="Input/output error"):
                store.consumer_offsets.commit("T", "G", 0, 1)
        before = journal.stat().st_ino
        synced = []

        def note(call, fd):
            synced.append(os.fstat(fd).st_ino)

        with watched(note):
            store.consumer_offsets.commit("T", "G", 0, 2)
        after = journal.stat().st_ino
        assert after != before
        assert before not in synced
        assert after in synced
        consumer.close()


@pytest.mark.parametrize("opens", [rmqcore.open_store, rmqcore.open_shared])
@pytest.mark.parametrize("code", [errno.EROFS, errno.EIO, errno.EDQUOT])
def test_a_store_with_leases_is_closed_on_a_disk_that_refuses_everything(
    store_path, monkeypatch, opens, code
):
    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    store = opens(store_path)
    for number in range(3):
        store.put("T", b"%d" % number)
    store.lease("g", {"T": "*"}, max_messages=2)
    with monkeypatch.context() as patch:
        for call in ("write", "unlink", "replace", "rename"):
            patch.setattr(os, call, refuse)
        with pytest.raises(OSError, match=re.escape("[Errno")):
            store.lease("g", {"T": "*"})
        assert [message.body for message in store.messages("T", 0)] == [b"0", b"1", b"2"]
        with pytest.raises(OSError, match=re.escape("[Errno")):
            store.close()
        store.close()
    with opens(store_path) as store:
        assert [message.body for message in store.messages("T", 0)] == [b"0", b"1", b"2"]
        assert store.put("T", b"3").ok
