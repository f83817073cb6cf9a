"""Many clients that send anything in any pieces, read slowly, and go away in the middle."""

import asyncio

import pytest

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
    if rng.random() < 0.7:
        writer.write_eof()


async def visit(host, port, rng):
    reader, writer = await asyncio.open_connection(host, port)
    data = bytearray(b"".join(rng.choice(PARTS) for _ in range(rng.randrange(1, 200))))
    for _ in range(rng.choice([0, 0, 5])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    sending = asyncio.create_task(send(writer, bytes(data), rng))
    mood = rng.random()
    try:
        if mood < 0.2:
            await asyncio.sleep(0.01)
        elif mood < 0.4:
            for _ in range(20):
                await asyncio.wait_for(reader.read(1000), 0.2)
                await asyncio.sleep(0.002)
        else:
            await asyncio.wait_for(reader.read(-1), 1)
    except (OSError, TimeoutError):
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
            async with asyncio.timeout(10):
                while server.processor.stats.connections:
                    await asyncio.sleep(0.01)
            async with MetaClient(host, port) as client:
                await client.put("t", b"still here", partition=0)
            await server.stop()
            for store in manager.all_stores():
                assert all(message.data for message in store.messages())

    asyncio.run(main())
    assert [r.getMessage() for r in caplog.records if r.exc_info] == []
