"""The listening socket of MetaQ's text protocol, and the socket of its operator.

Takes connections; `connection.py` moves their bytes.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

from rmqcore.errors import RmqCoreError
from rmqcore.metaq.broker import BrokerProcessor
from rmqcore.metaq.connection import MetaConnection
from rmqcore.metaq.manager import MessageStoreManager
from rmqcore.metaq.message import MAX_READ_BUFFER_SIZE
from rmqcore.metaq.protocol import MAX_LINE_SIZE
from rmqcore.metaq.registry import Registry, reachable_host
from rmqcore.remoting.acceptor import Acceptor
from rmqcore.world import connections_allowed

_LOG = logging.getLogger(__name__)
_BACKLOG = 1024
#: Who was silent for this long goes when somebody else has no room; MetaQ's clients ask for the
#: version as a heart-beat.
_SILENT_S = 120.0
#: A server that stops waits this long for replies that are on their way.
_GRACE_S = 1.0


class MetaServer:
    """One listening socket.

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
        connection_max: int = 10_000,
    ) -> None:
        """Prepare; `start` listens.

        Args:
            manager: the partitions; the caller closes it.
            host: address to listen on; loopback unless told otherwise.
            port: None: serverPort of the configuration; 0: any free one.
            admin_socket: Unix socket for the operator's commands, see `admin_command`.
            max_message_size: bytes of one put.
            connection_max: connections at a time; further ones are closed at once, and so are those
                beyond what `connections_allowed` gives.
        """
        self.processor = BrokerProcessor(manager)
        self._manager = manager
        self._host = host
        self._port = manager.config.system.server_port if port is None else port
        self._admin_socket = admin_socket
        self._max_message_size = max_message_size
        self._connection_max = connection_max
        self._listeners: dict[socket.socket, Acceptor] = {}
        # in order of their coming
        self._beginning: dict[asyncio.Task[None], None] = {}
        self._admin: asyncio.Server | None = None
        self._registry: Registry | None = None
        self._connections: set[MetaConnection] = set()
        #: True when the last connection was refused because there are too many
        self._full = False

    async def start(self) -> tuple[str, int]:
        """Listen, and register in ZooKeeper if there is a zkConnect; return address and port.

        Raises:
            ConfigError: there is one, and the extra ``[zookeeper]`` is not installed.
            RegistryError: no ZooKeeper answers, or another broker has this id.
        """
        try:
            return await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, address in found:
            listener = socket.create_server(address, family=family, backlog=_BACKLOG)
            listener.setblocking(False)
            self._listeners[listener] = Acceptor(listener, self._accept)
        if self._admin_socket is not None:
            self._admin = await asyncio.start_unix_server(
                self._admin_connected, self._admin_socket, limit=MAX_LINE_SIZE
            )
            self._admin_socket.chmod(0o600)
        host, port = next(iter(self._listeners)).getsockname()[:2]
        config = self._manager.config
        if config.zookeeper is not None and config.zookeeper.discovery:
            where = reachable_host(config, host), port
            self._registry = await asyncio.to_thread(Registry, self._manager, *where)
        return host, port

    async def stop(self) -> None:
        """Take the nodes out of ZooKeeper, stop listening and end every connection."""
        if self._registry is not None:
            await asyncio.to_thread(self._registry.close)
            self._registry = None
        for listener, acceptor in self._listeners.items():
            acceptor.close()
            listener.close()
        self._listeners.clear()
        if self._beginning:
            await asyncio.wait(self._beginning)
        loop = asyncio.get_running_loop()
        for now in (False, True):
            for connection in tuple(self._connections):
                connection.close(now=now)
            deadline = loop.time() + _GRACE_S
            while self._connections and loop.time() < deadline:
                await asyncio.sleep(0.001)
        if self._admin is not None:
            self._admin.close()
            await self._admin.wait_closed()
            self._admin = None
        if self._admin_socket is not None:
            self._admin_socket.unlink(missing_ok=True)

    async def __aenter__(self) -> MetaServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _accept(self, accepted: socket.socket, _: tuple[object, ...]) -> None:
        if self._is_full():
            accepted.close()
            return
        beginning = asyncio.get_running_loop().create_task(self._begin(accepted))
        self._beginning[beginning] = None
        beginning.add_done_callback(self._beginning.pop)

    async def _begin(self, accepted: socket.socket) -> None:
        try:
            accepted.setblocking(False)
            await asyncio.get_running_loop().connect_accepted_socket(self._connection, accepted)
        except OSError:  # it went before it came
            accepted.close()

    def _is_full(self) -> bool:
        """Tell whether one more connection is too many; logged once until there is room again."""
        allowed = connections_allowed()
        count = len(self._connections)
        full = count >= self._connection_max or (allowed is not None and count >= allowed)
        if full and self._end_silent():
            return False
        if full and not self._full:
            _LOG.warning(
                "%d connections are all that it has; further ones are closed at once. Processes "
                "have %s for their sockets (ulimit -n)",
                count,
                "no limit" if allowed is None else allowed,
            )
        self._full = full
        return full

    def _end_silent(self) -> bool:
        """End the connection that has said nothing for longest; False where all say something."""
        oldest = min(self._connections, key=lambda each: each.heard_s, default=None)
        if oldest is None or self._manager.world.monotonic_s() - oldest.heard_s < _SILENT_S:
            return False
        # it is counted no more from now on
        self._connections.discard(oldest)
        oldest.close(now=True)
        return True

    def _connection(self) -> MetaConnection:
        connection = MetaConnection(
            self.processor, self._max_message_size, self._connections.discard
        )
        self._connections.add(connection)
        return connection

    async def _admin_connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            line = (await reader.readline()).decode("utf-8", "replace")
            words = line.split()
            if words[:1] in (["delete"], ["flush"]):
                # to pack old segments takes minutes, in which clients are served
                answer = await asyncio.to_thread(admin_command, self._manager, words)
            else:
                answer = admin_command(self._manager, words)
            writer.write(answer.encode() + b"\n")
            await writer.drain()
        except (ValueError, ConnectionError):
            _LOG.warning("an operator's connection broke")
        finally:
            writer.close()


def admin_command(manager: MessageStoreManager, words: list[str]) -> str:
    """Run one command of the operator and say what happened.

    ``reload``, ``close TOPIC FIRST LAST``, ``open TOPIC``, ``delete`` (run the delete policies
    now), ``flush``. Source: MetaQ MetaConfigMBean.java.

    Args:
        manager: of the broker's partitions.
        words: of the command.

    Returns:
        one line; it begins with ``error:`` when nothing was done.
    """
    config = manager.config
    try:
        match words:
            case ["reload"]:
                return "reloaded" if config.reload() else "unchanged"
            case ["close", topic, first, last] if first.isdigit() and last.isdigit():
                there = manager.stores.get(topic, ())
                done = config.close_partitions(topic, int(first), int(last), existing=there)
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
