"""`Unfinished`: what all connections keep of messages that are not whole yet, and its bound."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

#: Down to this part of the bound is given up, so that it is not looked for at every byte.
_LEFT: Final = 7 / 8


class Keeps(Protocol):
    """A connection, of which this much is known here."""

    unfinished_size: int

    def give_up_unfinished(self) -> None:
        """End the calls whose message is not whole."""


class Unfinished:
    """Used from one event loop.

    Beyond the bound the connections that keep the most lose their calls, so that who sends little
    is not refused for what others send.

    Args:
        size_max: bytes of all connections together.
    """

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._size = 0
        self._connections: set[Keeps] = set()
        self._planned = False

    def join(self, connection: Keeps) -> None:
        """Note a connection that is open."""
        self._connections.add(connection)

    def leave(self, connection: Keeps) -> None:
        """Forget one that is closed, and keeps nothing."""
        self._connections.discard(connection)

    def count(self, size: int) -> None:
        """Note bytes that are kept, below 0 bytes that are not any more."""
        self._size += size
        if self._size > self._size_max and not self._planned:
            self._planned = True
            # not in the middle of what the connection does with them
            asyncio.get_running_loop().call_soon(self._give_up)

    def _give_up(self) -> None:
        self._planned = False
        if self._size <= self._size_max:
            return
        largest = sorted(self._connections, key=lambda each: each.unfinished_size, reverse=True)
        for connection in largest:
            if self._size <= self._size_max * _LEFT:
                break
            connection.give_up_unfinished()
