"""A server: listens, and gives each connection the processors.

Plain and TLS clients come to the same port, as in RocketMQ: the first byte of a connection tells
them apart (0x16 begins a TLS handshake; a frame begins with the high byte of its length). So may
clients that speak HTTP/2, see `first_bytes`; over TLS those say so in their handshake, too (ALPN).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar
from weakref import WeakSet

from rmqcore.errors import ArgumentError
from rmqcore.remoting.acceptor import Acceptor
from rmqcore.remoting.codec import DirectAnswers
from rmqcore.remoting.connection import Connection, ConnectionSettings, Gate, Processor
from rmqcore.remoting.first_bytes import FirstBytes, OtherProtocol
from rmqcore.remoting.shared_bound import SharedBound
from rmqcore.remoting.sockets import listen
from rmqcore.remoting.tls import TlsMode
from rmqcore.world import connections_allowed

logger = logging.getLogger(__name__)

#: first byte of a TLS handshake
_TLS_HANDSHAKE = b"\x16"
#: A client has this long for its first byte, and again for the handshake.
_GREETING_TIMEOUT_S = 10.0
#: When the system refuses to accept, for want of descriptors or memory, this pause follows.
_PORT_MAX = 65535


#: Makes the protocol of a connection that speaks HTTP/2, which calls a function when it is gone.
NewHttp2 = Callable[[Callable[[OtherProtocol], None]], OtherProtocol]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What a server allows.

    Attributes:
        connection: the bounds of each connection.
        connection_max: connections at a time; further ones are closed at once, and so are those
            beyond what `connections_allowed` gives all servers of the process together.
        kept_total_max: bytes that all connections together may keep of frames that are not whole,
            and of answers that are not read; beyond it those that keep the most are closed.
        backlog: connections that the system keeps until they are accepted.
        tls: the certificate and how to use it; None serves no TLS.
        tls_mode: whether clients with and without TLS are served.
    """

    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    connection_max: int = 10_000
    kept_total_max: int = 512 * 1024 * 1024
    backlog: int = 1024
    tls: ssl.SSLContext | None = None
    tls_mode: TlsMode = TlsMode.PERMISSIVE


class RemotingServer:
    """Serves requests on one port.

    Attributes:
        processors: by request code; `register` adds to them. Two servers may share them.
        direct: answer what needs no processor, where there is no gate; each is asked in turn.
    """

    _all: ClassVar[WeakSet[RemotingServer]] = WeakSet()

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        listening: socket.socket | None = None,
        settings: ServerSettings | None = None,
        processors: dict[int, Processor] | None = None,
        gate: Gate | None = None,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        http2: NewHttp2 | None = None,
    ) -> None:
        """Prepare a server; `start` opens its port.

        Args:
            host: address to listen on.
            port: 0 for any that is free; `port` tells which.
            listening: a socket that listens already, such as one of this machine's file system, in
                place of address and port.
            settings: what it allows.
            processors: to be shared with another server.
            gate: asked before each request's processor, for unknown codes too.
            on_open: called with each new connection.
            on_close: called with each that is gone.
            http2: serves connections that speak HTTP/2; None takes frames only.

        Raises:
            ArgumentError: no port has that number.
        """
        if not 0 <= port <= _PORT_MAX:
            raise ArgumentError("port", port, f"0 to {_PORT_MAX}")
        self.processors = {} if processors is None else processors
        self.direct: tuple[DirectAnswers, ...] = ()
        self._host = host
        self._port = port
        self._settings = settings or ServerSettings()
        self._gate = gate
        self._on_open = on_open
        self._on_close = on_close
        self._http2 = http2
        self._socket = listening
        self._kept = SharedBound(self._settings.kept_total_max)
        self._acceptor: Acceptor | None = None
        # in order of their coming
        self._greetings: dict[asyncio.Task[None], None] = {}
        self._connections: dict[Connection, None] = {}
        #: connections that have not said yet what they speak, and those of HTTP/2
        self._others: dict[OtherProtocol, None] = {}
        self._stopping = False
        #: True when the last connection was refused because there are too many
        self._full = False
        RemotingServer._all.add(self)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._port

    @property
    def connections(self) -> tuple[Connection, ...]:
        """The connections there are, in order of their coming."""
        return tuple(self._connections)

    def register(self, code: int, processor: Processor) -> None:
        """Let a function, plain or a coroutine function, handle all requests of one code.

        Args:
            code: request code.
            processor: gets (connection, request) and returns the answer or None; see
                `rmqcore.remoting`.
        """
        self.processors[int(code)] = processor

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address is not this machine's, or the port is taken.
        """
        listening = self._socket
        if listening is None:
            listening = listen(self._host, self._port, self._settings.backlog)
            self._port = listening.getsockname()[1]
        listening.setblocking(False)
        self._socket = listening
        self._stopping = False
        self._acceptor = Acceptor(listening, self._accept)

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Stop listening, answer the requests that were taken, close every connection.

        Args:
            timeout_s: what is not answered or not read by then is dropped.
        """
        self._stopping = True
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        tasks = [*self._greetings]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        served: list[Connection | OtherProtocol] = [*self._connections, *self._others]
        await asyncio.gather(*(each.finish(timeout_s) for each in served))

    def _accept(self, accepted: socket.socket, _: tuple[object, ...]) -> None:
        if self._is_full():
            accepted.close()
            return
        greeting = asyncio.get_running_loop().create_task(self._greet(accepted))
        self._greetings[greeting] = None
        greeting.add_done_callback(self._greetings.pop)

    def _is_full(self) -> bool:
        """Tell whether one more connection is too many; logged once until there is room again."""
        allowed = connections_allowed()
        full = self._accepted >= self._settings.connection_max or (
            allowed is not None and sum(each._accepted for each in self._all) >= allowed
        )
        if full and not self._full:
            logger.warning(
                "port %d: %d connections are all that it has; further ones are closed at once. "
                "Processes have %s for their sockets (ulimit -n)",
                self._port,
                self._accepted,
                "no limit" if allowed is None else allowed,
            )
        self._full = full
        return full

    @property
    def _accepted(self) -> int:
        return len(self._connections) + len(self._others) + len(self._greetings)

    async def _greet(self, accepted: socket.socket) -> None:
        """Make a connection of an accepted socket, with or without TLS."""
        loop = asyncio.get_running_loop()
        handed_over = False
        try:
            accepted.setblocking(False)
            if accepted.family != socket.AF_UNIX:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tls, wanted = self._settings.tls, False
            mode = TlsMode.DISABLED if tls is None else self._settings.tls_mode
            if mode is not TlsMode.DISABLED:
                async with asyncio.timeout(_GREETING_TIMEOUT_S):
                    wanted = await _first_byte(accepted) == _TLS_HANDSHAKE
            if mode is TlsMode.ENFORCING and not wanted:
                logger.warning("port %d: refused a client without TLS", self._port)
                return
            handed_over = True
            await loop.connect_accepted_socket(
                self._new_connection if self._http2 is None else self._new_first_bytes,
                accepted,
                ssl=tls if wanted else None,
                ssl_handshake_timeout=_GREETING_TIMEOUT_S if wanted else None,
            )
        except (OSError, TimeoutError) as error:
            logger.info("port %d: a connection did not come about: %s", self._port, error)
            # the traceback refers to the error, and keeps the buffers of the handshake alive
            error.__traceback__ = None
        finally:
            if not handed_over:
                accepted.close()

    def _new_first_bytes(self) -> FirstBytes:
        """The protocol of a connection until it is known what it speaks."""
        return FirstBytes(
            self._new_connection,
            self._new_http2,
            _GREETING_TIMEOUT_S,
            self._remember,
            self._forget,
        )

    def _new_http2(self) -> OtherProtocol:
        if self._http2 is None:
            raise RuntimeError("HTTP/2 is not served")
        protocol = self._http2(self._forget)
        self._remember(protocol)
        return protocol

    def _remember(self, protocol: OtherProtocol) -> None:
        self._others[protocol] = None

    def _forget(self, protocol: OtherProtocol) -> None:
        self._others.pop(protocol, None)

    def _new_connection(self) -> Connection:
        return Connection(
            self.processors,
            self._settings.connection,
            serves=True,
            gate=self._gate,
            direct=self.direct if self._gate is None else (),
            kept=self._kept,
            on_open=self._opened,
            on_close=self._closed,
        )

    def _opened(self, connection: Connection) -> None:
        self._connections[connection] = None
        if self._stopping:
            connection.abort()
        elif self._on_open is not None:
            self._on_open(connection)

    def _closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        if self._on_close is not None:
            self._on_close(connection)


async def _first_byte(accepted: socket.socket) -> bytes:
    """Wait for the first byte of a connection and leave it where it is."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(accepted, _set, ready)
    try:
        await ready
    finally:
        loop.remove_reader(accepted)
    return accepted.recv(1, socket.MSG_PEEK)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
