"""What the trace of a store tells of its puts, files, flushes, refusals and openings."""

import errno
import os
import shutil
import threading
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest
from traces import traces_of

import rmqcore
from rmqcore import ConfigError, CorruptStoreError, DiskFullError, PutMessageError
from rmqcore.doctor.kept_files import stamps_of
from rmqcore.files.mapped_file import MappedFile
from rmqcore.files.mapped_file_queue import MappedFileQueue
from rmqcore.files.store_dir import StoreDir
from rmqcore.files.store_trace import StoreTrace, read_trace

pytestmark = pytest.mark.engine

FILE_SIZE = 65_536
HOUR_MS = 3_600_000
#: nothing is flushed, and nothing deleted, but what a test asks for
QUIET = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "allocate_ahead": 0,
    "warm_mapped_file_enable": False,
    "flush_interval_commit_log_ms": HOUR_MS,
    "flush_commit_log_thorough_interval_ms": HOUR_MS,
    "flush_interval_consume_queue_ms": HOUR_MS,
    "clean_resource_interval_ms": HOUR_MS,
}


def opened(path, **settings):
    return rmqcore.open_store(path, **QUIET | settings)


def of(rows, *events):
    """The rows of some events."""
    return [row for row in rows if row.event in events]


def count_of(rows, event):
    return sum(row.count for row in of(rows, event))


def since_opening(store):
    """The rows of this life, from its `open` on."""
    rows = store.trace()
    return rows[max(at for at, row in enumerate(rows) if row.event == "open") :]


def test_the_life_of_a_store(store_path):
    with opened(store_path) as store:
        for _ in range(3):
            receipt = store.put("T", b"x")
        assert store.get_message("T", 0, 0).messages
        end = store.max_phy_offset
        assert receipt.phy_offset < store.flush() == end
    rows = store.trace()
    assert of(rows, "open")[0].count == os.getpid()
    assert of(rows, "open")[0].words == "the store was closed in order"
    (verdict,) = of(rows, "verdict")
    assert (verdict.count, verdict.log_end, verdict.words) == (0, 0, "clean from 0")
    assert count_of(rows, "put") == 3
    assert count_of(rows, "dispatch") == end
    (flush,) = of(rows, "flush")
    assert (flush.count, flush.log_end, flush.flushed, flush.dispatched) == (end, end, end, end)
    assert of(rows, "mark")[-1].words == f"the log's end was {end}"
    assert of(rows, "checkpoint")
    assert (rows[-1].event, rows[-1].words) == ("close", "in order")
    assert (rows[-1].log_end, rows[-1].flushed, rows[-1].dispatched) == (end, end, end)
    assert read_trace(store_path / "config/storeTrace") == rows
    with rmqcore.open_store(store_path, mode="r") as reader:
        assert reader.trace() == rows


def test_the_next_opening_goes_on_in_the_same_trace(store_path):
    with opened(store_path) as store:
        store.put("T", b"x")
    before = store.trace()
    with opened(store_path) as store:
        assert store.trace()[: len(before)] == before
        assert of(since_opening(store), "verdict")[0].count == 1
        store.put("T", b"x")
        assert count_of(since_opening(store), "put") == 1


def test_each_file_that_the_log_goes_on_in_is_a_row(store_path):
    with opened(store_path) as store:
        while len(store.log.queue.files) < 4:
            store.put("T", b"x" * 3000)
        rolls = of(store.trace(), "roll")
        assert [row.words for row in rolls] == [f"to {n * FILE_SIZE:020d}" for n in (1, 2, 3)]
        assert [row.log_end for row in rolls] == [n * FILE_SIZE for n in (1, 2, 3)]
        assert count_of(store.trace(), "put") == len(list(store.messages()))


def test_a_pool_that_is_committed_is_a_row(store_path):
    settings = {"transient_store_pool_enable": True, "commit_interval_commit_log_ms": HOUR_MS}
    with opened(store_path, flush_disk_type="ASYNC_FLUSH", **settings) as store:
        store.put("T", b"x")
        end = store.parts.files.writer.commit()
        store.parts.files.writer.commit()
        assert count_of(store.trace(), "commit") == end
        assert len(of(store.trace(), "commit")) == 1


def test_a_topic_that_is_deleted_is_a_row(store_path):
    with opened(store_path) as store:
        store.put("Gone", b"x")
        store.delete_topic("Gone")
        (row,) = of(store.trace(), "topic")
        assert row.words == "Gone was deleted"


def test_each_log_file_that_retention_deletes_is_a_row(store_path):
    with opened(store_path, retention_bytes=2 * FILE_SIZE) as store:
        while len(store.log.queue.files) < 5:
            store.put("T", b"x" * 3000)
        store.delete_expired_files()
        gone = [row.words for row in of(store.trace(), "expired")]
        assert gone == [f"{n * FILE_SIZE:020d}" for n in range(len(gone))]
        assert store.log.min_offset == len(gone) * FILE_SIZE > 0


def test_what_a_slave_appends_counts_as_put(tmp_path):
    with opened(tmp_path / "master") as master:
        for number in range(5):
            master.put("T", b"%d" % number)
        data = bytes(master.followed_log.bytes_at(0, master.max_phy_offset))
    with opened(tmp_path / "slave", broker_role="SLAVE") as slave:
        slave.followed_log.append_data(data, 0)
        rows = slave.trace()
    assert count_of(rows, "put") == 5
    assert of(rows, "put")[-1].log_end == len(data)
    assert of(rows, "roll")[0].words == f"the log begins with {0:020d}"


# ---- what recovery finds


def killed(path, target, *, cut=0):
    """A copy of an open store, as a kill leaves it, with so many bytes gone from its log's end."""
    shutil.copytree(path, target)
    with rmqcore.open_store(path, mode="r") as reader:
        end = reader.max_phy_offset
    with (target / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(end - cut)
        file.write(bytes(cut))
    return target


def test_the_verdict_on_a_torn_tail(tmp_path):
    with opened(tmp_path / "s") as store:
        for _ in range(3):
            receipt = store.put("T", b"x" * 500)
        end = store.max_phy_offset
        copy = killed(tmp_path / "s", tmp_path / "copy", cut=300)
    with opened(copy) as store:
        rows = since_opening(store)
        report = store.recovery_report
    assert rows[0].words == "the store was not closed"
    (verdict,) = of(rows, "verdict")
    left = end - receipt.phy_offset - 300
    assert report.dropped_bytes == left
    assert verdict.words.startswith(f"torn from 0, {left} bytes cut off")
    assert (verdict.count, verdict.log_end) == (2, receipt.phy_offset)


def test_an_opening_that_is_refused_says_why(store_path):
    with opened(store_path) as store:
        for _ in range(3):
            store.put("T", b"x" * 500)
    with (store_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(4)
        file.write(b"\xff" * 4)
    with pytest.raises(CorruptStoreError):
        opened(store_path)
    last = read_trace(store_path / "config/storeTrace")[-1]
    assert last.event == "close"
    assert last.words.startswith("not opened: Corrupt")
    assert " at 0: " in last.words


# ---- what is refused


def test_a_flush_that_fails_is_told_with_the_flag_that_it_raises(store_path, monkeypatch):
    def broken(file):
        raise OSError(errno.EIO, "Input/output error", str(file.path))

    with opened(store_path, flush_disk_type="SYNC_FLUSH") as store:
        store.put("T", b"x")
        with monkeypatch.context() as patch:
            patch.setattr(MappedFile, "flush", broken)
            with pytest.raises(PutMessageError):
                store.put("T", b"x")
        rows = [row for row in store.trace() if row.event in ("refused", "flag")]
        with pytest.raises(OSError, match="Input/output"):
            store.close()
    refused, flag = rows
    assert refused.words == "a flush: OSError: Input/output error"
    assert refused.flushed < refused.log_end
    assert flag.count == 0x02
    assert flag.words.startswith("a background service ended: OSError: [Errno 5]")
    last = store.trace()[-1]
    assert (last.event, last.words) == ("close", "the next opening recovers")


def test_a_log_file_that_finds_no_room_is_one_row_however_often_it_is_tried(
    store_path, monkeypatch
):
    append_file = MappedFileQueue.append_file

    def full(queue, *arguments):
        # others than the log have room: what they note would stand between two refusals
        if queue.directory.name == "commitlog":
            raise DiskFullError(queue.directory)
        return append_file(queue, *arguments)

    with opened(store_path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(MappedFileQueue, "append_file", full)
            for _ in range(100):
                store.put_message(rmqcore.Message("T", b"x" * 3000))
        trace = store.trace()
        refused = {row.words for row in of(trace, "refused")}
        assert refused == {"the next log file: DiskFullError: no space left"}
        # a service may note something in between
        pairs = [(before.event, after.event) for before, after in pairwise(trace)]
        assert ("refused", "refused") not in pairs
        while not of(store.trace(), "roll"):
            store.put("T", b"x" * 3000)


def test_a_flag_that_goes_down_is_told_too(store_path):
    with opened(store_path) as store:
        store.parts.health.dispatch_refused(DiskFullError("/a/b"))
        store.parts.health.dispatch_refused(DiskFullError("/a/b"))
        store.parts.health.dispatch_refused(None)
        flags = of(store.trace(), "flag")
    assert [row.count for row in flags] == [0x40, 0]
    assert flags[0].words.startswith("no room for consume queues or index")
    assert flags[1].words == "none is up"


# ---- what it costs, and where it cannot be kept


def test_a_put_calls_nothing_of_the_trace(store_path, monkeypatch):
    calls, me = [], threading.get_ident()

    def counted(method):
        def counting(trace, *arguments, **named):
            if threading.get_ident() == me:
                calls.append(trace.path)
            return method(trace, *arguments, **named)

        return counting

    for name in ("note", "dispatched", "_sum_up", "_add"):
        monkeypatch.setattr(StoreTrace, name, counted(getattr(StoreTrace, name)))
    with opened(store_path, mapped_file_size_commit_log=1 << 22) as store:
        assert store.parts.trace.path in calls
        calls.clear()
        for _ in range(1000):
            store.put("T", b"x")
            store.put_message(rmqcore.Message("T", b"x"))
            store.put_messages([rmqcore.Message("T", b"x"), rmqcore.Message("T", b"y")])
        # a store of another test may be closed by the garbage collector
        assert store.parts.trace.path not in calls
        assert count_of(store.trace(), "put") == 4000


@pytest.mark.measure
def test_what_a_row_costs(store_path, figure):
    with opened(store_path) as store:
        note, count = store.parts.trace.note, 20_000
        for _ in range(1000):
            note("flush", 5, "words")
        began = time.thread_time()
        for _ in range(count):
            note("flush", 5, "words")
        figure("a row", (time.thread_time() - began) / count * 1e6, "us", at_most=50)


@pytest.mark.parametrize("what", ["directory", "refused", "unreadable"])
def test_a_store_that_cannot_keep_its_trace_has_it_in_memory(store_path, monkeypatch, what):
    file = store_path / "config/storeTrace"
    if what == "directory":
        file.mkdir(parents=True)
    else:
        really = os.open

        def refusing(path, flags, *more, **named):
            if str(path) == str(file):
                number = errno.EROFS if what == "refused" else errno.EACCES
                raise OSError(number, os.strerror(number), str(path))
            return really(path, flags, *more, **named)

        monkeypatch.setattr(os, "open", refusing)
    with opened(store_path) as store:
        store.put("T", b"x")
        store.flush()
        assert count_of(store.trace(), "put") == 1
        assert read_trace(file) == []
        with rmqcore.open_store(store_path, mode="r") as reader:
            assert reader.trace() == []
    assert store.trace()[-1].words == "in order"
    with opened(store_path) as store:
        assert len(list(store.messages())) == 1


def test_a_store_of_rocketmq_has_no_trace(golden_store):
    golden = golden_store("5.5.0", "basic")
    with rmqcore.open_store(golden.path, mode="r") as store:
        assert store.trace() == []


# ---- what a failing test shows


def test_a_failing_test_shows_the_traces_of_its_stores(tmp_path):
    item = SimpleNamespace(funcargs={"tmp_path": tmp_path})
    with opened(tmp_path / "open") as store:
        store.put("T", b"x")
        with opened(tmp_path / "closed") as closed:
            closed.put("T", b"x")
        shutil.copytree(tmp_path / "open", tmp_path / "of another process")
        sections = dict(traces_of(item))
    for name in ("open", "closed", "of another process"):
        lines = sections[f"trace of {tmp_path / name}"].splitlines()
        assert " open " in lines[0]
        assert any(" put " in line for line in lines) or name == "of another process"
    assert sections[f"trace of {closed.path}"].endswith("in order")


def test_an_undo_does_not_ask_whether_the_trace_has_changed(store_path):
    opened(store_path).close()
    stamps = stamps_of(StoreDir(store_path))
    assert "config/storeMark.json" in stamps
    assert "config/storeTrace" not in stamps


def test_an_opening_that_the_settings_refuse_leaves_the_trace_as_it_is(store_path):
    opened(store_path).close()
    before = (store_path / "config/storeTrace").read_bytes()
    with pytest.raises(ConfigError):
        opened(store_path, mapped_file_size_commit_log=2 * FILE_SIZE)
    assert (store_path / "config/storeTrace").read_bytes() == before


def test_a_checkpoint_that_says_the_same_is_no_row(store_path):
    with opened(store_path) as store:
        # its first round would write the mark at any time
        store.parts.upkeep.runner.stop(store.parts.log_services.flush_queues)
        store.put("T", b"x")
        store.flush()
        before = store.trace()
        store.parts.files.checkpoint.flush()
        assert store.trace() == before
        store.parts.files.checkpoint.master_flushed_offset = 1
        store.parts.files.checkpoint.flush()
        assert [row.event for row in store.trace()[len(before) :]] == ["checkpoint"]
