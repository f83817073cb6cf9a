"""Python's durable queues as people use them today, beside rmqcore at the same durability.

Run as a program it is one of them: ``neighbours.py NAME DIRECTORY COUNT [kill]`` puts COUNT bodies
and prints the seconds taken, and with "kill" dies by kill -9 right after the last one;
``neighbours.py NAME DIRECTORY left`` prints how many are there.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from workers import Refusal

BODY_SIZE = 256
_SURVIVORS = 200


class _Queue:
    """One durable queue: `put` takes a body, `left` tells how many are there."""

    put: Callable[[bytes], object]
    left: Callable[[], int]


class _Rmqcore(_Queue):
    def __init__(self, directory: str, flush: str = "ASYNC_FLUSH") -> None:
        from rmqcore import open_store

        store = open_store(directory, flush_disk_type=flush)
        self.put = lambda body: store.put("queue", body)
        self.left = lambda: store.max_queue_offset("queue", 0)


class _RmqcoreSync(_Rmqcore):
    def __init__(self, directory: str) -> None:
        super().__init__(directory, "SYNC_FLUSH")


class _PersistFile(_Queue):
    def __init__(self, directory: str) -> None:
        from persistqueue import Queue

        queue = Queue(directory)
        self.put, self.left = queue.put, queue.qsize


class _PersistSqliteAck(_Queue):
    def __init__(self, directory: str) -> None:
        from persistqueue import SQLiteAckQueue

        queue = SQLiteAckQueue(directory, auto_commit=True)
        self.put, self.left = queue.put, lambda: queue.size


class _Diskcache(_Queue):
    def __init__(self, directory: str) -> None:
        from diskcache import Deque

        deque = Deque(directory=directory)
        self.put, self.left = deque.append, lambda: len(deque)


class _Litequeue(_Queue):
    def __init__(self, directory: str) -> None:
        from litequeue import LiteQueue

        Path(directory).mkdir(exist_ok=True)
        queue = LiteQueue(f"{directory}/queue.db")
        self.put = lambda body: queue.put(body.decode("ascii"))
        self.left = queue.qsize


class _QueuelibFile(_Queue):
    def __init__(self, directory: str) -> None:
        from queuelib import FifoDiskQueue

        queue = FifoDiskQueue(directory)
        self.put, self.left = queue.push, lambda: len(queue)


class _QueuelibSqlite(_Queue):
    def __init__(self, directory: str) -> None:
        from queuelib.queue import FifoSQLiteQueue

        Path(directory).mkdir(exist_ok=True)
        queue = FifoSQLiteQueue(f"{directory}/queue.db")
        self.put, self.left = queue.push, lambda: len(queue)


class _Kombu(_Queue):
    def __init__(self, directory: str) -> None:
        from kombu import Connection

        for name in ("messages", "control"):
            Path(directory, name).mkdir(parents=True, exist_ok=True)
        options = {
            "data_folder_in": f"{directory}/messages",
            "data_folder_out": f"{directory}/messages",
            "control_folder": f"{directory}/control",
        }
        queue = Connection("filesystem://", transport_options=options).SimpleQueue("queue")
        self.put = lambda body: queue.put(body, serializer=None)
        self.left = queue.qsize


@dataclass(slots=True)
class Neighbour:
    """A queue, what a put of it survives by its own account, and what was measured.

    Attributes:
        name: what is imported, and its class.
        package: name on the package index.
        durability: "disk", "page_cache" or "memory", with its default settings.
        count: puts of a round.
        rates: puts a second, and of rmqcore's turn after each.
        survived: of the puts before a kill -9, how many were there afterwards.
    """

    name: str
    package: str
    durability: str
    count: int
    make: Callable[[str], _Queue]
    rates: list[tuple[float, float]] = field(default_factory=list)
    survived: int = 0

    @property
    def survives(self) -> bool:
        """Everything that was put before a kill -9 was there afterwards."""
        return self.survived == _SURVIVORS

    @property
    def ratio(self) -> float:
        """How many times faster rmqcore was; median of the pairs."""
        return statistics.median(ours / other for other, ours in self.rates)

    @property
    def rate(self) -> float:
        """Median of its puts a second."""
        return statistics.median(other for other, _ in self.rates)


def neighbours() -> list[Neighbour]:
    """The queues, with nothing measured yet."""
    return [
        Neighbour("persistqueue.Queue", "persist-queue", "disk", 600, _PersistFile),
        Neighbour("persistqueue.SQLiteAckQueue", "persist-queue", "disk", 600, _PersistSqliteAck),
        Neighbour("queuelib.FifoSQLiteQueue", "queuelib", "disk", 200, _QueuelibSqlite),
        Neighbour("diskcache.Deque", "diskcache", "page_cache", 5_000, _Diskcache),
        Neighbour("litequeue.LiteQueue", "litequeue", "page_cache", 5_000, _Litequeue),
        Neighbour("kombu filesystem://", "kombu", "page_cache", 3_000, _Kombu),
        Neighbour("queuelib.FifoDiskQueue", "queuelib", "memory", 50_000, _QueuelibFile),
    ]


_OURS = {"disk": ("rmqcore sync", 2_000), "page_cache": ("rmqcore", 200_000)}
_OURS["memory"] = _OURS["page_cache"]
_MAKERS = {one.name: one.make for one in neighbours()}
_MAKERS |= {"rmqcore": _Rmqcore, "rmqcore sync": _RmqcoreSync}


def check() -> None:
    """See that every package is here.

    Raises:
        Refusal: one is missing.
    """
    missing = set()
    for one in neighbours():
        try:
            metadata.version(one.package)
        except metadata.PackageNotFoundError:
            missing.add(one.package)
    if missing:
        raise Refusal(
            f"Python peers are missing: {', '.join(sorted(missing))}; the extra is [peers]"
        )


def measure(
    directory: Path, say: Callable[[str], None], *, pairs: int, part: int
) -> list[Neighbour]:
    """Every queue and rmqcore in turns, and what is left of each after kill -9.

    Args:
        directory: where they keep their files.
        say: told what is going on.
        pairs: rounds of each.
        part: divides the number of puts of a round.
    """
    found = neighbours()
    for one in found:
        say(f"Python peers: {one.name}")
        for _ in range(pairs):
            ours, count = _OURS[one.durability]
            with ExitStack() as cleaning:
                rates = [
                    _rate(name, _fresh(directory, cleaning), max(50, number // part))
                    for name, number in ((one.name, one.count), (ours, count))
                ]
            one.rates.append((rates[0], rates[1]))
        with ExitStack() as cleaning:
            one.survived = _survivors(one.name, _fresh(directory, cleaning))
    for name in ("rmqcore", "rmqcore sync"):
        with ExitStack() as cleaning:
            if _survivors(name, _fresh(directory, cleaning)) != _SURVIVORS:
                raise Refusal(f"{name} lost messages by kill -9")
    return found


def _fresh(directory: Path, cleaning: ExitStack) -> Path:
    path = directory / f"neighbour{time.monotonic_ns()}"
    cleaning.callback(shutil.rmtree, path, ignore_errors=True)
    return path


def _child(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, __file__, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _rate(name: str, path: Path, count: int) -> float:
    done = _child(name, path, count)
    if done.returncode:
        raise Refusal(f"{name} failed:\n{done.stderr[-1500:]}")
    left = _child(name, path, "left")
    if left.stdout.strip() != str(count):
        raise Refusal(f"{name}: {count} were put, {left.stdout.strip()} are there {left.stderr}")
    return count / float(done.stdout)


def _survivors(name: str, path: Path) -> int:
    done = _child(name, path, _SURVIVORS, "kill")
    if done.returncode != -signal.SIGKILL:
        raise Refusal(f"{name} failed before it was killed:\n{done.stderr[-1500:]}")
    left = _child(name, path, "left")
    return int(left.stdout) if left.stdout.strip() else 0


def _bodies(count: int) -> Iterator[bytes]:
    return (b"%0*d" % (BODY_SIZE, number) for number in range(count))


def main() -> None:
    """Be one of the queues."""
    name, directory, what, *kill = sys.argv[1:]
    queue = _MAKERS[name](directory)
    if what == "left":
        print(queue.left())
        return
    put = queue.put
    began = time.perf_counter()
    for body in _bodies(int(what)):
        put(body)
    seconds = time.perf_counter() - began
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)
    close = getattr(getattr(queue.put, "__self__", None), "close", None)
    if close is not None:
        close()
    print(seconds)


if __name__ == "__main__":
    main()
