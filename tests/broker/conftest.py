"""A broker in this process, and a client that speaks frames."""

import asyncio
import errno
import os
from contextlib import asynccontextmanager

import pytest
from killed_copy import written_apart
from patience import TIMEOUT_S, until_async

from rmqcore._codec import decode_record, encode_properties
from rmqcore.broker import Broker
from rmqcore.files import config_file
from rmqcore.remoting import RemotingClient, RemotingCommand, RequestCode
from rmqcore.world import REAL, hold_time, release_time, wall_clock_ms, wall_clock_ns

#: longer than any test waits: what is told to wait so long and is answered was woken
LONG_MS = 3_600_000
SMALL = {"mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 1000, "maxIndexNum": 4000}


@pytest.fixture(autouse=True)
def tables_written_apart(monkeypatch):
    """Have `copy_as_killed` wait for a table that is being written."""
    written_apart(monkeypatch)


class Peer:
    """Sends requests to one broker."""

    def __init__(self, broker):
        self.broker = broker
        self.client = RemotingClient()

    async def ask(self, code, fields=None, body=b"", timeout_ms=TIMEOUT_S * 1000):
        command = self.command(code, fields, body)
        return await self.client.invoke(self.broker.address, command, timeout_ms)

    @staticmethod
    def command(code, fields=None, body=b""):
        return RemotingCommand(
            code, {name: str(value) for name, value in (fields or {}).items()}, body
        )

    async def send(self, topic, body, *, queue_id=0, code=RequestCode.SEND_MESSAGE_V2, **more):
        properties = more.pop("properties", {})
        fields = {
            "a": "PG",
            "b": topic,
            "c": "TBW102",
            "d": 4,
            "e": queue_id,
            "f": 0,
            "g": wall_clock_ms(),
            "h": 0,
            "i": encode_properties(properties).decode(),
            **more,
        }
        return await self.ask(code, fields, body)

    async def pull(self, topic, *, queue_id=0, offset=0, group="CG", suspend_ms=0, **more):
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": queue_id,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 4 | (2 if suspend_ms else 0),
            "commitOffset": 0,
            "suspendTimeoutMillis": suspend_ms,
            "subVersion": 0,
            "subscription": "*",
            **more,
        }
        return await self.ask(RequestCode.PULL_MESSAGE, fields)


def records(body):
    """The messages of the records in a body."""
    found, at = [], 0
    while at < len(body):
        message = decode_record(body, at)
        found.append(message)
        at += message.store_size
    return found


async def held(hold, count=1):
    """Wait until so many requests wait in a `WaitingPulls` or a `WaitingPops`."""
    await until_async(lambda: len(hold) == count, f"{count} requests wait")


@pytest.fixture
def long_hold(monkeypatch):
    """Let a pull wait for as long as it asks for."""
    monkeypatch.setattr("rmqcore.broker.pull.waiting.WAIT_S_MAX", LONG_MS / 1000)


class Clock:
    """A time of day that stands until it is moved."""

    def __init__(self):
        hold_time(wall_clock_ns())

    @property
    def now_ms(self):
        return wall_clock_ms()

    @now_ms.setter
    def now_ms(self, ms):
        hold_time(ms * 1_000_000)

    def go_on(self, ms, broker=None):
        """Move it, and let a broker look for what is due: it would within a second."""
        self.now_ms += ms
        if broker is not None:
            broker.managers.timer.wake()
            broker.managers.pop_acks.wake()
            broker.store.parts.upkeep.delayed.wakeup()


@pytest.fixture
def clock():
    """The time of day that brokers and tests are told, see `Clock`."""
    yield Clock()
    release_time()


@asynccontextmanager
async def served(path, world=REAL, **settings):
    """A broker on a store and a free port, and a peer."""
    broker = Broker(path, {"listenPort": 0, **SMALL, **settings}, world=world)
    await broker.start()
    peer = Peer(broker)
    try:
        yield broker, peer
    finally:
        await peer.client.close()
        await broker.stop()


@pytest.fixture
def topics_refused(monkeypatch):
    """A list: as long as something is in it, the disk has no room for the table of topics."""
    full = []

    def write(path, raw, really=config_file._write):
        if full and path.name.startswith("topics.json"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        really(path, raw)

    monkeypatch.setattr(config_file, "_write", write)
    return full


@pytest.fixture
def with_broker(tmp_path):
    """Run a coroutine function with a broker on a free port, and a peer."""

    def run(scenario, world=REAL, **properties):
        async def main():
            async with served(tmp_path / "store", world, **properties) as (broker, peer):
                await scenario(broker, peer)

        asyncio.run(main())

    return run


@pytest.fixture
def lives(tmp_path):
    """Run coroutine functions one after the other, each with a broker on the same store."""

    def run(*scenarios, **settings):
        async def main():
            for scenario in scenarios:
                async with served(tmp_path / "store", **settings) as (broker, peer):
                    await scenario(broker, peer)

        asyncio.run(main())

    return run
