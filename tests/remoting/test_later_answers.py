"""Answers that are made at once and sent later: when they may be, all of them, within bounds."""

import asyncio
import contextlib
import logging

import pytest
from remoting.ends import ECHO, bounds, frame_of, raw, request, serving, until

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
            await until(lambda: later.sent)
            yield server, peer


def test_answers_wait_and_other_requests_do_not(run):
    later = Later()

    async def scene():
        async with serving() as server, raw(server) as other:
            server.direct = (later.answer,)
            async with raw(server) as peer:
                peer.send(request(ECHO, 1), request(ECHO, 2))
                await until(lambda: later.taken == [1, 2])
                other.send(request(ECHO, 3))
                assert (await other.receive()).opaque == 3
                with pytest.raises(TimeoutError):
                    await peer.receive(0.05)
                later.send()
                assert [(await peer.receive()).opaque for _ in range(2)] == [1, 2]

    run(scene())


def test_so_many_bytes_of_answers_wait_and_no_more(run):
    later = Later()

    async def scene():
        settings = bounds(write_high_size=20 * BODY)
        async with serving(connection=settings) as server:
            server.direct = (later.answer,)
            async with raw(server) as peer:
                answered = 0
                for number in range(60):
                    peer.send(request(ECHO, number, body=bytes(BODY)))
                    await asyncio.sleep(0.002)
                assert len(later.taken) < 40
                while answered < 60:
                    later.send()
                    answered += (await peer.receive()) is not None
                assert later.taken == list(range(60))

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
            peer.writer.transport.abort()
            await until(lambda: not server.connections)
            later.send()
            await asyncio.sleep(0.01)

    run(scene())


def test_stopping_waits_for_them(run):
    later = Later()

    async def scene():
        async with asking(later) as (server, peer):
            stopping = asyncio.ensure_future(server.stop(5))
            await asyncio.sleep(0.02)
            later.send()
            assert (await peer.receive()).opaque == 1
            assert await peer.at_end()
            await stopping

    run(scene())
