"""What one hostile client of gRPC, in one process, costs those who are served beside it."""

import asyncio
import contextlib
import struct
import threading
import time

import pytest
from broker.serving import serving
from children import Forked
from ngh2 import NGH2Error
from proxy.test_hostile import PREFACE, SEND, SETTINGS, frame
from proxy.wire import Wire

from rmqcore.proxy.codes import Code
from rmqcore.proxy.messages import v2_class

pytestmark = pytest.mark.measure

ROUNDS = 200
#: what a message may take from its send to the receive that waits for it, beside any of them
AT_MOST_MS = 1000
#: what the server may keep for one of them: unfinished messages, and what Python has around them
AT_MOST_MIB = 400
CONNECTIONS, STREAMS = 8, 1000


async def resets(port):
    """Calls that are begun and taken back, as fast as they are taken."""
    wire = await Wire.connect(port)
    with contextlib.suppress(NGH2Error):
        while not wire.lost.done():
            wire.open(SEND).cancel()
            await asyncio.sleep(0)
    await wire.close()


async def written(port, *parts):
    """Write bytes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reading = asyncio.ensure_future(_until_closed(reader))
    with contextlib.suppress(OSError):
        for part in parts:
            writer.write(part)
            await writer.drain()
        await reading
    writer.close()


async def _until_closed(reader):
    with contextlib.suppress(OSError):
        while await reader.read(1 << 16):
            pass


async def headers(port):
    """A block of headers that never ends."""
    block = frame(9, b"\x00\x01a\x01b" * 3000, stream=1)
    await written(port, PREFACE, SETTINGS, frame(1, b"\x00\x01a\x01b", stream=1), *[block] * 1000)


async def bomb(port):
    """Blocks of headers that are a few bytes here, and kilobytes when they are unpacked."""
    # the name and value that the first block has put into the table, again and again
    value = b"v" * 3500
    first = b"\x40\x01x\x7f\xad\x1a" + value
    again = [frame(1, b"\xbe" * 16_000, flags=4, stream=stream) for stream in range(3, 20_001, 2)]
    await written(port, PREFACE, SETTINGS, frame(1, first, flags=4, stream=1), *again)


async def unfinished(port):
    """Messages that say they are of megabytes, of which half comes."""
    wires = [await Wire.connect(port) for _ in range(CONNECTIONS)]
    head = struct.pack(">?I", False, 8 << 20)
    with contextlib.suppress(NGH2Error):
        for _ in range(STREAMS):
            for wire in wires:
                stream = wire.open(SEND)
                wire.http2.send_data(stream.stream_id, head + bytes(60_000))
                wire.flush()
            await asyncio.sleep(0)
    await asyncio.Event().wait()


async def waiting(port):
    """Receives that wait, as many as a connection takes."""
    request = v2_class("ReceiveMessageRequest")(
        group={"name": "evil"},
        message_queue={"topic": {"name": "Evil"}, "id": -1},
        batch_size=32,
        long_polling_timeout={"seconds": 20},
        invisible_duration={"seconds": 30},
    )
    wires = [await Wire.connect(port) for _ in range(CONNECTIONS)]
    with contextlib.suppress(NGH2Error):
        for _ in range(STREAMS):
            for wire in wires:
                wire.begin("ReceiveMessage", request)
            await asyncio.sleep(0)
    await asyncio.sleep(20)


HOSTILE = {each.__name__: each for each in (resets, headers, bomb, unfinished, waiting)}


def hostile(port, kind):
    """The hostile process, which does it again and again."""

    def work(ready):
        async def scene():
            while True:
                doing = asyncio.ensure_future(HOSTILE[kind](port))
                await asyncio.wait([doing], timeout=1)
                started.set()
                with contextlib.suppress(OSError):
                    await doing

        started = threading.Event()
        threading.Thread(target=lambda: asyncio.run(scene()), daemon=True).start()
        started.wait()
        ready()

    return Forked(work)


async def latencies_ms(wire):
    """What messages take from their send to the receive that waits for it."""
    assert (await wire.send("T", b"first")).status.code == Code.OK
    await wire.receive("T")
    took_ms = []
    for number in range(ROUNDS):
        receiving = asyncio.ensure_future(wire.receive("T", wait_s=20))
        await asyncio.sleep(0.005)
        began = time.monotonic()
        assert (await wire.send("T", b"%d" % number)).status.code == Code.OK
        _, (message,) = await receiving
        took_ms.append(1000 * (time.monotonic() - began))
        assert message.body == b"%d" % number
        assert (await wire.ack("T", message)).status.code == Code.OK
    return sorted(took_ms)


def resident_mib(process):
    """What a process has in memory."""
    with open(f"/proc/{process.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 / (1 << 20)


@pytest.mark.parametrize("kind", HOSTILE)
def test_honest_clients_are_served_beside(store_path, figure, kind):
    with serving(store_path, "--grpc-port", "0") as (process, said):
        port = int(said["grpc"].rpartition(":")[2])

        async def scene():
            wire = await Wire.connect(port)
            alone = await latencies_ms(wire)
            figure("p99 alone", alone[len(alone) * 99 // 100], "ms")
            kept = resident_mib(process)
            other = await asyncio.to_thread(hostile, port, kind)
            try:
                beside = await latencies_ms(wire)
                figure("memory beside it", resident_mib(process) - kept, "MiB", AT_MOST_MIB)
            finally:
                other.kill()
            await wire.close()
            figure("p50 beside it", beside[len(beside) // 2], "ms")
            figure("p99 beside it", beside[len(beside) * 99 // 100], "ms", at_most=AT_MOST_MS)

        asyncio.run(scene())
