"""The one place that makes sockets of TCP: the system's, or those of a loop that has its own.

An event loop may have a network of its own (`OwnNetwork`), as that of a simulation has; then what
runs on it gets sockets of that network.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol, cast, runtime_checkable

from rmqcore.remoting.errors import PortTakenError


@runtime_checkable
class OwnNetwork(Protocol):
    """An event loop with a network of its own."""

    def new_socket(self, family: int, kind: int) -> socket.socket:
        """Make a socket, which behaves like one of the system's.

        Args:
            family: of addresses, such as ``AF_INET``.
            kind: ``SOCK_STREAM`` or ``SOCK_DGRAM``.
        """
        ...

    def local_address(self, target: str) -> str:
        """The address by which a host knows this machine."""
        ...


def new_socket(family: int, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Make a socket of the network that the caller is in.

    Args:
        family: of addresses, such as ``AF_INET``.
        kind: ``SOCK_STREAM`` or ``SOCK_DGRAM``.

    Raises:
        OSError: the system refuses, as it does when the process has no descriptor left.
    """
    own = _own_network()
    return socket.socket(family, kind) if own is None else own.new_socket(family, kind)


def listen(host: str, port: int, backlog: int | None = None) -> socket.socket:
    """Make a socket that listens and does not block.

    Args:
        host: address to listen on.
        port: 0 for any that is free.
        backlog: connections that the system keeps until they are accepted; None: as it likes.

    Raises:
        PortTakenError: another program listens there.
        OSError: the address is not this machine's, or the port may not be taken.
    """
    with _bound(host, port) as listening:
        listening.listen(socket.SOMAXCONN if backlog is None else backlog)
        listening.setblocking(False)
    return listening


def reserve_port(host: str, port: int = 0) -> socket.socket:
    """A socket bound to a free port: nobody else is given it, and one that listens may share it.

    Args:
        host: address of this machine.
        port: 0 for any that is free.

    Raises:
        PortTakenError: another program listens there.
        OSError: the address is not this machine's, or the port may not be taken.
    """
    with _bound(host, port) as holder:
        return holder


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket of an address and port; closed where what is done with it within fails.

    Raises:
        PortTakenError: another program listens there.
        OSError: the address is not this machine's, or the port may not be taken.
    """
    made = new_socket(_family(host))
    try:
        # a port that was in use a moment ago may be taken again; and with this option on both
        # sides, bound and listening sockets share a port
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if made.family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((host, port))
        yield made
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTakenError(f"{host}:{port}") from None
        raise OSError(error.errno, f"{(host, port)}: {error.strerror}") from None
    except BaseException:
        made.close()
        raise


def local_address(host: str, port: int) -> str:
    """This machine's address as a host sees it, ``127.0.0.1`` where there is no way to it.

    Nothing is sent.

    Args:
        host: name or address.
        port: of the host; 0 where it does not matter.
    """
    own = _own_network()
    if own is not None:
        return own.local_address(host)
    try:
        with socket.socket(_family(host), socket.SOCK_DGRAM) as probe:
            probe.connect((host, port or 1))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def address_text(name: object) -> str:
    """`host:port` of what a socket calls its name; empty for one without."""
    if not isinstance(name, tuple):
        return ""
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _family(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _own_network() -> OwnNetwork | None:
    with suppress(RuntimeError):
        loop = asyncio.get_running_loop()
        if isinstance(loop, OwnNetwork):
            return cast("OwnNetwork", loop)
    return None
