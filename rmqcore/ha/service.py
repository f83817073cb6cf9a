"""The master's side: the port, and a connection for each slave.

Source: RocketMQ store/ha/DefaultHAService.java.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from rmqcore.ha.connection import HAConnection, Log, Replicated
from rmqcore.ha.group_transfer import GroupTransferService
from rmqcore.ha.settings import HAConfig
from rmqcore.ha.sockets import address_text, tune
from rmqcore.remoting.acceptor import Acceptor
from rmqcore.remoting.sockets import listen
from rmqcore.world import REAL, World

logger = logging.getLogger(__name__)

#: Of connections without a report this many are kept, the newest; a slave reports at once.
_SILENT_MAX: Final = 128
#: Of more connections than these one is closed at once: each takes a descriptor.
_CONNECTIONS_MAX: Final = 256
#: Why a connection was closed is remembered of this many hosts, the last ones: the same reason
#: again is no warning any more.
_TOLD_MAX: Final = 1024


class MasterLog(Log, Protocol):
    """The log of a master."""

    def on_arrival(
        self, listener: Callable[[Sequence[tuple[str, int]]], None]
    ) -> Callable[[], None]:
        """Call a function whenever messages have come; returns what ends it."""
        ...

    def wait_for_slaves(self, slaves: GroupTransferService | None) -> None:
        """Let puts wait for slaves from now on, as their durability asks; None: no more."""
        ...

    def store_time_at(self, phy_offset: int) -> int | None:
        """Store time of the record at an offset, Unix milliseconds; None when none begins there."""
        ...


class HAService:
    """Listens for slaves, sends them the log, and tells puts how far they have it.

    Attributes:
        connections: the slaves that are connected.
        waits: the puts that wait for them.

    Threads: those of the event loop; `wake` may be called from any.
    """

    def __init__(
        self,
        store: Replicated[MasterLog],
        config: HAConfig,
        host: str,
        port: int,
        *,
        world: World = REAL,
    ) -> None:
        """Prepare a service; `start` opens the port.

        Args:
            store: the master's.
            config: the settings.
            host: where to listen.
            port: the port; 0 takes any that is free.
            world: tells how long slaves were silent, and how far they are behind.
        """
        log = store.followed_log
        self.connections: list[HAConnection] = []
        self.group_transfer = GroupTransferService(
            config, end=lambda: log.max_phy_offset, on_waiting=self.wake, world=world
        )
        self._log = log
        self._config = config
        self._place = (host, port)
        self._world = world
        self._listening: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._acceptor: Acceptor | None = None
        # in order of their beginning
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._stop_listening: Callable[[], None] | None = None
        self._woken = False
        self._told: dict[str, str] = {}
        #: whether the last connection was one too many
        self._is_full = False

    @property
    def port(self) -> int:
        """The port that slaves connect to."""
        return int(self._listening.getsockname()[1]) if self._listening else self._place[1]

    async def start(self) -> None:
        """Open the port, and let puts wait for slaves.

        Raises:
            OSError: the port is taken.
        """
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        host, port = self._place
        self._listening = listening = listen(host, port)
        self._stop_listening = self._log.on_arrival(self._arrived)
        self._log.wait_for_slaves(self.group_transfer)
        self._acceptor = Acceptor(listening, self._accept)

    async def stop(self) -> None:
        """Close the port and every connection; puts that wait are told that no slave has them."""
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
        self._log.wait_for_slaves(None)
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for connection in self.connections:
            # accepted, but its service never began
            connection.close()
        self.connections = []
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        self.group_transfer.stop()
        self._loop = None

    def wake(self) -> None:
        """Send what has been put by now; may be called from any thread, and often."""
        loop = self._loop
        if loop is None or self._woken or not self.connections:
            return
        if threading.get_ident() == self._thread:
            self._wake_all()
            return
        self._woken = True
        try:
            loop.call_soon_threadsafe(self._wake_all)
        except RuntimeError:
            # the loop has ended
            self._woken = False

    def _arrived(self, _: Sequence[tuple[str, int]]) -> None:
        """Messages have come; slaves that a put waits for have mostly been sent them by now."""
        end = self._log.max_phy_offset
        if any(one.next_offset < end for one in self.connections):
            self.wake()

    def _wake_all(self) -> None:
        self._woken = False
        for connection in self.connections:
            connection.wake()

    def _accept(self, sock: socket.socket, place: tuple[object, ...]) -> None:
        address = address_text(place)
        if len(self.connections) >= _CONNECTIONS_MAX and not self._makes_room_for(address):
            logger.log(
                logging.DEBUG if self._is_full else logging.WARNING,
                "port %d: %d connections are all that it has; further ones are closed at once",
                self.port,
                _CONNECTIONS_MAX,
            )
            self._is_full = True
            sock.close()
            return
        self._is_full = False
        tune(sock)
        connection = HAConnection(
            sock, address, self._log, self._config, self._acknowledged, self._world
        )
        self.connections.append(connection)
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        silent = [one for one in self.connections if one.is_silent]
        if len(silent) > _SILENT_MAX:
            silent[0].end("too many connections are silent, and this one was so for longest")

    def _makes_room_for(self, address: str) -> bool:
        """End a connection of the host that has most, its newest, for one of a host that has less.

        Whoever takes all there are keeps out no slave of another host.
        """
        going_on = [one for one in self.connections if one.goes_on]
        if len(going_on) < _CONNECTIONS_MAX:
            return True
        counts = Counter(_host_of(one.address) for one in going_on)
        host, most = counts.most_common(1)[0]
        if counts[_host_of(address)] + 1 >= most:
            return False
        newest = [one for one in going_on if _host_of(one.address) == host][-1]
        newest.end("another host has fewer connections, and there were too many")
        return True

    async def _serve(self, connection: HAConnection) -> None:
        host = _host_of(connection.address)
        logger.info("slave %s: connected", connection.address)
        reason, began = "the master stops", self._world.monotonic_s()
        try:
            reason = await connection.serve()
        finally:
            self.connections.remove(connection)
            self.group_transfer.forget(connection)
            # a peer that comes again and again for the same reason is told of once
            lasted_ms = 1000 * (self._world.monotonic_s() - began)
            told = self._told.pop(host, None) == reason
            if connection.request_offset >= 0:
                told = told and lasted_ms < self._config.ha_housekeeping_interval
            self._told[host] = reason
            if len(self._told) > _TOLD_MAX:
                del self._told[next(iter(self._told))]
            logger.log(
                logging.DEBUG if told else logging.WARNING,
                "slave %s: connection closed: %s",
                connection.address,
                reason,
            )

    def _acknowledged(self, connection: HAConnection) -> None:
        proven = connection.ack_offset > connection.request_offset
        self.group_transfer.acknowledged(connection, connection.ack_offset, proven=proven)

    # ---- what it says of itself

    def runtime_info(self) -> dict[str, object]:
        """The body of an answer to request 907.

        Source: RocketMQ remoting/protocol/body/HARuntimeInfo.java.
        """
        end = self._log.max_phy_offset
        slaves = [self._info(connection, end) for connection in self.connections]
        return {
            "haClientRuntimeInfo": client_info(),
            "haConnectionInfo": slaves,
            "inSyncSlaveNums": sum(bool(slave["inSync"]) for slave in slaves),
            "master": True,
            "masterCommitLogMaxOffset": end,
        }

    def _info(self, connection: HAConnection, end: int) -> dict[str, object]:
        behind = end - connection.ack_offset
        info: dict[str, object] = {
            "addr": connection.address,
            "diff": behind,
            "inSync": not connection.is_ahead
            and self.group_transfer.is_in_sync(connection.ack_offset, end),
            "slaveAckOffset": connection.ack_offset,
            "transferFromWhere": connection.next_offset,
            "transferredByteInSecond": connection.flow.in_last_second,
            # RocketMQ has no such field
            "lagMs": self._lag_ms(connection.ack_offset, behind),
        }
        if connection.problem is not None:
            info["problem"] = connection.problem
        return info

    def _lag_ms(self, ack_offset: int, behind: int) -> int | None:
        """Milliseconds that the oldest record waits that a slave lacks; None: not known."""
        if behind <= 0:
            return 0
        stored_ms = self._log.store_time_at(max(ack_offset, self._log.min_phy_offset))
        return None if stored_ms is None else max(0, self._world.clock_ms() - stored_ms)


def _host_of(address: str) -> str:
    return address.rpartition(":")[0]


def client_info(**known: object) -> dict[str, object]:
    """The slave's part of what request 907 tells; a master tells zeros."""
    return {
        "activated": False,
        "lastReadTimestamp": 0,
        "lastWriteTimestamp": 0,
        "masterAddr": "",
        "masterFlushOffset": 0,
        "maxOffset": 0,
        "transferredByteInSecond": 0,
        **known,
    }
