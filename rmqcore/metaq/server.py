"""The asyncio server of MetaQ's text protocol, and the socket of its operator.

Moves bytes; `broker.py` decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import Future
from pathlib import Path

from rmqcore.errors import RmqCoreError
from rmqcore.metaq.broker import BrokerProcessor
from rmqcore.metaq.file_message_set import FileMessageSet
from rmqcore.metaq.manager import MessageStoreManager
from rmqcore.metaq.message import MAX_READ_BUFFER_SIZE
from rmqcore.metaq.protocol import (
    MAX_LINE_SIZE,
    NO_OPAQUE,
    Code,
    Command,
    Get,
    Offset,
    ProtocolError,
    Put,
    Quit,
    Stats,
    Version,
    format_result,
    parse_command,
)

_LOG = logging.getLogger(__name__)
#: below this a copy is cheaper than the round through sendfile
_COPY_BELOW = 32_768
#: replies of one connection that may wait for the disk
_MAX_PENDING = 1024

Reply = bytes | tuple[bytes, FileMessageSet] | asyncio.Future[bytes]


class MetaServer:
    """One listening socket.

    Invariants:
        - Replies leave a connection in the order of its commands, however long a put waits.
        - A line that is no command is answered with 400 and ends its connection, no other.

    Attributes:
        processor: what answers.
    """

    def __init__(
        self,
        manager: MessageStoreManager,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        admin_socket: Path | None = None,
        max_message_size: int = MAX_READ_BUFFER_SIZE,
    ) -> None:
        """Prepare; `start` listens.

        Args:
            manager: the partitions; the caller closes it.
            host: address to listen on; loopback unless told otherwise.
            port: None: serverPort of the configuration; 0: any free one.
            admin_socket: Unix socket for the operator's commands, see `admin_command`.
            max_message_size: bytes of one put.
        """
        self.processor = BrokerProcessor(manager)
        self._manager = manager
        self._host = host
        self._port = manager.config.system.server_port if port is None else port
        self._admin_socket = admin_socket
        self._max_message_size = max_message_size
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> tuple[str, int]:
        """Listen; return address and port."""
        server = await asyncio.start_server(
            self._connected, self._host, self._port, limit=MAX_LINE_SIZE
        )
        self._servers.append(server)
        if self._admin_socket is not None:
            admin = await asyncio.start_unix_server(
                self._admin_connected, self._admin_socket, limit=MAX_LINE_SIZE
            )
            self._admin_socket.chmod(0o600)
            self._servers.append(admin)
        host, port = server.sockets[0].getsockname()[:2]
        return host, port

    async def stop(self) -> None:
        """Stop listening and end every connection."""
        for server in self._servers:
            server.close()
        for task in tuple(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()
        if self._admin_socket is not None:
            self._admin_socket.unlink(missing_ok=True)

    async def __aenter__(self) -> MetaServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._connections.add(task)
        self.processor.stats.connections += 1
        replies: asyncio.Queue[Reply | None] = asyncio.Queue(_MAX_PENDING)
        sending = asyncio.create_task(_send_replies(writer, replies))
        reading = asyncio.create_task(self._read_commands(reader, replies))
        try:
            await asyncio.wait((sending, reading), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                await sending
        except asyncio.CancelledError:
            pass
        finally:
            for part in (reading, sending):
                part.cancel()
            await asyncio.gather(reading, sending, return_exceptions=True)
            self.processor.stats.connections -= 1
            if task is not None:
                self._connections.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _read_commands(
        self, reader: asyncio.StreamReader, replies: asyncio.Queue[Reply | None]
    ) -> None:
        try:
            while True:
                command = parse_command((await reader.readuntil(b"\r\n"))[:-2])
                if isinstance(command, Quit):
                    break
                await replies.put(await self._answer(command, reader))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except asyncio.LimitOverrunError:
            text = f"a line has at most {MAX_LINE_SIZE} bytes"
            await replies.put(format_result(Code.BAD_REQUEST, text, NO_OPAQUE))
        except ProtocolError as error:
            await replies.put(format_result(Code.BAD_REQUEST, error.reason, NO_OPAQUE))
        await replies.put(None)

    async def _answer(self, command: Command, reader: asyncio.StreamReader) -> Reply:
        match command:
            case Put():
                if command.size > self._max_message_size:
                    raise ProtocolError(
                        f"a put of {command.size} bytes; at most {self._max_message_size}"
                    )
                reply = self.processor.put(command, await reader.readexactly(command.size))
                return asyncio.wrap_future(reply) if isinstance(reply, Future) else reply
            case Get():
                found = self.processor.get(command)
                if isinstance(found, bytes):
                    return found
                return found.write_header(command.opaque), found
            case Offset():
                return self.processor.offset(command)
            case Stats():
                return self.processor.statistics(command)
            case Version():
                return self.processor.version(command)
            case Quit():
                return b""

    async def _admin_connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            line = (await reader.readline()).decode("utf-8", "replace")
            writer.write(admin_command(self._manager, line.split()).encode() + b"\n")
            await writer.drain()
        except (ValueError, ConnectionError):
            _LOG.warning("an operator's connection broke")
        finally:
            writer.close()


async def _send_replies(writer: asyncio.StreamWriter, replies: asyncio.Queue[Reply | None]) -> None:
    try:
        while (reply := await replies.get()) is not None:
            if isinstance(reply, asyncio.Future):
                reply = await reply
            if isinstance(reply, bytes):
                writer.write(reply)
            else:
                await _send_records(writer, *reply)
            await writer.drain()
    except ConnectionError:
        pass


async def _send_records(
    writer: asyncio.StreamWriter, header: bytes, records: FileMessageSet
) -> None:
    if records.size_in_bytes < _COPY_BELOW:
        writer.write(header + records.read())
    else:
        writer.write(header)
        await records.send_async(writer.transport)


def admin_command(manager: MessageStoreManager, words: list[str]) -> str:
    """Run one command of the operator and say what happened.

    ``reload``, ``close TOPIC FIRST LAST``, ``open TOPIC``, ``delete`` (run the delete policies
    now), ``flush``. Source: MetaQ MetaConfigMBean.java.
    """
    config = manager.config
    try:
        match words:
            case ["reload"]:
                return "reloaded" if config.reload() else "unchanged"
            case ["close", topic, first, last] if first.isdigit() and last.isdigit():
                done = config.close_partitions(topic, int(first), int(last))
                return "closed" if done else "error: no such topic or range"
            case ["open", topic]:
                opened = sorted(config.open_partitions(topic))
                return f"opened {' '.join(map(str, opened)) or 'none'}"
            case ["delete"]:
                return f"deleted {len(manager.run_delete_policies())} segments"
            case ["flush"]:
                manager.flush()
                return "flushed"
            case _:
                return "error: reload, close TOPIC FIRST LAST, open TOPIC, delete, or flush"
    except (OSError, RmqCoreError) as error:
        return f"error: {error}"
