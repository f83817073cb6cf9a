"""A master gets back what it had lost, and what it took meanwhile is cut off: who has read that."""

import asyncio
import shutil

import pytest
from broker.conftest import LONG_MS, SMALL, clock, served  # noqa: F401 - a fixture
from broker.test_pop import acknowledge, handed_out, pop, send_many
from broker.test_promoted import sent_to
from broker.test_state import commit
from patience import until_async

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
            open_store(master, broker_role="SLAVE", on_corruption="truncate", **SMALL) as store,
        ):
            assert store.max_phy_offset == end
            store.followed_log.append_data(theirs.followed_log.bytes_at(end, 1 << 20), end)
        asyncio.run(lived(master, after))

    return run


async def nothing(_, __):
    """A store that is new."""


async def three(_, peer):
    await send_many(peer, 3, queues=1)


async def five(_, peer):
    await send_many(peer, 5, queues=1)


@pytest.mark.parametrize("before", [three, nothing])
def test_who_has_read_what_is_cut_off_is_given_what_takes_its_place(led_back, before):
    """Its places are those of messages that slaves have confirmed, and that nobody was given."""

    async def meanwhile(_, peer):
        await send_many(peer, 3, queues=1)
        await commit(peer, first + 3)

    async def after(broker, peer):
        assert broker.store.max_queue_offset("T", 0) == first + 5
        assert await sent_to(peer, first + 3) == first
        assert await sent_to(peer, first + 3, consumerGroup="WithoutOffset") == first
        assert await sent_to(peer, first) is None

    first = 3 if before is three else 0
    led_back(before, five, meanwhile, after)


@pytest.mark.parametrize("before", [three, nothing])
def test_an_acknowledgement_in_order_of_what_is_cut_off_passes_over_nothing(led_back, before):
    in_order, receipts = {"queue_id": 0, "order": "true", "invisible_ms": LONG_MS}, []

    async def meanwhile(_, peer):
        await send_many(peer, 5, queues=1)
        receipts.extend(handed_out(await pop(peer, count=8, **in_order)))

    async def after(_, peer):
        for message, receipt in receipts:
            assert (await acknowledge(peer, message, receipt)).code == ResponseCode.SUCCESS
        found = handed_out(await pop(peer, count=8, **in_order))
        assert [message.queue_offset for message, _ in found] == list(range(count))

    count = 8 if before is three else 5
    led_back(before, five, meanwhile, after)


@pytest.mark.parametrize("how", ["delayed", "timer"])
def test_what_takes_the_place_of_another_log_is_still_to_be_delivered(
    led_back,
    clock,  # noqa: F811
    how,
):
    async def put_off(_, peer):
        later = {"TIMER_DELIVER_MS": str(clock.now_ms + 60_000)}
        for _ in range(3):
            await peer.send("T", b"x", properties={"DELAY": "5"} if how == "delayed" else later)

    async def delivered(broker, _):
        def all_came():
            return broker.store.max_queue_offset("T", 0) == 3

        clock.go_on(61_000, broker)
        await until_async(all_came, "all are delivered")

    async def meanwhile(broker, peer):
        await put_off(broker, peer)
        await delivered(broker, peer)

    led_back(nothing, put_off, meanwhile, delivered)
