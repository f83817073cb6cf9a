"""Many clients that send anything in any pieces, read slowly, and go away in the middle."""

import asyncio

import pytest
from patience import TIMEOUT_S, until_async

from rmqcore.metaq import MessageStoreManager, MetaClient, MetaServer

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
