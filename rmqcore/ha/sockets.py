"""Sockets of replication: options, receiving in place, sending several buffers without a copy."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from rmqcore.remoting.client import split_address
from rmqcore.remoting.sockets import new_socket

#: Of what the system does not take at once so many bytes go at a time.
_PIECE: Final = 64 * 1024
#: So many bytes wait here at most for the other side to have room.
_UNSENT_MAX: Final = 256 * 1024


def tune(sock: socket.socket) -> None:
    """Set the options of a replication connection."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # else the system has megabytes, and tells only when a third of them has gone that there is
    # room: over a slow line that takes longer than who reads nothing is waited for
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_MAX)


async def connect(address: str, timeout_s: float) -> socket.socket:
    """Connect to ``host:port``.

    Args:
        address: a host's name or IPv4 address, and the port.
        timeout_s: seconds for the connection, beside what the name's look-up takes.

    Raises:
        OSError: nobody takes the connection; TimeoutError, a kind of it: not in time.
        ValueError: it is no address.
    """
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, kind, _, _, place = found[0]
    sock = new_socket(family, kind)
    try:
        tune(sock)
        async with asyncio.timeout(timeout_s):
            await loop.sock_connect(sock, place)
    except BaseException:
        sock.close()
        raise
    return sock


class Receiver:
    """Receives from a socket, into whatever buffer is given.

    The event loop's own `sock_recv_into` registers the socket anew for every wait. Here it stays
    registered, as long as somebody waits when something comes.

    Threads: those of the event loop; one coroutine receives.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._buffer = memoryview(b"")
        self._waiter: asyncio.Future[int] | None = None
        self._registered = False
        self._more = True

    async def into(self, buffer: memoryview) -> int:
        """Fill the beginning of a buffer with what is there, waiting for it; 0 at the end.

        Whoever cancels the wait may lose what has just come, and has to end the connection.

        Raises:
            OSError: the connection is gone.
        """
        if self._more:
            # a peer that sends without a pause would keep the others on this loop waiting
            await asyncio.sleep(0)
            with contextlib.suppress(BlockingIOError, InterruptedError):
                return self._received(buffer)
        self._buffer = buffer
        self._waiter = self._loop.create_future()
        if not self._registered:
            self._registered = True
            self._loop.add_reader(self._sock, self._ready)
        return await self._waiter

    def close(self) -> None:
        """Let the event loop forget the socket; to be called before that is closed."""
        self._unregister()

    def _unregister(self) -> None:
        if self._registered:
            self._registered = False
            self._loop.remove_reader(self._sock)

    def _received(self, buffer: memoryview) -> int:
        size = self._sock.recv_into(buffer)
        self._more = size == len(buffer)
        return size

    def _ready(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            # nobody waits now; the loop would call this again and again
            self._unregister()
            return
        try:
            waiter.set_result(self._received(self._buffer))
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            waiter.set_exception(error)


async def send_all(
    sock: socket.socket,
    buffers: Sequence[bytes | memoryview],
    on_sent: Callable[[], None] = lambda: None,
) -> None:
    """Send buffers one behind the other; what the system takes at once goes in one call.

    Args:
        sock: connected; it does not block.
        buffers: must not change before this returns.
        on_sent: called whenever some of it has gone.

    Raises:
        OSError: the connection is gone.
    """
    loop = asyncio.get_running_loop()
    left = deque(memoryview(buffer) for buffer in buffers)
    while left:
        try:
            sent = sock.sendmsg(left)
        except (BlockingIOError, InterruptedError):
            sent = 0
        if sent:
            on_sent()
        while left and sent >= len(left[0]):
            sent -= len(left.popleft())
        if left:
            rest = left.popleft()[sent:]
            for at in range(0, len(rest), _PIECE):
                # waits until there is room again
                await loop.sock_sendall(sock, rest[at : at + _PIECE])
                on_sent()


def address_text(place: tuple[object, ...]) -> str:
    """The address of a socket's other side as RocketMQ writes it."""
    host, port = str(place[0]), place[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
