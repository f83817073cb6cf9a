"""The process dies while bytes are being copied into the log: the log ends before that record.

A copy may store its first bytes last, so what a kill leaves of it need not be its beginning.
"""

import faulthandler
import itertools
import os
import resource
import signal
import types

import pyarrow as pa
import pytest
from children import die, run_child

import rmqcore
from rmqcore.doctor import verify
from rmqcore.files import mapped_file, zeros
from rmqcore.files.mapped_file import MappedFile

pytestmark = pytest.mark.process

PAGE = 4096
FILE = 8 * PAGE
SETTINGS = {
    "mapped_file_size_commit_log": FILE,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 16,
    "max_index_num": 64,
}


def put(store, number, size):
    topic, key = f"T{number % 3}", f"k{number}"
    return store.put(topic, bytes([number % 256]) * size, queue_id=number % 2, keys=key)


def die_behind(path, pages, copy, *, by=signal.SIGBUS, **settings):
    """Let a process copy, and die where it comes behind so many pages of the log file.

    Page faults are where kills hit a copy, as they take longest. Here the next page is none of
    the file's, which is a signal, too. A write by a system call is hit between two pages: here
    what is behind is above the limit of a process's files (``by=SIGXFSZ``).
    """
    log = path / "commitlog" / f"{0:020d}"

    def cut():
        if by == signal.SIGXFSZ:
            signal.signal(by, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (pages * PAGE, pages * PAGE))
        else:
            os.truncate(log, pages * PAGE)

    def work(_):
        faulthandler.disable()
        copy(rmqcore.open_store(path, **SETTINGS, **settings), cut)

    code, _ = run_child(work)
    assert code == -by
    os.truncate(log, FILE)


def check(path, end, **settings):
    """Nothing behind ``end`` is left, nor in the way of what is put next."""
    with rmqcore.open_store(path, **SETTINGS | settings) as store:
        assert store.max_phy_offset == end
    log_file_size = settings.get("mapped_file_size_commit_log", FILE)
    sizes = SETTINGS | {"mapped_file_size_commit_log": log_file_size}
    with rmqcore.open_store(path, **sizes) as store:
        count = len(list(store.messages()))
        assert put(store, count, 5).phy_offset == end
        assert len(list(store.messages())) == count + 1
    assert verify(path).clean


@pytest.mark.parametrize("size", [0, 30, 700, 5000])
@pytest.mark.parametrize("begin", [1, 4, 41, 100, 1000, 3000])
def test_of_a_masters_bytes_only_the_last_record_is_lacking(tmp_path, begin, size):
    with rmqcore.open_store(tmp_path / "m", **SETTINGS) as master:
        ends = [0]
        while ends[-1] < FILE - 6000:
            receipt = put(master, len(ends), size)
            ends.append(receipt.phy_offset + receipt.store_size)
        log = bytes(master.followed_log.bytes_at(0, ends[-1]))

    def copy(store, cut):
        store.followed_log.append_data(log[:begin], 0)
        cut()
        store.followed_log.append_data(log[begin:], begin)

    die_behind(tmp_path / "s", 5, copy, broker_role="SLAVE")
    check(tmp_path / "s", max(end for end in ends if end <= 5 * PAGE), broker_role="SLAVE")


@pytest.mark.parametrize("cut", [1, 3, 30, 400, 470])
def test_a_part_of_a_record_is_no_record_with_empty_properties(tmp_path, cut):
    """No CRC covers the properties: with zeros in them it would pass for a whole one."""
    with rmqcore.open_store(tmp_path / "m", **SETTINGS) as master:
        for number in range(3):
            receipt = master.put("T", b"body", properties={"TRACE": "t" * 400}, keys=f"k{number}")
        log = bytes(master.followed_log.bytes_at(0, FILE))[
            : receipt.phy_offset + receipt.store_size
        ]

    def append(_):
        store = rmqcore.open_store(tmp_path / "s", **SETTINGS, broker_role="SLAVE")
        store.followed_log.append_data(log[:-cut], 0)
        with rmqcore.open_store(tmp_path / "s", mode="r") as reader:
            assert len(list(reader.messages())) == 2
        die()

    assert run_child(append)[0] == -signal.SIGKILL
    check(tmp_path / "s", receipt.phy_offset, broker_role="SLAVE")


@pytest.mark.parametrize("written", [4, 5, 100, PAGE, 2 * PAGE, 3 * PAGE])
def test_of_what_the_pool_was_committing_nothing_is_left(tmp_path, written):
    """A kill breaks the write off between two pages, which may lie in a record's properties."""
    pool = {"transient_store_pool_enable": True, "transient_store_pool_size": 2}

    def append(acknowledge):
        store = rmqcore.open_store(tmp_path / "s", **SETTINGS | pool)
        put(store, 0, 10)
        acknowledge(store.flush())
        with store.parts.files.writer._roll_lock.within():
            for number in range(6):
                store.put("T", b"body", properties={"TRACE": "t" * 3000}, keys=f"k{number}")
            write = MappedFile.write

            def dying(file, position, data, **more):
                write(file, position, data[:written], **more)
                if written < len(data):
                    die()

            MappedFile.write = dying
        store.flush()

    code, (end,) = run_child(append)
    assert code == -signal.SIGKILL
    check(tmp_path / "s", end)


@pytest.mark.parametrize("first", [1, 2, 3])
@pytest.mark.parametrize("size", [500, 70_000])
def test_a_pool_that_was_committing_a_size_word_on_two_pages_has_committed_nothing(
    tmp_path, first, size
):
    settings = SETTINGS | {"mapped_file_size_commit_log": 40 * FILE}
    pool = {"transient_store_pool_enable": True, "transient_store_pool_size": 2}
    with rmqcore.open_store(tmp_path / "same", **settings) as store:
        head = put(store, 0, 0).store_size

    def append(acknowledge):
        store = rmqcore.open_store(tmp_path / "s", **settings | pool)
        put(store, 0, PAGE - first - head)
        acknowledge(store.flush())
        with store.parts.files.writer._roll_lock.within():
            for number in range(1, 4):
                put(store, number, size)
            write = MappedFile.write

            def dying(file, position, data, **more):
                if len(data) == 4:
                    write(file, position, data[:first], **more)
                    die()
                write(file, position, data, **more)

            MappedFile.write = dying
        store.flush()

    code, (end,) = run_child(append)
    assert code == -signal.SIGKILL
    assert end % PAGE == PAGE - first
    check(tmp_path / "s", end, **{**settings, **pool})


@pytest.mark.parametrize("pages", [0, 1, 2, 3])
def test_an_opening_that_dies_while_it_clears_a_batch_does_not_stop_the_next(tmp_path, pages):
    messages = [rmqcore.Message("T0", b"%d " % number * 30) for number in range(150)]

    def copy(store, cut):
        put(store, 0, 100)
        cut()
        store.put_messages(messages)

    die_behind(tmp_path / "s", 4, copy)

    def clear(_):
        left, write = itertools.count(pages, -1), os.pwrite

        def dying(fd, data, position):
            if next(left) == 0:
                die()
            return write(fd, data, position)

        mapped_file.zero_range = lambda *_: False
        zeros.os = types.SimpleNamespace(**vars(os) | {"pwrite": dying})
        rmqcore.open_store(tmp_path / "s", **SETTINGS)

    assert run_child(clear)[0] == -signal.SIGKILL
    with rmqcore.open_store(tmp_path / "same", **SETTINGS) as store:
        end = put(store, 0, 100).store_size
    check(tmp_path / "s", end)


@pytest.mark.parametrize("size", [20, 500, 5000])
@pytest.mark.parametrize(
    ("by", "settings"),
    [(signal.SIGXFSZ, {}), (signal.SIGBUS, {"flush_disk_type": "SYNC_FLUSH"})],
    ids=["system call", "mapping"],
)
def test_of_a_table_nothing_of_the_piece_is_left(tmp_path, size, by, settings):
    table = pa.table({"body": ["x" * size] * (FILE // 2 // size)})

    def copy(store, cut):
        store.put_columns(pa.table({"body": ["y" * 100] * 20}), topic="T0")
        cut()
        store.put_columns(table, topic="T0")

    die_behind(tmp_path / "s", 4, copy, by=by, **settings)
    with rmqcore.open_store(tmp_path / "same", **SETTINGS) as store:
        end = store.put_columns(pa.table({"body": ["y" * 100] * 20}), topic="T0").store_size
    check(tmp_path / "s", end)


@pytest.mark.parametrize("size", [10, 4000, 9000])
def test_of_a_message_nothing_is_left(tmp_path, size):
    def copy(store, cut):
        put(store, 0, 3950)
        cut()
        put(store, 1, size)

    die_behind(tmp_path / "s", 1, copy)
    check(tmp_path / "s", end_of_first(tmp_path))


@pytest.mark.parametrize("count", [2, 40, 120])
def test_of_a_batch_nothing_is_left(tmp_path, count):
    messages = [rmqcore.Message("T0", b"%d " % number * 30) for number in range(count)]

    def copy(store, cut):
        put(store, 0, 3950)
        cut()
        store.put_messages(messages)

    die_behind(tmp_path / "s", 1, copy)
    check(tmp_path / "s", end_of_first(tmp_path))


def end_of_first(path):
    with rmqcore.open_store(path / "same", **SETTINGS) as store:
        return put(store, 0, 3950).store_size


@pytest.mark.parametrize("pages", [1, 3])
def test_a_put_that_is_killed_leaves_no_size_word(tmp_path, pages):
    """Other processes take what has one for a record."""

    def copy(store, cut_off):
        cut_off()
        put(store, 0, 20_000)

    die_behind(tmp_path, pages, copy)
    with (tmp_path / "commitlog" / f"{0:020d}").open("rb") as log:
        assert log.read(4) == bytes(4)


@pytest.mark.parametrize("pages", [1, 3])
def test_a_slave_that_is_killed_leaves_no_size_word(tmp_path, pages):
    with rmqcore.open_store(tmp_path / "m", **SETTINGS) as master:
        size = put(master, 0, 20_000).store_size
        log = bytes(master.followed_log.bytes_at(0, size))

    def copy(store, cut_off):
        store.followed_log.append_data(log[:1], 0)
        cut_off()
        store.followed_log.append_data(log[1:], 1)

    die_behind(tmp_path / "s", pages, copy, broker_role="SLAVE")
    with (tmp_path / "s" / "commitlog" / f"{0:020d}").open("rb") as file:
        assert file.read(4) == bytes(4)
