"""Timer messages when the clock is put back."""

import pytest
from broker.test_recall import ON, recall, send
from broker.test_timer import come, taken_in

from rmqcore.remoting import ResponseCode

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("steps", [1, 3])
def test_what_was_delivered_before_the_clock_was_put_back_does_not_come_again(
    with_broker, clock, steps
):
    """What comes then is due before it."""

    async def put(peer, body, delay_ms):
        deliver = {"TIMER_DELIVER_MS": str(clock.now_ms + delay_ms)}
        await peer.send("T", body, properties=deliver)

    async def first(broker, peer):
        await put(peer, b"far", 20_000_000)
        for step in range(steps):
            await put(peer, b"delivered", 1000)
            await put(peer, b"same time", 1000)
            await taken_in(broker, 3 + step)
            clock.go_on(1000, broker)
            await come(peer, "T", 2 + 2 * step)
            clock.go_on(-3_600_000, broker)
            await put(peer, b"new", 1_000_000)
            await taken_in(broker, 2 + step)

    async def again(broker, peer):
        await put(peer, b"sooner", 500_000)
        await taken_in(broker, 2 + steps)
        clock.go_on(500_000, broker)
        await come(peer, "T", 2 * steps + 1)

    async def last(broker, peer):
        clock.go_on(steps * 3_600_000 + 20_000_000, broker)
        found = [m.body for m in await come(peer, "T", 3 * steps + 2)]
        assert found[2 * steps :] == [b"sooner"] + steps * [b"new"] + [b"far"]

    for scenario in (first, again, last):
        with_broker(scenario)


def test_what_was_delivered_before_the_clock_was_put_back_is_not_recalled(with_broker, clock):
    handles = []

    async def check(broker, peer):
        """The one that has come is refused, the other one is taken back."""
        await taken_in(broker, 1)
        gone, kept = handles[-2:]
        refused = await recall(peer, gone)
        assert (refused.code, refused.remark) == (
            ResponseCode.ILLEGAL_OPERATION,
            "recall failed, the message is delivered",
        )
        assert (await recall(peer, kept)).code == ResponseCode.SUCCESS

    async def first(broker, peer):
        due_ms = (clock.now_ms // 1000 + 3) * 1000 + 500
        handles.append(await send(peer, b"gone", "GONE", due_ms))
        await taken_in(broker, 1)
        clock.go_on(4000, broker)
        await come(peer, "T", 1)
        clock.go_on(-4000, broker)
        handles.append(await send(peer, b"kept", "KEPT", due_ms))
        await check(broker, peer)

    async def again(broker, peer):
        await taken_in(broker, 2)
        assert (await recall(peer, handles[0])).code == ResponseCode.ILLEGAL_OPERATION
        clock.go_on(60_000, broker)
        await taken_in(broker, 0)
        assert broker.store.max_queue_offset("T", 0) == 1

    with_broker(first, **ON)
    with_broker(again, **ON)
