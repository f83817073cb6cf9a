"""The simulated loop: time jumps, each node keeps its order, the rest follows from the seed."""

import asyncio
import logging

import pytest

from rmqcore.simulation.cluster_loop import ClusterLoop
from rmqcore.simulation.errors import StuckError, UnsimulatedError
from rmqcore.simulation.loop import current_node

pytestmark = [pytest.mark.logic, pytest.mark.seeded]


def test_time_jumps_over_what_nobody_uses(loop):
    before = loop.time()
    loop.run_until_complete(loop.pause(1e6))
    assert 1e6 <= loop.time() - before < 1e6 + 0.001


def test_timers_come_in_order_of_their_times_and_of_their_planning(loop):
    seen = []
    loop.call_later(2, seen.append, "b")
    loop.call_later(1, seen.append, "a")
    loop.call_later(2, seen.append, "c")
    loop.call_later(1.5, seen.append, "never").cancel()
    loop.run_until_complete(loop.pause(3))
    assert seen == ["a", "b", "c"]


def test_a_node_keeps_the_order_in_which_its_calls_were_planned(loop, machines):
    seen = {node.name: [] for node in machines("one", "other")}
    for number in range(100):
        for node in loop.nodes[1:]:
            loop.call_soon(seen[node.name].append, number, context=node.context)
    loop.run_until_complete(loop.pause(1))
    assert set(map(tuple, seen.values())) == {tuple(range(100))}


def order_of(seed):
    loop, seen = ClusterLoop(seed), []
    for name in "abc":
        node = loop.new_node(name, name)
        for _ in range(8):
            loop.call_soon(seen.append, name, context=node.context)
    loop.run_until_complete(loop.pause(1))
    return "".join(seen), loop.trace


def test_which_node_has_its_turn_follows_from_the_seed(seed):
    orders = {order_of(f"{seed}/{number}") for number in range(20)}
    assert len(orders) == 20
    assert order_of(f"{seed}/7") in orders


def test_a_task_stays_on_its_node(loop, machines):
    one, other = machines("one", "other")

    async def name():
        await loop.pause(1)
        return current_node(loop).name

    async def both():
        return await asyncio.gather(loop.spawn(one, name()), loop.spawn(other, name()))

    assert loop.run_until_complete(both()) == ["one", "other"]


def test_nothing_of_an_ended_node_runs_any_more(loop, machines, caplog):
    (node,) = machines("one")
    seen = []

    async def work():
        try:
            await loop.pause(2)
        finally:
            seen.append("ended in order")

    async def scene():
        task = loop.spawn(node, work())
        await loop.pause(1)
        loop.end_node(node)
        loop.call_soon(seen.append, "planned", context=node.context)
        await loop.pause(10)
        return task.done()

    with caplog.at_level(logging.ERROR):
        assert loop.run_until_complete(scene()) is False
    assert not seen
    assert not caplog.records


def test_a_node_that_is_held_comes_late_and_the_others_do_not(loop, machines):
    one, other = machines("one", "other")
    seen = []

    def note():
        seen.append((current_node(loop).name, round(loop.time() - begin)))

    begin = loop.time()
    loop.pause_node(one, 5_000_000_000)
    for node in (one, other):
        node.context.run(loop.call_later, 1, note)
    loop.run_until_complete(loop.pause(6))
    assert seen == [("other", 1), ("one", 5)]


def test_calls_for_an_executor_are_events_of_the_node(loop, machines):
    (node,) = machines("one")

    async def scene():
        assert await asyncio.to_thread(lambda: current_node(loop).name) == "one"
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)

    async def whole():
        await loop.spawn(node, scene())

    loop.run_until_complete(whole())


def test_a_wait_that_cannot_end_is_an_error(loop):
    with pytest.raises(StuckError):
        loop.run_until_complete(loop.create_future())


async def go_round():
    while True:
        await asyncio.sleep(0)


def test_who_goes_round_comes_to_a_time_limit(loop):
    async def scene():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(go_round(), 0.01)

    loop.run_until_complete(scene())


def test_an_event_that_fails_is_kept(seed):
    loop = ClusterLoop(seed)
    node = loop.new_node("one", "10.0.0.1")
    loop.call_soon(lambda: 1 // 0, context=node.context)
    loop.run_until_complete(loop.pause(1))
    (kept,) = loop.errors
    assert (kept["node"], type(kept["exception"])) == ("one", ZeroDivisionError)


def test_what_is_not_simulated_is_refused(loop):
    async def scene():
        with pytest.raises(UnsimulatedError):
            await loop.create_server(None)
        with pytest.raises(UnsimulatedError):
            loop.add_reader(0, print)

    loop.run_until_complete(scene())
