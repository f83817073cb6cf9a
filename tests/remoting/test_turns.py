"""Who has used up a turn goes on one at a time; others do not wait for how many there are."""

import asyncio
import itertools

import pytest
from remoting.ends import SLOW, frame_of, raw, request, serving

from rmqcore.remoting import Connection, ConnectionSettings, FrameDecoder, success, turns
from rmqcore.remoting.turns import TURN_BODY_SIZE, TURN_TASKS, OnlyWaits, Turn, Turns

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
    order, broken = [], []

    async def long(name, entries=4):
        own = Turns()
        for _ in range(entries):
            await own.next_entry()
            order.append(name)

    async def scene():
        asyncio.get_running_loop().set_exception_handler(lambda *what: broken.append(what))
        busy(order, "connection")()
        one, other = asyncio.ensure_future(long("one")), asyncio.ensure_future(long("other"))
        gone = asyncio.ensure_future(long("gone"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(one, other)
        assert not broken
        for name in ("one", "other", "connection"):
            # none goes on twice before another one does
            between = [at for at, each in enumerate(order) if each == name]
            assert max(after - at for at, after in itertools.pairwise(between)) <= 6

    run(scene())


def test_where_many_long_requests_are_begun_all_go_on_before_a_connection_does(run, monkeypatch):
    """And it does: they may be followed by others for ever."""
    monkeypatch.setattr(turns, "TURN_S", -1)
    monkeypatch.setattr(turns, "BEGUN_MAX", 2)
    order = []

    async def long(number):
        own = Turns()
        while True:
            await own.next_entry()
            order.append(number)

    async def scene():
        begun = [asyncio.ensure_future(long(number)) for number in range(3)]
        await asyncio.sleep(0)
        busy(order, "connection")()
        for _ in range(60):
            await asyncio.sleep(0)
        for each in begun:
            each.cancel()
        at = [place for place, each in enumerate(order) if each == "connection"]
        assert len(at) > 10
        # the first was before any of them
        for before, after in itertools.pairwise(at[1:-1]):
            assert 2 <= len(set(order[before + 1 : after])) == after - before - 1

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


def test_bodies_that_are_worked_on_end_a_turn(run, monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", 3600)

    async def scene():
        turn = Turn(asyncio.get_running_loop(), lambda: None, ())
        turn.begin(100)
        assert not turn.is_over(100 + TURN_BODY_SIZE)
        assert turn.is_over(101 + TURN_BODY_SIZE)

    run(scene())


class Transport:
    """Takes what is sent, and says whether more is to be read."""

    def __init__(self):
        self.sent, self.reads = b"", True

    def is_closing(self):
        return False

    def get_extra_info(self, _):
        return "127.0.0.1", 1

    def set_write_buffer_limits(self, high):
        pass

    def get_write_buffer_size(self):
        return 0

    def pause_reading(self):
        self.reads = False

    def resume_reading(self):
        self.reads = True

    def write(self, data):
        self.sent += data

    def writelines(self, parts):
        self.sent += b"".join(parts)


def connected(processor):
    """A connection that serves `SLOW`, and its transport."""
    settings, transport = ConnectionSettings(idle_timeout_s=0), Transport()
    connection = Connection({SLOW: processor}, settings, serves=True)
    connection.connection_made(transport)
    return connection, transport


async def answered(transport, count):
    """Let the loop come round until so many answers are sent."""
    decoder = FrameDecoder()
    while count:
        await asyncio.sleep(0)
        decoder.feed(transport.sent)
        transport.sent = b""
        while decoder.next() is not None:
            count -= 1


@pytest.mark.parametrize(("wrapped", "at_once"), [(OnlyWaits, 4 * TURN_TASKS), (None, TURN_TASKS)])
def test_requests_that_only_wait_for_something_take_no_turn(run, monkeypatch, wrapped, at_once):
    """Such as sends that wait for the disk: what is in flight is waited for together."""
    monkeypatch.setattr(turns, "TURN_S", 3600)

    async def scene():
        begun = []

        async def rest():
            return success()

        def work(_, asked):
            begun.append(asked)
            return wrapped(rest()) if wrapped else rest()

        connection, transport = connected(work)
        body = b"b" * (TURN_BODY_SIZE // TURN_TASKS - 1)
        count = 4 * TURN_TASKS
        connection.data_received(frame_of(request(SLOW, 1, body)) * count)
        assert len(begun) == at_once
        assert transport.reads == (wrapped is not None)
        # who only waits keeps nothing of the request's
        assert {each.body for each in begun} == {b"" if wrapped else body}
        await answered(transport, count)
        assert transport.reads

    run(scene())


def test_what_comes_of_who_has_used_up_a_turn_waits_in_the_line(run, monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", -1)

    async def scene():
        order = []
        made = [connected(lambda _, asked: order.append(asked.opaque)) for _ in range(4)]
        for number, (connection, _) in enumerate(made):
            connection.data_received(frame_of(request(SLOW, number)))
        assert order == [0, 1, 2, 3]
        for number, (connection, transport) in enumerate(made, 4):
            connection.data_received(frame_of(request(SLOW, number)))
            assert not transport.reads
        for number in range(4, 8):
            assert order[-1] == number - 1
            await asyncio.sleep(0)
            assert order[-1] == number
        for _ in made:
            await asyncio.sleep(0)
        assert all(transport.reads for _, transport in made)
        # one that has little to do is out of it
        monkeypatch.setattr(turns, "TURN_S", 3600)
        for at_once in (False, True):
            for number, (connection, _) in enumerate(made, 8):
                connection.data_received(frame_of(request(SLOW, number)))
            assert (order[-4:] == [8, 9, 10, 11]) is at_once
            for _ in made:
                await asyncio.sleep(0)
            order.append(None)

    run(scene())


def test_a_connection_that_goes_while_it_is_in_the_line_keeps_nobody_back(run, monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", -1)

    async def scene():
        order = []
        made = [connected(lambda _, asked: order.append(asked.opaque)) for _ in range(3)]
        for number, (connection, _) in enumerate(made):
            connection.data_received(frame_of(request(SLOW, number)) * 2)
        gone, transport = made[0]
        transport.is_closing = lambda: True
        gone.connection_lost(None)
        while order.count(2) < 2:
            await asyncio.sleep(0)
        assert order == [0, 1, 2, 1, 2]

    run(scene())
