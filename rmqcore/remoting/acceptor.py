"""Takes the connections of a listening socket."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final, TypeAlias

logger = logging.getLogger(__name__)

#: When the system refuses to accept, for want of descriptors or memory, this pause follows.
ACCEPT_PAUSE_S: Final = 0.2
#: (a connection, the address of its other end)
Take: TypeAlias = Callable[[socket.socket, tuple[object, ...]], None]


class Acceptor:
    """Hands connections on as they come, from now on until it is closed.

    No task does so: what `loop.sock_accept` has accepted when it is cancelled is lost, and its
    client waits for an answer until a collector finds the socket.

    Args:
        listening: does not block; it stays the caller's to close.
        take: gets each connection, which is its to close.

    Threads: those of the running event loop.
    """

    def __init__(self, listening: socket.socket, take: Take) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._take = take
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        """Take no more connections."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)

    def _listen(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        try:
            accepted, place = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            # it went before it came, or another process has taken it
            return
        except OSError as error:
            if self._pause is None:
                where = self._listening.getsockname()
                logger.warning("%s: cannot accept connections for now: %s", where, error)
            self._loop.remove_reader(self._listening)
            self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._listen)
            return
        if self._pause is not None:
            self._pause = None
            where = self._listening.getsockname()
            logger.warning("%s: connections are accepted again", where)
        self._take(accepted, place)
