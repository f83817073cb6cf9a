"""A POP says when it was sent, by a clock that is not the broker's."""

import asyncio

import pytest
from broker.conftest import held
from broker.test_pop import handed_out, pop, send_many

from rmqcore.remoting import ResponseCode

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
