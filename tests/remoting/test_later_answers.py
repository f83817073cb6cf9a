"""Answers that are made at once and sent later: when they may be, all of them, within bounds."""

import asyncio
import contextlib
import logging

import pytest
from patience import TIMEOUT_S, until_async
from remoting.ends import ECHO, bounds, frame_of, raw, request, serving

from rmqcore.remoting import FrameDecoder, LaterAnswers, success

pytestmark = pytest.mark.engine

BODY = 1000


class Later:
    """Answers every request with its body, later.

    Attributes:
        sent: the futures of the answers, in order.
        taken: opaques of the requests.
    """

    def __init__(self):
        self.sent, self.taken = [], []

    def answer(self, buffer, at, _limits, _peer):
        decoder, frames = FrameDecoder(), b""
        decoder.feed(bytes(memoryview(buffer)[at:]))
        while (command := decoder.next()) is not None:
            self.taken.append(command.opaque)
            answer = success(body=bytes(command.body))
            answer.opaque, answer.flag = command.opaque, 1
            frames += frame_of(answer)
        end = len(buffer) - decoder.size
        if not frames:
            return end, b""
        self.sent.append((asyncio.get_running_loop().create_future(), frames))
        return end, LaterAnswers(len(frames), self.sent[-1][0])

    def send(self):
        for future, frames in self.sent:
            if not future.done():
                future.set_result(frames)


@contextlib.asynccontextmanager
async def asking(later):
    """A server whose answers come later, and a peer that has sent it a request."""
    async with serving() as server:
        server.direct = (later.answer,)
        async with raw(server) as peer:
            peer.send(request(ECHO, 1))
            await until_async(lambda: later.sent, "the request")
            yield server, peer


def test_answers_wait_and_other_requests_do_not(run):
    later = Later()

    async def scene():
        async with serving() as server, raw(server) as other:
            server.direct = (later.answer,)
            async with raw(server) as peer:
                peer.send(request(ECHO, 1), request(ECHO, 2))
                await until_async(lambda: later.taken == [1, 2], "both requests")
                answer = asyncio.ensure_future(peer.receive())
                for opaque in (3, 4):
                    other.send(request(ECHO, opaque))
                    assert (await other.receive()).opaque == opaque
                assert not answer.done()
                later.send()
                assert [(await answer).opaque, (await peer.receive()).opaque] == [1, 2]

    run(scene())


def test_so_many_bytes_of_answers_wait_and_no_more(run):
    later = Later()

    async def scene():
        settings = bounds(write_high_size=20 * BODY)
        async with serving(connection=settings) as server:
            server.direct = (later.answer,)
            async with raw(server) as peer:
                await until_async(lambda: server.connections, "the connection")
                (connection,) = server.connections
                sent = answered = 0
                # each alone, for those that come at once count as one
                while not connection._at_limit:
                    peer.send(request(ECHO, sent, body=bytes(BODY)))
                    sent += 1
                    await until_async(lambda n=sent: len(later.taken) == n, f"request {sent}")
                sizes = [len(frames) for _, frames in later.sent]
                assert sum(sizes[:-1]) <= 20 * BODY < sum(sizes)
                peer.send(*(request(ECHO, number, body=bytes(BODY)) for number in range(sent, 60)))
                async with raw(server) as other:
                    other.send(request(ECHO, 60))
                    await until_async(lambda: 60 in later.taken, "the request of another peer")
                assert later.taken == [*range(sent), 60]
                while answered < 60:
                    later.send()
                    answered += (await peer.receive()) is not None
                assert [number for number in later.taken if number != 60] == list(range(60))

    run(scene())


def test_a_connection_whose_answers_cannot_be_made_is_closed(run, caplog):
    later = Later()

    async def scene():
        async with asking(later) as (_, peer):
            later.sent[0][0].set_exception(RuntimeError("lost"))
            assert await peer.at_end()

    with caplog.at_level(logging.ERROR):
        run(scene())
    assert "cannot be made" in caplog.text


def test_answers_for_a_connection_that_is_gone_go_nowhere(run):
    later = Later()

    async def scene():
        async with asking(later) as (server, peer):
            (connection,) = server.connections
            peer.writer.transport.abort()
            await until_async(lambda: not server.connections, "the end of the connection")
            later.send()
            await until_async(lambda: not connection._tasks, "the end of what sends the answer")
            assert not connection._out

    run(scene())


def test_stopping_waits_for_them(run):
    later = Later()

    async def scene():
        async with asking(later) as (server, peer):
            (connection,) = server.connections
            stopping = asyncio.ensure_future(server.stop(TIMEOUT_S))
            await until_async(lambda: not connection._taking, "the server's stopping")
            later.send()
            assert (await peer.receive()).opaque == 1
            assert await peer.at_end()
            await stopping

    run(scene())
