"""`Replication`: what a broker does as a master, or as a slave.

Source: RocketMQ broker/BrokerController.java.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rmqcore.broker.parts import BrokerParts
from rmqcore.broker.replication.registration import Registration
from rmqcore.broker.replication.slave_synchronize import SlaveSynchronize
from rmqcore.broker.state.bodies import java_body
from rmqcore.ha import HAClient, HAConfig, HAService
from rmqcore.ha.client import HAState
from rmqcore.remoting import (
    Connection,
    RemotingClient,
    RemotingCommand,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
    failure,
    needs,
    success,
)
from rmqcore.remoting.background import restarted
from rmqcore.remoting.serves import serves
from rmqcore.store.parts.left_waiting import first_place
from rmqcore.world import World


class Replication:
    """One broker's part in its group of master and slaves, and the requests about that.

    Attributes:
        service: sends the log; also a slave's, to a master that has lost its end.
        client: of a slave.
    """

    def __init__(
        self,
        parts: BrokerParts,
        config: HAConfig,
        registration: Registration,
        outside: RemotingClient,
        *,
        listen: tuple[str, int] | None,
        topics_changed: Callable[[], None],
        world: World,
    ) -> None:
        """Prepare; `start` begins.

        Args:
            parts: the broker's.
            config: the settings of replication.
            registration: knows the master, when a name server does.
            outside: sends requests to the master.
            listen: address and port where the log is sent from; None: nowhere.
            topics_changed: called when a slave has got other topics, groups or modes.
            world: the broker's.
        """
        store = parts.store
        self.service = HAService(store, config, *listen, world=world) if listen else None
        self.client: HAClient | None = None
        self._config = config
        self._registration = registration
        self._tasks: list[asyncio.Task[None]] = []
        self._store = store
        self._stop_listening: Callable[[], None] = lambda: None
        parts.ha_status = self.runtime_info
        if not parts.config().is_slave:
            return
        self._synchronize = SlaveSynchronize(
            outside,
            lambda: registration.master_address,
            store.topics,
            store.consumer_offsets,
            parts.groups.table,
            parts.modes.table,
            parts.folder,
            agrees=lambda: self._followed == self._master_ha_address,
            witness=self._witness,
            log_end=lambda: store.max_phy_offset,
            queue_end=store.max_queue_offset,
            flush=store.flush,
            follow_deletion=parts.follow_deletion,
            has_messages=store.followed_log.has_messages,
            topics_changed=topics_changed,
            statics_told=parts.static_topics.adopt,
            resets=parts.offsets.resets,
            clock_ms=world.clock_ms,
        )
        self.client = HAClient(
            store,
            config,
            self._master,
            self._synchronize.log_range,
            besides=self._problem,
            follows=parts.follow_from,
            world=world,
        )

    @property
    def _master_ha_address(self) -> str:
        """The replication port of the master, as it is told at this moment; empty: not known."""
        return self._config.ha_master_address or self._registration.master_ha_address

    @property
    def _followed(self) -> str | None:
        """The replication port of the master whose log this one is; None: not known."""
        client = self.client
        return client.master_address if client is not None and client.agrees else None

    def _witness(self) -> tuple[int, bytes] | None:
        """The last record, by which a master is known that has another address than was set."""
        if self._config.ha_master_address in ("", self._registration.master_ha_address):
            return None
        return self._store.followed_log.last_record()

    def _problem(self) -> str | None:
        """Why topics, groups and offsets do not come; None when they do."""
        followed, told = self._followed, self._registration.master_ha_address
        if followed is not None and (
            followed != self._master_ha_address or self._synchronize.is_other
        ):
            return (
                f"the log is that of {followed}, and the name servers tell of a master at "
                f"{told}: nothing else is taken over. "
                "A broker name has one master"
            )
        return self._synchronize.problem()

    def _master(self) -> str:
        """As `_master_ha_address`; the name servers are asked where it is not known."""
        address = self._master_ha_address
        if not address:
            # ask the name servers again, before it is time
            self._registration.topics_changed()
        return address

    @property
    def follows(self) -> bool:
        """Whether a slave has a connection to its master at this moment."""
        return self.client is not None and self.client.state is HAState.TRANSFER

    def leave_deletion(self) -> bool:
        """Leave it to the master to delete a topic, whose word comes soon.

        What a slave deletes by itself may be more: what has come to the next topic of the name.

        Returns:
            False on a master, and where nobody tells what the master has deleted: one of RocketMQ
            does not, and no topics come from one that no name server knows.

        Raises:
            RequestRefusedError: the master is away, or its topics do not come.
        """
        if self.client is None or self._synchronize.tells_deletions is False:
            return False
        problem = self._problem() if self.follows else "which is away"
        if problem is None and not self._registration.master_address:
            return False
        if problem is None and self._synchronize.tells_deletions is None:
            problem = "whose topics have not come yet"
        if problem is not None:
            remark = f"this broker is a slave: it deletes what its master has deleted, {problem}"
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
        self._synchronize.ask_soon()
        return True

    def pending_from(self) -> int | None:
        """Physical offset of the oldest message that is still to be delivered; None without one.

        A slave keeps its log from there on, as its master does. Any thread.
        """
        return first_place(self._store, self._synchronize.pending() if self.client else ())

    @serves(RequestCode.GET_BROKER_HA_STATUS, needs=needs.ADMIN)
    def status(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """State of replication: how far the slaves are, or this slave."""
        return success(body=java_body(self.runtime_info()))

    @serves(RequestCode.RESET_MASTER_FLUSH_OFFSET, needs=needs.ADMIN)
    def reset_flush_offset(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """Changes nothing on a master, as in RocketMQ; a slave refuses it."""
        if self.client is None:
            return success()
        remark = "this slave keeps no offset of its master's: it goes on where its own log ends"
        return failure(ResponseCode.NO_PERMISSION, remark)

    def runtime_info(self) -> dict[str, object]:
        """What request 907 tells."""
        side = self.client or self.service
        return {} if side is None else side.runtime_info()

    async def start(self) -> None:
        """Listen for slaves, or follow the master.

        Raises:
            OSError: the replication port is taken.
        """
        if self.service is not None:
            await self.service.start()
        if self.client is not None:
            loop = asyncio.get_running_loop()
            self._tasks = [
                loop.create_task(restarted(self.client.run)),
                loop.create_task(restarted(self._synchronize.run)),
            ]
            self._stop_listening = self._store.on_arrival(self._synchronize.arrived)

    async def stop(self) -> None:
        """Close every connection."""
        if self.service is not None:
            await self.service.stop()
        self._stop_listening()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks = []
