"""Who has used up a turn goes on one at a time; others do not wait for how many there are."""

import asyncio
import itertools

import pytest
from remoting.ends import SLOW, frame_of, raw, request, serving

from rmqcore.remoting import success, turns
from rmqcore.remoting.turns import TURN_BODY_SIZE, TURN_TASKS, Turn, Turns

pytestmark = pytest.mark.engine

COUNT = 8


def busy(taken, number):
    """The turns of a connection that always has one more request."""

    def take():
        turn.begin()
        taken.append(number)
        turn.end()
        turn.plan()

    turn = Turn(asyncio.get_running_loop(), take, ())
    return take


@pytest.mark.parametrize(("turn_s", "at_once"), [(-1, 1), (3600, COUNT)])
def test_of_connections_that_use_up_their_turns_one_goes_on_at_a_time(
    run, monkeypatch, turn_s, at_once
):
    monkeypatch.setattr(turns, "TURN_S", turn_s)

    async def scene():
        taken = []
        for number in range(COUNT):
            busy(taken, number)()
        for round_number in range(2 * COUNT):
            before = len(taken)
            await asyncio.sleep(0)
            assert len(taken) - before == at_once, round_number
        assert taken == [number % COUNT for number in range(len(taken))]

    run(scene())


def test_long_requests_go_on_in_turn_with_each_other_and_with_connections(run, monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", -1)
    order = []

    async def long(name, entries=4):
        own = Turns()
        for _ in range(entries):
            await own.next_entry()
            order.append(name)

    async def scene():
        busy(order, "connection")()
        one, other = asyncio.ensure_future(long("one")), asyncio.ensure_future(long("other"))
        gone = asyncio.ensure_future(long("gone"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(one, other)
        for name in ("one", "other", "connection"):
            # none goes on twice before another one does
            between = [at for at, each in enumerate(order) if each == name]
            assert max(after - at for at, after in itertools.pairwise(between)) <= 6

    run(scene())


def test_while_many_long_requests_are_begun_no_further_ones_are(run, monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", -1)
    monkeypatch.setattr(turns, "BEGUN_MAX", 2)

    async def long(entries):
        own = Turns()
        for _ in range(entries):
            await own.next_entry()

    async def scene():
        taken = []
        begun = [asyncio.ensure_future(long(10)) for _ in range(3)]
        await asyncio.sleep(0)
        busy(taken, 0)()
        while not any(each.done() for each in begun):
            await asyncio.sleep(0)
        assert len(taken) <= 3
        await asyncio.gather(*begun)
        while len(taken) <= 3:
            await asyncio.sleep(0)

    run(scene())


def test_a_peer_begins_so_many_requests_that_coroutines_work_on(run):
    order = []

    async def work(_, asked):
        order.append(asked.opaque)
        return success()

    async def scene():
        async with serving({SLOW: work}) as server, raw(server) as busy, raw(server) as other:
            other.send(request(SLOW, 0))
            await other.receive()
            order.clear()
            count = 8 * TURN_TASKS
            busy.writer.write(frame_of(request(SLOW, 1)) * count)
            other.send(request(SLOW, 2))
            await other.receive()
            assert order.index(2) <= 4 * TURN_TASKS
            for _ in range(count):
                await busy.receive()

    run(scene())


def test_bodies_that_are_worked_on_end_a_turn(run):
    async def scene():
        turn = Turn(asyncio.get_running_loop(), lambda: None, ())
        turn.begin(100)
        assert not turn.is_over(100 + TURN_BODY_SIZE)
        assert turn.is_over(101 + TURN_BODY_SIZE)

    run(scene())
