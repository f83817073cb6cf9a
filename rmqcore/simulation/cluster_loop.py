"""`ClusterLoop`: a `SimulatedLoop` whose nodes reach each other over a simulated network."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar, TypeVarTuple, cast

from rmqcore.simulation.errors import UnsimulatedError
from rmqcore.simulation.loop import SimulatedLoop, current_node
from rmqcore.simulation.network import Network
from rmqcore.simulation.sockets import Place, SimulatedSocket, Watch
from rmqcore.simulation.transport import StreamTransport

_P = TypeVar("_P", bound=asyncio.BaseProtocol)
_Ts = TypeVarTuple("_Ts")


class ClusterLoop(SimulatedLoop):
    """See the module.

    Attributes:
        network: what its sockets are of.
    """

    def __init__(self, seed: object) -> None:
        """Make a loop and a network; see `SimulatedLoop`."""
        super().__init__(seed)
        self.network = Network(self, seed)

    def new_socket(self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> Any:
        """A socket of the node whose event runs; see `rmqcore.remoting.sockets`.

        Args:
            family: ``AF_INET``, which alone is simulated.
            kind: ``SOCK_STREAM``, which alone is simulated.

        Raises:
            UnsimulatedError: it is no stream socket of IPv4.
        """
        if family != socket.AF_INET or kind != socket.SOCK_STREAM:
            raise UnsimulatedError(f"a socket of family {family}, kind {kind}")
        return self.network.new_socket(current_node(self))

    def local_address(self, target: str) -> str:
        """The address by which another machine knows this one."""
        del target
        return current_node(self).address

    async def getaddrinfo(  # type: ignore[override] # only what is asked for here
        self, host: str, port: int, **_: object
    ) -> list[tuple[int, int, int, str, Place]]:
        """Answer from the network's table; an address is its own.

        Args:
            host: a name of the network's table, or an IPv4 address.
            port: is in the answer as it is.

        Raises:
            socket.gaierror: nobody has that name.
        """
        address = self.network.names.get(host, host)
        if not address.replace(".", "").isdigit():
            raise socket.gaierror(socket.EAI_NONAME, "no machine has that name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port))]

    # ---- streams

    async def create_connection(  # type: ignore[override] # only what is asked for here
        self, protocol_factory: Callable[[], _P], host: str, port: int, **options: Any
    ) -> tuple[asyncio.Transport, _P]:
        """Connect; see asyncio.

        Args:
            protocol_factory: makes the protocol when the connection is there.
            host: a name of the network's table, or an IPv4 address.
            port: of the listener.
            options: asyncio's; ``ssl`` alone is looked at.

        Raises:
            OSError: nobody listens there, or nobody answers.
            UnsimulatedError: with TLS.
        """
        _check_plain(options)
        sock = self.network.new_socket(current_node(self))
        try:
            found = await self.getaddrinfo(host, port)
            await self.sock_connect(cast("Any", sock), found[0][4])
        except BaseException:
            sock.close()
            raise
        return self._connected(protocol_factory, sock)

    async def connect_accepted_socket(
        self, protocol_factory: Callable[[], _P], sock: Any, **options: Any
    ) -> tuple[asyncio.Transport, _P]:
        """Make a transport of a socket that was accepted; see asyncio.

        Args:
            protocol_factory: makes the protocol.
            sock: a simulated one.
            options: asyncio's; ``ssl`` alone is looked at.

        Raises:
            UnsimulatedError: with TLS.
        """
        _check_plain(options)
        return self._connected(protocol_factory, _simulated(sock))

    def _connected(
        self, protocol_factory: Callable[[], _P], sock: SimulatedSocket
    ) -> tuple[asyncio.Transport, _P]:
        protocol = protocol_factory()
        return StreamTransport(self, sock, cast("asyncio.Protocol", protocol)), protocol

    async def create_server(self, *_: object, **__: object) -> Any:
        """Not there: servers accept with `sock_accept`.

        Raises:
            UnsimulatedError: always.
        """
        raise UnsimulatedError("loop.create_server")

    # ---- sockets

    def add_reader(self, fd: Any, callback: Callable[[*_Ts], object], *args: *_Ts) -> None:
        """Call a function as long as a socket has something to read or to accept.

        Args:
            fd: a simulated socket, in the place of a descriptor.
            callback: takes the place of the socket's former one.
            args: of the function.
        """
        _simulated(fd).watch_reading(Watch(callback, args, copy_context()))

    def remove_reader(self, fd: Any) -> bool:
        """Call nobody any more; whether somebody was called."""
        watched = _simulated(fd).is_watched[0]
        _simulated(fd).watch_reading(None)
        return watched

    def add_writer(self, fd: Any, callback: Callable[[*_Ts], object], *args: *_Ts) -> None:
        """Call a function as long as a socket has room.

        Args:
            fd: a simulated socket, in the place of a descriptor.
            callback: takes the place of the socket's former one.
            args: of the function.
        """
        _simulated(fd).watch_writing(Watch(callback, args, copy_context()))

    def remove_writer(self, fd: Any) -> bool:
        """Call nobody any more; whether somebody was called."""
        watched = _simulated(fd).is_watched[1]
        _simulated(fd).watch_writing(None)
        return watched

    async def sock_accept(self, sock: Any) -> tuple[Any, Place]:
        """Wait for a connection; see asyncio."""
        while True:
            with suppress(BlockingIOError):
                return _simulated(sock).accept()
            await self._until(sock, self.add_reader, self.remove_reader)

    async def sock_recv(self, sock: Any, nbytes: int) -> bytes:
        """Wait for what is received; see asyncio.

        Args:
            sock: a simulated one.
            nbytes: at most this many.

        Returns:
            nothing when the other side has ended.

        Raises:
            OSError: the connection is broken.
        """
        while True:
            with suppress(BlockingIOError):
                return _simulated(sock).recv(nbytes)
            await self._until(sock, self.add_reader, self.remove_reader)

    async def sock_recv_into(self, sock: Any, buf: Any) -> int:
        """Wait for what is received; see asyncio.

        Args:
            sock: a simulated one.
            buf: a buffer, filled from its begin.

        Returns:
            bytes that were received; 0 when the other side has ended.

        Raises:
            OSError: the connection is broken.
        """
        while True:
            with suppress(BlockingIOError):
                return _simulated(sock).recv_into(memoryview(buf))
            await self._until(sock, self.add_reader, self.remove_reader)

    async def sock_sendall(self, sock: Any, data: Any) -> None:
        """Send all, waiting for room; see asyncio.

        Args:
            sock: a simulated one.
            data: a buffer.

        Raises:
            OSError: the connection is broken.
        """
        left = memoryview(data)
        while left:
            try:
                left = left[_simulated(sock).send(left) :]
            except BlockingIOError:
                await self._until(sock, self.add_writer, self.remove_writer)

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """Connect; see asyncio.

        Args:
            sock: a simulated one, not connected.
            address: (address, port) of the listener.

        Raises:
            OSError: nobody listens there, or nobody answers.
        """
        client = _simulated(sock)
        if client.name[1] == 0:
            client.bind((client.machine.address, 0))
        done: asyncio.Future[None] = self.create_future()
        context = copy_context()

        def tell(error: OSError | None) -> None:
            self.call_soon(_end_wait, done, error, context=context)

        self.network.connect(client, address, tell)
        await done

    async def _until(
        self, sock: Any, add: Callable[..., None], remove: Callable[[Any], bool]
    ) -> None:
        ready: asyncio.Future[None] = self.create_future()
        add(sock, _end_wait, ready, None)
        try:
            await ready
        finally:
            remove(sock)


def new_loop(seed: object) -> ClusterLoop:
    """Make a loop; see `SimulatedLoop`."""
    # it has no signals, pipes and subprocesses
    return ClusterLoop(seed)  # type: ignore[abstract]


def _end_wait(ready: asyncio.Future[None], error: OSError | None) -> None:
    if ready.done():
        return
    if error is None:
        ready.set_result(None)
    else:
        ready.set_exception(error)


def _simulated(sock: Any) -> SimulatedSocket:
    if not isinstance(sock, SimulatedSocket):
        raise UnsimulatedError(f"{sock!r} is the system's")
    return sock


def _check_plain(options: dict[str, Any]) -> None:
    if options.get("ssl") is not None:
        raise UnsimulatedError("TLS")
