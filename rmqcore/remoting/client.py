"""A client: one connection an address, opened when it is needed and again after it was lost."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from rmqcore.remoting.codec import ANSWER_LIMITS
from rmqcore.remoting.codes import JSON_HEADER, ResponseCode
from rmqcore.remoting.command import RemotingCommand
from rmqcore.remoting.connection import Connection, ConnectionSettings, Processor
from rmqcore.remoting.errors import (
    RemotingClosedError,
    RemotingConnectError,
    RemotingTimeoutError,
)

logger = logging.getLogger(__name__)

_PORT_MAX = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How a client connects.

    Attributes:
        connection: the bounds of each connection; a header may be as large as a frame.
        connect_timeout_ms: for the connection alone. Java: connectTimeoutMillis.
        serialize_type: of the headers of requests.
        tls: trust and, where asked for, the client's certificate; None connects without TLS.
        tls_name: the name that the server's certificate is checked for, if not the address's.
    """

    connection: ConnectionSettings = field(
        default_factory=lambda: ConnectionSettings(frames=ANSWER_LIMITS)
    )
    connect_timeout_ms: float = 3000
    serialize_type: int = JSON_HEADER
    tls: ssl.SSLContext | None = None
    tls_name: str | None = None


class RemotingClient:
    """Sends requests to any number of addresses, and handles what those ask.

    Attributes:
        processors: by request code, for the requests of servers; `register` adds to them.
    """

    def __init__(
        self,
        *,
        settings: ClientSettings | None = None,
        processors: dict[int, Processor] | None = None,
        sign: Callable[[RemotingCommand], None] | None = None,
        on_close: Callable[[str, Connection], None] | None = None,
    ) -> None:
        """Prepare a client; it connects with the first request.

        Args:
            settings: how it connects.
            processors: for the requests of servers.
            sign: called with each request before it is sent, see `AclSigner.sign`.
            on_close: called with the address and the connection when one was lost or closed.
        """
        self.processors = {} if processors is None else processors
        self._settings = settings or ClientSettings()
        self._sign = sign
        self._on_close = on_close
        self._connections: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._closed = False

    def register(self, code: int, processor: Processor) -> None:
        """Let a function, plain or a coroutine function, handle what servers ask by one code.

        Args:
            code: request code that servers send.
            processor: gets (connection, request) and returns the answer or None; see
                `rmqcore.remoting`.
        """
        self.processors[int(code)] = processor

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_ms: float = 3000
    ) -> RemotingCommand:
        """Send a request and wait for its answer, whatever code that has.

        Args:
            address: `host:port`.
            command: gets its opaque, flag and signature here; a command is sent once at a time.
            timeout_ms: for connection, request and answer together.

        Raises:
            RemotingConnectError: there is no connection; nothing was sent.
            RemotingTimeoutError: no answer came in time.
            RemotingClosedError: the connection was lost before the answer came, or the client is
                closed.
            FrameError: no frame can hold the command.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        answer = await self._invoke_once(address, command, timeout_ms)
        if answer.code != ResponseCode.GO_AWAY:
            return answer
        # the server is stopping: a request that it refuses so was not worked on, and may be sent
        # again
        self.disconnect(address)
        rest_ms = (deadline - loop.time()) * 1000
        return await self._invoke_once(address, command, max(rest_ms, 0.0))

    async def _invoke_once(
        self, address: str, command: RemotingCommand, timeout_ms: float
    ) -> RemotingCommand:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        connection = await self.connection(address, timeout_ms)
        if self._sign is not None:
            self._sign(command)
        rest_ms = (deadline - loop.time()) * 1000
        if rest_ms <= 0:
            raise RemotingTimeoutError(address, command.code, timeout_ms)
        serialize_type = self._settings.serialize_type
        return await connection.invoke(command, rest_ms, serialize_type=serialize_type)

    async def invoke_oneway(
        self, address: str, command: RemotingCommand, timeout_ms: float = 3000
    ) -> None:
        """Send a request that gets no answer.

        Args:
            address: `host:port`.
            command: gets its opaque, flag and signature here.
            timeout_ms: for connection and request together.

        Raises:
            RemotingConnectError: there is no connection; nothing was sent.
            RemotingTimeoutError: the server took nothing in all that time; nothing was sent.
            RemotingClosedError: the client is closed.
            FrameError: no frame can hold the command.
        """
        connection = await self.connection(address, timeout_ms)
        if self._sign is not None:
            self._sign(command)
        serialize_type = self._settings.serialize_type
        await connection.invoke_oneway(command, timeout_ms, serialize_type=serialize_type)

    async def connection(self, address: str, timeout_ms: float = 3000) -> Connection:
        """Return the open connection to an address; make one when there is none.

        Args:
            address: `host:port`.
            timeout_ms: how long to wait for a connection that has to be made.

        Raises:
            RemotingConnectError: there is none to be had in this time.
            RemotingClosedError: the client is closed.
        """
        if self._closed:
            raise RemotingClosedError(address)
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            return connection
        opening = self._opening.get(address)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._open(address))
            # reads the exception, as whoever asked may have given up before
            opening.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._opening[address] = opening
        done, _ = await asyncio.wait([opening], timeout=timeout_ms / 1000)
        if not done:
            raise RemotingConnectError(address, f"not within {timeout_ms:.0f} ms")
        if opening.cancelled():
            raise RemotingClosedError(address)
        return opening.result()

    def disconnect(self, address: str) -> None:
        """Close the connection to an address, if there is one; the next request opens another."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    async def close(self, timeout_s: float = 1.0) -> None:
        """Close every connection; who waits for an answer gets a `RemotingClosedError`."""
        self._closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        if opening:
            await asyncio.wait(opening)
        connections = list(self._connections.values())
        await asyncio.gather(*(each.finish(timeout_s) for each in connections))

    async def _open(self, address: str) -> Connection:
        loop = asyncio.get_running_loop()
        tls, name = self._settings.tls, None
        try:
            host, port = split_address(address)
            if tls is not None:
                name = self._settings.tls_name or host
            async with asyncio.timeout(self._settings.connect_timeout_ms / 1000):
                _, connection = await loop.create_connection(
                    lambda: self._new_connection(address), host, port, ssl=tls, server_hostname=name
                )
        except TimeoutError as error:
            raise RemotingConnectError(address, "it does not answer") from error
        except (OSError, ValueError) as error:
            raise RemotingConnectError(address, str(error)) from error
        finally:
            self._opening.pop(address, None)
        self._connections[address] = connection
        return connection

    def _new_connection(self, address: str) -> Connection:
        def closed(connection: Connection) -> None:
            if self._connections.get(address) is connection:
                del self._connections[address]
            if self._on_close is not None:
                self._on_close(address, connection)

        return Connection(self.processors, self._settings.connection, serves=False, on_close=closed)


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` or `[host]:port`.

    Raises:
        ValueError: it is neither, or the port is above 65535.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()):
        raise ValueError(f"{address!r} is not host:port")
    if int(port) > _PORT_MAX:
        raise ValueError(f"{address!r} is not host:port: ports end at {_PORT_MAX}")
    return host.removeprefix("[").removesuffix("]"), int(port)
