"""Sockets of replication: options, and sending several buffers without a copy."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Sequence

from rmqcore.remoting.client import split_address


def tune(sock: socket.socket) -> None:
    """Set the options of a replication connection."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def connect(address: str, timeout_s: float) -> socket.socket:
    """Connect to ``host:port``.

    Raises:
        OSError: nobody takes the connection; TimeoutError, a kind of it: not in time.
        ValueError: it is no address.
    """
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, place = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        tune(sock)
        async with asyncio.timeout(timeout_s):
            await loop.sock_connect(sock, place)
    except BaseException:
        sock.close()
        raise
    return sock


async def send_all(sock: socket.socket, buffers: Sequence[bytes | memoryview]) -> None:
    """Send buffers one behind the other; what the system takes at once goes in one call.

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
        while left and sent >= len(left[0]):
            sent -= len(left.popleft())
        if left:
            # waits until there is room again
            await loop.sock_sendall(sock, left.popleft()[sent:])


def address_text(place: tuple[object, ...]) -> str:
    """The address of a socket's other side as RocketMQ writes it."""
    host, port = str(place[0]), place[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
