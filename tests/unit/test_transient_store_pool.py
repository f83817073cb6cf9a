"""The transient store pool: messages wait in buffers, and files get them by commits."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from patience import TIMEOUT_S

from rmqcore import DiskFullError, Durability, PutMessageError, StoreError, open_store
from rmqcore.files.mapped_file import MappedFile
from rmqcore.files.transient_store_pool import TransientStorePool

pytestmark = pytest.mark.engine

SETTINGS = {
    "transient_store_pool_enable": True,
    "transient_store_pool_size": 3,
    "mapped_file_size_commit_log": 65536,
    "commit_interval_commit_log_ms": 60_000,
}


def test_a_receipt_says_memory_and_a_read_commits(tmp_path):
    with open_store(tmp_path / "s", **SETTINGS) as store:
        receipt = store.put("T", b"one", keys="K")
        assert receipt.durability is Durability.MEMORY
        assert store.get_message("T", 0, 0).messages[0].body == b"one"
        assert store.query_message("T", "K").messages[0].body == b"one"
        assert store.message_at(receipt.phy_offset).body == b"one"
        assert store.put("T", b"two", durability="disk").durability is Durability.DISK


def test_buffers_come_back_while_files_fill(tmp_path):
    bodies = [b"%d" % number * 700 for number in range(200)]
    with open_store(tmp_path / "s", **SETTINGS) as store:
        for body in bodies:
            store.put("T", body)
        assert [message.body for message in store.messages("T", 0)] == bodies
        assert len(store.log.queue.files) == 6
    with open_store(tmp_path / "s", mapped_file_size_commit_log=65536) as store:
        assert [message.body for message in store.messages("T", 0)] == bodies


def test_a_large_table_waits_in_a_buffer_too(tmp_path):
    pa = pytest.importorskip("pyarrow")
    bodies = [b"%d" % number * 700 for number in range(20)]
    with open_store(tmp_path / "s", **SETTINGS) as store:
        store.put("T", b"first")
        store.put_columns(pa.table({"body": bodies}), topic="T")
        assert store.log.queue.last.write_buffer is not None
        assert [message.body for message in store.messages("T", 0)] == [b"first", *bodies]


def test_it_goes_on_in_a_file_that_was_begun(tmp_path):
    for number in range(3):
        with open_store(tmp_path / "s", **SETTINGS) as store:
            assert store.put("T", b"%d" % number).queue_offset == number
    with open_store(tmp_path / "s", mode="r") as store:
        assert [message.body for message in store.messages("T", 0)] == [b"0", b"1", b"2"]


@pytest.mark.logic
def test_a_buffer_is_free_when_no_file_has_it():
    pool = TransientStorePool(2, 4096)
    files = [SimpleNamespace(write_buffer=None) for _ in range(3)]
    files[0].write_buffer = first = pool.free(files)
    files[1].write_buffer = second = pool.free(files)
    assert first is not None
    assert second not in (None, first)
    assert pool.free(files) is None
    files[0].write_buffer = None
    assert pool.free(files) is first


@pytest.mark.parametrize("role", ["SLAVE"])
def test_a_slave_has_no_pool(tmp_path, role):
    with open_store(tmp_path / "s", **SETTINGS) as store:
        store.put("T", b"x")
        record = store.message_at(0).record
    with open_store(tmp_path / "t", broker_role=role, **SETTINGS) as store:
        store.followed_log.append_data(record, 0)
        assert store.log.queue.last.write_buffer is None
        assert store.parts.files.tail.durability is Durability.PAGE_CACHE
        assert store.message_at(0).body == b"x"


class PutsBetween:
    """A lock that lets another thread put, once, as soon as one chosen thread has left it."""

    def __init__(self, lock, puts):
        self.lock = lock
        self.puts = puts
        self.only_in = None

    @contextmanager
    def within(self, *seconds):
        with self.lock.within(*seconds) as mine:
            yield mine
        if self.only_in is threading.current_thread():
            self.only_in = None
            in_thread(self.puts)


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


@pytest.fixture
def exhausted(tmp_path):
    """A store whose only buffer is lent to its first file, and whose log rolls on demand."""
    with open_store(tmp_path / "s", **SETTINGS | {"transient_store_pool_size": 1}) as store:
        store.put("T", b"a")
        store.flush()
        for service in store.parts.upkeep.services:
            # they commit and flush, too
            store.parts.upkeep.runner.stop(service)

        def fill_and_roll():
            for letter in (b"b", b"c", b"d"):
                store.put("T", letter * 40_000)

        lock = store.parts.files.writer._roll_lock = PutsBetween(
            store.parts.files.writer._roll_lock, fill_and_roll
        )
        yield store, lock


def in_store_thread(lock, work):
    """Run a call whose first stay in the lock is followed by another thread's puts."""
    answers = []

    def run():
        lock.only_in = threading.current_thread()
        answers.append(work())

    in_thread(run)
    assert lock.only_in is None
    return answers[0]


def test_what_counts_as_flushed_was_synced_when_a_put_rolls_inside_a_flush(exhausted):
    store, lock = exhausted
    store.put("T", b"before")
    flushed = in_store_thread(lock, store.parts.files.writer.flush)
    for _ in range(2):
        for file in store.log.queue.files:
            end = min(file.size, max(0, flushed - file.file_from_offset))
            assert file.flushed_position >= end, file
        flushed = store.parts.files.writer.flush()
    assert flushed == store.max_phy_offset


def test_a_commit_answers_with_what_is_committed_when_a_put_rolls_beside_it(exhausted):
    store, lock = exhausted
    store.put("T", b"before")
    end = in_store_thread(lock, store.parts.files.writer.commit)
    for file in store.log.queue.files[:-1]:
        assert file.read_position >= min(file.size, end - file.file_from_offset), file
    bodies = [b"a", b"before", b"b" * 40_000, b"c" * 40_000, b"d" * 40_000]
    assert [message.body for message in store.messages("T", 0)] == bodies
    assert store.why_not_writable() is None


@pytest.mark.parametrize("how", ["services", "flush", "put"])
def test_a_disk_without_room_for_what_is_committed_ends_nothing(tmp_path, monkeypatch, how):
    """Where reserved room may run out. The pool is committed when there is some again."""
    full, write = False, MappedFile.write

    def refuse(file, position, data, **more):
        if full and file.path.parent.name == "commitlog":
            raise DiskFullError(file.path)
        write(file, position, data, **more)

    monkeypatch.setattr(MappedFile, "write", refuse)
    with open_store(tmp_path / "s", **SETTINGS) as store:
        runner = store.parts.upkeep.runner
        running = {service.name: service for service in store.parts.upkeep.services}
        commit, flush = running["CommitRealTimeService"], running["FlushRealTimeService"]
        assert runner.stop(commit)
        store.put("T", b"before")
        full = True
        store.put("T", b"while")
        if how == "services":
            flush._thorough_s = 0
            assert runner.stop(flush)
            for service in (commit, flush):
                with pytest.raises(DiskFullError):
                    service.run(1e9)
            runner.start(flush, pytest.fail)
            # it would be acknowledged, and gone with this process
            with pytest.raises(StoreError, match="no room for what the transient pool holds"):
                store.put("T", b"refused")
        elif how == "flush":
            with pytest.raises(DiskFullError):
                store.flush()
        elif how == "put":
            with pytest.raises(PutMessageError, match="no space left"):
                store.put("T", b"to the disk", durability="disk")
        assert (store.why_not_writable() is None) == (how != "services")
        full = False
        commit.run(1e9)
        runner.start(commit, pytest.fail)
        bodies = [b"before", b"while", *([b"to the disk"] if how == "put" else []), b"behind"]
        assert store.put("T", b"behind", durability="disk").durability is Durability.DISK
        assert [message.body for message in store.messages("T", 0)] == bodies
        assert all(service.active for service in store.parts.upkeep.services)
    with open_store(tmp_path / "s", mapped_file_size_commit_log=65536) as store:
        assert [message.body for message in store.messages("T", 0)] == bodies
