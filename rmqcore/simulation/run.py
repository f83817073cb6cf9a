"""`run`: one plan, from its beginning to the judgement."""

from __future__ import annotations

import resource
import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from rmqcore._codec import decode_message_id
from rmqcore.broker import Broker
from rmqcore.client import SendResult
from rmqcore.simulation.cluster import Server, SimulatedCluster
from rmqcore.simulation.cluster_loop import new_loop
from rmqcore.simulation.disk import Disks, is_watched
from rmqcore.simulation.errors import SimulationError
from rmqcore.simulation.faults import Faults
from rmqcore.simulation.history import Outcome, Place, Put, number_of
from rmqcore.simulation.invariants import (
    Broken,
    judge,
    must_have,
    promoted_groups,
    weak_brokers,
)
from rmqcore.simulation.plan import (
    DELAYS_S,
    Does,
    Operation,
    Plan,
    Way,
    servers_of,
    settings_of,
)
from rmqcore.simulation.promotion import Masters
from rmqcore.simulation.report import Report
from rmqcore.simulation.stand_ins import let_go, stand_ins
from rmqcore.simulation.workload import Workload

#: A cluster has this long until it takes and delivers every message again.
_GET_ON_S: Final = 120.0
_DRAIN_S: Final = 1800.0
#: A message whose place nobody knows has come this long behind its time, or not at all.
_COMES_S: Final = 120.0
#: A delayed message is no later than this, where services rest for longer than they want to.
_LATE_S: Final = 60.0
_LOOK_EVERY_S: Final = 1.0
#: All is delivered when `_QUIET_LOOKS` looks, this far apart, have found nothing left.
_DRAINED_EVERY_S: Final = 5.0
_QUIET_LOOKS: Final = 3
#: Slaves know a new topic after this long.
_TOPICS_KNOWN_S: Final = 15.0
_PROBE_SIZE: Final = 100
#: Probes have numbers from here on, which no plan gives to its messages.
_PROBES_FROM: Final = 1_000_000_000
_IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a directory of its own is made there


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
        self._workload = Workload(self._cluster, plan)
        self._report = Report()
        self._masters = Masters(self._cluster, plan)
        self._faults = Faults(
            plan, self._cluster, self._masters, self._workload, self._report, self._disks
        )
        self._workload.on_ok = self._confirmed
        self._begin_s = 0.0

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
        self._faults.begin()
        await loop.pause(plan.for_s)
        await self._get_on()
        await self._drain()
        self._faults.is_over = True
        for process in cluster.clients.values():
            process.end()
        for server in self._servers():
            await server.stop()

    async def _get_on(self) -> None:
        """Everything is in order again: every message has to be taken."""
        loop = self._loop
        await self._faults.heal()
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
            self._report.note("led back behind a quota")
            await server.stop()
            await self._faults.start(server)

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
        if self._may_come() or (promoted_groups(self._plan) and self._is_to_come(there)):
            return True
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

    def _may_come(self) -> bool:
        """Whether a message that is delayed, of which nobody knows the broker, is still to come."""
        history, now_s = self._workload.history, self._loop.time()
        got = {each.number for group in history.deliveries.values() for each in group}
        return any(
            put.place is None
            and put.outcome is not Outcome.REFUSED
            and number not in got
            and now_s < put.began_s + _waits_s(put.operation) + _LATE_S
            for number, put in history.puts.items()
            if put.operation.does in (Does.TIMER, Does.DELAY)
        )

    def _is_to_come(self, there: list[Place]) -> bool:
        """Whether a message of which a promoted slave knows that it is due later is not there yet.

        Groups may have got it from the master before, whose clock may be another.
        """
        history, late = self._workload.history, (Does.TIMER, Does.DELAY)
        due = {
            number
            for number, put in history.puts.items()
            if put.operation.does in late
            and must_have(self._plan, history, put)
            and not self._is_expired(put)
        }
        return bool(due) and not due <= {self._number_at(place) for place in there}

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

    def _note_expired(self) -> None:
        """Count the logs that begin later, as they have a quota."""
        limited = tuple(group for group in self._plan.groups if group.expires)
        for name in servers_of(limited):
            log = self._cluster.brokers[name].path / "commitlog"
            if int(min((file.name for file in log.iterdir()), default="0")):
                self._report.note("a log beyond its quota")


def _waits_s(operation: Operation) -> float:
    """How long a message is delayed."""
    return operation.count if operation.does is Does.TIMER else DELAYS_S[operation.count - 1]


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _told(context: dict[str, Any]) -> str:
    return f"{context['node']} at {context['time']:.6f}: {context['message']}: " + repr(
        context.get("exception")
    )
