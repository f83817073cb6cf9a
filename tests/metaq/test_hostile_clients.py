"""Many clients that send anything in any pieces, read slowly, and go away in the middle."""

import asyncio
import contextlib
import os
import socket
import threading
import tracemalloc

import pytest
from patience import TIMEOUT_S, until_async

from rmqcore.metaq import (
    MessageStoreManager,
    MetaClient,
    MetaServer,
    ResultError,
    World,
    connection,
)
from rmqcore.metaq.file_message_set import FileMessageSet
from rmqcore.metaq.stats import StatsManager

pytestmark = pytest.mark.engine

LIMIT = 60_000
PARTS = [
    b"put t 0 5 0 -1 1\r\nhello",
    b"put t -1 5 0 -1 2\r\nhello",
    b"put t 0 50000 0 -1 3\r\n" + b"x" * 50_000,
    b"put t 0 99999 0 -1 4\r\n",
    b"put t 9 1 0 -1 5\r\nx",
    b"put t 0 1 1 -1 6\r\nx",
    b"put t 0 0 0 -1 7\r\n",
    b"put ../t 0 1 0 -1 8\r\nx",
    b"put \xff 0 1 0 -1 9\r\nx",
    b"get t g 0 0 2000000000 10\r\n",
    b"get t g 0 0 100000 11\r\n",
    b"get t g 1 5 7 12\r\n",
    b"get t g 0 -5 10 13\r\n",
    b"offset t g 0 5 14\r\n",
    b"stats\r\n",
    b"stats realtime 15\r\n",
    b"version 16\r\n",
    b"transaction a b BEGIN 17\r\n",
    b"sync t 0 100 0 5 18\r\n",
    b"quit\r\n",
    b"\r\n",
]


async def send(writer, data, rng):
    at = 0
    while at < len(data):
        size = rng.choice([1, 10, 1000, 100_000])
        writer.write(data[at : at + size])
        await writer.drain()
        at += size
    ends = rng.random() < 0.7
    if ends:
        writer.write_eof()
    return ends


async def take_turns(count):
    for _ in range(count):
        await asyncio.sleep(0)


async def read(reader, sending, size=-1):
    """Read what comes next, or what comes before all was sent by who does not end his side."""
    reading = asyncio.create_task(reader.read(size))
    try:
        await take_turns(5)
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.wait({reading, sending}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() or (size < 0 and await sending):
                await reading
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def visit(host, port, rng):
    reader, writer = await asyncio.open_connection(host, port)
    data = bytearray(b"".join(rng.choice(PARTS) for _ in range(rng.randrange(1, 200))))
    for _ in range(rng.choice([0, 0, 5])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    sending = asyncio.create_task(send(writer, bytes(data), rng))
    mood = rng.random()
    try:
        if mood < 0.2:
            await take_turns(20)
        elif mood < 0.4:
            for _ in range(20):
                await read(reader, sending, 1000)
        else:
            await read(reader, sending)
    except OSError:
        pass
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.transport.abort()


def test_every_connection_ends_and_the_server_goes_on(config, rng, caplog):
    async def main():
        settings = {"unflush_threshold": 0, "num_partitions": 2, "max_segment_size": 300_000}
        with MessageStoreManager(config(**settings)) as manager:
            server = MetaServer(manager, port=0, max_message_size=LIMIT)
            host, port = await server.start()
            for _ in range(6):
                await asyncio.gather(*(visit(host, port, rng) for _ in range(20)))
            await until_async(
                lambda: not server.processor.stats.connections, "the end of every connection"
            )
            async with MetaClient(host, port) as client:
                await client.put("t", b"still here", partition=0)
            await server.stop()
            for store in manager.all_stores():
                assert all(message.data for message in store.messages())

    asyncio.run(main())
    assert [r.getMessage() for r in caplog.records if r.exc_info] == []


@pytest.mark.parametrize("by", ["its own bound", "descriptors"])
def test_connections_above_the_limit_are_closed_at_once(config, caplog, monkeypatch, by):
    bound = {"connection_max": 2} if by == "its own bound" else {}
    if not bound:
        monkeypatch.setattr("rmqcore.metaq.server.connections_allowed", lambda: 2)

    async def main():
        with MessageStoreManager(config()) as manager:
            server = MetaServer(manager, port=0, **bound)
            host, port = await server.start()
            async with MetaClient(host, port) as first:
                async with MetaClient(host, port) as second:
                    await first.version()
                    await second.version()
                    for _ in range(2):
                        reader, writer = await asyncio.open_connection(host, port)
                        async with asyncio.timeout(TIMEOUT_S):
                            assert await reader.read() == b""
                        writer.close()
                    await first.version()
                stats = server.processor.stats
                await until_async(lambda: stats.connections == 1, "the second one's end")
                async with MetaClient(host, port) as again:
                    await again.version()
            await server.stop()

    asyncio.run(main())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "ulimit -n" in caplog.text


async def all_of(reader, count):
    """That many results: the code of each."""
    codes = []
    for _ in range(count):
        _, code, size, _ = (await reader.readuntil(b"\r\n")).split()
        await reader.readexactly(int(size))
        codes.append(code)
    return codes


@pytest.mark.parametrize("bound", ["_MAX_PENDING", "_MAX_PUTS"])
def test_puts_that_wait_for_the_disk_are_few_and_take_no_memory(serve, monkeypatch, bound):
    monkeypatch.setattr(connection, bound, 40)
    disk = threading.Event()
    size = 500_000

    async def test(server, host, port):
        disk.set()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"put t 0 1 0 -1 0\r\nx")
        await all_of(reader, 1)
        (served,) = server._connections
        disk.clear()
        tracemalloc.start()
        try:
            for _ in range(40):
                writer.write(b"put t 0 %d 0 -1 1\r\n" % size + bytes(size))
                await writer.drain()
            await until_async(lambda: not served._reading, "as many puts as are taken")
            assert tracemalloc.get_traced_memory()[0] < 10 * size
        finally:
            tracemalloc.stop()
            disk.set()
        assert set(await all_of(reader, 40)) == {b"200"}
        assert served._puts == 0
        writer.close()

    serve(test, world=World(sync=lambda _: disk.wait(TIMEOUT_S)))


def test_commands_behind_a_put_that_waits_are_all_answered_though_no_more_come(serve):
    disk = threading.Event()

    async def test(_server, host, port):
        disk.set()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"put t 0 1 0 -1 0\r\nx")
        await all_of(reader, 1)
        disk.clear()
        writer.write(b"put t 0 1 0 -1 0\r\nx" + b"version 1\r\n" * 1000)
        async with MetaClient(host, port) as another:
            # they have been received
            await another.version()
        disk.set()
        async with asyncio.timeout(TIMEOUT_S):
            assert await all_of(reader, 1001) == [b"200"] * 1001
        writer.close()

    serve(test, world=World(sync=lambda _: disk.wait(TIMEOUT_S)))


def test_a_put_that_waits_when_the_server_stops_is_answered(serve):
    disk = threading.Event()

    async def test(server, host, port):
        disk.set()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"put t 0 1 0 -1 0\r\nx")
        await all_of(reader, 1)
        (served,) = server._connections
        disk.clear()
        writer.write(b"put t 0 1 0 -1 1\r\nx")
        await until_async(lambda: served._replies, "it waits")
        served.close()
        disk.set()
        async with asyncio.timeout(TIMEOUT_S):
            assert await all_of(reader, 1) == [b"200"]
            assert await reader.read() == b""
        writer.close()

    serve(test, world=World(sync=lambda _: disk.wait(TIMEOUT_S)))


def test_who_reads_no_answers_is_given_few(serve):
    async def test(server, host, port):
        async with MetaClient(host, port) as client:
            await client.put("t", b"x" * 40_000, partition=0)
        await until_async(lambda: not server._connections, "its end")
        with socket.create_connection((host, port)) as deaf:
            deaf.sendall(b"get t g 0 0 32000 1\r\n" * 1000)
            await until_async(
                lambda: server._connections and not next(iter(server._connections))._reading,
                "more than is answered",
            )
            (served,) = server._connections
            assert served._transport.get_write_buffer_size() < 4 * connection._COPY_BELOW

    serve(test)


def test_who_asks_for_many_large_answers_and_reads_none_is_kept_few(serve, monkeypatch):
    monkeypatch.setattr(StatsManager, "text", lambda *_: "x" * 500_000)

    async def test(server, host, port):
        with socket.create_connection((host, port)) as deaf:
            deaf.sendall(b"stats topics\r\n" * 1000)
            await until_async(
                lambda: server._connections and not next(iter(server._connections))._reading,
                "more than is answered",
            )
            (served,) = server._connections
            assert sum(map(len, served._replies)) <= connection._MAX_BYTES + 500_000
            # what follows is answered when it reads on
            deaf.setblocking(False)
            left = 1000 * (500_000 + len(b"result 200 500000 2147483647\r\n"))
            while left:
                left -= len(await asyncio.get_running_loop().sock_recv(deaf, 1 << 20))
            assert served._bytes == 0

    serve(test)


def test_who_reads_nothing_is_copied_little_where_there_is_no_sendfile(serve, monkeypatch):
    def refuses(*_):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sendfile", refuses)
    size = 24 << 20

    async def test(server, host, port):
        async with MetaClient(host, port) as client:
            await client.put("t", bytes(size - 1) + b"x", partition=0)
        await until_async(lambda: not server._connections, "its end")
        with socket.create_connection((host, port)) as deaf:
            deaf.sendall(b"get t g 0 0 %d 1\r\n" % (2 * size))
            await until_async(
                lambda: (
                    server._connections
                    and next(iter(server._connections))._transport.get_write_buffer_size()
                ),
                "more is sent than the system takes",
            )
            (served,) = server._connections
            assert served._transport.get_write_buffer_size() < size // 8

    serve(test, max_message_size=size)


@pytest.mark.parametrize("disk", ["refuses a flush", "cannot be read", "holds something else"])
def test_no_answer_tells_where_a_file_lies(serve, tmp_path, caplog, monkeypatch, disk):
    broken = []

    def sync(_):
        if broken:
            raise OSError(5, "Input/output error")

    async def test(_server, host, port):
        asked = []
        async with MetaClient(host, port) as client:
            await client.put("t", b"x", partition=0)
            if disk == "refuses a flush":
                broken.append(1)
                asked = [client.put("t", b"x", partition=0) for _ in range(2)]
            elif disk == "cannot be read":

                def fails(*_):
                    raise OSError(24, "Too many open files", str(tmp_path))

                monkeypatch.setattr("rmqcore.metaq.MessageStore.slice", fails)
                asked = [client.get("t", 0, 0)]
            else:
                (tmp_path / "meta" / "t-1").write_bytes(b"")
                asked = [client.put("t", b"x", partition=1)]
            for request in asked:
                with pytest.raises(ResultError, match="its log says why") as caught:
                    await request
                assert caught.value.code == 500
                assert str(tmp_path) not in str(caught.value)

    serve(test, world=World(sync=sync))
    assert str(tmp_path) in caplog.text


def test_who_is_silent_makes_room_for_who_has_none(serve):
    now = [1000.0]

    async def test(server, host, port):
        async with MetaClient(host, port) as client:
            with socket.create_connection((host, port)) as silent:
                silent.setblocking(False)
                for _ in range(2):
                    await client.version()
                    reader, writer = await asyncio.open_connection(host, port)
                    async with asyncio.timeout(TIMEOUT_S):
                        assert await reader.read() == b""
                    writer.close()
                    now[0] += 100
                await client.version()
                async with MetaClient(host, port) as another:
                    await another.version()
                    assert await asyncio.get_running_loop().sock_recv(silent, 1) == b""
                await client.version()

    serve(test, connection_max=2, world=World(monotonic_s=lambda: now[0]))


def test_who_does_not_read_a_copied_file_is_given_nothing_behind_it(serve, monkeypatch):
    size = 32 << 20

    async def copied(_, transport):
        # as the loop's fallback: it hears of what it writes, not the connection
        connection = transport.get_protocol()
        transport.set_protocol(asyncio.Protocol())
        transport.write(bytes(size))
        transport.set_protocol(connection)

    monkeypatch.setattr(FileMessageSet, "send_async", copied)

    async def test(server, host, port):
        async with MetaClient(host, port) as client:
            await client.put("t", b"x" * 40_000, partition=0)
        await until_async(lambda: not server._connections, "its end")
        with socket.create_connection((host, port)) as deaf:
            deaf.sendall(b"get t g 0 0 40100 1\r\n" + b"get t g 0 0 32000 1\r\n" * 1000)
            await until_async(
                lambda: server._connections and not next(iter(server._connections))._reading,
                "more than is answered",
            )
            (served,) = server._connections
            assert served._transport.get_write_buffer_size() < size
            # what follows is answered when it reads on
            deaf.setblocking(False)
            left = size + len(b"value 40020 1\r\n") + 1000 * (len(b"value 32000 1\r\n") + 32_000)
            while left:
                left -= len(await asyncio.get_running_loop().sock_recv(deaf, 1 << 20))

    serve(test)


def test_what_comes_behind_the_last_command_is_not_kept(serve):
    async def test(server, host, port):
        async with MetaClient(host, port) as client:
            await client.put("t", b"x" * 40_000, partition=0)
        await until_async(lambda: not server._connections, "its end")
        with socket.create_connection((host, port)) as deaf:
            deaf.sendall(b"get t g 0 0 32000 1\r\n" * 200 + b"quit\r\n")
            await until_async(
                lambda: server._connections and next(iter(server._connections))._ended,
                "the last command",
            )
            (served,) = server._connections
            deaf.setblocking(False)
            for _ in range(300):
                with contextlib.suppress(BlockingIOError):
                    deaf.send(bytes(100_000))
                await asyncio.sleep(0)
            assert len(served._buffer) < 1_000_000

    serve(test)


def test_who_is_ended_in_the_middle_of_a_file_spoils_no_other_connection(serve, caplog):
    now = [1000.0]
    size = 24 << 20

    async def test(server, host, port):
        async with MetaClient(host, port) as client:
            await client.put("t", bytes(size - 1) + b"x", partition=0)
        await until_async(lambda: not server._connections, "its end")
        with socket.socket() as deaf, socket.socket() as other, socket.socket() as another:
            deaf.connect((host, port))
            deaf.sendall(b"get t g 0 0 %d 1\r\n" % (2 * size))
            await until_async(
                lambda: (
                    server._connections
                    and not next(iter(server._connections))._transport.is_reading()
                ),
                "it is sent",
            )
            (served,) = server._connections
            now[0] += 1000
            other.connect((host, port))
            await until_async(lambda: served not in server._connections, "its end")
            await until_async(lambda: server._connections, "another's beginning")
            other.close()
            await until_async(lambda: not server._connections, "the other's end")
            # its socket has the number that the first one had
            another.connect((host, port))
            another.setblocking(False)
            another.send(b"version 1\r\n")
            async with asyncio.timeout(TIMEOUT_S):
                answer = await asyncio.get_running_loop().sock_recv(another, 100)
            assert answer.startswith(b"result 200 ")

    clock = World(monotonic_s=lambda: now[0])
    serve(test, max_message_size=size, connection_max=1, world=clock)
    assert not caplog.records


def test_the_answer_of_a_request_that_was_cancelled_is_not_the_next_ones():
    asked, goes_on = asyncio.Event(), asyncio.Event()

    async def answer(reader, writer):
        for text in (b"late", b"next"):
            _, opaque = (await reader.readuntil(b"\r\n")).split()
            asked.set()
            await goes_on.wait()
            writer.write(b"result 200 4 %s\r\n%s" % (opaque, text))
        writer.close()

    async def main():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with server, MetaClient(host, port) as client:
            first = asyncio.ensure_future(client.version())
            await asked.wait()
            first.cancel()
            await asyncio.wait([first])
            second = asyncio.ensure_future(client.version())
            goes_on.set()
            return await asyncio.wait_for(second, TIMEOUT_S)

    assert asyncio.run(main()) == "next"
