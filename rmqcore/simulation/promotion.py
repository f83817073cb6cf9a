"""`Masters`: who is the master of each group, and how a slave comes to be it.

What an operator does by docs/ha.md: the master is ended, the slave with the longest log is opened
as the master, and who was it before gets its log cut where it is not the new one's, and follows.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from rmqcore.broker import Broker
from rmqcore.simulation.cluster import BROKER_PORT, Server, SimulatedCluster
from rmqcore.simulation.plan import Group, Plan, servers_of, settings_of

#: A life that is killed never ends, so it is looked whether it goes on.
_LOOK_EVERY_S: Final = 1.0


class Masters:
    """The present master of each group.

    Attributes:
        since_s: when each group's last promotion was; a group without one is not in it.
        shortened: groups whose master has lost by a power cut what a slave has of its log: such a
            slave follows no more, see docs/ha.md.
    """

    def __init__(self, cluster: SimulatedCluster, plan: Plan) -> None:
        self.since_s: dict[str, float] = {}
        self.shortened: set[str] = set()
        self._cluster = cluster
        self._groups = {group.name: group for group in plan.groups}
        self._names = {group.name: group.name for group in plan.groups}
        #: brokers that were masters, and whose logs nobody has compared with the new one's yet
        self._parted: dict[str, str] = {}

    def name_of(self, group: str) -> str:
        """The name of the broker that is a group's master."""
        return self._names[group]

    def names(self) -> list[str]:
        """The names of all masters."""
        return list(self._names.values())

    def slaves_of(self, group: Group) -> list[str]:
        """The names of a group's slaves."""
        return [name for name in servers_of((group,)) if name != self._names[group.name]]

    def server_of(self, group: str) -> Server:
        """The broker that is a group's master."""
        return self._cluster.brokers[self._names[group]]

    def log_end(self, name: str) -> int:
        """Where the log of a broker ends; -1 when it does not serve now."""
        server = self._cluster.brokers[name]
        serving = server.serving
        store = serving.store if isinstance(serving, Broker) else None
        if store is None or server.is_starting:
            return -1
        # not `max_phy_offset`, which dispatches: a store that its disk has failed cannot
        return store.followed_log.appended_offset

    def left_behind(self) -> list[Server]:
        """The slaves whose logs end in front of what their masters still have, to be led back."""
        found = []
        for group in self._groups.values():
            serving = self.server_of(group.name).serving
            store = serving.store if isinstance(serving, Broker) else None
            begin = 0 if store is None else store.min_phy_offset
            for name in self.slaves_of(group):
                # an empty log begins where the master's does
                if 0 < self.log_end(name) < begin:
                    self._parted[name] = group.name
                    found.append(self._cluster.brokers[name])
        return found

    def successor(self, group: str) -> str | None:
        """The slave with the longest log; None when not all of them serve, so that nobody knows."""
        ends = {name: self.log_end(name) for name in self.slaves_of(self._groups[group])}
        return None if -1 in ends.values() else max(ends, key=lambda name: ends[name])

    def promote(self, group: str, name: str) -> None:
        """From the next lives on, a slave is the master, and the master, which is down, a slave.

        Args:
            group: of brokers, by name.
            name: of the slave.

        Raises:
            ValueError: the group has no such broker.
        """
        before = self._names[group]
        one = self._groups[group]
        number = servers_of((one,)).index(name) or servers_of((one,)).index(before)
        self._cluster.settings[name] = settings_of(one, 0)
        self._cluster.settings[before] = settings_of(one, number)
        self._names[group] = name
        self._parted.pop(name, None)
        self._parted[before] = group
        self.since_s[group] = self._cluster.loop.time()

    def note_cut(self, server: Server, before: Path) -> bool:
        """Note, and tell, whether a power cut has taken from a master's log what a slave has.

        Args:
            server: whose power was cut, with the directory that this has left.
            before: the directory that it had.
        """
        for group in self._groups.values():
            if self.name_of(group.name) == server.name:
                slaves = [self._cluster.brokers[name].path for name in self.slaves_of(group)]
                if any(has_what_was_lost(slave, before, server.path) for slave in slaves):
                    self.shortened.add(group.name)
                    return True
        return False

    async def rejoin(self, server: Server) -> None:
        """Let one that was a master before get the log of the one that is it now."""
        while server.name in self._parted:
            master = self.server_of(self._parted[server.name])
            address = f"{master.address}:{BROKER_PORT + 1}"
            try:
                life = self._cluster.resync(server, address)
                while not life.done() and not server.is_down():
                    await asyncio.wait([life], timeout=_LOOK_EVERY_S)
                if life.done():
                    await life
                    self._parted.pop(server.name, None)
                # else it was killed, and is run again
            except OSError:
                # the master does not run now
                await self._cluster.loop.pause(1.0)
            finally:
                server.end()


def has_what_was_lost(slave: Path, before: Path, left: Path) -> bool:
    """Whether a slave's log has the first byte that a power cut has taken from its master's.

    Args:
        slave: its store.
        before: the master's store as it was.
        left: the master's store as the cut has left it.
    """
    for file in sorted((before / "commitlog").glob("*")):
        had = file.read_bytes()
        has = _content(left / "commitlog" / file.name, len(had))
        pairs = enumerate(zip(had, has, strict=True))
        # a zero is no byte of a record for certain
        lost_at = next((at for at, (one, other) in pairs if one and one != other), None)
        if lost_at is not None:
            return _content(slave / "commitlog" / file.name, len(had))[lost_at] == had[lost_at]
    return False


def _content(path: Path, size: int) -> bytes:
    return (path.read_bytes() if path.exists() else b"").ljust(size, b"\0")[:size]
