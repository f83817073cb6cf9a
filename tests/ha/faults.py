"""A name server, a master and a slave as processes, under load, and what befalls them.

`Scenario` draws all that happens from a seed. What lies between the brokers is a `Proxy` in this
process, or `Namespaces` of the kernel: both can part them and make the way slow.
"""

import asyncio
import contextlib
import ctypes
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from patience import until_async

from crash.fault_disk import FaultDisk
from rmqcore import open_store
from rmqcore.broker import Broker
from rmqcore.files.store_dir import StoreDir
from rmqcore.ha.resync import cut, fetch, find_divergence
from rmqcore.namesrv import NameServer
from rmqcore.remoting import (
    RemotingClient,
    RemotingCommand,
    RemotingError,
    RequestCode,
    ResponseCode,
)
from rmqcore.world import wall_clock_ms

PROPERTIES = {
    "brokerName": "faults",
    "mappedFileSizeCommitLog": 10 * 4096,
    "mappedFileSizeConsumeQueue": 3 * 4096 - 3 * 4096 % 20,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "haSendHeartbeatInterval": 100,
    "haHousekeepingInterval": 600,
    "slaveTimeout": 400,
    "flushCommitLogLeastPages": 1,
    "flushIntervalCommitLog": 60,
}
TOPIC = "T0"
LOADERS = 8
_CLONE_NEWNET = 0x40000000


# ---- processes


class Forked:
    """A process that serves until it is told otherwise: ``q`` stop, ``p`` lose power."""

    def __init__(self, serve, namespace=None):
        """Start it; ``serve`` is a coroutine function of the pipe that tells it what to do."""
        ready, said = os.pipe()
        told, self._log_disconnect = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._log_disconnect)
                if namespace:
                    with Path(f"/run/netns/{namespace}").open("rb") as file:
                        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
                            raise OSError(ctypes.get_errno(), "setns")
                asyncio.run(serve(lambda: os.write(said, b"r"), told))
            finally:
                if error := sys.exception():
                    os.write(2, f"{error!r}\n".encode())
                os._exit(0)
        os.close(said)
        os.close(told)
        self._ready = ready

    async def started(self):
        said = await asyncio.to_thread(os.read, self._ready, 1)
        os.close(self._ready)
        assert said == b"r", "a process has not started"

    async def end(self, how=None):
        """Tell it how to end, or kill it, and wait until it has."""
        if how is None:
            os.kill(self.pid, signal.SIGKILL)
        else:
            os.write(self._log_disconnect, how)
        os.close(self._log_disconnect)
        await asyncio.to_thread(os.waitpid, self.pid, 0)


async def serve_names(port, ready, told):
    server = NameServer("0.0.0.0", port)
    await server.start()
    ready()
    await asyncio.to_thread(os.read, told, 1)
    os._exit(0)


async def serve_broker(path, properties, lost, seed, ready, told):
    """A broker; when it loses power, ``lost`` becomes the store as it finds it again."""
    disk = FaultDisk()
    # what was written in an earlier life has reached the disk
    disk.note_all(path)
    broker = Broker(path, properties)
    # of no broker.conf, where it is 5 s
    broker._ha_config = dataclasses.replace(broker._ha_config, ha_retry_interval=20)
    await broker.start()
    ready()
    if await asyncio.to_thread(os.read, told, 1) == b"p":
        disk.cut(path, lost, random.Random(seed))
        os._exit(0)
    await broker.stop()


# ---- what lies between them


class Proxy:
    """A relay before the master's replication port, in user space."""

    kinds = ("partition", "slow", "torn")
    hosts = dict.fromkeys(("names", "master", "slave"), "127.0.0.1")
    namespaces = dict.fromkeys(hosts)

    def __init__(self, _number):
        self._open = asyncio.Event()
        self._open.set()
        self._rate = self._left = None
        self._writers, self._tasks = set(), set()

    async def start(self, master_port):
        """Begin to relay; returns the port that the slave connects to."""
        self._master_port = master_port
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def _relay(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        self._writers.add(writer)
        there = None
        try:
            await self._open.wait()
            back, there = await asyncio.open_connection("127.0.0.1", self._master_port)
            self._writers.add(there)
            await asyncio.gather(self._pump(reader, there), self._pump(back, writer, sent=True))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for one in (writer, there):
                if one is not None:
                    self._writers.discard(one)
                    one.transport.abort()

    async def _pump(self, reader, writer, sent=False):
        while data := await reader.read(4096):
            await self._open.wait()
            if sent and self._rate:
                await asyncio.sleep(0.005 + len(data) / self._rate)
            if sent and self._left is not None:
                data, self._left = data[: self._left], self._left - len(data)
                if self._left <= 0:
                    self._left = None
                    writer.write(data)
                    await writer.drain()
                    raise ConnectionResetError
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError

    async def partition(self, seconds):
        """Nothing arrives, and nobody is told."""
        self._open.clear()
        await asyncio.sleep(seconds)
        self._open.set()

    async def slow(self, seconds):
        """A narrow and long way."""
        self._rate = 60_000
        await asyncio.sleep(seconds)
        self._rate = None

    async def torn(self, seconds):
        """Cut every connection in the middle of a frame."""
        self._left = 1 + int(seconds * 20_000)
        await asyncio.sleep(seconds)
        self._left = None

    async def stop(self):
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Namespaces:
    """Three network namespaces on one bridge; needs root."""

    kinds = ("partition", "slow")

    @staticmethod
    def missing():
        """Why there are none on this machine; None when there are."""
        if os.geteuid():
            return "network namespaces need root"
        if shutil.which("ip") is None or shutil.which("tc") is None:
            return "ip and tc of iproute2 are not installed"
        name = f"rmq-probe-{os.getpid()}"
        done = subprocess.run(
            ["ip", "netns", "add", name], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return f"no network namespaces: {done.stderr.strip()}"
        subprocess.run(["ip", "netns", "del", name], check=True)
        return None

    def __init__(self, number):
        self._net = f"10.{77 + number % 100}.{os.getpid() % 250}"
        self._bridge = f"rmq{os.getpid() % 100_000}"
        self.namespaces, self.hosts = {}, {}

    async def start(self, master_port):
        self._run("link", "add", self._bridge, "type", "bridge")
        self._run("addr", "add", f"{self._net}.1/24", "dev", self._bridge)
        self._run("link", "set", self._bridge, "up")
        for number, who in enumerate(("names", "master", "slave"), 2):
            space, link = f"{self._bridge}-{who}", f"{self._bridge}{who[0]}"
            self._run("netns", "add", space)
            self.namespaces[who], self.hosts[who] = space, f"{self._net}.{number}"
            self._run("link", "add", link, "type", "veth", "peer", "eth0", "netns", space)
            self._run("link", "set", link, "master", self._bridge, "up")
            self._run("-n", space, "addr", "add", f"{self._net}.{number}/24", "dev", "eth0")
            self._run("-n", space, "link", "set", "eth0", "up")
            self._run("-n", space, "link", "set", "lo", "up")
        return master_port

    @staticmethod
    def _run(*words, tool="ip", check=True):
        done = subprocess.run([tool, *words], capture_output=True, text=True, check=False)
        assert not check or not done.returncode, f"{tool} {' '.join(words)}: {done.stderr}"
        return done.returncode == 0

    async def partition(self, seconds):
        link = f"{self._bridge}s"
        self._run("link", "set", link, "down")
        await asyncio.sleep(seconds)
        self._run("link", "set", link, "up")

    async def slow(self, seconds):
        where = ("qdisc", "add", "dev", f"{self._bridge}s", "root")
        netem = ("netem", "delay", "20ms", "5ms", "loss", "1%", "rate", "1mbit")
        if not self._run(*where, *netem, tool="tc", check=False):
            # a kernel without netem
            self._run(*where, "tbf", "rate", "1mbit", "burst", "3kb", "latency", "100ms", tool="tc")
        await asyncio.sleep(seconds)
        self._run("qdisc", "del", "dev", f"{self._bridge}s", "root", tool="tc")

    async def stop(self):
        for space in self.namespaces.values():
            self._run("netns", "del", space, check=False)
        self._run("link", "del", self._bridge, check=False)


# ---- the scenario


class Scenario:
    """One seed: brokers, load, faults, and what has to hold in the end."""

    def __init__(self, path, seed, network, names_port, master_port, slave_port):
        self.path, self.seed = path, seed
        # the load draws as often as it comes to: what befalls them is the seed's all the same
        self._sizes = random.Random(seed)
        self.network = network(seed)
        self.ports = {"names": names_port, "master": master_port, "slave": slave_port}
        self.stores = {"master": path / "master-0", "slave": path / "slave-0"}
        self.processes, self.lives = {}, 0
        self.replicated, self.answers, self.without_power = set(), {}, None
        self.client, self.numbers, self.loading = RemotingClient(), iter(range(10**9)), True
        self.said, self.slave_told = [], {}

    def address(self, who):
        return f"{self.network.hosts[who]}:{self.ports[who]}"

    def ha_address(self, who):
        return f"{self.network.hosts[who]}:{self.ports[who] + 1}"

    async def start(self, who):
        namespace = self.network.namespaces[who]
        if who == "names":

            async def serve(ready, told):
                await serve_names(self.ports[who], ready, told)

        else:
            host, slave = self.network.hosts[who], who == "slave"
            properties = PROPERTIES | {
                **{"brokerIP1": host, "brokerIP2": host, "listenPort": self.ports[who]},
                **{"namesrvAddr": self.address("names"), "brokerId": int(slave)},
                "brokerRole": "SLAVE" if slave else "SYNC_MASTER",
            }
            if slave:
                properties["haMasterAddress"] = f"{self.network.hosts['master']}:{self.way}"
            self.lives += 1
            lost, seed = self.path / f"{who}-{self.lives}", f"{self.seed} {self.lives}"
            store = self.stores[who]

            async def serve(ready, told):
                await serve_broker(store, properties, lost, seed, ready, told)

            self.lost = {**getattr(self, "lost", {}), who: lost}
        self.processes[who] = Forked(serve, namespace)
        await self.processes[who].started()

    async def end(self, who, how=None):
        await self.processes.pop(who).end(how)
        if how == b"p":
            self.without_power = who
            shutil.rmtree(self.stores[who])
            self.stores[who] = self.lost[who]

    async def run(self, count):
        """Let so many faults befall them, and check."""
        plan = self._plan(count)
        self.way = await self.network.start(self.ports["master"] + 1)
        loaders = []
        try:
            for who in ("names", "master", "slave"):
                await self.start(who)
            loaders = [asyncio.create_task(self._load()) for _ in range(LOADERS)]
            await self.in_step()
            for fault in plan:
                await self._befall(*fault)
            await self.in_step()
            # what is on its way arrives before the logs are compared
            self.loading = False
            await asyncio.gather(*loaders)
            await until_async(self._have_the_same, "the slave has all of the log")
            for who in ("slave", "master"):
                await self.end(who, b"q")
        finally:
            for task in loaders:
                task.cancel()
            await asyncio.gather(*loaders, return_exceptions=True)
            await self.client.close()
            for who in list(self.processes):
                await self.end(who)
            await self.network.stop()
        self._check()

    def _plan(self, count):
        """So many faults, each kind in turn, in an order of the seed's: what, to whom, how long."""
        draw, kinds = random.Random(self.seed), []
        while len(kinds) < count:
            each = [*self.network.kinds, "kill", "kill", "power", "power"]
            kinds += draw.sample(each, len(each))
        return [
            (kind, draw.choice(["master", "slave"]), draw.uniform(0.02, 0.3), draw.uniform(0, 0.05))
            for kind in kinds[:count]
        ]

    async def _befall(self, kind, who, seconds, pause):
        self.said.append(f"{kind} {who} {seconds:.3f}")
        if kind in self.network.kinds:
            await getattr(self.network, kind)(seconds)
            await asyncio.sleep(pause)
            return
        # what is on one side's disk only must not be lost on both
        await self.in_step()
        await asyncio.sleep(seconds / 2)
        await self.end(who, b"p" if kind == "power" else None)
        await asyncio.sleep(seconds / 4)
        await self.start(who)
        if kind == "power":
            await self.in_step()

    async def _have_the_same(self):
        theirs = (await self.status("slave")).get("haClientRuntimeInfo", {}).get("maxOffset")
        return theirs == (await self.status("master")).get("masterCommitLogMaxOffset", -1)

    # ---- load

    async def _load(self):
        for number in self.numbers:
            if not self.loading:
                return
            queue, size = number % 2, self._sizes.randrange(400)
            fields = {
                **{"a": "PG", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(queue)},
                **{"f": "0", "g": str(wall_clock_ms()), "h": "0", "i": f"KEYS\x01k{number}\x02"},
            }
            command = RemotingCommand(
                RequestCode.SEND_MESSAGE_V2, fields, b"%d " % number + b"x" * size
            )
            try:
                answer = await self.client.invoke(self.address("master"), command, 1500)
            except (RemotingError, OSError):
                await asyncio.sleep(0.01)
                continue
            self.answers[answer.code] = self.answers.get(answer.code, 0) + 1
            if answer.code == ResponseCode.SUCCESS:
                self.replicated.add(number)
            await asyncio.sleep(0.002 if answer.code == ResponseCode.SUCCESS else 0.01)

    # ---- in step

    async def status(self, who):
        """What request 907 tells; nothing while the broker does not answer."""
        client = RemotingClient()
        try:
            command = RemotingCommand(RequestCode.GET_BROKER_HA_STATUS)
            return json.loads((await client.invoke(self.address(who), command, 500)).body)
        except (RemotingError, OSError):
            return {}
        finally:
            await client.close()

    async def in_step(self):
        """Wait until puts are replicated; lead the master back when it has lost its end."""
        while True:
            wanted = len(self.replicated) + 2 * LOADERS
            how = await until_async(lambda wanted=wanted: self._come_to(wanted), "replication")
            if how == "replicated":
                return
            await self._lead_back()

    async def _come_to(self, wanted):
        """Whether more than so many are replicated, or an operator has to help; None: not yet."""
        if len(self.replicated) > wanted:
            return "replicated"
        self.slave_told = (await self.status("slave")).get("haClientRuntimeInfo", {})
        if "resync" in self.slave_told.get("problem", ""):
            return "lost"
        await asyncio.sleep(0.02)
        return None

    async def _lead_back(self):
        """What docs/ha.md tells an operator to do: whoever lost power gets the other's log."""
        who = self.without_power
        other = "slave" if who == "master" else "master"
        self.said.append(f"resync {who}")
        await self.end(who, b"q")
        path, address = self.stores[who], self.ha_address(other)
        with open_store(path, broker_role="SLAVE", on_corruption="truncate") as store:
            found, config = await find_divergence(store.followed_log, address), store.config
        if not found.in_order:
            cut(StoreDir(path), found)
        with open_store(path, config=config) as store:
            await fetch(store.followed_log, address)
        await self.start(who)
        # what the slave told of the master's life before stands until it has compared again
        await until_async(self._goes_on, "the slave follows the master that was led back")

    async def _goes_on(self):
        # shown where it is waited for in vain; nothing while the slave does not answer
        self.slave_told = told = (await self.status("slave")).get("haClientRuntimeInfo", {})
        return bool(told) and "problem" not in told

    # ---- in the end

    def told(self, what):
        counted = f"{len(self.replicated)} replicated, {self.answers}, {self.said}"
        return f"{what}\n{counted}, slave: {self.slave_told}"

    def _check(self):
        """Both have every message that was acknowledged, the same bytes, and derive the same."""
        with contextlib.ExitStack() as stack:
            master, slave = (
                stack.enter_context(open_store(self.stores[who])) for who in ("master", "slave")
            )
            for store in (master, slave):
                numbers = {int(bytes(one.body).split()[0]) for one in store.messages()}
                missing = self.replicated - numbers
                assert not missing, self.told(f"{store.path} lacks {sorted(missing)[:20]}")
            assert master.max_phy_offset == slave.max_phy_offset, self.told("the ends differ")
            assert log_of(master) == log_of(slave), self.told("the logs differ")
            assert derived(master, self.replicated) == derived(slave, self.replicated), self.told(
                "queues or index differ"
            )
        assert len(self.replicated) > 50, self.told("hardly anything was replicated")


def log_of(store):
    at, found = store.min_phy_offset, []
    while (piece := store.followed_log.bytes_at(at, 1 << 30)) is not None:
        found.append(bytes(piece))
        at += len(piece)
    return b"".join(found)


def derived(store, numbers):
    """What consume queues and index hold."""
    queues = {queue: store.read_units(*queue, 0, 1 << 20) for queue in store.queues()}
    keys = {
        number: [one.phy_offset for one in store.query_message(TOPIC, f"k{number}").messages]
        for number in numbers
    }
    assert all(keys.values())
    return queues, keys
