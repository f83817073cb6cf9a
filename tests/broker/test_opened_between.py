"""A program opens a broker's store between two lives of the broker, and changes it."""

import asyncio

import pytest
from broker.conftest import served
from broker.test_transactions import COMMIT, decision, send_half
from killed_copy import copy_as_killed
from patience import rounds, until_async

from rmqcore import open_store
from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.engine


@pytest.fixture
def between(tmp_path):
    """Run one life of a broker, what a program does, and another life.

    Where the first is killed, the second begins with a copy of what that leaves.
    """

    def run(first, changes, second, *, killed=False):
        path = tmp_path / "store"

        async def main():
            async with served(path) as (broker, peer):
                await first(broker, peer)
                if killed:
                    await asyncio.to_thread(copy_as_killed, path, tmp_path / "killed")
            left = tmp_path / "killed" if killed else path
            changes(left)
            async with served(left) as (broker, peer):
                await second(broker, peer)

        asyncio.run(main())

    return run


WAITING = {"timer": {"TIMER_DELAY_SEC": "200000"}, "level": {"DELAY": "18"}, "half": None}


@pytest.mark.parametrize("what", WAITING)
def test_retention_deletes_nothing_that_waits_for_the_broker(between, clock, rng, what):
    sent = []

    async def first(_, peer):
        if WAITING[what] is None:
            sent.append(await send_half(peer, b"waits"))
        else:
            await peer.send("T", b"waits", properties=WAITING[what])
        for _ in range(30):
            await peer.send("Filling", rng.randbytes(100_000))

    def delete(path):
        with open_store(path, retention_bytes=1 << 20) as store:
            rounds(store.parts.upkeep.retention, 3)
            assert store.min_phy_offset == 0

    async def second(broker, peer):
        clock.go_on(250_000_000, broker)
        if sent:
            answer = await peer.ask(RequestCode.END_TRANSACTION, decision(sent[0], COMMIT))
            assert answer.code == ResponseCode.SUCCESS
        await until_async(lambda: broker.store.max_queue_offset("T", 0) == 1, "it comes")

    between(first, delete, second)
