"""A broker whose store's directory gets another name while it runs writes into no other store."""

import asyncio
import contextlib

import pytest
from broker.conftest import served
from broker.test_pop import pop, send_many

from rmqcore.errors import StoreNotFoundError
from rmqcore.remoting import RequestCode

pytestmark = pytest.mark.engine


def files_of(directory):
    return {
        file.relative_to(directory): file.read_bytes()
        for file in directory.rglob("*")
        if file.is_file() and file.name != "storeTrace"
    }


async def use(broker, peer, group):
    """Have something in each of a broker's tables."""
    await send_many(peer, 3, queues=1)
    await pop(peer, count=1, consumerGroup=group, order="true")
    await pop(peer, count=1, consumerGroup=f"{group}-2")
    await peer.send("T", b"later", properties={"TIMER_DELAY_SEC": "1000"})
    broker.managers.groups.put(group, {"retryMaxTimes": 3})
    await broker.managers.modes.put("T", group, "POP", 2)
    fields = {"topic": "T", "group": group, "timestamp": -1, "queueId": 0, "offset": 1}
    await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)


def test_what_a_broker_knows_does_not_come_into_another_store(tmp_path):
    async def scenario():
        with contextlib.suppress(StoreNotFoundError):
            async with served(tmp_path / "store") as (broker, peer):
                await use(broker, peer, "OLD")
                (tmp_path / "store").rename(tmp_path / "moved")
                async with served(tmp_path / "store") as (new, next_peer):
                    await use(new, next_peer, "NEW")
                before = files_of(tmp_path / "store")
                await use(broker, peer, "OLDER")
                parts = broker.managers
                for write in (
                    parts.persist_progress,
                    parts.offsets.resets.persist_ends,
                    parts.finish,
                ):
                    with contextlib.suppress(OSError):
                        write()
        assert files_of(tmp_path / "store") == before

    asyncio.run(scenario())
