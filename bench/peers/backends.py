"""Queues of other programs, with their usual backend and with rmqcore's: enqueue and acknowledge.

Run as a program it is one of them: ``backends.py NAME DIRECTORY COUNT`` pushes COUNT bodies, takes
all of them out again and prints the seconds that both took.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workers import Refusal

BODY_SIZE = 256


def _saved_fifo(path: str) -> Any:
    from queuelib import FifoDiskQueue

    class Saved(FifoDiskQueue):
        """Writes its state after each call: what survives a kill is what it says of itself."""

        def push(self, string):
            super().push(string)
            self._saveinfo(self.info)

        def pop(self):
            popped = super().pop()
            self._saveinfo(self.info)
            return popped

    return Saved(path)


def _queuelib(name: str) -> Callable[[str], Any]:
    def make(path: str) -> Any:
        from queuelib import queue

        return getattr(queue, name)(path)

    return make


def _ours(name: str, durability: str) -> Callable[[str], Any]:
    def make(path: str) -> Any:
        from rmqcore.adapters import queuelib

        return getattr(queuelib, name)(path, durability=durability)

    return make


_MAKERS = {
    "FifoDiskQueue": _queuelib("FifoDiskQueue"),
    "LifoDiskQueue": _queuelib("LifoDiskQueue"),
    "FifoDiskQueue, saved after each call": _saved_fifo,
    "FifoSQLiteQueue": _queuelib("FifoSQLiteQueue"),
    "LifoSQLiteQueue": _queuelib("LifoSQLiteQueue"),
    "FifoQueue": _ours("FifoQueue", "page_cache"),
    "LifoQueue": _ours("LifoQueue", "page_cache"),
    "FifoQueue, disk": _ours("FifoQueue", "disk"),
    "LifoQueue, disk": _ours("LifoQueue", "disk"),
}


@dataclass(slots=True)
class Backend:
    """A queue with its usual backend, beside ours at the durability that it has.

    Attributes:
        program: whose queue it is.
        name: its class.
        durability: what an element that was pushed survives: "disk": a power cut; "page_cache": a
            kill; "memory": neither.
        count: elements of a round.
        ours: which of ours it is measured beside, and with how many elements.
        rates: elements a second, and of ours in the turn after.
    """

    program: str
    name: str
    durability: str
    count: int
    ours: tuple[str, int]
    rates: list[tuple[float, float]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Median of its elements a second, in and out."""
        return statistics.median(theirs for theirs, _ in self.rates)

    @property
    def our_rate(self) -> float:
        """The same of ours."""
        return statistics.median(ours for _, ours in self.rates)

    @property
    def ratio(self) -> float:
        """How many times faster ours was; median of the pairs."""
        return statistics.median(ours / theirs for theirs, ours in self.rates)


def backends() -> list[Backend]:
    """What is compared, with nothing measured yet."""
    return [
        Backend("queuelib", "FifoSQLiteQueue", "disk", 300, ("FifoQueue, disk", 1000)),
        Backend("queuelib", "LifoSQLiteQueue", "disk", 300, ("LifoQueue, disk", 1000)),
        Backend(
            "queuelib",
            "FifoDiskQueue, saved after each call",
            "page_cache",
            1000,
            ("FifoQueue", 50_000),
        ),
        Backend("queuelib", "FifoDiskQueue", "memory", 50_000, ("FifoQueue", 50_000)),
        Backend("queuelib", "LifoDiskQueue", "memory", 20_000, ("LifoQueue", 50_000)),
    ]


def measure(directory: Path, say: Callable[[str], None], *, pairs: int, part: int) -> list[Backend]:
    """Each backend and ours in turns.

    Args:
        directory: where they keep their files.
        say: told what is going on.
        pairs: rounds of each.
        part: divides the number of elements of a round.
    """
    found = backends()
    for one in found:
        say(f"backends: {one.program} {one.name}")
        for _ in range(pairs):
            theirs = _rate(one.name, directory, max(50, one.count // part))
            ours = _rate(one.ours[0], directory, max(50, one.ours[1] // part))
            one.rates.append((theirs, ours))
    return found


def _rate(name: str, directory: Path, count: int) -> float:
    path = directory / f"backend{time.monotonic_ns()}"
    path.mkdir()
    try:
        command = [sys.executable, __file__, name, str(path / "queue"), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        shutil.rmtree(path)
    if done.returncode:
        raise Refusal(f"{name} failed:\n{done.stderr[-1500:]}")
    return count / float(done.stdout)


def main() -> None:
    """Be one of the queues."""
    name, path, count = sys.argv[1:]
    queue = _MAKERS[name](path)
    bodies = [b"%0*d" % (BODY_SIZE, number) for number in range(int(count))]
    began = time.perf_counter()
    for body in bodies:
        queue.push(body)
    taken = [queue.pop() for _ in bodies]
    seconds = time.perf_counter() - began
    if sorted(taken) != bodies or len(queue):
        raise SystemExit(f"{name} did not give what it was given")
    queue.close()
    print(seconds)


if __name__ == "__main__":
    main()
