"""`NameServer`: its tables behind a port, and the periodic removal of brokers that went silent."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from rmqcore.namesrv.kv_config import KVConfig
from rmqcore.namesrv.namesrv_config import NamesrvConfig
from rmqcore.namesrv.requests import NamesrvRequests
from rmqcore.namesrv.route_table import MinBrokerIdChanged, RouteTable
from rmqcore.remoting import (
    ClientSettings,
    Connection,
    ConnectionSettings,
    RemotingClient,
    RemotingCommand,
    RemotingError,
    RemotingServer,
    RequestCode,
    ServerSettings,
    Tls,
)
from rmqcore.remoting.connection import Gate
from rmqcore.remoting.serves import processors_of
from rmqcore.world import REAL, World

logger = logging.getLogger(__name__)

_NOTIFY_TIMEOUT_MS = 300


class NameServer:
    """Serves brokers and clients on one port.

    Source: NamesrvController, BrokerHousekeepingService.
    """

    def __init__(
        self,
        host: str | None = None,
        port: int | None = None,
        config: NamesrvConfig | None = None,
        *,
        tls: Tls | None = None,
        gate: Gate | None = None,
        world: World = REAL,
    ) -> None:
        """Read what is kept of the key-value configuration; `start` opens the port.

        Args:
            host: address to listen on, instead of the configuration's.
            port: instead of the configuration's; 0 for any that is free.
            config: the settings.
            tls: its certificate, see `load_tls`; None serves plain connections.
            gate: asked before each request, see `RemotingServer`.
            world: tells how long ago a broker was heard of.

        Raises:
            CorruptConfigFileError: the kept configuration cannot be parsed.
            OSError: it cannot be read.
        """
        config = config or NamesrvConfig()
        idle_timeout_s = float(config.server_channel_max_idle_time_s)
        self._scan_interval_s = config.scan_not_active_broker_interval_ms / 1000
        self._world = world
        self._tls = tls or Tls()
        self._kv = KVConfig(config.kv_config_path)
        self.routes = RouteTable(world.monotonic_s, config, self._min_broker_id_changed)
        self._server = RemotingServer(
            config.bind_address if host is None else host,
            config.listen_port if port is None else port,
            settings=ServerSettings(
                connection=ConnectionSettings(idle_timeout_s=idle_timeout_s),
                tls=self._tls.server,
                tls_mode=self._tls.mode,
            ),
            gate=gate,
            on_close=self._connection_closed,
        )
        self._client: RemotingClient | None = None
        self._scanner: asyncio.Task[None] | None = None
        self._notices: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.port

    @property
    def config(self) -> NamesrvConfig:
        """The settings in force."""
        return self.routes.config

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address is not this machine's, or the port is taken.
        """
        requests = NamesrvRequests(self.routes, self._kv, self._world.monotonic_s)
        self._server.processors.update(processors_of(requests))
        await self._server.start()
        self._client = RemotingClient(settings=ClientSettings(tls=self._tls.client))
        self._scanner = asyncio.get_running_loop().create_task(self._scan())

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Answer what was taken and close every connection.

        Args:
            timeout_s: what is not answered or not read by then is dropped.
        """
        if self._scanner is not None:
            self._scanner.cancel()
        await self._server.stop(timeout_s)
        for task in self._notices:
            task.cancel()
        await asyncio.gather(
            *self._notices, *([self._scanner] if self._scanner else []), return_exceptions=True
        )
        if self._client is not None:
            await self._client.close()

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(self._scan_interval_s)
            for live in self.routes.expire():
                logger.warning("%s was silent for %d ms", live.broker_name, live.timeout_ms)
                if isinstance(live.connection, Connection):
                    live.connection.abort()

    def _connection_closed(self, connection: Connection) -> None:
        for addr in self.routes.connection_closed(connection):
            logger.info("the broker at %s has gone with its connection", addr)

    def _min_broker_id_changed(self, event: MinBrokerIdChanged) -> None:
        """Tell the brokers of a group: all when one has gone, else all but the new lowest."""
        lowest = min(event.addrs)
        told = [
            addr
            for number, addr in event.addrs.items()
            if event.offline_addr is not None or number != lowest or len(event.addrs) == 1
        ]
        fields = {
            "minBrokerId": str(lowest),
            "brokerName": event.broker_name,
            "minBrokerAddr": event.addrs[lowest],
            "offlineBrokerAddr": event.offline_addr,
            "haBrokerAddr": event.ha_server_addr,
        }
        present = {name: value for name, value in fields.items() if value is not None}
        for addr in told:
            task = asyncio.get_running_loop().create_task(self._notify(addr, dict(present)))
            self._notices.add(task)
            task.add_done_callback(self._notices.discard)

    async def _notify(self, addr: str, fields: dict[str, str]) -> None:
        if self._client is None:
            return
        command = RemotingCommand(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, fields)
        with contextlib.suppress(RemotingError):
            await self._client.invoke_oneway(addr, command, _NOTIFY_TIMEOUT_MS)
