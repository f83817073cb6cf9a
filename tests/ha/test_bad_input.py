"""Torn transfers, foreign peers, bytes that are no records: closed, told once, nothing written."""

import asyncio
import contextlib
import itertools
import logging
import mmap
import os
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from ha.pair import (
    SMALL,
    all_gone,
    derived,
    fill,
    following,
    frame,
    log_bytes,
    master_store,
    peer_master,
    serving,
    slave_store,
)
from patience import TIMEOUT_S, until_async

from reference.records import Record, encode_blank, encode_record
from rmqcore import open_store
from rmqcore.errors import (
    CorruptRecordError,
    CorruptStoreError,
    MessageIllegalError,
    StoreError,
    StoreNotWritableError,
)
from rmqcore.ha import HAClient, connection
from rmqcore.ha import service as service_module
from rmqcore.native.log._tail import LogTail

pytestmark = pytest.mark.engine

FILE = 16 << 10


def played(*parts):
    """A master that hears the first report, says this, and closes."""

    async def play(reader, writer):
        await reader.readexactly(8)
        writer.writelines(parts)

    return play


def test_a_transfer_that_is_torn_at_any_byte_leaves_whole_frames(tmp_path):
    with master_store(tmp_path / "m") as master:
        sizes = {master.put("T", b"x").store_size for _ in range(200)}
        size = sizes.pop()
        assert not sizes
        log = log_bytes(master)
    # a record, a heart-beat in it, and another record, in three frames that end inside records
    ends = [12 + 25, 12 + 25 + 12, 12 + 25 + 12 + 12 + size, 4 * 12 + 2 * size]
    appended = [25, 25, size + 25, 2 * size]

    def torn_at(cut, store, seen):
        async def play(reader, writer):
            start, at = (
                int.from_bytes(await reader.readexactly(8)),
                store.followed_log.appended_offset,
            )
            assert at % size == 0
            parts = [at, at + 25, at + size + 25, at + 2 * size]
            frames = [frame(begin, log[begin:end]) for begin, end in pairwise(parts)]
            frames.insert(1, frame(at + 25))
            writer.write(frame(start, log[start:at]) + b"".join(frames)[:cut])
            writer.write_eof()
            last = start
            while said := await reader.read(8):
                last = int.from_bytes(said)
            seen.append(cut)
            whole = max(
                (to for end, to in zip(ends, appended, strict=True) if end <= cut), default=0
            )
            assert last == at + whole

        return play

    async def scenario(store):
        seen = []
        scripts = [torn_at(cut, store, seen) for cut in range(0, ends[-1] + 1, 5)]
        async with peer_master(*scripts) as port, following(store, port, ha_retry_interval=1):
            await until_async(lambda: len(seen) == len(scripts), "each was torn")
        assert store.max_phy_offset > 15 * size
        assert log_bytes(store) == log[: store.max_phy_offset]

    with slave_store(tmp_path / "s") as store:
        asyncio.run(scenario(store))


def test_an_append_of_any_two_parts_is_an_append_of_the_whole(tmp_path):
    with master_store(tmp_path / "m", 3) as master:
        log = log_bytes(master)
        ends = [message.phy_offset + message.store_size for message in master.messages()]
    for cut in range(1, len(log)):
        tail, buffer = LogTail("127.0.0.1:10911", 1 << 20), bytearray(FILE)
        tail.attach(buffer, 0, 0)
        tail.follows = True
        whole = max([0, *(end for end in ends if end <= cut)])
        assert tail.append_data(log[:cut], 0) is True
        assert (tail.appended_offset, tail.max_offset) == (cut, whole)
        tail.drop_partial()
        assert (tail.appended_offset, tail.max_offset) == (whole, whole)
        assert buffer == log[:whole].ljust(FILE, b"\0")
        assert tail.append_data(log[whole:cut], whole) is True
        assert tail.append_data(log[cut:], cut) is True
        assert buffer == log.ljust(FILE, b"\0")
        assert tail.max_offset == len(log)
        assert tail.last_store_timestamp_ms > 0


@contextlib.contextmanager
def long_part(file_size):
    """The end of a log that has all but one byte of an end-of-file record, and what it held."""
    with mmap.mmap(-1, file_size) as buffer, contextlib.ExitStack() as stack:
        tail = LogTail("127.0.0.1:10911", 1 << 20)
        tail.attach(buffer, 0, 0)
        # a file that is still attached cannot be closed
        stack.callback(tail.detach)
        tail.follows = True
        blank = encode_blank(file_size).ljust(file_size, b"x")
        before = sys.getsizeof(tail), own_memory()
        tail.append_data(blank[: file_size - 1], 0)
        yield tail, *before


def end_part(tail, ended, file_size):
    if ended == "dropped":
        tail.drop_partial()
    else:
        tail.append_data(b"x", file_size - 1)
        assert tail.max_offset == file_size


def own_memory():
    """Bytes that the process holds and no file does."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


@pytest.mark.parametrize("ended", ["dropped", "whole"])
def test_a_long_part_takes_no_memory_when_it_is_over(ended):
    file_size = 8 << 20
    with long_part(file_size) as (tail, size, _):
        assert sys.getsizeof(tail) >= size + file_size - 1
        end_part(tail, ended, file_size)
        assert sys.getsizeof(tail) == size


@pytest.mark.measure
@pytest.mark.parametrize("ended", ["dropped", "whole"])
def test_the_system_has_the_memory_of_a_long_part_when_it_is_over(ended, figure):
    file_size = 64 << 20
    with long_part(file_size) as (tail, _, before):
        assert own_memory() - before > file_size // 2
        end_part(tail, ended, file_size)
        figure("memory", max(0, own_memory() - before), "bytes", at_most=file_size // 2 - 1)


@pytest.mark.parametrize("part", [1, 3, 20, 91])
def test_a_slave_that_is_closed_in_the_middle_of_a_record_goes_on(tmp_path, part):
    with master_store(tmp_path / "m", 20) as master:
        log = log_bytes(master)
        end = list(master.messages())[9].phy_offset
    with slave_store(tmp_path / "s") as store:
        store.followed_log.append_data(log[: end + part], 0)
    with slave_store(tmp_path / "s") as store:
        assert store.recovery_report.clean_shutdown
        assert store.followed_log.appended_offset == end
        store.followed_log.append_data(log[end:], end)
        assert log_bytes(store) == log


@pytest.mark.process
def test_a_slave_that_was_killed_in_the_middle_of_a_record_goes_on(tmp_path):
    with master_store(tmp_path / "m", 60) as master:
        log = log_bytes(master)
        first_record = next(iter(master.messages())).store_size
        pid = os.fork()
        if pid == 0:
            try:
                with slave_store(tmp_path / "s") as store:
                    store.followed_log.append_data(log[: len(log) // 2 + 7], 0)
                    os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        with slave_store(tmp_path / "s") as store:
            assert not store.recovery_report.clean_shutdown
            start = store.followed_log.appended_offset
            assert first_record < start <= len(log) // 2 + 7
            store.followed_log.append_data(log[start:], start)
            assert log_bytes(store) == log
            assert derived(store) == derived(master)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ([frame(5, b"x" * 200)], "5 came where 0 goes on"),
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "came where 0 goes on"),
        ([frame(0)[:8], b"\xff\xff\xff\xff"], "no master"),
        ([frame(0)[:8], b"\x7f\xff\xff\xff"], "no master"),
        ([frame(0, b"x" * 200)], "no record begins here"),
        ([frame(0, bytes(200))], "zeros"),
    ],
    ids=["offset", "http", "negative", "huge", "rubbish", "zeros"],
)
def test_what_is_no_frame_of_a_master_is_told_once_and_nothing_is_written(
    tmp_path, caplog, said, reason
):
    reported = []

    async def play(reader, writer):
        reported.append(int.from_bytes(await reader.readexactly(8)))
        writer.writelines(said)
        await reader.read()

    async def scenario(store):
        async with peer_master(*[play] * 4) as port, following(store, port) as client:
            await until_async(lambda: len(reported) == 4, "it has asked four times")
            assert reason in client.problem

    with slave_store(tmp_path / "s") as store, caplog.at_level(logging.WARNING):
        asyncio.run(scenario(store))
        assert store.followed_log.appended_offset == 0
    assert reported == [0] * 4
    assert [reason in record.getMessage() for record in caplog.records] == [True]


def test_others_on_the_loop_have_their_turn_in_a_flood_of_small_frames(tmp_path, monkeypatch):
    """Each frame may be a heart-beat, or a byte."""
    turns, in_turn = itertools.count(), Counter()
    turn, append = next(turns), HAClient._append

    async def counted(client, body, offset):
        in_turn[turn] += 1
        await append(client, body, offset)

    async def others():
        nonlocal turn
        while True:
            turn = next(turns)
            await asyncio.sleep(0)

    async def scenario(store):
        task = asyncio.create_task(others())
        async with peer_master(played(frame(0) * 5000)) as port, following(store, port):
            await until_async(lambda: in_turn.total() == 5000, "all of them have come")
        task.cancel()

    monkeypatch.setattr(HAClient, "_append", counted)
    with slave_store(tmp_path / "s") as store:
        asyncio.run(scenario(store))
    assert max(in_turn.values()) <= 64


def test_a_wrong_byte_in_a_record_is_not_appended_nor_reported(tmp_path):
    with master_store(tmp_path / "m", 6) as master:
        log = log_bytes(master)
        fourth = list(master.messages())[3].phy_offset
    wrong = bytearray(log)
    wrong[fourth + 90] ^= 1
    with slave_store(tmp_path / "s") as store:
        store.followed_log.append_data(wrong[:fourth], 0)
        with pytest.raises(CorruptRecordError) as caught:
            store.followed_log.append_data(wrong[fourth:], fourth)
        assert caught.value.phy_offset == fourth
        assert store.followed_log.appended_offset == fourth
        store.followed_log.append_data(log[fourth:], fourth)
        assert log_bytes(store) == log


def test_a_record_that_no_queue_takes_is_told_to_every_reader_alike(tmp_path):
    """Nothing is kept of who was told before."""
    with master_store(tmp_path / "m", 6) as master:
        log = log_bytes(master)
    jumped = Record(topic="T0", queue_offset=1 << 40, body=b"x", phy_offset=len(log))
    store, depths = open_store(tmp_path / "s", broker_role="SLAVE", **SMALL), []
    store.followed_log.append_data(log + encode_record(jumped), 0)
    for _ in range(4):
        with pytest.raises(CorruptStoreError, match="1099511627776") as caught:
            store.max_queue_offset("T0", 0)
        depths.append(len(caught.traceback))
    with pytest.raises(CorruptStoreError):
        store.close()
    # the first may have found it
    assert len(set(depths[1:])) == 1


def test_only_what_follows_is_appended_and_only_to_a_slave(tmp_path):
    with master_store(tmp_path / "m", 3) as master:
        log = log_bytes(master)
        with pytest.raises(StoreNotWritableError, match="SLAVE"):
            master.followed_log.append_data(b"x", master.max_phy_offset)
    with slave_store(tmp_path / "s") as store:
        with pytest.raises(MessageIllegalError, match="multiples"):
            store.followed_log.append_data(log, 5)
        store.followed_log.append_data(log, 0)
        with pytest.raises(MessageIllegalError, match="does not follow"):
            store.followed_log.append_data(log, 0)
        with pytest.raises(StoreNotWritableError):
            store.put("T", b"x")


def test_a_log_begins_where_the_masters_does(tmp_path):
    with master_store(tmp_path / "m", 400) as master:
        log = log_bytes(master)
        fill(master, 1)
    start = 2 * FILE
    with slave_store(tmp_path / "s") as store:
        store.followed_log.append_data(log[start : start + 100], start)
        store.followed_log.append_data(log[start + 100 :], start + 100)
        assert (store.min_phy_offset, log_bytes(store)) == (start, log[start:])
    with slave_store(tmp_path / "s") as store:
        assert (store.min_phy_offset, store.max_phy_offset) == (start, len(log))
        assert list(store.messages())[-1].phy_offset > start


def test_a_foreign_peer_is_closed_and_told_once(tmp_path, caplog):
    async def scenario(store):
        async with serving(store) as service:
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert await reader.read() == b""
                writer.close()
            await all_gone(service)

    with master_store(tmp_path / "m", 10) as store, caplog.at_level(logging.WARNING):
        asyncio.run(scenario(store))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "no slave" in told[0]


def test_little_is_kept_of_peers_that_come_from_ever_other_hosts(tmp_path, monkeypatch):
    monkeypatch.setattr(service_module, "_TOLD_MAX", 2)

    async def scenario(store):
        async with serving(store) as service:
            for number in range(1, 5):
                place = {"local_addr": (f"127.0.0.{number}", 0)}
                reader, writer = await asyncio.open_connection("127.0.0.1", service.port, **place)
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert await reader.read() == b""
                writer.close()
            await all_gone(service)
            assert list(service._told) == ["127.0.0.3", "127.0.0.4"]

    with master_store(tmp_path / "m", 10) as store:
        asyncio.run(scenario(store))


def test_who_is_silent_is_closed_on_both_sides(tmp_path):
    async def silent(reader, _):
        await reader.read()

    async def scenario(master, slave):
        async with serving(master, ha_housekeeping_interval=200) as service:
            reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
            assert await asyncio.wait_for(reader.read(), TIMEOUT_S) == b""
            writer.close()
        connected = []

        async def play(reader, writer):
            connected.append(1)
            await silent(reader, writer)

        async with (
            peer_master(play, play) as port,
            following(slave, port, ha_housekeeping_interval=200),
        ):
            await until_async(lambda: len(connected) == 2, "it has connected again")

    with master_store(tmp_path / "m", 3) as master, slave_store(tmp_path / "s") as slave:
        asyncio.run(scenario(master, slave))


def test_a_slave_gets_also_what_its_master_cannot_dispatch(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "_POLL_S", 0.001)
    monkeypatch.setattr(connection, "_IDLE_POLL_S", 0.001)

    def damaged(*_):
        raise CorruptRecordError(tmp_path, 0, "no consume queue takes it")

    async def scenario(master, slave):
        looked, wake = [], connection.HAConnection.wake
        monkeypatch.setattr(
            connection.HAConnection, "wake", lambda one: looked.append(one) or wake(one)
        )
        async with serving(master) as service, following(slave, service.port):
            end = master.followed_log.appended_offset
            await until_async(
                lambda: slave.followed_log.appended_offset == end, "the slave has it all"
            )
            (served,) = service.connections
            looked.clear()
            await until_async(lambda: len(looked) > 3, "the master has looked for more")
            assert service.connections == [served]

    with master_store(tmp_path / "m", 3) as master, slave_store(tmp_path / "s") as slave:
        reput = master.parts.log_services.reput
        with monkeypatch.context() as patch:
            patch.setattr(reput, "_dispatch_below", damaged)
            master.put("T0", b"not dispatched")
            with pytest.raises(CorruptRecordError):
                reput.catch_up()
            asyncio.run(scenario(master, slave))
        reput._failure = None


def test_a_master_that_cannot_read_its_log_says_so_and_serves_on(tmp_path, monkeypatch, caplog):
    async def scenario(master, slave):
        lost = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: lost.append(told))
        async with serving(master) as service, following(slave, service.port):
            end = master.followed_log.appended_offset
            await until_async(
                lambda: slave.followed_log.appended_offset == end, "the slave has it all"
            )
        assert not lost

    with master_store(tmp_path / "m", 3) as master, slave_store(tmp_path / "s") as slave:
        read, refused = master.followed_log.bytes_at, iter(["the file is gone"])

        def bytes_at(*where):
            for reason in refused:
                raise StoreError(reason)
            return read(*where)

        monkeypatch.setattr(master.followed_log, "bytes_at", bytes_at, raising=False)
        asyncio.run(scenario(master, slave))
    assert [one for one in caplog.messages if "connection closed: the file is gone" in one]
