"""`Cluster`: name servers, brokers and clients as processes on simulated machines.

Each process may be stopped, killed, cut off from its power and started again. A killed process runs
on in no way: its events are dropped, its connections are its kernel's, and what it had written is
copied for the next one.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from rmqcore.broker import Broker
from rmqcore.namesrv import NameServer, NamesrvConfig
from rmqcore.simulation.actors import LoopRunner
from rmqcore.simulation.cluster_loop import ClusterLoop
from rmqcore.simulation.disk import Disk, Disks
from rmqcore.simulation.errors import UnsimulatedError
from rmqcore.simulation.loop import Node
from rmqcore.simulation.resync import Resync

NAMESRV_PORT: Final = 9876
BROKER_PORT: Final = 10911


class Serving(Protocol):
    """What a process serves with."""

    async def start(self) -> None:
        """Begin."""

    async def stop(self) -> None:
        """End in order."""


class Process:
    """A process that may die, and come again, on one machine.

    Attributes:
        name: of the process and of its machine.
        address: of its machine.
        node: of the present life; None while it does not run.
        lives: how often it was started.
    """

    def __init__(self, loop: ClusterLoop, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.node: Node | None = None
        self.lives = 0
        #: added to the wall clock of its machine
        self.skew_ns = 0
        self._loop = loop

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin something in this process.

        Raises:
            RuntimeError: the process does not run.
        """
        if self.node is None:
            raise RuntimeError(f"{self.name} does not run")
        return self._loop.spawn(self.node, work)

    def begin(self) -> Node:
        """Begin a life."""
        self.lives += 1
        self.node = self._loop.new_node(f"{self.name}.{self.lives}", self.address)
        self.node.wall_ns += self.skew_ns
        return self.node

    def is_down(self) -> bool:
        """Whether it has no life."""
        return self.node is None

    def end(self) -> None:
        """Let nothing of this life go on."""
        node, self.node = self.node, None
        if node is not None:
            self._loop.network.end_process(node)
            self._loop.end_node(node)

    def step_clock(self, by_ns: int) -> None:
        """Put the machine's wall clock forward, or back."""
        self.skew_ns += by_ns
        if self.node is not None:
            self.node.wall_ns += by_ns


class Server(Process):
    """A process that serves: a name server or a broker.

    Attributes:
        serving: what it serves with; None while it does not.
        path: the directory of the present life.
        disk: what of it is on the disk; None where system calls are not watched.
    """

    def __init__(
        self,
        loop: ClusterLoop,
        name: str,
        address: str,
        root: Path,
        make: Callable[[Server], Serving],
        disks: Disks | None,
    ) -> None:
        super().__init__(loop, name, address)
        self.serving: Serving | None = None
        self.disk: Disk | None = None
        self._disks = disks
        self.path = root / "0"
        self._root = root
        self._make = make
        self._starting: asyncio.Task[Any] | None = None

    def start(self, make: Callable[[Server], Serving] | None = None) -> asyncio.Task[Any]:
        """Begin a life in what the last one has left.

        Args:
            make: makes what it does; None: it serves.
        """
        self.begin()
        self.path.mkdir(parents=True, exist_ok=True)
        if self._disks is not None:
            self.disk = self.disk or Disk(self._disks, self.path)
            self._disks.add(self.disk)
        self._starting = self.spawn(self._serve(make or self._make))
        return self._starting

    async def _serve(self, make: Callable[[Server], Serving]) -> None:
        serving = make(self)
        self.serving = serving
        await serving.start()

    async def stop(self) -> None:
        """End in order."""
        serving, self.serving = self.serving, None
        if serving is not None and self.node is not None:
            try:
                await self.spawn(serving.stop())
            except OSError:
                if self.disk is None or not self.disk.refused:
                    raise
                # a store that a disk has failed says so once more, and its process ends like that
                self.kill()
        self.end()

    @property
    def is_starting(self) -> bool:
        """Whether a life has begun that does not serve yet."""
        return self._starting is not None and not self._starting.done()

    @property
    def is_ending(self) -> bool:
        """Whether a life is being ended in order."""
        return self.node is not None and self.serving is None and not self.is_starting

    def abandon(self) -> None:
        """Let everything go, whatever state it is in."""
        self.end()
        if self.disk is not None:
            self.disk.ended = True
        self._forget(self.serving, self.path, True)
        self.serving = None

    def kill(self) -> None:
        """Die at once, as by SIGKILL: what was written is there for the next life."""
        following = self._root / str(self.lives)
        if self.disk is not None:
            self._die(following, self.disk.kill(following))
        else:
            shutil.copytree(self.path, following)
            self._die(following, None)

    def cut_power(self, rng: random.Random) -> None:
        """Die at once, and lose what is not on the disk, or some of it.

        Raises:
            UnsimulatedError: system calls are not watched, so nobody knows what is on the disk.
        """
        if self.disk is None:
            raise UnsimulatedError("a power cut without watched system calls")
        following = self._root / str(self.lives)
        self._loop.network.power_off(self.address)
        self._die(following, self.disk.cut(following, rng))

    def _die(self, following: Path, disk: Disk | None) -> None:
        self.end()
        self._starting = None
        # the call in which it dies may have locks and files of the store in its hands
        context = self._loop.harness.context
        serving, self.serving = self.serving, None
        if self.disk is not None and self._disks is not None:
            self._disks.remove(self.disk)
        failed = self.disk is not None and self.disk.refused > 0
        self._loop.call_soon(self._forget, serving, self.path, failed, context=context)
        self.path, self.disk = following, disk

    def _forget(self, serving: Serving | None, path: Path, failed: bool) -> None:
        """Let go what a life had open, in a directory that nobody looks at any more.

        A store whose disk has failed says so once more.
        """
        store = serving.store if isinstance(serving, Broker | Resync) else None
        if store is not None:
            with suppress(OSError) if failed else nullcontext():
                store.close()
        shutil.rmtree(path, ignore_errors=True)


class SimulatedCluster:
    """All processes.

    Attributes:
        loop: whose events they are.
        names, brokers: the servers, by name.
        clients: the processes of clients.
        settings: of each broker, from its next life on.
    """

    def __init__(
        self, loop: ClusterLoop, root: Path, seed: object, disks: Disks | None = None
    ) -> None:
        self.loop = loop
        self._disks = disks
        self.names: dict[str, Server] = {}
        self.brokers: dict[str, Server] = {}
        self.clients: dict[str, Process] = {}
        self.settings: dict[str, dict[str, object]] = {}
        self._slack: dict[str, float] = {}
        self._root = root
        self._seed = seed
        self._machines = 0

    def _address(self) -> str:
        self._machines += 1
        return f"10.0.0.{self._machines}"

    @property
    def namesrv_addr(self) -> str:
        """The addresses of the name servers."""
        return ";".join(f"{each.address}:{NAMESRV_PORT}" for each in self.names.values())

    def add_name_server(self, name: str) -> Server:
        """Add a name server."""

        def make(server: Server) -> Serving:
            config = NamesrvConfig(kv_config_path=str(server.path / "kvConfig.json"))
            return NameServer(server.address, NAMESRV_PORT, config)

        self.names[name] = server = Server(
            self.loop, name, self._address(), self._root / name, make, self._disks
        )
        return server

    def add_broker(self, name: str, properties: dict[str, object], slack: float = 1.0) -> Server:
        """Add a broker; the settings of where it listens are filled in.

        Args:
            name: of process and machine.
            properties: its settings.
            slack: see `LoopRunner`.
        """

        def make(server: Server) -> Serving:
            where = {
                "brokerIP1": server.address,
                "listenPort": BROKER_PORT,
                "namesrvAddr": self.namesrv_addr,
            }
            return Broker(
                server.path, {**self.settings[name], **where}, runner=self._runner_of(server)
            )

        self.settings[name] = properties
        self._slack[name] = slack
        self.brokers[name] = server = Server(
            self.loop, name, self._address(), self._root / name, make, self._disks
        )
        return server

    def _runner_of(self, server: Server) -> LoopRunner:
        rng = random.Random(f"{self._seed}/{server.name}/{server.lives}")  # noqa: S311 - repeatable
        return LoopRunner(self.loop, rng, self._slack[server.name])

    def resync(self, server: Server, master: str) -> asyncio.Task[Any]:
        """Begin a life in which a broker's store gets the log of another master; see `Resync`.

        Args:
            server: the broker, which is down.
            master: the replication port of the new master, ``host:port``.
        """
        return server.start(lambda life: Resync(life.path, master, self._runner_of(life)))

    def add_client(self, name: str) -> Process:
        """Add a machine of clients; its first life begins."""
        self.clients[name] = client = Process(self.loop, name, self._address())
        client.begin()
        return client


async def all_of(work: list[Awaitable[Any]]) -> None:
    """Wait for several things; the first that fails is raised when all have ended."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
