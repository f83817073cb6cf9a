"""A broker in a process of its own, and clients that note what was acknowledged and what came."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
from contextlib import contextmanager

from patience import TIMEOUT_S, until_async

from rmqcore.client import Consumer, Producer, SendStatus
from rmqcore.remoting import RemotingClient, RemotingCommand, RemotingError, RequestCode
from rmqcore.world import wall_clock_ms

TOPIC = "Traffic"


@contextmanager
def serving(store, *options):
    """`rmqcore serve` on free ports; yields the process and what it says of itself."""
    command = [
        *(sys.executable, "-m", "rmqcore", "serve", str(store), "--namesrv-port", "0"),
        *("--port", "0", "--grpc-port", "0", "--json", "-c", "mappedFileSizeCommitLog=1048576"),
        *options,
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ}
    )
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read().decode()
        yield process, json.loads(line)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=TIMEOUT_S)


async def produce(address, prefix, enough, *, in_flight=32, group="PG"):
    """Send until the broker has gone; returns the bodies that were acknowledged.

    Args:
        address: of the broker.
        prefix: what the bodies begin with.
        enough: called with the number acknowledged so far, after each.
        in_flight: requests at a time.
        group: of the producer.
    """
    client, acknowledged, numbers = RemotingClient(), [], iter(range(10**9))
    gone = asyncio.Event()

    async def one_after_the_other():
        while not gone.is_set():
            body = f"{prefix}{next(numbers)}".encode()
            fields = {
                **{"a": group, "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0"},
                **{"g": str(wall_clock_ms()), "h": "0", "i": ""},
            }
            command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, body)
            try:
                answer = await client.invoke(address, command, TIMEOUT_S * 1000)
            except RemotingError:
                gone.set()
                return
            if answer.code == 0:
                acknowledged.append(body)
                enough(len(acknowledged))

    await asyncio.gather(*(one_after_the_other() for _ in range(in_flight)))
    await client.close()
    return acknowledged


class Traffic:
    """A producer and a consumer of the client that go on by themselves, whatever the broker does.

    Attributes:
        acknowledged: the bodies that the broker has said to have.
        got: body -> in which of the broker's lives the consumer was given it.
        life: which life of the broker this is; who ends one counts on.
    """

    def __init__(self, namesrv_addr, *, senders=1):
        self.acknowledged, self.got, self.life = set(), {}, 0
        # without tries of its own, a body is stored once
        self._producer = Producer(namesrv_addr, retries=0)
        self._consumer = Consumer(namesrv_addr, "G", {TOPIC: "*"}, start="first")
        self._senders, self._stop, self._tasks = senders, asyncio.Event(), []

    async def __aenter__(self):
        await self._producer.start()
        await self._producer.send(TOPIC, b"first")
        self.acknowledged.add(b"first")
        await self._consumer.start()
        self._tasks = [asyncio.ensure_future(self._send(n)) for n in range(self._senders)]
        self._receiving = asyncio.ensure_future(self._receive())
        return self

    async def __aexit__(self, *_):
        for task in (*self._tasks, self._receiving):
            task.cancel()
        await self._consumer.close()
        await self._producer.close()

    async def goes_on(self, count):
        """Wait until so many more messages are acknowledged, and the consumer has some of them."""
        before = set(self.acknowledged)

        def went_on():
            if len(self.acknowledged) < len(before) + count:
                return False
            return not (self.acknowledged - before).isdisjoint(self.got)

        await until_async(went_on, f"{count} more messages acknowledged, and some consumed")

    async def all_came(self):
        """Send no more, and wait until the consumer has all that is acknowledged."""
        self._stop.set()
        await asyncio.gather(*self._tasks)
        await until_async(
            lambda: (
                len(self.got) >= len(self.acknowledged) and self.acknowledged <= self.got.keys()
            ),
            "the consumer has all that is acknowledged",
        )

    async def _send(self, sender):
        for number in itertools.count():
            if self._stop.is_set():
                return
            body = b"%d/%d" % (sender, number)
            try:
                sent = await self._producer.send(TOPIC, body)
            except Exception:  # noqa: BLE001 - whatever a broker that ends lets a send end with
                await asyncio.sleep(0.05)
            else:
                if sent.status is SendStatus.SEND_OK:
                    self.acknowledged.add(body)

    async def _receive(self):
        async for message in self._consumer:
            self.got.setdefault(bytes(message.body), []).append(self.life)
            await self._consumer.ack(message)
