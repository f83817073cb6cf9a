"""What connections keep: frames that are not whole, answers not read, bodies worked on."""

import asyncio

import pytest
from patience import until_async
from remoting.ends import (
    ECHO,
    LATER,
    PATIENCE_MS,
    SLOW,
    bounds,
    calling,
    frame_of,
    narrow,
    raw,
    request,
    serving,
)

from rmqcore.remoting import RemotingCommand, success
from rmqcore.remoting.connection import Connection
from rmqcore.remoting.shared_bound import SharedBound

pytestmark = pytest.mark.engine

MIB = 1 << 20


def test_frames_that_are_not_whole_have_a_bound_together(run):
    async def scene():
        async with (
            serving(kept_total_max=4 * MIB) as server,
            raw(server) as honest,
            raw(server) as one,
            raw(server) as two,
            raw(server) as three,
        ):
            whole = frame_of(request(ECHO, 7, bytes(MIB)))
            honest.writer.write(whole[: MIB // 2])
            # as much as is kept in all, and not one whole frame
            for peer in (one, two, three):
                peer.writer.write(frame_of(request(ECHO, 1, bytes(3 * MIB)))[: 2 * MIB])
            await until_async(lambda: len(server.connections) < 4, "a closed one")
            honest.writer.write(whole[MIB // 2 :])
            assert len((await honest.receive()).body) == MIB

    run(scene())


def test_answers_that_are_not_read_have_a_bound_together(run):
    opened = []

    def large(connection, request):
        return success(body=bytes(MIB))

    async def scene():
        settings = bounds(write_high_size=MIB // 2)
        async with (
            serving(
                {LATER: large},
                connection=settings,
                kept_total_max=3 * MIB,
                on_open=opened.append,
            ) as server,
            raw(server, limit=1000) as one,
            raw(server, limit=1000) as two,
            raw(server, limit=1000) as three,
            raw(server, limit=1000) as four,
            raw(server) as honest,
        ):
            await until_async(lambda: len(opened) == 5, "the connections")
            for each in opened:
                narrow(each)
            for peer in (one, two, three, four):
                # one that waits to be written, and what the system takes before
                for number in range(8):
                    peer.send(request(LATER, number))
            await until_async(lambda: len(server.connections) < 5, "a closed one")
            honest.send(request(ECHO, 7, b"served"))
            assert (await honest.receive()).body == b"served"
            assert server.connections

    run(scene())


def test_a_client_that_asks_while_it_works_on_large_requests_reads_its_answers(run):
    async def scene():
        opened = []
        async with serving(on_open=opened.append) as server:

            async def ask_first(connection, request):
                await connection.invoke(RemotingCommand(ECHO), PATIENCE_MS)
                return success()

            bounded = bounds(worked_size_max=MIB)
            async with calling(server, {LATER: ask_first}, connection=bounded) as (_, call):
                await call(ECHO)
                asked = (
                    opened[0].invoke(RemotingCommand(LATER, {}, bytes(MIB)), PATIENCE_MS)
                    for _ in range(4)
                )
                assert [each.code for each in await asyncio.gather(*asked)] == [0] * 4

    run(scene())


def test_what_a_peer_has_read_since_it_was_counted_counts_no_more(run):
    class Unread(asyncio.Transport):
        size, aborted = 4 * MIB, False

        def get_write_buffer_size(self):
            return self.size

        def abort(self):
            self.aborted = True

        def set_write_buffer_limits(self, high=None, low=None):
            pass

        def write(self, data):
            pass

        def is_closing(self):
            return self.aborted

    async def scene():
        bound = SharedBound(8 * MIB)
        settings = bounds(idle_timeout_s=0)
        slow = [Unread() for _ in range(3)]
        for transport in slow[:2]:
            connection = Connection({}, settings, serves=True, kept=bound)
            connection.connection_made(transport)
            connection.pause_writing()
            connection.notify(request(ECHO, 1))
            await asyncio.sleep(0)
        assert bound.size == 8 * MIB
        # it has read nearly all; the others nothing
        slow[0].size = 1
        connection = Connection({}, settings, serves=True, kept=bound)
        connection.connection_made(slow[2])
        slow[2].size = MIB
        connection.pause_writing()
        connection.notify(request(ECHO, 1))
        for _ in range(3):
            await asyncio.sleep(0)
        assert (bound.size, [each.aborted for each in slow]) == (5 * MIB + 1, [False] * 3)

    run(scene())


def test_what_is_read_and_worked_on_counts_no_more(run):
    async def scene():
        async with serving(kept_total_max=MIB) as server, raw(server) as peer:
            for number in range(8):
                frame = frame_of(request(ECHO, number, bytes(MIB // 2)))
                peer.writer.write(frame[:-1])
                await asyncio.sleep(0)
                peer.writer.write(frame[-1:])
                assert (await peer.receive()).opaque == number
            assert len(server.connections) == 1

    run(scene())


def test_bodies_that_are_worked_on_have_a_bound_in_a_connection(run):
    taken = []

    async def scene():
        go = asyncio.Event()

        async def slow(connection, request):
            taken.append(request.opaque)
            await go.wait()
            return success()

        settings = bounds(worked_size_max=2 * MIB)
        async with (
            serving({SLOW: slow}, connection=settings) as server,
            raw(server) as peer,
            raw(server) as other,
        ):
            for number in range(8):
                peer.send(request(SLOW, number, bytes(MIB)))
            await until_async(lambda: len(taken) == 3, "as many as there is room for, and one")
            other.send(request(ECHO, 7, bytes(MIB)))
            assert (await other.receive()).opaque == 7
            assert taken == [0, 1, 2]
            go.set()
            assert {(await peer.receive()).opaque for _ in range(8)} == set(range(8))

    run(scene())
