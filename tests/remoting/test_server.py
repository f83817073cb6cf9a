"""A server answers each request once, keeps its bounds, and says nothing of its inside."""

import asyncio
import logging
import select
from unittest import mock

import pytest
from patience import TIMEOUT_S, until, until_async
from remoting.ends import (
    BROKEN,
    ECHO,
    LATER,
    SLOW,
    UNKNOWN,
    Held,
    bounds,
    calling,
    echo,
    frame_of,
    narrow,
    raw,
    request,
    serving,
)

from rmqcore.remoting import (
    FrameLimits,
    RemotingCommand,
    RemotingServer,
    RequestRefusedError,
    ResponseCode,
    ServerSettings,
    success,
)
from rmqcore.remoting.turns import TURN_FRAMES

pytestmark = pytest.mark.engine


def broken(connection, request):
    raise FileNotFoundError(2, "no such file", "/secret/path")


async def broken_later(connection, request):
    await asyncio.sleep(0)
    raise ValueError("a secret")


def test_an_answer_has_the_opaque_and_the_kind_of_its_request(run):
    async def scene():
        async with serving() as server, raw(server) as peer:
            for kind, opaque in ((0, 7), (1, -(2**31)), (0, 2**31 - 1)):
                peer.send(request(ECHO, opaque, b"body", serialize_type=kind))
                answer = await peer.receive()
                assert (answer.code, answer.opaque, answer.flag) == (0, opaque, 1)
                assert (answer.serialize_type, answer.body) == (kind, b"body")

    run(scene())


def test_plain_functions_are_answered_without_a_task_and_coroutines_with_one(run):
    tasks = {}

    def plain(connection, request):
        tasks["plain"] = asyncio.current_task()
        return success()

    async def coroutine(connection, request):
        tasks["coroutine"] = asyncio.current_task()
        return success()

    async def scene():
        processors = {SLOW: coroutine, LATER: plain}
        async with serving(processors) as server, calling(server) as (_, call):
            assert (await call(SLOW)).code == (await call(LATER)).code == 0
            assert tasks["plain"] is None
            assert tasks["coroutine"] is not None

    run(scene())


def test_answers_may_come_later_and_in_any_order(run):
    last = []

    async def scene():
        slow = Held()
        processors = {SLOW: slow.answer, LATER: lambda *asked: last.append(asked)}
        async with serving(processors) as server, raw(server) as peer:
            peer.send(request(LATER, 1), request(SLOW, 2), request(ECHO, 3))
            assert (await peer.receive()).opaque == 3
            await slow.release()
            assert (await peer.receive()).opaque == 2
            ((connection, held_request),) = last
            connection.answer(held_request, success(body=b"at last"))
            answer = await peer.receive()
            assert (answer.opaque, answer.body) == (1, b"at last")

    run(scene())


def test_a_request_is_answered_once(run, caplog):
    def twice(connection, request):
        connection.answer(request, success(body=b"first"))
        return success(body=b"second")

    async def scene():
        async with serving({LATER: twice}) as server, raw(server) as peer:
            peer.send(request(LATER, 1), request(ECHO, 2))
            assert (await peer.receive()).body == b"first"
            assert (await peer.receive()).opaque == 2

    run(scene())
    assert "answered a second time" in caplog.text


def test_an_unknown_code_is_not_supported(run):
    async def scene():
        async with serving() as server, calling(server) as (_, call):
            answer = await call(UNKNOWN)
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert answer.remark == f" request type {UNKNOWN} not supported"

    run(scene())


@pytest.mark.parametrize("processor", [broken, broken_later])
def test_an_exception_is_logged_and_its_text_does_not_leave(run, caplog, processor):
    async def scene():
        async with serving({BROKEN: processor}) as server, calling(server) as (_, call):
            answer = await call(BROKEN)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "secret" not in repr(answer) + answer.body.decode()
            assert (await call(ECHO)).code == 0

    run(scene())
    assert "secret" in caplog.text
    assert "Traceback" in caplog.text


def test_a_processor_may_refuse_with_a_code_and_words(run):
    def refuse(connection, request):
        raise RequestRefusedError(ResponseCode.TOPIC_NOT_EXIST, "create the topic first")

    async def scene():
        async with serving({BROKEN: refuse}) as server, calling(server) as (_, call):
            answer = await call(BROKEN)
            assert (answer.code, answer.remark) == (17, "create the topic first")

    run(scene())


@pytest.mark.parametrize("made", [RemotingCommand(0, {"n": 7}), 7])
def test_an_answer_that_is_none_is_a_failure_of_the_server(run, caplog, made):
    async def scene():
        async with serving({BROKEN: lambda *_: made}) as server, calling(server) as (_, call):
            assert (await call(BROKEN)).code == ResponseCode.SYSTEM_ERROR

    run(scene())


def test_an_answer_above_the_frame_limit_is_a_failure_of_the_server(run, caplog):
    limits = bounds(frames=FrameLimits(frame_size=1000))

    async def scene():
        large = {BROKEN: lambda *_: success(body=bytes(1000))}
        async with serving(large, connection=limits) as server, calling(server) as (_, call):
            assert (await call(BROKEN)).code == ResponseCode.SYSTEM_ERROR

    run(scene())
    assert "at most" in caplog.text


def test_oneway_requests_are_worked_on_and_never_answered(run, caplog):
    seen = []

    async def scene():
        slow = Held()
        processors = {LATER: lambda *asked: seen.append(asked), BROKEN: broken, SLOW: slow.answer}
        async with serving(processors) as server, raw(server) as peer:
            for number, code in enumerate((LATER, BROKEN, SLOW, UNKNOWN, ECHO)):
                peer.send(request(code, number, flag=2))
            await slow.release()
            (connection,) = server.connections
            await until_async(lambda: not connection._tasks, "the end of the slow one")
            peer.send(request(ECHO, 99))
            assert (await peer.receive()).opaque == 99
            assert len(seen) == 1

    run(scene())


def test_a_gate_sees_every_request_before_its_processor(run):
    def gate(connection, request):
        if request.code != ECHO:
            raise RequestRefusedError(ResponseCode.NO_PERMISSION, "sign your requests")

    async def scene():
        calls = []
        processors = {LATER: lambda *asked: calls.append(asked)}
        async with serving(processors, gate=gate) as server, calling(server) as (_, call):
            assert (await call(ECHO)).code == 0
            for code in (LATER, UNKNOWN):
                assert (await call(code)).code == ResponseCode.NO_PERMISSION
            assert not calls

    run(scene())


def test_many_frames_in_any_pieces_are_answered_in_order(run):
    async def scene():
        async with serving() as server, raw(server) as peer:
            count = 3 * TURN_FRAMES + 5
            stream = b"".join(frame_of(request(ECHO, number, b"x")) for number in range(count))
            for at in range(0, len(stream), 997):
                peer.writer.write(stream[at : at + 997])
                if at % 5 == 0:
                    await asyncio.sleep(0)
            opaques = [(await peer.receive()).opaque for _ in range(count)]
            assert opaques == list(range(count))

    run(scene())


def test_a_malformed_frame_closes_its_connection_only(run):
    async def scene():
        async with serving() as server, raw(server) as good, raw(server) as bad:
            good.send(request(ECHO, 1))
            assert (await good.receive()).opaque == 1
            bad.writer.write(frame_of(request(ECHO, 2)) + b"\xff" * 16 + frame_of(request(ECHO, 3)))
            assert (await bad.receive()).opaque == 2
            assert await bad.at_end()
            good.send(request(ECHO, 4))
            assert (await good.receive()).opaque == 4

    run(scene())


def has_bytes(connection):
    """Tell whether there is something to read on a connection."""
    return bool(select.select([connection.fileno()], [], [], 0)[0])


def test_a_peer_with_many_requests_does_not_keep_others_waiting(run):
    order = []

    async def scene():
        def note(connection, request):
            if not order:
                # the other's request is there before the busy one's second has its turn
                (waiting,) = set(server.connections) - {connection}
                until(lambda: has_bytes(waiting), "the other's request")
            order.append(request.opaque)
            return success()

        async with serving({LATER: note}) as server, raw(server) as busy, raw(server) as other:
            other.send(request(ECHO, 0))
            await other.receive()
            count = 20 * TURN_FRAMES
            busy.writer.write(b"".join(frame_of(request(LATER, 1)) for _ in range(count)))
            other.send(request(LATER, 2))
            await other.receive()
            assert order.index(2) < count // 2
            assert order.index(2) <= 2 * TURN_FRAMES
            for _ in range(count):
                await busy.receive()

    run(scene())


def test_a_peer_with_slow_requests_has_a_turn_for_one_of_them(run, monkeypatch):
    monkeypatch.setattr("rmqcore.remoting.turns.TURN_S", -1)
    order = []

    async def scene():
        def note(connection, request):
            if not order:
                # the other's request is there before the busy one's second has its turn
                (waiting,) = set(server.connections) - {connection}
                until(lambda: has_bytes(waiting), "the other's request")
            order.append(request.opaque)
            return success()

        async with serving({LATER: note}) as server, raw(server) as busy, raw(server) as other:
            other.send(request(ECHO, 0))
            await other.receive()
            busy.writer.write(b"".join(frame_of(request(LATER, 1)) for _ in range(20)))
            other.send(request(LATER, 2))
            await other.receive()
            assert order.index(2) <= 2
            for _ in range(20):
                await busy.receive()

    run(scene())


def test_a_peer_that_does_not_read_is_not_worked_for(run):
    worked, writable = [], []

    def large(connection, request):
        worked.append(connection)
        writable.append(connection.writable)
        return success(body=bytes(200_000))

    async def scene():
        settings = bounds(write_high_size=300_000)
        async with (
            serving({LATER: large}, connection=settings) as server,
            raw(server, limit=1000) as deaf,
            calling(server) as (_, call),
        ):
            count = 2000
            deaf.writer.write(b"".join(frame_of(request(LATER, n)) for n in range(count)))
            await until_async(lambda: worked and not worked[0].writable, "answers to pile up")
            for _ in range(20):
                assert (await call(ECHO, body=b"others")).body == b"others"
            assert len(worked) < count / 4
            for number in range(count):
                assert (await deaf.receive()).opaque == number
            assert len(worked) == count
            # none was worked on while the peer did not take what there was for it
            assert all(writable)

    run(scene())


def test_a_peer_that_does_not_read_what_it_is_sent_unasked_is_disconnected(run):
    opened, closed = [], []

    async def scene():
        settings = bounds(write_high_size=1000, write_size_max=5_000_000)
        async with (
            serving(connection=settings, on_open=opened.append, on_close=closed.append) as server,
            raw(server, limit=1000),
        ):
            await until_async(lambda: opened, "the connection")
            narrow(opened[0])
            sent = 0
            while not opened[0].closed and sent < 200:
                opened[0].notify(RemotingCommand(40, body=bytes(500_000)))
                sent += 1
                await asyncio.sleep(0)
            await until_async(lambda: closed, "the end of the connection")
            assert sent < 60
            assert server.connections == ()

    run(scene())


def test_coroutines_of_one_connection_are_bounded_and_all_get_their_turn(run):
    state = {"now": 0, "most": 0}

    async def scene():
        ten = asyncio.Barrier(10)

        async def count(connection, request):
            state["now"] += 1
            state["most"] = max(state.values())
            await ten.wait()
            state["now"] -= 1
            return success()

        settings = bounds(request_max=10)
        async with serving({SLOW: count}, connection=settings) as server, raw(server) as peer:
            peer.send(*(request(SLOW, number) for number in range(300)))
            found = {(await peer.receive()).opaque for _ in range(300)}
            assert found == set(range(300))
            assert state == {"now": 0, "most": 10}

    run(scene())


def test_bounds_on_coroutines_and_on_answers_together_hold_nothing_up(run):
    async def large(connection, request):
        await asyncio.sleep(0)
        return success(body=bytes(400_000))

    async def scene():
        settings = bounds(request_max=3, write_high_size=300_000)
        async with serving({SLOW: large}, connection=settings) as server, raw(server) as peer:
            peer.send(*(request(SLOW, number) for number in range(100)))
            found = {(await peer.receive()).opaque for _ in range(100)}
            assert found == set(range(100))

    run(scene())


def test_parts_of_an_answer_arrive_behind_its_body(run):
    def many(connection, request):
        answer = success(body=b"head")
        answer.parts = [memoryview(bytearray([n]) * 50_000) for n in range(20)]
        return answer

    async def scene():
        async with serving({LATER: many}) as server, calling(server) as (_, call):
            body = (await call(LATER)).body
            assert body == b"head" + b"".join(bytes([n]) * 50_000 for n in range(20))

    run(scene())


class ClockedLoop:
    """The running loop, whose time passes when it is told to."""

    def __init__(self):
        self._loop = asyncio.get_running_loop()
        self._now = 0.0
        self._timers = {}

    def __getattr__(self, name):
        return getattr(self._loop, name)

    def time(self):
        return self._now

    def call_later(self, delay, callback):
        timer = mock.Mock()
        timer.cancel = lambda: self._timers.pop(timer, None)
        self._timers[timer] = (self._now + delay, callback)
        return timer

    def advance(self, seconds):
        """Let time pass, and call what is due then."""
        self._now += seconds
        due = [timer for timer, (when, _) in self._timers.items() if when <= self._now]
        for timer in due:
            self._timers.pop(timer)[1]()


def test_idle_connections_are_closed_and_busy_ones_are_not(run, monkeypatch):
    async def scene():
        clock = ClockedLoop()
        async with serving(connection=bounds(idle_timeout_s=30)) as server:
            made = server._new_connection

            def clocked():
                connection = made()
                connection._loop, connection._last_active = clock, clock.time()
                return connection

            monkeypatch.setattr(server, "_new_connection", clocked)
            async with raw(server) as idle, raw(server) as busy:
                await until_async(lambda: len(server.connections) == 2, "both connections")
                for number in range(8):
                    busy.send(request(ECHO, number))
                    assert (await busy.receive()).opaque == number
                    clock.advance(10)
                    # the third step is the idle one's last
                    assert len([each for each in server.connections if not each.closed]) == (
                        2 if number < 2 else 1
                    )
                assert await idle.at_end()
                busy.send(request(ECHO, 8))
                assert (await busy.receive()).opaque == 8
                clock.advance(30)
                assert await busy.at_end()

    run(scene())


def test_connections_above_the_limit_are_closed_at_once(run):
    async def scene():
        async with serving(connection_max=2) as server, raw(server) as one:
            one.send(request(ECHO, 1))
            assert (await one.receive()).opaque == 1
            async with raw(server) as two:
                two.send(request(ECHO, 2))
                assert (await two.receive()).opaque == 2
                async with raw(server) as three:
                    assert await three.at_end()
            await until_async(lambda: len(server.connections) == 1, "the second one's end")
            async with raw(server) as four:
                four.send(request(ECHO, 4))
                assert (await four.receive()).opaque == 4

    run(scene())


def test_stopping_answers_what_was_taken_and_takes_no_more(run):
    async def scene():
        held = Held()
        async with serving({SLOW: held.answer}) as server, raw(server) as peer:
            peer.send(request(SLOW, 1, b"done"))
            await held.taken(b"done")
            (connection,) = server.connections
            stopping = asyncio.ensure_future(server.stop(TIMEOUT_S))
            await until_async(lambda: not connection._taking, "the server's stopping")
            peer.send(request(ECHO, 2))
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", server.port)
            await held.release(b"done")
            assert (await peer.receive()).body == b"done"
            assert await peer.at_end()
            await stopping

    run(scene())


async def stop_with_a_request_that_is_never_answered():
    """Returns how long `stop(0.1)` took."""
    held = Held()
    async with serving({SLOW: held.answer}) as server, raw(server) as peer, raw(server):
        peer.send(request(SLOW, 1))
        await held.taken()
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(TIMEOUT_S):
            await server.stop(0.1)
        took_s = asyncio.get_running_loop().time() - began
        assert await peer.at_end()
        assert server.connections == ()
    return took_s


def test_stopping_does_not_wait_for_ever(run):
    assert run(stop_with_a_request_that_is_never_answered()) > 0.09


@pytest.mark.measure
def test_stopping_waits_as_long_as_was_said(run, figure):
    took_s = run(stop_with_a_request_that_is_never_answered())
    figure("stop(0.1)", took_s, "s", at_most=1)


def test_a_processor_comes_to_its_end_when_its_peer_has_gone(run):
    ended = []

    async def scene():
        taken = asyncio.Event()

        async def work(connection, request):
            taken.set()
            await until_async(lambda: connection.closed, "the peer's going")
            ended.append(request.opaque)
            return success()

        async with serving({SLOW: work}) as server:
            async with raw(server) as peer:
                peer.send(request(SLOW, 1))
                await asyncio.wait_for(taken.wait(), TIMEOUT_S)
            await until_async(lambda: ended, "the processor's end")
            assert ended == [1]

    run(scene())


def test_a_taken_port_is_an_error_at_start(run):
    async def scene():
        async with serving() as server:
            second = RemotingServer(port=server.port, settings=ServerSettings(), processors={})
            with pytest.raises(OSError, match="is taken"):
                await second.start()

    run(scene())


def test_two_servers_may_share_their_processors(run, caplog):
    caplog.set_level(logging.ERROR)

    async def scene():
        async with serving() as one:
            two = RemotingServer(processors=one.processors)
            await two.start()
            one.register(LATER, echo)
            async with calling(two) as (_, call):
                assert (await call(LATER, {"a": "b"})).ext_fields == {"a": "b"}
            await two.stop()

    run(scene())
    assert not caplog.records
