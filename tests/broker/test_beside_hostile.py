"""What one hostile client, in one process, costs those who are served beside it."""

import asyncio
import contextlib
import json
import threading
import time

import pytest
from broker.conftest import LONG_MS, Peer
from broker.serving import serving
from children import Forked

from rmqcore.remoting import RemotingCommand, RequestCode, ResponseCode
from rmqcore.remoting.codec import encode_command

pytestmark = pytest.mark.measure

TOPIC, QUEUES, ROUNDS = "T", 4, 300
#: what a message may take from its send to the pull that waits for it, beside any of them; Python
#: looks for garbage in what waits for the third of a second
AT_MOST_MS = 1000


class Address:
    """A broker as far as `Peer` knows one."""

    def __init__(self, address):
        self.address = address


async def connect(address):
    """A connection that reads what comes, and passes it over."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))

    async def read():
        with contextlib.suppress(OSError):
            while await reader.read(1 << 20):
                pass

    return writer, asyncio.ensure_future(read())


async def flood(address, connections, requests):
    """Send requests over so many connections, in turn, as fast as they are taken."""
    writers = [await connect(address) for _ in range(connections)]
    for number, (code, fields, body) in enumerate(requests):
        command = RemotingCommand(code, {name: str(v) for name, v in fields.items()}, body)
        command.opaque = number
        writer = writers[number % connections][0]
        with contextlib.suppress(OSError):
            writer.writelines(encode_command(command)[0])
            await writer.drain()


def pulls(count, subscription="never", **more):
    """Pulls that wait, on all queues."""
    for number in range(count):
        yield (
            RequestCode.PULL_MESSAGE,
            {
                **{"consumerGroup": "evil", "topic": TOPIC, "queueId": number % QUEUES},
                **{"queueOffset": 0, "maxMsgNums": 32, "sysFlag": 6, "commitOffset": 0},
                **{"suspendTimeoutMillis": LONG_MS, "subscription": subscription},
                **{"subVersion": 0, **more},
            },
            b"",
        )


def pops(count):
    """Pops that wait for ever."""
    for number in range(count):
        yield (
            RequestCode.POP_MESSAGE,
            {
                **{"consumerGroup": f"evil{number % 2000}", "topic": TOPIC, "queueId": -1},
                **{"maxMsgNums": 32, "invisibleTime": LONG_MS, "pollTime": 2**62},
                **{"bornTime": 0, "initMode": 1, "order": "false", "exp": "never"},
                "expType": "TAG",
            },
            b"",
        )


def conditions():
    """Pulls with ever other conditions, as long as they may be."""
    for number in range(10**9):
        text = " OR ".join([f"a{number} < 0"] * 1100)[:16_000].rpartition(" OR ")[0]
        yield from pulls(1, text, expressionType="SQL92", suspendTimeoutMillis=0, sysFlag=4)


def heart_beats():
    """Heart-beats as large as a frame."""
    groups = [{"groupName": f"evil{n}", "subscriptionDataSet": []} for n in range(250_000)]
    body = json.dumps({"clientID": "evil", "consumerDataSet": groups}).encode()
    assert 14 << 20 < len(body) < 16 << 20
    for _ in range(10**9):
        yield RequestCode.HEART_BEAT, {}, body


def digits():
    """Bodies of digits, for each request that has a body of JSON."""
    codes = (RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.BATCH_ACK_MESSAGE)
    for number in range(10**9):
        yield codes[number % len(codes)], {}, b"1" * 1_000_000


HOSTILE = {
    "20,000 pulls that wait": (20, lambda: pulls(20_000)),
    "100,000 pops that wait": (10, lambda: pops(100_000)),
    "long conditions": (2, conditions),
    "heart-beats of 15 MiB": (1, heart_beats),
    "bodies of digits": (2, digits),
}


def hostile(address, kind):
    """The work of the hostile process: ready when all waits, or when it is at it."""
    connections, requests = HOSTILE[kind]

    def work(ready):
        def at_it():
            asyncio.run(scene())

        async def scene():
            given = requests()
            task = asyncio.ensure_future(flood(address, connections, given))
            if "wait" in kind:
                await task
            started.set()
            await asyncio.Event().wait()

        started = threading.Event()
        threading.Thread(target=at_it, daemon=True).start()
        started.wait()
        ready()

    return Forked(work)


async def latencies_ms(peer):
    """What messages take from their send to the pull that waits for it."""
    first = await peer.send(TOPIC, b"first")
    assert first.code == ResponseCode.SUCCESS
    offset, took_ms = int(first.ext_fields["queueOffset"]) + 1, []
    for _ in range(ROUNDS):
        waiting = asyncio.ensure_future(peer.pull(TOPIC, offset=offset, suspend_ms=LONG_MS))
        await asyncio.sleep(0.005)
        began = time.monotonic()
        sent = await peer.send(TOPIC, b"one")
        assert sent.code == ResponseCode.SUCCESS
        await waiting
        offset += 1
        took_ms.append(1000 * (time.monotonic() - began))
    return sorted(took_ms)


@pytest.mark.parametrize("kind", HOSTILE)
def test_honest_clients_are_served_beside(store_path, figure, kind):
    with serving(store_path) as (_, said):
        address = said["broker"]

        async def scene():
            peer = Peer(Address(address))
            alone = await latencies_ms(peer)
            figure("p99 alone", alone[len(alone) * 99 // 100], "ms")
            other = await asyncio.to_thread(hostile, address, kind)
            try:
                beside = await latencies_ms(peer)
            finally:
                other.kill()
            await peer.client.close()
            figure("p50 beside it", beside[len(beside) // 2], "ms")
            figure("p99 beside it", beside[len(beside) * 99 // 100], "ms", at_most=AT_MOST_MS)

        asyncio.run(scene())
