"""Masters and slaves on small stores in one process, and peers that speak single bytes."""

import asyncio
import fcntl
import random
import sys
import termios
import warnings
from contextlib import asynccontextmanager, contextmanager

from patience import TIMEOUT_S, until_async

from rmqcore import ConfigWarning, open_store
from rmqcore.ha import HAClient, HAConfig, HAService, connection
from rmqcore.ha.client import LogRange
from rmqcore.ha.frames import HEADER
from rmqcore.world import REAL, World

SMALL = {
    "mapped_file_size_commit_log": 16 << 10,
    "mapped_file_size_consume_queue": 600,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
#: of both sides, see `Clock`
_world = REAL
#: a peer that other work holds up is not hung up on
QUICK = {"ha_retry_interval": 10, "ha_housekeeping_interval": 60_000}


async def until(condition, what="the pair is where it should be"):
    """As `patience.until_async`; also for programs beside these tests that drive such pairs."""
    await until_async(condition, what)


def config(**settings):
    return HAConfig(**{**QUICK, **settings})


@contextmanager
def master_store(path, count=0, role="ASYNC_MASTER", **settings):
    with open_store(path, **{**SMALL, "broker_role": role, **settings}) as store:
        with warnings.catch_warnings():
            # nobody serves a SYNC_MASTER yet
            warnings.simplefilter("ignore", ConfigWarning)
            fill(store, count)
        # a copy of it has all files
        store.flush()
        yield store


@contextmanager
def slave_store(path, **settings):
    with open_store(path, **{**SMALL, "broker_role": "SLAVE", **settings}) as store:
        yield store


def fill(store, count, seed=1, size=300):
    draw = random.Random(seed)
    for number in range(count):
        body = draw.randbytes(draw.randrange(size))
        topic, queue_id = f"T{number % 3}", number % 2
        store.put(topic, body, queue_id=queue_id, keys=f"k{number}", tags=f"t{number % 5}")


def log_bytes(store, start=None):
    """All bytes of a store's log, from an offset on."""
    at, found = store.min_phy_offset if start is None else start, b""
    while (piece := store.followed_log.bytes_at(at, 1 << 30)) is not None:
        found += bytes(piece)
        at += len(piece)
    return found


def derived(store):
    """What consume queues and index hold."""
    queues = {
        queue: (
            store.min_queue_offset(*queue),
            store.read_units(*queue, store.min_queue_offset(*queue), 1 << 20),
        )
        for queue in store.queues()
    }
    keys = {
        f"{topic}#k{number}": [
            found.phy_offset for found in store.query_message(topic, f"k{number}").messages
        ]
        for topic in ("T0", "T1", "T2")
        for number in range(0, 400, 7)
    }
    return queues, keys


def files(path):
    """What the files below a folder hold, by name."""
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


async def has_all(slave, master):
    """Wait until a slave has appended all of its master's log."""
    await until_async(
        lambda: slave.followed_log.appended_offset == master.max_phy_offset,
        "the slave has all of the log",
    )


async def all_gone(service):
    """Wait until every connection of a master has ended."""
    await until_async(lambda: not service.connections, "every connection has ended")


async def tries(client, count=3):
    """Let a slave try so many more times; it says what is wrong at every moment of that."""
    ended, tell = [], client._log_disconnect
    client._log_disconnect = lambda *what: ended.append(what) or tell(*what)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            # the first that ends may have begun before
            while len(ended) <= count:
                assert client.problem
                await asyncio.sleep(0)
    finally:
        del client._log_disconnect


def _on_its_way(one):
    """Bytes that were sent to a slave, and that its side has not acknowledged to this one."""
    if one._sock.fileno() < 0:
        return 0
    return int.from_bytes(fcntl.ioctl(one._sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


class Clock:
    """The time that both sides of replication go by, in seconds; it stands still by itself."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        self._rounds = 0
        monkeypatch.setattr(sys.modules[__name__], "_world", World(monotonic_s=self.monotonic))
        # how often a master looks at it
        monkeypatch.setattr(connection, "_POLL_S", 0.001)
        monkeypatch.setattr(connection, "_IDLE_POLL_S", 0.001)
        wake = connection.HAConnection.wake

        def counted(one):
            self._rounds += 1
            wake(one)

        monkeypatch.setattr(connection.HAConnection, "wake", counted)

    def monotonic(self):
        return self.now

    async def go_on(self, seconds, service):
        """Let so much time pass, in which every slave's connection looks at the clock.

        What was sent before is at the other side: however busy the machine is, time does not pass
        while it is on its way.
        """
        await until_async(
            lambda: not any(map(_on_its_way, service.connections)), "what was sent has arrived"
        )
        self.now += seconds
        wanted = self._rounds + 3
        await until_async(
            lambda: self._rounds >= wanted or not service.connections,
            "the master has looked at the clock",
        )
        for _ in range(20):
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(store, **settings):
    """A master's side on any free port."""
    service = HAService(store, config(**settings), "127.0.0.1", 0, world=_world)
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


@asynccontextmanager
async def following(store, port, master=None, follows=lambda _: None, **settings):
    """A slave's side; ``master`` is the store whose log range it is told."""

    async def known():
        return None if master is None else LogRange(master.min_phy_offset, master.max_phy_offset)

    place = f"127.0.0.1:{port}"
    client = HAClient(
        store, config(**settings), lambda: place, known, follows=follows, world=_world
    )
    task = asyncio.get_running_loop().create_task(client.run())
    try:
        yield client
    finally:
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def peer_master(*scripts):
    """A port that plays one script, a coroutine function of reader and writer, a connection."""
    left, failures = list(scripts), []

    async def play(reader, writer):
        try:
            if left:
                await left.pop(0)(reader, writer)
                await writer.drain()
        except OSError:
            pass
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            writer.close()

    server = await asyncio.start_server(play, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()
    assert not failures


def frame(offset, body=b""):
    return HEADER.pack(offset, len(body)) + body
