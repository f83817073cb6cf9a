"""A POP says when it was sent, by a clock that is not the broker's."""

import asyncio

import pytest
from broker.conftest import held
from broker.test_pop import handed_out, pop, send_many

from rmqcore.remoting import ResponseCode
from rmqcore.world import World, monotonic_s

pytestmark = pytest.mark.engine


def test_a_pop_that_comes_half_a_second_after_its_client_gave_up_is_too_late(with_broker, clock):
    async def scenario(_, peer):
        await send_many(peer, 1)
        born_ms = clock.now_ms
        clock.go_on(1501)
        late = await pop(peer, poll_ms=1000, bornTime=born_ms)
        assert (late.code, late.remark) == (
            ResponseCode.POLLING_TIMEOUT,
            "the request came too late",
        )
        assert len(handed_out(await pop(peer, poll_ms=1000, bornTime=born_ms + 1))) == 1

    with_broker(scenario)


@pytest.mark.parametrize("ahead_ms", [-3_600_000, -2000, 2000, 3_600_000])
def test_a_client_with_another_clock_is_handed_messages_while_it_waits(
    with_broker, clock, ahead_ms
):
    async def scenario(broker, peer):
        await send_many(peer, 1)
        assert len(handed_out(await pop(peer))) == 1
        await pop(peer, bornTime=clock.now_ms + ahead_ms)
        for _ in range(2):
            born_ms = clock.now_ms + ahead_ms
            waits = asyncio.create_task(pop(peer, poll_ms=1000, bornTime=born_ms))
            await held(broker.managers.waiting_pops)
            # whoever is held longer than he waits is handed what reaches nobody
            (waiting,) = next(iter(broker.managers.waiting_pops._by_connection.values()))
            left_s = waiting.timer.when() - asyncio.get_running_loop().time()
            assert left_s <= 1.0
            await send_many(peer, 1)
            assert len(handed_out(await waits)) == 1

    with_broker(scenario)


def test_a_pop_that_is_woken_for_nothing_waits_no_longer_than_it_has_said(with_broker):
    passed_s = 0.0

    async def scenario(broker, peer):
        nonlocal passed_s
        await send_many(peer, 1)
        await pop(peer)
        waits = asyncio.create_task(pop(peer, poll_ms=40_000, exp="B"))
        await held(broker.managers.waiting_pops)
        passed_s = 40.0
        # of another tag
        await send_many(peer, 1)
        assert (await waits).code == ResponseCode.POLLING_TIMEOUT

    with_broker(scenario, World(monotonic_s=lambda: monotonic_s() + passed_s))


@pytest.mark.parametrize("order", ["false", "true"])
@pytest.mark.parametrize("restart", [False, True])
def test_what_was_popped_comes_again_in_time_when_the_clock_is_put_back(
    lives, clock, order, restart
):
    ahead_ms = 30 * 24 * 3_600_000

    async def popped_by_a_clock_that_is_ahead(_, peer):
        await send_many(peer, 1)
        clock.go_on(ahead_ms)
        assert len(handed_out(await pop(peer, queue_id=0, order=order, invisible_ms=20_000))) == 1
        clock.go_on(-ahead_ms)

    async def again(broker, peer):
        for passed_ms, count in ((0, 0), (19_999, 0), (1, 1)):
            clock.go_on(passed_ms, broker)
            found = await pop(peer, queue_id=0, order=order, poll_ms=40_000 * count)
            assert len(handed_out(found)) == count

    async def at_once(broker, peer):
        await popped_by_a_clock_that_is_ahead(broker, peer)
        await again(broker, peer)

    lives(*([popped_by_a_clock_that_is_ahead, again] if restart else [at_once]))
