"""`run`: one plan, from its beginning to the judgement."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rmqcore.simulation.cluster import Cluster, Process, Server
from rmqcore.simulation.cluster_loop import new_loop
from rmqcore.simulation.errors import SimulationError
from rmqcore.simulation.history import Outcome
from rmqcore.simulation.invariants import Broken, judge, must_have
from rmqcore.simulation.loop import NANOSECONDS
from rmqcore.simulation.plan import FILE_SIZES, Befalls, Does, Fault, Operation, Plan, servers_of
from rmqcore.simulation.stand_ins import stand_ins
from rmqcore.simulation.workload import Workload

#: how long a cluster may take until it takes every message again, and delivers it
_GET_ON_S: Final = 120.0
_DRAIN_S: Final = 600.0
_LOOK_EVERY_S: Final = 1.0
_PROBE_SIZE: Final = 100
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
        return _Run(plan, root).run()
    finally:
        shutil.rmtree(root, ignore_errors=True)


class _Run:
    def __init__(self, plan: Plan, root: Path) -> None:
        self._plan = plan
        self._loop = new_loop(plan.seed)
        self._cluster = Cluster(self._loop, root, plan.seed)
        self._workload = Workload(self._cluster, plan)
        self._report = Report()
        self._begin_s = 0.0

    def run(self) -> Report:
        report, loop, took_s = self._report, self._loop, time.process_time()
        with stand_ins(self._plan.seed):
            try:
                loop.run_until_complete(self._scene())
                report.broken += judge(self._plan, self._workload.history, self._stores())
            except SimulationError as error:
                report.broken.append(Broken("stuck", str(error)))
            finally:
                for server in self._servers():
                    server.abandon()
                loop.close()
        report.broken += [Broken("error", _told(each)) for each in loop.errors]
        report.trace, report.events = loop.trace, loop.events
        report.for_s = loop.time() - self._begin_s
        report.took_s = time.process_time() - took_s
        self._count()
        return report

    def _servers(self) -> list[Server]:
        return [*self._cluster.names.values(), *self._cluster.brokers.values()]

    def _stores(self) -> dict[str, Path]:
        return {each.name: self._cluster.brokers[each.name].path for each in self._plan.groups}

    def _count(self) -> None:
        history, counts = self._workload.history, self._report.counts
        for put in history.puts.values():
            name = f"{put.operation.does.value} {put.outcome.value}"
            counts[name] = counts.get(name, 0) + 1
        deliveries = [each for group in history.deliveries.values() for each in group]
        counts["delivered"] = len(deliveries)
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
            settings = {
                **FILE_SIZES,
                "brokerName": group.name,
                "transactionCheckMax": 100_000,
                **group.settings,
            }
            for name in servers_of((group,)):
                await cluster.add_broker(name, settings).start()
        for name in plan.clients:
            cluster.add_client(name)
        self._workload.begin()
        for befalls in plan.faults:
            loop.create_task(self._at(befalls))
        await loop.pause(plan.for_s)
        await self._get_on()
        await self._drain()
        for process in cluster.clients.values():
            process.end()
        for server in self._servers():
            await server.stop()

    async def _at(self, befalls: Befalls) -> None:
        await self._loop.pause(befalls.at_s)
        name = f"fault {befalls.what.value}"
        self._report.counts[name] = self._report.counts.get(name, 0) + 1
        await self._faults()[befalls.what](befalls)

    async def _get_on(self) -> None:
        """Everything is in order again: every message has to be taken."""
        loop, network = self._loop, self._loop.network
        network.heal()
        for server in self._servers():
            if server.is_down():
                await self._start(server)
        number = 1 + max(self._workload.history.puts, default=0)
        end_s = loop.time() + _GET_ON_S
        left = [(client, topic) for client in self._plan.clients for topic in self._plan.topics]
        while left:
            if loop.time() > end_s:
                self._report.broken.append(Broken("gets on", f"nobody takes {left}"))
                return
            client, topic = left[0]
            probe = Operation(0.0, client, Does.SEND, number, topic, -1, _PROBE_SIZE)
            number += 1
            if await self._workload.send_now(client, probe) is Outcome.OK:
                left.pop(0)
            else:
                await loop.pause(_LOOK_EVERY_S)

    async def _drain(self) -> None:
        """Every group gets everything that has to be there."""
        end_s = self._loop.time() + _DRAIN_S
        self._workload.draining = True
        while self._loop.time() < end_s and (self._workload.running or self._not_delivered()):
            await self._loop.pause(_LOOK_EVERY_S)
        # what nobody knows of may be there, too, and come later
        await self._loop.pause(2 * _LOOK_EVERY_S)

    def _not_delivered(self) -> bool:
        history = self._workload.history
        for group, deliveries in history.deliveries.items():
            topics = {t for one in self._plan.consumers if one.group == group for t in one.topics}
            got = {each.number for each in deliveries}
            if any(
                must_have(put) and put.operation.topic in topics and number not in got
                for number, put in history.puts.items()
            ):
                return True
        return False

    # ---- faults

    def _faults(self) -> dict[Fault, Callable[[Befalls], Coroutine[Any, Any, None]]]:
        return {
            Fault.KILL: self._kill,
            Fault.RESTART: self._restart,
            Fault.PAUSE: self._pause,
            Fault.CLOCK: self._clock,
            Fault.PARTITION: self._partition,
            Fault.ONE_WAY: self._partition,
            Fault.BREAK: self._break,
            Fault.SLOW: self._slow,
            Fault.LOSS: self._slow,
        }

    def _process(self, name: str) -> Process:
        cluster = self._cluster
        return {**cluster.names, **cluster.brokers, **cluster.clients}[name]

    async def _start(self, server: Server) -> None:
        try:
            await server.start()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it has to start
            self._report.broken.append(Broken("starts", f"{server.name}: {error!r}"))

    async def _kill(self, befalls: Befalls) -> None:
        server = self._process(befalls.whom)
        if isinstance(server, Server) and not server.is_down():
            server.kill()
            await self._loop.pause(befalls.for_s)
            if server.is_down():
                await self._start(server)

    async def _restart(self, befalls: Befalls) -> None:
        server = self._process(befalls.whom)
        if isinstance(server, Server) and server.serving is not None and not server.is_starting:
            await server.stop()
            await self._loop.pause(befalls.for_s)
            if server.is_down():
                await self._start(server)

    async def _pause(self, befalls: Befalls) -> None:
        node = self._process(befalls.whom).node
        if node is not None:
            self._loop.hold_node(node, round(befalls.for_s * NANOSECONDS))

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


def _told(context: dict[str, Any]) -> str:
    return f"{context['node']} at {context['time']:.6f}: {context['message']}: " + repr(
        context.get("exception")
    )
