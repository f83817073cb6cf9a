"""A master gets back what it had lost, and what it took meanwhile is cut off: who has read that."""

import asyncio
import shutil

import pytest
from broker.conftest import LONG_MS, served
from broker.test_pop import acknowledge, handed_out, pop, send_many
from broker.test_promoted import sent_to
from broker.test_state import commit

from rmqcore import open_store
from rmqcore.files.store_dir import StoreDir
from rmqcore.ha.resync import Divergence, cut
from rmqcore.remoting import ResponseCode

pytestmark = pytest.mark.engine


@pytest.fixture
def led_back(tmp_path):
    """Run lives of a master: what its slave has of it, what it lost and took instead, and after."""
    slave, master = tmp_path / "s", tmp_path / "m"

    async def lived(path, life):
        async with served(path) as (broker, peer):
            await life(broker, peer)

    def ended(path):
        with open_store(path, mode="r") as store:
            return store.max_phy_offset

    def run(before, lost, meanwhile, after):
        asyncio.run(lived(master, before))
        end = ended(master)
        shutil.copytree(master, slave)
        asyncio.run(lived(slave, lost))
        asyncio.run(lived(master, meanwhile))
        cut(StoreDir(master), Divergence(0, end, ended(master), True))
        with (
            open_store(slave) as theirs,
            open_store(master, broker_role="SLAVE", on_corruption="truncate") as store,
        ):
            assert store.max_phy_offset == end
            store.followed_log.append_data(theirs.followed_log.bytes_at(end, 1 << 20), end)
        asyncio.run(lived(master, after))

    return run


async def three(_, peer):
    await send_many(peer, 3, queues=1)


async def five(_, peer):
    await send_many(peer, 5, queues=1)


def test_who_has_read_what_is_cut_off_is_given_what_takes_its_place(led_back):
    """Its places are those of messages that slaves have confirmed, and that nobody was given."""

    async def meanwhile(_, peer):
        await send_many(peer, 3, queues=1)
        await commit(peer, 6)

    async def after(broker, peer):
        assert broker.store.max_queue_offset("T", 0) == 8
        assert await sent_to(peer, 6) == 3
        assert await sent_to(peer, 6, consumerGroup="WithoutOffset") == 3
        assert await sent_to(peer, 3) is None

    led_back(three, five, meanwhile, after)


def test_an_acknowledgement_in_order_of_what_is_cut_off_passes_over_nothing(led_back):
    in_order, receipts = {"queue_id": 0, "order": "true", "invisible_ms": LONG_MS}, []

    async def meanwhile(_, peer):
        await send_many(peer, 5, queues=1)
        receipts.extend(handed_out(await pop(peer, count=8, **in_order)))

    async def after(_, peer):
        for message, receipt in receipts:
            assert (await acknowledge(peer, message, receipt)).code == ResponseCode.SUCCESS
        found = handed_out(await pop(peer, count=8, **in_order))
        assert [message.queue_offset for message, _ in found] == list(range(8))

    led_back(three, five, meanwhile, after)
