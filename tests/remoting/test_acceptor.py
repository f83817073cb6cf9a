"""Connections are handed on, and none is lost while the acceptor is closed."""

from __future__ import annotations

import asyncio
import socket

import pytest
from patience import until_async

from rmqcore.remoting.acceptor import Acceptor
from rmqcore.remoting.sockets import listen

pytestmark = pytest.mark.engine


def test_each_connection_is_handed_on_with_its_address():
    async def scene():
        taken = []
        with listen("127.0.0.1", 0) as listening:
            acceptor = Acceptor(listening, lambda *connection: taken.append(connection))
            with (
                socket.create_connection(listening.getsockname()) as first,
                socket.create_connection(listening.getsockname()) as second,
            ):
                await until_async(lambda: len(taken) == 2, "both are taken")
                assert [place for _, place in taken] == [first.getsockname(), second.getsockname()]
            acceptor.close()
        for accepted, _ in taken:
            accepted.close()

    asyncio.run(scene())


def test_one_that_comes_as_it_is_closed_is_left_to_the_port():
    """Closed by what runs just before the loop would call it for a connection that it has seen."""

    async def scene():
        taken = []
        with listen("127.0.0.1", 0) as listening:
            acceptor = Acceptor(listening, lambda *connection: taken.append(connection))
            with socket.create_connection(listening.getsockname()) as waits:
                asyncio.get_running_loop().call_soon(acceptor.close)
                for _ in range(3):
                    await asyncio.sleep(0)
                assert taken == []
                accepted, place = listening.accept()
                assert place == waits.getsockname()
                accepted.close()

    asyncio.run(scene())
