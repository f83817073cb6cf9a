"""`Faults`: what befalls a cluster in a run, and what operators do about it."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

from rmqcore.broker import Broker
from rmqcore.simulation.cluster import BROKER_PORT, Process, Server, SimulatedCluster
from rmqcore.simulation.disk import Disks
from rmqcore.simulation.history import Deletion, Reset, Trouble
from rmqcore.simulation.invariants import Broken
from rmqcore.simulation.loop import NANOSECONDS
from rmqcore.simulation.plan import Befalls, Fault, Plan
from rmqcore.simulation.promotion import Masters
from rmqcore.simulation.report import Report
from rmqcore.simulation.workload import Workload

_LOOK_EVERY_S: Final = 1.0
#: This many looks find out whether a server has come to a sync.
_LOOKS: Final = 20
#: Calls that fail on a full disk, and on one that cannot write any more, with their errors.
_FULL: Final = dict.fromkeys(("fallocate", "ftruncate", "mkdir", "open", "write"), errno.ENOSPC)
_FAILING: Final = dict.fromkeys(("msync", "fsync", "fdatasync"), errno.EIO)


class Faults:
    """The faults of a plan.

    Args:
        plan: with what befalls whom, and when.
        cluster: whom it befalls.
        masters: who leads each group.
        workload: whose clients ask for deletions and resets.
        report: where is counted what came about.
        disks: what is on the disks; None where system calls are not watched.

    Attributes:
        is_over: whether nobody starts anything any more.
    """

    def __init__(
        self,
        plan: Plan,
        cluster: SimulatedCluster,
        masters: Masters,
        workload: Workload,
        report: Report,
        disks: Disks | None,
    ) -> None:
        self.is_over = False
        self._plan = plan
        self._loop = cluster.loop
        self._cluster = cluster
        self._masters = masters
        self._workload = workload
        self._report = report
        self._disks = disks
        self._cuts = random.Random(f"{plan.seed}/cuts")  # noqa: S311 - repeatable
        #: when all faults end, and whether they have
        self._heals_s = 0.0
        self._is_healed = False
        #: servers that somebody starts; an operator leaves such a one to the other
        self._starting: set[Server] = set()

    def begin(self) -> None:
        """Let everything come at its time."""
        self._heals_s = self._loop.time() + self._plan.for_s
        for befalls in self._plan.faults:
            self._loop.create_task(self._at(befalls))

    async def _at(self, befalls: Befalls) -> None:
        await self._loop.pause(befalls.at_s)
        self._report.note(f"fault {befalls.what.value}")
        trouble = Trouble(self._loop.time())
        self._workload.history.troubles.append(trouble)
        await self._kinds()[befalls.what](befalls)
        trouble.ended_s = self._loop.time()

    async def heal(self) -> None:
        """End all faults, and start what is down."""
        self._is_healed = True
        self._loop.network.heal()
        await self._mend()
        masters = self._masters.names()
        servers = [*self._cluster.names.values(), *self._cluster.brokers.values()]
        # the masters first: who was one before needs the new one to get its log
        for server in sorted(servers, key=lambda one: one.name not in masters):
            while server.is_ending:
                await self._loop.pause(_LOOK_EVERY_S)
            if server.is_down():
                await self.start(server)
        for client in self._cluster.clients.values():
            if client.is_down():
                self._workload.come_back(client.name)
        for trouble in self._workload.history.troubles:
            trouble.ended_s = min(trouble.ended_s, self._loop.time())

    def _kinds(self) -> dict[Fault, Callable[[Befalls], Coroutine[Any, Any, None]]]:
        return {
            Fault.KILL: self._kill,
            Fault.POWER_CUT: self._kill,
            Fault.RESTART: self._restart,
            Fault.PAUSE: self._pause,
            Fault.CLOCK: self._clock,
            Fault.PARTITION: self._partition,
            Fault.ONE_WAY: self._partition,
            Fault.BREAK: self._break,
            Fault.SLOW: self._slow,
            Fault.LOSS: self._slow,
            Fault.DELETE: self._delete,
            Fault.FULL: self._refuse,
            Fault.FAIL: self._refuse,
            Fault.PROMOTE: self._promote,
            Fault.RESET: self._reset,
            Fault.CRASH: self._crash,
        }

    def _process(self, name: str) -> Process:
        cluster = self._cluster
        return {**cluster.names, **cluster.brokers, **cluster.clients}[name]

    async def _delete(self, befalls: Befalls) -> None:
        client = self._cluster.clients[befalls.whom]
        for group in self._plan.groups:
            if client.is_down():
                return
            deletion = Deletion(group.name, befalls.other, self._loop.time())
            self._workload.history.deletions.append(deletion)
            address = self._masters.server_of(group.name).address
            await client.spawn(self._workload.delete(deletion, f"{address}:{BROKER_PORT}"))
            if deletion.ended_s < float("inf"):
                self._report.note("topic deleted")

    async def _reset(self, befalls: Befalls) -> None:
        clients = self._cluster.clients.values()
        client = next((each for each in clients if not each.is_down()), None)
        for group in self._plan.groups:
            if client is None or client.is_down():
                return
            reset = Reset(befalls.whom, group.name, befalls.other, self._loop.time())
            self._workload.history.resets.append(reset)
            address = self._masters.server_of(group.name).address
            await client.spawn(self._workload.reset(reset, f"{address}:{BROKER_PORT}"))
            if reset.ended_s < float("inf"):
                self._report.note("offsets reset")

    async def start(self, server: Server) -> None:
        """Start a server that is down, unless somebody does already."""
        if self.is_over or server in self._starting:
            return
        self._starting.add(server)
        try:
            await self._masters.rejoin(server)
            life = server.start()
            # one that dies meanwhile is down again, and its life never ends to start
            self._starting.discard(server)
            await life
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it has to start
            if server.disk is not None and server.disk.refuses:
                # it ends, and is started when its disk is well
                self._report.note("not started on a disk that is not well")
                server.kill()
                return
            self._report.broken.append(Broken("starts", f"{server.name}: {error!r}"))
        finally:
            self._starting.discard(server)

    async def _kill(self, befalls: Befalls) -> None:
        server = self._process(befalls.whom)
        if not isinstance(server, Server) or server.is_down():
            return
        if befalls.size:
            await self._in_the_middle(server, befalls)
        if not server.is_down() and not self._is_healed:
            self._end(server, befalls.what)
        await self._loop.pause(befalls.for_s)
        self._loop.network.power_on(server.address)
        if server.is_down():
            await self.start(server)

    def _end(self, server: Server, how: Fault) -> None:
        if how is Fault.POWER_CUT:
            before = server.path
            server.cut_power(self._cuts)
            if self._masters.note_cut(server, before):
                self._report.note("a cut took what a slave has")
        else:
            server.kill()

    async def _in_the_middle(self, server: Server, befalls: Befalls) -> None:
        """End a server when it syncs, or writes, the nth time; wait for that for a while."""
        disk, disks, left = server.disk, self._disks, abs(int(befalls.size))
        if disk is None or disks is None:
            return

        def comes() -> None:
            nonlocal left
            left -= 1
            if not left and not self._is_healed:
                self._report.note("died at a sync" if befalls.size > 0 else "died at a write")
                self._end(server, befalls.what)

        if befalls.size > 0:
            disk.on_sync = comes
        else:
            disks.watch_writes(disk, comes)
        for _ in range(_LOOKS):
            await self._loop.pause(_LOOK_EVERY_S / _LOOKS)
            if disk.ended:
                break
        disk.on_sync = None
        disks.watch_writes(disk, None)

    async def _restart(self, befalls: Befalls) -> None:
        server = self._process(befalls.whom)
        if isinstance(server, Server) and server.serving is not None and not server.is_starting:
            await server.stop()
            await self._loop.pause(befalls.for_s)
            if server.disk is not None:
                # nobody starts it on a disk that is not well
                server.disk.refuses = {}
            if server.is_down():
                await self.start(server)

    async def _refuse(self, befalls: Befalls) -> None:
        """Let a disk be full, or fail to bring anything to it, for a while."""
        server = self._process(befalls.whom)
        disk = server.disk if isinstance(server, Server) else None
        if disk is None or disk.ended:
            return
        disk.refuses = _FULL if befalls.what is Fault.FULL else _FAILING
        refused = disk.refused
        await self._loop.pause(befalls.for_s)
        disk.refuses = {}
        if disk.refused > refused:
            self._report.note(f"refused by a {befalls.what.value}")

    async def _mend(self) -> None:
        """Make the disks well, and start those anew that take nothing since one has failed."""
        for name, server in self._cluster.brokers.items():
            if server.disk is not None:
                server.disk.refuses = {}
            serving = server.serving
            store = serving.store if isinstance(serving, Broker) else None
            if store is None or server.disk is None:
                continue
            is_master = name in self._masters.names()
            # a slave takes no puts anyhow
            if store.why_not_writable() is not None if is_master else server.disk.refused:
                self._report.note("started anew behind a failed disk")
                await server.stop()

    async def _promote(self, befalls: Befalls) -> None:
        """Let the slave with the longest log be the master, and the master its slave."""
        group, masters = befalls.whom, self._masters
        before = masters.server_of(group)
        if befalls.size and before.serving is not None and not before.is_starting:
            await before.stop()
        elif not before.is_down():
            before.kill()
        await self._loop.pause(_LOOK_EVERY_S)
        name = masters.successor(group)
        if before is not masters.server_of(group) or self._is_healed:
            # whoever ends all faults has started it
            return
        if name is None:
            self._report.note("not promoted, as a slave is away")
            if before.is_down():
                await self.start(before)
            return
        if not before.is_down():
            # somebody has started it meanwhile
            before.kill()
        masters.promote(group, name)
        self._report.note("promoted")
        server = self._cluster.brokers[name]
        await server.stop()
        if server.is_down():
            await self.start(server)
        await self._loop.pause(befalls.for_s)
        if before.is_down():
            await self.start(before)

    async def _crash(self, befalls: Befalls) -> None:
        client = self._process(befalls.whom)
        if client.is_down():
            return
        self._workload.crash(client.name)
        await self._loop.pause(befalls.for_s)
        if client.is_down():
            self._workload.come_back(client.name)

    async def _pause(self, befalls: Befalls) -> None:
        node = self._process(befalls.whom).node
        for_s = min(befalls.for_s, self._heals_s - self._loop.time())
        if node is not None and for_s > 0:
            self._loop.pause_node(node, round(for_s * NANOSECONDS))

    async def _clock(self, befalls: Befalls) -> None:
        self._process(befalls.whom).step_clock(round(befalls.size * NANOSECONDS))

    async def _partition(self, befalls: Befalls) -> None:
        one, other = self._process(befalls.whom).address, self._process(befalls.other).address
        pairs = [(one, other)]
        if befalls.what is Fault.PARTITION:
            pairs.append((other, one))
        for pair in pairs:
            self._loop.network.close_link(*pair)
        await self._loop.pause(befalls.for_s)
        for pair in pairs:
            self._loop.network.open_link(*pair)

    async def _break(self, befalls: Befalls) -> None:
        one, other = self._process(befalls.whom).address, self._process(befalls.other).address
        self._loop.network.break_connections(one, other)

    async def _slow(self, befalls: Befalls) -> None:
        one, other = self._process(befalls.whom).address, self._process(befalls.other).address
        link = self._loop.network.link(one, other)
        before = link.mean_ns, link.loss
        if befalls.what is Fault.SLOW:
            link.mean_ns = round(befalls.size * NANOSECONDS)
        else:
            link.loss = befalls.size
        await self._loop.pause(befalls.for_s)
        link.mean_ns, link.loss = before
