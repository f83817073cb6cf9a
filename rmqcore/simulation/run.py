"""`run`: one plan, from its beginning to the judgement."""

from __future__ import annotations

import asyncio
import errno
import random
import resource
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rmqcore._codec import decode_message_id
from rmqcore.broker import Broker
from rmqcore.client import SendResult
from rmqcore.simulation.cluster import BROKER_PORT, Process, Server, SimulatedCluster
from rmqcore.simulation.cluster_loop import new_loop
from rmqcore.simulation.disk import Disks, is_watched
from rmqcore.simulation.errors import SimulationError
from rmqcore.simulation.history import Deletion, Outcome, Place, Put, Reset, number_of
from rmqcore.simulation.invariants import (
    Broken,
    judge,
    must_have,
    promoted_groups,
    weak_brokers,
)
from rmqcore.simulation.loop import NANOSECONDS
from rmqcore.simulation.plan import (
    Befalls,
    Does,
    Fault,
    Operation,
    Plan,
    Way,
    servers_of,
    settings_of,
)
from rmqcore.simulation.promotion import Masters
from rmqcore.simulation.stand_ins import let_go, stand_ins
from rmqcore.simulation.workload import Workload

#: A cluster has this long until it takes and delivers every message again.
_GET_ON_S: Final = 120.0
_DRAIN_S: Final = 1800.0
#: A message whose place nobody knows has come this long behind its time, or not at all.
_COMES_S: Final = 120.0
_LOOK_EVERY_S: Final = 1.0
#: All is delivered when `_QUIET_LOOKS` looks, this far apart, have found nothing left.
_DRAINED_EVERY_S: Final = 5.0
_QUIET_LOOKS: Final = 3
#: Slaves know a new topic after this long.
_TOPICS_KNOWN_S: Final = 15.0
_PROBE_SIZE: Final = 100
#: Probes have numbers from here on, which no plan gives to its messages.
_PROBES_FROM: Final = 1_000_000_000
#: This many looks find out whether a server has come to a sync.
_LOOKS: Final = 20
#: Calls that fail on a full disk, and on one that cannot write any more, with their errors.
_FULL: Final = dict.fromkeys(("fallocate", "ftruncate", "mkdir", "open", "write"), errno.ENOSPC)
_FAILING: Final = dict.fromkeys(("msync", "fsync", "fdatasync"), errno.EIO)
_IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a directory of its own is made there


@dataclass(slots=True)
class Report:
    """What a run was.

    Attributes:
        broken: what did not hold.
        trace: follows from every event; a run of the same plan has the same one.
        events: how many events it had.
        for_s: how long it lasted, simulated.
        took_s: how long it took, of the processor's time.
        counts: what was reached, by name.
    """

    broken: list[Broken] = field(default_factory=list)
    trace: int = 0
    events: int = 0
    for_s: float = 0.0
    took_s: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)


def run(plan: Plan, scratch: Path | None = None) -> Report:
    """Run a plan; nothing else may run in this process meanwhile.

    Args:
        plan: what happens.
        scratch: where its directory is made; None: in memory, where there is such a place.
    """
    if scratch is None and _IN_MEMORY.is_dir():
        scratch = _IN_MEMORY
    root = Path(tempfile.mkdtemp(prefix="rmqcore-simulation-", dir=scratch))
    try:
        with let_go():
            return _Run(plan, root).run()
    finally:
        shutil.rmtree(root, ignore_errors=True)


class _Run:
    def __init__(self, plan: Plan, root: Path) -> None:
        self._plan = plan
        self._loop = new_loop(plan.seed)
        self._disks = Disks() if is_watched() else None
        self._cluster = SimulatedCluster(self._loop, root, plan.seed, self._disks)
        self._cuts = random.Random(f"{plan.seed}/cuts")  # noqa: S311 - repeatable
        self._workload = Workload(self._cluster, plan)
        self._report = Report()
        self._masters = Masters(self._cluster, plan)
        self._workload.on_ok = self._confirmed
        self._begin_s = 0.0
        #: when all faults end
        self._heals_s = 0.0
        #: servers that somebody starts; an operator leaves such a one to the other
        self._starting: set[Server] = set()
        #: whether faults have ended, and whether nobody starts anything any more
        self._is_healed = self._is_over = False

    def run(self) -> Report:
        report, loop, took_s = self._report, self._loop, _processor_s()
        watched = nullcontext() if self._disks is None else self._disks.watched()
        with stand_ins(self._plan.seed), watched:
            try:
                loop.run_until_complete(self._scene())
                report.broken += judge(
                    self._plan, self._workload.history, self._stores(), self._masters
                )
                self._note_expired()
            except SimulationError as error:
                report.broken.append(Broken("stuck", str(error)))
            finally:
                for server in self._servers():
                    server.abandon()
                loop.close()
        report.broken += [Broken("error", _told(each)) for each in loop.errors]
        report.trace, report.events = loop.trace, loop.events
        report.for_s = loop.time() - self._begin_s
        report.took_s = _processor_s() - took_s
        self._count()
        return report

    def _servers(self) -> list[Server]:
        return [*self._cluster.names.values(), *self._cluster.brokers.values()]

    def _stores(self) -> dict[str, Path]:
        return {name: server.path for name, server in self._cluster.brokers.items()}

    def _count(self) -> None:
        history, counts = self._workload.history, self._report.counts
        for put in history.puts.values():
            name = f"{put.operation.does.value} {put.outcome.value}"
            counts[name] = counts.get(name, 0) + 1
        deliveries = [each for group in history.deliveries.values() for each in group]
        counts["delivered"] = len(deliveries)
        counts["pop acknowledged"] = history.popped
        counts["delivered again"] = len(deliveries) - sum(
            len({each.number for each in group}) for group in history.deliveries.values()
        )

    # ---- the scene

    async def _scene(self) -> None:
        plan, cluster, loop = self._plan, self._cluster, self._loop
        self._begin_s = loop.time()
        for number in range(plan.names):
            await cluster.add_name_server(f"names{number}").start()
        for group in plan.groups:
            for number, name in enumerate(servers_of((group,))):
                settings = settings_of(group, number)
                await cluster.add_broker(name, settings, group.slack).start()
        for name in plan.clients:
            cluster.add_client(name)
        if promoted_groups(plan):
            # which slaves know in a moment
            await cluster.clients[plan.clients[0]].spawn(self._workload.make_topics())
            await loop.pause(_TOPICS_KNOWN_S)
        self._workload.begin()
        self._heals_s = loop.time() + plan.for_s
        for befalls in plan.faults:
            loop.create_task(self._at(befalls))
        await loop.pause(plan.for_s)
        await self._get_on()
        await self._drain()
        self._is_over = True
        for process in cluster.clients.values():
            process.end()
        for server in self._servers():
            await server.stop()

    async def _at(self, befalls: Befalls) -> None:
        await self._loop.pause(befalls.at_s)
        self._note(f"fault {befalls.what.value}")
        await self._faults()[befalls.what](befalls)

    async def _get_on(self) -> None:
        """Everything is in order again: every message has to be taken."""
        loop, network = self._loop, self._loop.network
        self._is_healed = True
        network.heal()
        await self._mend()
        masters = self._masters.names()
        # the masters first: who was one before needs the new one to get its log
        for server in sorted(self._servers(), key=lambda one: one.name not in masters):
            while server.is_ending:
                await loop.pause(_LOOK_EVERY_S)
            if server.is_down():
                await self._start(server)
        number = _PROBES_FROM
        end_s = loop.time() + _GET_ON_S
        # slaves that have what their master has lost do not follow it any more: see docs/ha.md
        weak = weak_brokers(self._plan) | self._masters.shortened
        enough = (Outcome.OK, Outcome.STORED) if weak else (Outcome.OK,)
        left = [(client, topic) for client in self._plan.clients for topic in self._plan.topics]
        while left:
            if loop.time() > end_s:
                self._report.broken.append(Broken("gets on", f"nobody takes {left}"))
                return
            client, topic = left[0]
            probe = Operation(0.0, client, Does.SEND, number, topic, -1, _PROBE_SIZE)
            number += 1
            if await self._workload.send_now(client, probe) in enough:
                left.pop(0)
            else:
                await self._lead_back()
                await loop.pause(_LOOK_EVERY_S)

    async def _lead_back(self) -> None:
        """Let slaves that their masters have nothing more for begin anew, as an operator does."""
        for server in self._masters.left_behind():
            self._note("led back behind a quota")
            await server.stop()
            await self._start(server)

    async def _drain(self) -> None:
        """Every group gets everything that is there, and that has still to come there."""
        end_s, quiet = self._loop.time() + _DRAIN_S, 0
        self._workload.draining = True
        while self._loop.time() < end_s and quiet < _QUIET_LOOKS:
            await self._loop.pause(_DRAINED_EVERY_S)
            await self._lead_back()
            left = self._workload.running or self._is_left() or self._behind()
            quiet = 0 if left else quiet + 1
        if behind := self._behind():
            self._report.broken.append(Broken("catches up", ", ".join(behind)))

    def _is_left(self) -> bool:
        """Whether a group lacks something that a master has, or is to have."""
        history, weak = self._workload.history, weak_brokers(self._plan)
        there = self._there(weak)
        for group, deliveries in history.deliveries.items():
            members = [one for one in self._plan.consumers if one.group == group]
            topics = {topic for one in members for topic in one.topics}
            got = {each.number for each in deliveries}
            places = {each.place for each in deliveries}
            if any(
                number not in got
                and put.operation.topic in topics
                and must_have(self._plan, history, put)
                and not self._is_expired(put)
                for number, put in history.puts.items()
            ):
                return True
            left = [place for place in there if place.topic in topics and place not in places]
            # places of a topic that was deleted are filled again
            left += [
                place
                for place in there
                if place.topic in topics
                and place in places
                and history.deleted(place.broker, place.topic)
            ]
            if members[0].way in (Way.POP, Way.POP_IN_ORDER) or history.deletions:
                # what POP hands out again, as the answer was lost, comes from a retry topic
                numbers = {self._number_at(place) for place in left}
                if any(n not in got and not history.is_homeless(n) for n in numbers):
                    return True
            elif left:
                return True
        return any(
            reset.broker not in weak | promoted_groups(self._plan)
            for reset, _ in history.unread_since(self._is_expired)
        )

    def _is_expired(self, put: Put) -> bool:
        """Whether a message may be gone with the oldest files of its log."""
        quotas = {group.name for group in self._plan.groups if group.expires}
        if put.place is None:
            waits_s = put.operation.count if put.operation.does is Does.TIMER else 0
            return bool(quotas) and self._loop.time() > put.began_s + waits_s + _COMES_S
        serving = self._masters.server_of(put.place.broker).serving
        store = serving.store if isinstance(serving, Broker) else None
        if store is None or put.place.broker not in quotas:
            return False
        return put.place.offset < store.min_queue_offset(put.place.topic, put.place.queue_id)

    def _number_at(self, place: Place) -> int:
        """The number of the message at a place; -1 when its broker cannot be asked now."""
        serving = self._masters.server_of(place.broker).serving
        store = serving.store if isinstance(serving, Broker) else None
        if store is None:
            return -1
        found = store.get_message(place.topic, place.queue_id, place.offset, max_messages=1)
        return next((number_of(each.decompressed_body()) for each in found), -1)

    def _confirmed(self, result: SendResult) -> None:
        """Check that a slave has what its master, which waits for slaves, has confirmed."""
        group = next(each for each in self._plan.groups if each.name == result.broker_name)
        if group.settings.get("brokerRole") != "SYNC_MASTER":
            return
        _, phy_offset = decode_message_id(result.offset_message_id.rpartition(",")[2])
        ends = sorted(self._masters.log_end(name) for name in servers_of((group,)))
        if -1 not in ends and ends[-2] <= phy_offset:
            text = f"{result.broker_name} confirms {phy_offset}, its brokers have {ends}"
            self._report.broken.append(Broken("confirmed", text))

    def _behind(self) -> list[str]:
        """The slaves that do not have all of their master's log."""
        behind = []
        weak = weak_brokers(self._plan) | self._masters.shortened
        for group in self._plan.groups:
            if group.name in weak:
                continue
            end = self._masters.log_end(self._masters.name_of(group.name))
            for name in self._masters.slaves_of(group):
                at = self._masters.log_end(name)
                if at != end:
                    behind.append(f"{name}: {at} of {end}")
        return behind

    def _there(self, weak: set[str]) -> list[Place]:
        """The places that masters have filled."""
        places = []
        for group in self._plan.groups:
            serving = self._masters.server_of(group.name).serving
            store = serving.store if isinstance(serving, Broker) else None
            if store is None or group.name in weak:
                continue
            for topic, queue_id in store.queues():
                if topic in self._plan.topics:
                    offsets = range(
                        store.min_queue_offset(topic, queue_id),
                        store.max_queue_offset(topic, queue_id),
                    )
                    places += [Place(group.name, topic, queue_id, offset) for offset in offsets]
        return places

    # ---- faults

    def _faults(self) -> dict[Fault, Callable[[Befalls], Coroutine[Any, Any, None]]]:
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
        }

    def _process(self, name: str) -> Process:
        cluster = self._cluster
        return {**cluster.names, **cluster.brokers, **cluster.clients}[name]

    async def _delete(self, befalls: Befalls) -> None:
        for group in self._plan.groups:
            deletion = Deletion(group.name, befalls.other, self._loop.time())
            self._workload.history.deletions.append(deletion)
            address = self._masters.server_of(group.name).address
            client = self._cluster.clients[befalls.whom]
            await client.spawn(self._workload.delete(deletion, f"{address}:{BROKER_PORT}"))
            if deletion.ended_s < float("inf"):
                self._note("topic deleted")

    async def _reset(self, befalls: Befalls) -> None:
        for group in self._plan.groups:
            reset = Reset(befalls.whom, group.name, befalls.other, self._loop.time())
            self._workload.history.resets.append(reset)
            address = self._masters.server_of(group.name).address
            client = self._cluster.clients[self._plan.clients[0]]
            await client.spawn(self._workload.reset(reset, f"{address}:{BROKER_PORT}"))
            if reset.ended_s < float("inf"):
                self._note("offsets reset")

    async def _start(self, server: Server) -> None:
        if self._is_over or server in self._starting:
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
                self._note("not started on a disk that is not well")
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
            await self._start(server)

    def _end(self, server: Server, how: Fault) -> None:
        if how is Fault.POWER_CUT:
            before = server.path
            server.cut_power(self._cuts)
            if self._masters.note_cut(server, before):
                self._note("a cut took what a slave has")
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
                self._note("died at a sync" if befalls.size > 0 else "died at a write")
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

    def _note(self, name: str) -> None:
        self._report.counts[name] = self._report.counts.get(name, 0) + 1

    def _note_expired(self) -> None:
        """Count the logs that begin later, as they have a quota."""
        limited = tuple(group for group in self._plan.groups if group.expires)
        for name in servers_of(limited):
            log = self._cluster.brokers[name].path / "commitlog"
            if int(min((file.name for file in log.iterdir()), default="0")):
                self._note("a log beyond its quota")

    async def _restart(self, befalls: Befalls) -> None:
        server = self._process(befalls.whom)
        if isinstance(server, Server) and server.serving is not None and not server.is_starting:
            await server.stop()
            await self._loop.pause(befalls.for_s)
            if server.disk is not None:
                # nobody starts it on a disk that is not well
                server.disk.refuses = {}
            if server.is_down():
                await self._start(server)

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
            self._note(f"refused by a {befalls.what.value}")

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
                self._note("started anew behind a failed disk")
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
        if before is not masters.server_of(group):
            return
        if name is None:
            self._note("not promoted, as a slave is away")
            if before.is_down():
                await self._start(before)
            return
        if not before.is_down():
            # somebody has started it meanwhile
            before.kill()
        masters.promote(group, name)
        self._note("promoted")
        server = self._cluster.brokers[name]
        await server.stop()
        if server.is_down():
            await self._start(server)
        await self._loop.pause(befalls.for_s)
        if before.is_down():
            await self._start(before)

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


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _told(context: dict[str, Any]) -> str:
    return f"{context['node']} at {context['time']:.6f}: {context['message']}: " + repr(
        context.get("exception")
    )
