"""``rmqcore bench``: puts and gets on a disk of yours, beside what that disk does by itself."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import disk_usage
from typing import Annotated, Final

import typer

from rmqcore import Durability, MessageStore, open_store
from rmqcore.chance import token_bytes
from rmqcore.cli.exit_codes import ExitCode
from rmqcore.cli.options import AsJson
from rmqcore.cli.output import print_facts, print_json, print_table, show, size_text
from rmqcore.cli.progress import Bars
from rmqcore.errors import ArgumentError
from rmqcore.world import monotonic_s, sync_data

_TOPIC: Final = "Bench"
#: This many puts wait for the disk at the same time.
_AT_ONCE: Final = 64
#: A step ends when it has moved this many bytes, whatever time is left.
_BYTES_MAX: Final = 256 << 20
_ROOM: Final = 4 * _BYTES_MAX
_GET_MESSAGES: Final = 32
#: Keys that are asked for by turns.
_KEYS_MAX: Final = 1000
_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class BenchStep:
    """What one step did.

    Attributes:
        name: of the step.
        did: what was done, in words.
        operations, messages, size: how many, and the bytes of bodies.
        seconds: all together.
        median_us, p99_us: of one operation, in microseconds.
    """

    name: str
    did: str
    operations: int
    messages: int
    size: int
    seconds: float
    median_us: float
    p99_us: float

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds if self.seconds else 0.0


def bench(
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="on the disk that is to be measured")
    ] = Path(),
    size: Annotated[int, typer.Option(min=1, max=4_000_000, help="bytes of a body")] = 1024,
    seconds: Annotated[float, typer.Option(min=0.01, help="that each step lasts")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Measure puts and gets in a scratch directory, beside what its disk does alone.

    One process, one store of embedded sizes; what was written is removed. It is this machine's
    figure, of this moment: other work on the disk counts, too.
    """
    free = disk_usage(directory).free
    if free < _ROOM:
        rule = f"a directory with {size_text(_ROOM)} free, and it has {size_text(free)}"
        raise ArgumentError("dir", str(directory), rule)
    with (
        tempfile.TemporaryDirectory(prefix="rmqcore-bench-", dir=directory) as scratch,
        Bars() as bars,
    ):
        steps = []
        for name, step in _steps(Path(scratch), token_bytes(size), seconds):
            bars.show(name, 0, None)
            steps.append(step())
        bars.hide(*(step.name for step in steps))
    where = {"directory": str(directory.resolve()), "file_system": _file_system(directory)}
    if as_json:
        rows = [asdict(step) | {"messages_per_s": round(step.rate, 1)} for step in steps]
        print_json(where | {"body_bytes": size, "steps": rows})
    else:
        _print(steps, where, size)
    raise typer.Exit(ExitCode.DONE)


def _print(steps: list[BenchStep], where: dict[str, str], size: int) -> None:
    columns = ["step", "messages/s", "MB/s", "median us", "p99 us"]
    print_table(
        columns,
        [
            (
                step.name,
                f"{step.rate:,.0f}",
                f"{step.size / 1e6 / step.seconds:,.1f}" if step.seconds else "",
                f"{step.median_us:,.0f}",
                f"{step.p99_us:,.0f}",
            )
            for step in steps
        ],
        right=columns[1:],
    )
    print_facts({step.name: step.did for step in steps})
    print_facts({"in": f"{where['directory']} ({where['file_system']})"})
    alone, waiting = steps[0].rate, steps[1].rate
    if alone:
        show(
            f"\na put that waits for the disk: {waiting / alone:.2f} times what the disk does alone"
        )


def _steps(
    scratch: Path, body: bytes, seconds: float
) -> Iterator[tuple[str, Callable[[], BenchStep]]]:
    """Name and work of each step, in order; the store is open for the later ones."""
    size = len(body)
    name = "disk: write and sync"
    yield name, lambda: _writes(name, scratch / "synced", body, seconds, sync=True)
    with open_store(scratch / "store") as store:
        yield "put, waits for the disk", lambda: _puts(store, body, seconds, Durability.DISK)
        at_once = f"put, {_AT_ONCE} wait at once"
        yield at_once, lambda: asyncio.run(_puts_at_once(at_once, store, body, seconds))
    plain = "disk: write alone"
    yield plain, lambda: _writes(plain, scratch / "plain", body, seconds, sync=False)
    with open_store(scratch / "store") as store:
        yield "put, page cache", lambda: _puts(store, body, seconds, Durability.PAGE_CACHE)
        yield "get", lambda: _gets(store, size, seconds)
        yield "query by key", lambda: _queries(store, size, seconds)
    files = sorted((scratch / "store" / "commitlog").iterdir())
    yield "disk: read alone", lambda: _reads(files, size, seconds)


class _Clock:
    """Times operations until the time, or the room, is over."""

    def __init__(self, seconds: float) -> None:
        self._began = self._last = monotonic_s()
        self._ends = self._began + seconds
        self._times: list[float] = []
        self._bytes = 0

    def tick(self, size: int, began: float | None = None) -> bool:
        """One operation is over, that began now or behind the last one; whether others follow."""
        now = monotonic_s()
        self._times.append(now - (self._last if began is None else began))
        self._last = now
        self._bytes += size
        return now < self._ends and self._bytes < _BYTES_MAX

    def step(self, name: str, did: str, messages: int, size: int) -> BenchStep:
        """The step as a whole."""
        times = sorted(self._times) or [0.0]
        return BenchStep(
            name,
            did,
            operations=len(self._times),
            messages=messages,
            size=messages * size,
            seconds=self._last - self._began,
            median_us=times[len(times) // 2] * 1e6,
            p99_us=times[len(times) * 99 // 100] * 1e6,
        )


def _writes(name: str, path: Path, body: bytes, seconds: float, *, sync: bool) -> BenchStep:
    """Append to a file, as whoever writes a log of his own would."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    count, clock = 0, _Clock(seconds)
    try:
        goes_on = True
        while goes_on:
            os.write(fd, body)
            if sync:
                sync_data(fd)
            count += 1
            goes_on = clock.tick(len(body))
    finally:
        os.close(fd)
    each = " that grows, each with fdatasync" if sync else ", none of them synced"
    did = f"{count:,} appends of {len(body):,} bytes to a file{each}"
    return clock.step(name, did, count, len(body))


def _puts(store: MessageStore, body: bytes, seconds: float, durability: Durability) -> BenchStep:
    waits = durability is Durability.DISK
    count, clock = 0, _Clock(seconds)
    goes_on = True
    while goes_on:
        store.put(_TOPIC, body, keys=f"k{count}", durability=durability)
        count += 1
        goes_on = clock.tick(len(body))
    name = "put, waits for the disk" if waits else "put, page cache"
    how = "one after the other, each on the disk when it returns" if waits else "none synced"
    return clock.step(
        name, f"{count:,} puts of {len(body):,} bytes with a key, {how}", count, len(body)
    )


async def _puts_at_once(name: str, store: MessageStore, body: bytes, seconds: float) -> BenchStep:
    count, clock = 0, _Clock(seconds)
    goes_on = True

    async def one_after_the_other() -> None:
        nonlocal count, goes_on
        while goes_on:
            began = monotonic_s()
            await store.put_async(_TOPIC, body, durability=Durability.DISK)
            count += 1
            goes_on = clock.tick(len(body), began) and goes_on

    await asyncio.gather(*(one_after_the_other() for _ in range(_AT_ONCE)))
    did = f"{count:,} puts of {len(body):,} bytes, {_AT_ONCE} at a time, each waits for the disk"
    return clock.step(name, did, count, len(body))


def _gets(store: MessageStore, size: int, seconds: float) -> BenchStep:
    count, calls, clock = 0, 0, _Clock(seconds)
    at, goes_on = 0, True
    while goes_on:
        result = store.get_message(_TOPIC, 0, at, max_messages=_GET_MESSAGES)
        bodies = [message.body for message in result.messages]
        at = result.next_queue_offset if bodies else 0
        count += len(bodies)
        calls += 1
        goes_on = clock.tick(sum(map(len, bodies)))
    did = (
        f"{calls:,} gets of {_GET_MESSAGES} messages and their bodies, from the begin of the queue"
    )
    return clock.step("get", did, count, size)


def _queries(store: MessageStore, size: int, seconds: float) -> BenchStep:
    keys = 0
    # a slow disk has taken fewer
    while keys < _KEYS_MAX and store.query_message(_TOPIC, f"k{keys}", max_messages=1).messages:
        keys += 1
    count, clock = 0, _Clock(seconds)
    goes_on = True
    while goes_on:
        found = store.query_message(_TOPIC, f"k{count % keys}", max_messages=1)
        count += len(found.messages)
        goes_on = clock.tick(size)
    return clock.step("query by key", f"{count:,} messages by one of {keys:,} keys", count, size)


def _reads(files: list[Path], size: int, seconds: float) -> BenchStep:
    """Read the log's files as a copy would; they are in the page cache, as for the gets."""
    read, clock = 0, _Clock(seconds)
    goes_on = True
    while goes_on:
        for path in files:
            with path.open("rb", buffering=0) as stream:
                while goes_on and (data := stream.read(_READ_BYTES)):
                    read += len(data)
                    goes_on = clock.tick(len(data))
    did = f"{size_text(read)} of the log's files, in pieces of {size_text(_READ_BYTES)}"
    return clock.step("disk: read alone", did, read // size, size)


def _file_system(directory: Path) -> str:
    """The kind of the file system that a directory is on; a question mark where nobody says."""
    try:
        mounts = Path("/proc/self/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return "?"
    there = str(directory.resolve())
    kinds = [line.split()[1:3] for line in mounts if len(line.split()) > 2]
    fitting = [
        (len(place), kind)
        for place, kind in kinds
        if there == place or there.startswith(place.rstrip("/") + "/")
    ]
    return max(fitting, default=(0, "?"))[1]
