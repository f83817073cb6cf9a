"""What puts, gets and queries of rmqcore cost as a store grows; how it opens when it is large."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workers import Refusal, Worker

from rmqcore import Message
from rmqcore._codec import encode_record

_MAGIC_BLANK = b"\xcb\xd4\x31\x94"
_TAKEN = 100_000


@dataclass(frozen=True, slots=True)
class Cost:
    """One line of the table: microseconds a message at this size."""

    messages: int
    queues: int
    put_us: float
    get_us: float
    query_us: float


@dataclass(frozen=True, slots=True)
class Opening:
    """Seconds to open a large store, and the anonymous memory of the process then."""

    what: str
    seconds: float
    memory: int


class Growth:
    """Measures rmqcore alone, in a process of its own for each store."""

    def __init__(self, directory: Path, say: Callable[[str], None], *, quick: bool) -> None:
        self._directory = directory / "growth"
        self._say = say
        self._quick = quick

    def run(self) -> tuple[list[Cost], list[Opening]]:
        """Costs by number of messages, then by number of queues; openings.

        Raises:
            Refusal: something that was put did not come back.
        """
        counts = (10_000, 100_000) if self._quick else (100_000, 1_000_000, 10_000_000)
        queues = (1, 100) if self._quick else (1, 100, 10_000)
        costs = [self._cost(count, 4)[0] for count in counts]
        openings = []
        for number in queues:
            cost, opening = self._cost(counts[1], number)
            costs.append(cost)
        openings.append(opening)
        openings.append(self._sparse(16 if self._quick else 1024))
        return costs, openings

    def _cost(self, count: int, queues: int) -> tuple[Cost, Opening]:
        """Fill a store; the last 100,000 puts, gets of all and look-ups among all are timed."""
        self._say(f"growth: {count:,} messages in {queues:,} queues")
        worker = Worker("rmqcore", self._directory)
        path = worker.directory / "store"
        worker.ask("open", dir=path, log=1 << 30, flush="ASYNC", warm=1)
        how = {"topic": "T", "body": 256, "threads": 1, "queues": queues, "ready": 0}
        timed = min(_TAKEN, count // 2)
        worker.ask("put", start=0, count=count - timed, **how)
        worker.ask("settle")
        put = worker.ask("put", start=count - timed, count=timed, **how)
        worker.ask("settle")
        gets = [worker.ask("get", topic="T", decode=0) for _ in range(3)]
        if any(answer["messages"] != count for answer in gets):
            raise Refusal(f"{count} messages were put, {gets[0]['messages']} came back")
        wanted = {"start": 0, "range": count, "count": 20_000}
        queries = [worker.ask("query", topic="T", seed=seed, **wanted) for seed in range(3)]
        if any(answer["hits"] < 20_000 for answer in queries):
            raise Refusal("a key that was put was not found")
        worker.ask("close")
        worker.end()
        opening = self._opening(path, f"{count:,} messages in {queues:,} queues")
        shutil.rmtree(path)
        times = [put, *(min(kind, key=lambda one: one["seconds"]) for kind in (gets, queries))]
        return Cost(count, queues, *(t["seconds"] / t["messages"] * 1e6 for t in times)), opening

    def _opening(self, path: Path, what: str) -> Opening:
        worker = Worker("rmqcore", self._directory)
        answer = worker.ask("open", dir=path, log=1 << 30, flush="ASYNC", warm=0)
        time.sleep(0.2)
        opening = Opening(what, answer["seconds"], worker.anonymous_bytes())
        worker.ask("close")
        worker.end()
        return opening

    def _sparse(self, files: int) -> Opening:
        """Log files of 1 GiB with one record and a filler; the disk holds two pages of each."""
        self._say(f"growth: {files} sparse log files of 1 GiB")
        path, size = self._directory / "sparse", 1 << 30
        log = path / "commitlog"
        log.mkdir(parents=True)
        for number in range(files):
            message = Message("T", b"x" * 256, tags="TagA", keys=f"K{number}")
            with (log / f"{number * size:020d}").open("wb") as file:
                record = encode_record(
                    message,
                    queue_offset=number,
                    phy_offset=number * size,
                    store_timestamp_ms=1_700_000_000_000 + number,
                )
                file.write(record)
                if number < files - 1:
                    file.write((size - len(record)).to_bytes(4, "big") + _MAGIC_BLANK)
                file.truncate(size)
        worker = Worker("rmqcore", self._directory)
        worker.ask("open", dir=path, log=size, flush="ASYNC", warm=0)
        found = worker.ask("get", topic="T", decode=1)
        if found["messages"] != files:
            raise Refusal(f"{files} sparse log files, {found['messages']} messages came back")
        worker.ask("close")
        worker.end()
        opening = self._opening(path, f"{files} GiB of sparse log files")
        shutil.rmtree(path)
        return opening
