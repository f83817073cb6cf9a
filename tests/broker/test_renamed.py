"""A broker that is started again under another name, or in another cluster."""

import asyncio

import pytest
from broker.conftest import served
from broker.test_passed_over import REVIVE_TOPIC, timed
from broker.test_pop import acknowledge, handed_out, pop, pop_until, send_many
from killed_copy import copy_as_killed
from patience import until_async

from rmqcore.remoting import ResponseCode

pytestmark = pytest.mark.engine

INVISIBLE_MS = 60_000
NAMES = [{}, {"brokerClusterName": "Other"}, {"brokerName": "other"}]


@pytest.fixture
def named(tmp_path, clock):
    """Run coroutine functions one after the other, each with settings of its own on one store."""

    def run(*scenarios, kills=False):
        async def main():
            path = tmp_path / "store"
            for number, (scenario, settings) in enumerate(scenarios):
                async with served(path, **settings) as (broker, peer):
                    await scenario(broker, peer)
                    if kills:
                        copy_as_killed(broker.store.path, tmp_path / f"killed-{number}")
                path = tmp_path / f"killed-{number}" if kills else path

        asyncio.run(main())

    return run


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("names", NAMES, ids=["the same", "cluster", "broker"])
def test_what_was_popped_under_a_former_name_comes_again_or_is_acknowledged(
    named, clock, names, back, kills
):
    found = []

    async def popped(_, peer):
        await send_many(peer, 5, queues=1)
        answer = await pop(peer, count=4, queue_id=0, invisible_ms=INVISIBLE_MS)
        found.extend(handed_out(answer))
        await acknowledge(peer, *found[0])

    async def again(_, peer):
        assert (await acknowledge(peer, *found[1])).code == ResponseCode.SUCCESS

    async def at_last(broker, peer):
        assert [m.body for m, _ in handed_out(await pop(peer, queue_id=0))] == [b"4"]
        clock.go_on(2 * INVISIBLE_MS, broker)
        comes = await pop(peer, count=9, queue_id=0, poll_ms=40_000)
        assert sorted(m.body for m, _ in handed_out(comes)) == [b"2", b"3", b"4"]

    named((popped, {}), (again, names), (at_last, {} if back else names), kills=kills)


@pytest.mark.parametrize("names", NAMES, ids=["the same", "cluster", "broker"])
def test_what_rocketmq_has_in_its_timer_under_a_former_name_comes_again_or_is_acknowledged(
    named, clock, names
):
    """Its checkpoints and acknowledgements pass the timer before anybody reads them."""

    async def popped(broker, peer):
        await send_many(peer, 2, queues=1)
        for each in handed_out(await pop(peer, queue_id=0, invisible_ms=INVISIBLE_MS)):
            await acknowledge(peer, *each)
        checkpoint, ack, _ = broker.store.messages(REVIVE_TOPIC)
        for later_ms, record in ((INVISIBLE_MS - 1000, checkpoint), (INVISIBLE_MS, ack)):
            more = {"TAGS": record.tags, "TIMER_OUT_MS": str(clock.now_ms + later_ms)}
            broker.store.put_message(timed(bytes(record.body), REVIVE_TOPIC, clock, **more))

    async def at_last(broker, peer):
        end_of = broker.store.max_queue_offset
        for ms in (INVISIBLE_MS, 1000):
            before = end_of(REVIVE_TOPIC, 0)
            clock.go_on(ms, broker)
            await until_async(
                lambda before=before: end_of(REVIVE_TOPIC, 0) > before, "the timer has delivered"
            )
        clock.go_on(10_000, broker)
        assert [m.body for m, _ in await pop_until(peer, 1)] == [b"1"]

    named((popped, {}), (at_last, names))
