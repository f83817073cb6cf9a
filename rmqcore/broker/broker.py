"""`Broker`: a store, its parts, the requests, and the port.

Source: RocketMQ broker/BrokerController.java.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from rmqcore.arguments import directory_path
from rmqcore.broker.admin.assignment import Assignment
from rmqcore.broker.admin.broker import AdminBroker
from rmqcore.broker.admin.groups import AdminGroups
from rmqcore.broker.admin.offsets import AdminOffsets
from rmqcore.broker.admin.query import QueryMessages
from rmqcore.broker.admin.runtime_info import RuntimeInfo
from rmqcore.broker.admin.topics import AdminTopics
from rmqcore.broker.gate import broker_gate
from rmqcore.broker.parts import BrokerParts
from rmqcore.broker.pop.later import AnsweredLater
from rmqcore.broker.pop.looks import PopLooks
from rmqcore.broker.pop.pop import PopMessages
from rmqcore.broker.pull.cold_reads import ColdReads
from rmqcore.broker.pull.pull import PullMessages
from rmqcore.broker.replication.registration import Registration
from rmqcore.broker.replication.replication import Replication
from rmqcore.broker.send.reply import ReplyMessages
from rmqcore.broker.send.send import SendMessages
from rmqcore.broker.state.client_requests import ClientRequests
from rmqcore.broker.state.clients import expired
from rmqcore.broker.state.masters_only import refusals_of
from rmqcore.broker.state.rates import SAMPLE_S
from rmqcore.broker.state.settings import BrokerConfig, broker_property
from rmqcore.broker.state.topics import Topics
from rmqcore.broker.timer.recall import RecallMessages
from rmqcore.config import DYNAMIC_SETTINGS, BrokerRole, StoreConfig, parse_broker_conf
from rmqcore.config.store_config import resolve
from rmqcore.errors import ConfigError, StoreError
from rmqcore.files.config_tables import TopicConfig
from rmqcore.ha import HAConfig
from rmqcore.recovery.report import RecoveryProgress
from rmqcore.remoting import (
    Account,
    ClientSettings,
    ConnectionSettings,
    PortTakenError,
    Processor,
    RemotingClient,
    RemotingServer,
    ServerSettings,
    Tls,
    admin_of,
)
from rmqcore.remoting.background import Work, restarted
from rmqcore.remoting.codes import MASTER_ID
from rmqcore.remoting.local import LocalServer
from rmqcore.remoting.server import NewHttp2
from rmqcore.remoting.serves import processors_of
from rmqcore.remoting.sockets import reserve_port
from rmqcore.services.runner import Runner
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.sharing.append_server import AppendServer
from rmqcore.world import REAL, World

logger = logging.getLogger(__name__)

_CONFIG_FOLDER: Final = "config"
#: RocketMQ serves on a second port, which lies this far below the first.
_FAST_PORT_BELOW: Final = 2
_OWN_PORT: Final = "the broker's own port (listenPort)"
_HA_PORT: Final = "the port for slaves (haListenPort; without it the one behind listenPort)"


class Broker:
    """One broker on one store; used from the event loop that started it.

    Attributes:
        config: the settings, with the port that it listens on.
        store: what the messages are in; None before `start`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        properties: Mapping[str, object] | Path | None = None,
        *,
        accounts: Mapping[str, Account] | None = None,
        tls: Tls | None = None,
        runner: Runner | None = None,
        world: World = REAL,
    ) -> None:
        """Prepare a broker; `start` opens the store and the port.

        Args:
            path: the store's directory; a new one takes RocketMQ's file sizes.
            properties: RocketMQ's names, or a `Path` to a ``broker.conf``.
            accounts: who is served, see `load_accounts`; None serves everybody.
            tls: its certificate, see `load_tls`; None serves plain connections.
            runner: runs the store's services; None gives each a thread.
            world: the store's and the broker's clocks and syncs.

        Raises:
            ConfigError: a setting is not what it should be.
            OSError: the file cannot be read.
        """
        if isinstance(properties, Path):
            properties = parse_broker_conf(properties)
        self._properties = dict(properties or {})
        self.config = BrokerConfig.from_properties(self._properties)
        self._ha_config = HAConfig.from_properties(self._properties)
        self.path = directory_path("path", path).absolute()
        self._accounts = accounts
        self._tls = tls or Tls()
        self._runner = runner
        self._world = world
        self.store: DefaultMessageStore | None = None
        self._server: RemotingServer | None = None
        self._fast_server: RemotingServer | None = None
        self._any_port = self.config.listen_port == 0
        self._derives_ha_port = self.config.ha_listen_port == 0
        self._registration: Registration | None = None
        self._outside: RemotingClient | None = None
        #: answers requests from within this process; None while the broker does not serve.
        self.local: LocalServer | None = None
        #: serves connections to its port that speak HTTP/2; to be set before `start`
        self.http2: NewHttp2 | None = None
        #: the broker's part as a master or a slave; None while it does not serve.
        self.replication: Replication | None = None
        self._stop_listening: Callable[[], None] | None = None
        self._appends: AppendServer | None = None
        self._parts: BrokerParts | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._saving = asyncio.Event()
        #: whether a change of a topic is not registered with the name servers yet
        self._unregistered = False
        self._progress: RecoveryProgress | None = None
        self._state = "stopped"

    @property
    def managers(self) -> BrokerParts | None:
        """Its state and its parts while it runs; None when it does not."""
        return self._parts

    def state(self) -> tuple[bool, dict[str, object]]:
        """Tell whether it serves, and what a probe wants to know of that."""
        facts: dict[str, object] = {"state": self._state}
        store, progress = self.store, self._progress
        if self._state == "recovering" and progress is not None:
            facts |= {"phase": progress.phase, "done": progress.done, "total": progress.total}
        refused = store.why_not_writable() if self._state == "serving" and store else None
        if refused is not None:
            facts["refuses_puts"] = refused
        return self._state == "serving" and refused is None, facts

    @property
    def address(self) -> str:
        """The address that clients connect to."""
        return self.config.address

    async def start(self) -> None:
        """Open the store, listen, and register with the name servers.

        Raises:
            StoreLockedError, CorruptStoreError: the store cannot be opened.
            PortTakenError: another program listens on the broker's port, or on that for slaves.
            OSError: the address is not this machine's, or a file cannot be used.
        """
        self._state = "recovering"
        try:
            with contextlib.ExitStack() as held:
                self._reserve_own_port(held)
                self.store = await asyncio.to_thread(self._open_store)
                self._reserve_ha_port(held)
                await self._serve(self.store)
            self._state = "serving"
        except BaseException:
            await self.stop()
            raise

    def _reserve_own_port(self, held: contextlib.ExitStack) -> None:
        """Take the port that clients connect to, which nobody gets while the store is opened.

        Raises:
            PortTakenError: another program listens there.
        """
        wanted = 0 if self._any_port else self.config.listen_port
        try:
            port = _reserve_port(self._host, wanted, held)
        except PortTakenError as error:
            raise PortTakenError(error.address, _OWN_PORT) from None
        self.config = replace(self.config, listen_port=port)

    def _reserve_ha_port(self, held: contextlib.ExitStack) -> None:
        """Take the port for slaves: the one that is set, else the one behind the broker's own.

        Where that one is taken, by a broker on the next port, any free one does, as the name
        servers tell slaves; not for a broker whose sends wait for slaves.

        Raises:
            PortTakenError: another program listens there.
        """
        place = self._ha_place()
        if place is None:
            return
        host, wanted = place
        behind = self.config.listen_port + 1
        if self._derives_ha_port:
            wanted = 0 if self._any_port else behind
        try:
            port = _reserve_port(host, wanted, held)
        except PortTakenError as error:
            if not self._derives_ha_port or self._waits_for_slaves():
                raise PortTakenError(error.address, _HA_PORT) from None
            port = _reserve_port(host, 0, held)
            logger.warning("%s is taken; slaves are taken on port %d", error.address, port)
        if self._derives_ha_port:
            self.config = replace(self.config, ha_listen_port=0 if port == behind else port)

    def _waits_for_slaves(self) -> bool:
        store = self.store
        return store is not None and store.config.broker_role is BrokerRole.SYNC_MASTER

    @property
    def _host(self) -> str:
        return self.config.bind_address or self.config.broker_ip1

    def _open_store(self) -> DefaultMessageStore:
        settings, ignored = resolve(_for_store(self._properties))
        config = StoreConfig(
            **settings,
            store_host=self.config.address,
            deliver_delayed=True,
            retention=True,
            ignored=ignored,
            # a broker has one for files of any size, as one that a file gives
            sources={"max_message_size": "the broker's properties"},
        )
        self.config = _as_role(self.config, config.broker_role)
        return DefaultMessageStore(
            self.path,
            config,
            progress=self._progressed,
            keep_from=self._keep_from,
            queue_at_delivery=Topics.queue_at_delivery,
            runner=self._runner,
            world=self._world,
        )

    def _keep_from(self) -> int | None:
        """From where on timer and half messages need the log; until they are read, from its begin.

        On a slave, also delayed ones: who delivers them may be gone before.
        """
        if self.config.is_slave:
            return 0 if self.replication is None else self.replication.pending_from()
        parts = self._parts
        return 0 if parts is None else parts.pending_from()

    def _progressed(self, progress: RecoveryProgress) -> None:
        self._progress = progress

    async def _serve(self, store: DefaultMessageStore) -> None:
        loop = asyncio.get_running_loop()
        admin = admin_of(self._accounts or {})
        self._outside = RemotingClient(
            settings=ClientSettings(tls=self._tls.client),
            sign=admin.signer.sign if admin else None,
        )
        self._registration = Registration(self._settings, store.topics, self._outside)
        parts = BrokerParts(
            store,
            self.path / _CONFIG_FOLDER,
            self._settings,
            topics_changed=self._topics_changed,
            groups_changed=self._saving.set,
            world=self._world,
        )
        self._parts = parts
        await asyncio.to_thread(parts.load)
        self._server = self._new_server(store, parts, self.config.listen_port)
        self.replication = Replication(
            parts,
            self._ha_config,
            self._registration,
            self._outside,
            listen=self._ha_place(),
            topics_changed=self._topics_changed,
            world=self._world,
        )
        self._answer_requests(self._server, parts, self._outside)
        self.local = LocalServer(self._server.processors, broker_gate(self._accounts, parts))
        await self._server.start()
        await self._open_fast_port(store, parts, self._server.processors)
        await self.replication.start()

        def arrived(queues: Sequence[tuple[str, int]]) -> None:
            loop.call_soon_threadsafe(parts.arrived_in, queues)

        self._stop_listening = store.on_arrival(arrived)
        store.consumer_offsets.begin()
        await self._save_changed(parts)
        await asyncio.to_thread(parts.persist_progress)
        self._tasks = [loop.create_task(restarted(work)) for work in self._work(parts)]
        await self._accept_appends(store, parts)
        await self._registration.start()

    async def _accept_appends(self, store: DefaultMessageStore, parts: BrokerParts) -> None:
        """Take records that programs on this machine stage in the store's directory.

        Not where somebody else runs the store's services: such a broker has no machine.
        """
        if self.config.is_slave or self._runner is not None:
            return
        appends = AppendServer(store, parts.topics.for_staged)
        try:
            await appends.start()
        except OSError as error:
            logger.info("%s: no socket there, so no staged records: %s", self.path, error)
        else:
            self._appends = appends

    def _new_server(
        self,
        store: DefaultMessageStore,
        parts: BrokerParts,
        port: int,
        processors: dict[int, Processor] | None = None,
    ) -> RemotingServer:
        idle_s = self.config.server_channel_max_idle_time_seconds
        settings = ServerSettings(
            connection=ConnectionSettings(idle_timeout_s=idle_s),
            tls=self._tls.server,
            tls_mode=self._tls.mode,
        )
        return RemotingServer(
            self._host,
            port,
            settings=settings,
            processors=processors,
            gate=broker_gate(self._accounts, parts),
            on_close=parts.forget,
            http2=self.http2,
        )

    async def _open_fast_port(
        self, store: DefaultMessageStore, parts: BrokerParts, processors: dict[int, Processor]
    ) -> None:
        """Serve on the port two below, too, where a slave of RocketMQ's asks for the tables.

        Only beside a port that was given, and when nobody else has that one.
        """
        port = self.config.listen_port - _FAST_PORT_BELOW
        if self.config.is_slave or self._any_port or port < 1 or self._ha_place() is None:
            return
        server = self._new_server(store, parts, port, processors)
        server.direct = self._server.direct if self._server is not None else ()
        try:
            await server.start()
        except OSError as error:
            logger.info("port %d: not served, a Java slave gets no topics: %s", port, error)
        else:
            self._fast_server = server

    def _answer_requests(
        self, server: RemotingServer, parts: BrokerParts, outside: RemotingClient
    ) -> None:
        """Have the server hand requests over to whoever declares that it answers them."""
        cold = ColdReads(parts)
        later = AnsweredLater(parts, parts.waiting_pops, parts.pop_order)
        send = SendMessages(parts, parts.transactions.half_message, parts.timer)
        pull = PullMessages(parts, parts.waiting_pulls, cold, self._follows)
        handlers = (
            send,
            ReplyMessages(parts, send.send),
            parts.transactions,
            RecallMessages(parts, parts.timer),
            pull,
            PopMessages(parts, parts.waiting_pops, later, parts.checkpoints, parts.pop_order, cold),
            PopLooks(parts, parts.waiting_pops, later),
            parts.pop_acks,
            parts.offsets,
            ClientRequests(parts),
            parts.locks,
            Assignment(parts, outside),
            parts.timer,
            QueryMessages(parts),
            RuntimeInfo(parts, (parts.timer.runtime_info, parts.rates.days.runtime_info)),
            AdminTopics(parts, self._register_topics, parts.deleting, self._leave_deletion),
            AdminGroups(parts, parts.forget_group),
            AdminOffsets(parts, parts.pop_order),
            AdminBroker(parts, self._change),
            self.replication,
        )
        server.processors.update(processors_of(*handlers))
        if self.config.is_slave:
            server.processors.update(refusals_of(*handlers))
        server.direct = (send.direct_answers(), pull.direct_answers())

    def _work(self, parts: BrokerParts) -> list[Work]:
        """What goes on in the background."""
        work: list[Work] = [partial(self._scan, parts), partial(self._save, parts)]
        if not self.config.is_slave:
            work += [parts.transactions.run, parts.timer.run, parts.pop_acks.run]
        return work

    def _follows(self) -> bool:
        return self.replication is not None and self.replication.follows

    def _leave_deletion(self) -> bool:
        return self.replication is not None and self.replication.leave_deletion()

    def _ha_place(self) -> tuple[str, int] | None:
        """Where slaves are taken; None: nowhere.

        The port knows no accounts, so a broker that has some opens it by request only.
        """
        if self._accounts is not None and not self._properties.get("haListenPort"):
            return None
        return self._host, int(self.config.ha_address.rpartition(":")[2])

    def _settings(self) -> BrokerConfig:
        return self.config

    def _change(self, properties: Mapping[str, str]) -> None:
        """Change settings while the broker runs: all of them, or none.

        Raises:
            ConfigError: one of them may not change, or is not what it should be.
        """
        mine = {name: value for name, value in properties.items() if broker_property(name)}
        changed = self.config.changed(mine)
        others = {name: value for name, value in properties.items() if name not in mine}
        for name, value in others.items():
            if resolve({name: value})[0].keys().isdisjoint(DYNAMIC_SETTINGS):
                raise ConfigError(name, value, "a setting that can change while the broker runs")
        if others and self.store is not None:
            self.store.change_settings(**others)
        self.config = changed
        self._topics_changed()

    async def _register_topics(self, topics: Sequence[TopicConfig]) -> None:
        if self._registration is not None:
            await self._registration.register_topics(topics)

    def _topics_changed(self) -> None:
        self._unregistered = True
        self._saving.set()

    async def _scan(self, parts: BrokerParts) -> None:
        """Let clients and locks go that were not renewed for too long; note what was counted."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            for _ in parts.rates.sample_some():
                await asyncio.sleep(0)
            parts.locks.drop_old()
            for connection in expired(parts.consumers, parts.producers, self._world.monotonic_s()):
                logger.info("%r: no heart-beat, closed", connection)
                connection.close()
                parts.forget(connection)

    async def _save(self, parts: BrokerParts) -> None:
        """Write the tables that have changed: topics and groups at once, offsets every 5 s.

        Name servers hear of topics once these are written, since they go by the table's version,
        which moves then. Changes that come meanwhile are written together.
        """
        loop = asyncio.get_running_loop()
        interval_s = self.config.flush_consumer_offset_interval / 1000
        offsets_s = loop.time() + interval_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(offsets_s):
                    await self._saving.wait()
            if loop.time() >= offsets_s:
                parts.checkpoints.commit()
                await asyncio.to_thread(parts.persist_progress)
                offsets_s = loop.time() + interval_s
            self._saving.clear()
            # what changes while these are written is told behind the next time
            changed, self._unregistered = self._unregistered, False
            await self._save_changed(parts)
            if changed and self._registration is not None:
                self._registration.topics_changed()

    @staticmethod
    async def _save_changed(parts: BrokerParts) -> None:
        for file in (parts.topics.file, parts.groups.file, parts.modes.file):
            what = f"writing {file.path.name}"
            try:
                await file.save()
                parts.standing.end(what)
            except OSError as error:
                parts.standing.note(what, error)

    async def stop(self) -> None:
        """Take the name out of the name servers, answer what was taken, close the store.

        Pulls that wait are answered as if their time were over.
        """
        self._state = "stopping"
        if self._registration is not None:
            await self._registration.stop()
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
        if self._parts is not None:
            self._parts.release()
        if self._appends is not None:
            await self._appends.stop()
            self._appends = None
        for server in (self._fast_server, self._server):
            if server is not None:
                await server.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self.replication is not None:
            await self.replication.stop()
        if self._outside is not None:
            await self._outside.close()
        store, self.store = self.store, None
        parts, self._parts = self._parts, None
        self._registration = self._outside = self.replication = None
        self._server = self._fast_server = self.local = None
        self._tasks = []
        if store is not None:
            await asyncio.to_thread(_close, store, parts)
        self._state = "stopped"


def _as_role(config: BrokerConfig, role: BrokerRole) -> BrokerConfig:
    """The settings with the id that a broker of this role has: 0 for a master, as in RocketMQ.

    Raises:
        ConfigError: a slave without an id of its own.
    """
    if role is not BrokerRole.SLAVE:
        return replace(config, broker_id=MASTER_ID)
    if config.broker_id == MASTER_ID:
        rule = "1 or more for a broker with brokerRole=SLAVE, another one for each slave"
        raise ConfigError("brokerId", config.broker_id, rule)
    return config


def _for_store(properties: Mapping[str, object]) -> dict[str, object]:
    """What of a ``broker.conf`` is the store's."""
    mine = ("store_host", "deliver_delayed", "retention", "profile")
    return {name: value for name, value in properties.items() if name not in mine}


def _close(store: DefaultMessageStore, parts: BrokerParts | None) -> None:
    """Keep what the parts have reached, and close the store whatever comes of that."""
    try:
        if parts is not None:
            parts.finish()
    except (OSError, StoreError):
        logger.exception("what was reached cannot be written; some messages will come again")
    finally:
        store.close()


def _reserve_port(host: str, wanted: int, held: contextlib.ExitStack) -> int:
    """A port, 0 for any that is free, which nobody else is given while it is held."""
    return int(held.enter_context(reserve_port(host, wanted)).getsockname()[1])
