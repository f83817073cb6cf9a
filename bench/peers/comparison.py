"""The same work on Apache RocketMQ's store and on rmqcore, in turns: Java, rmqcore, Java, ...

Every store that was written is read back on both sides before a figure counts: the same messages,
the same bytes, the same number of index entries.
"""

from __future__ import annotations

import os
import shutil
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import limits
from rows import Row, new_rows
from workers import WARM_UP_BODY, Pair, Refusal, Worker

from rmqcore._index import read_header

BODY = 256
#: how often rmqcore may try to keep Java's rate on a machine that others use
_TRIES = 3
KEYS_PER_MESSAGE = 3  # the key, the unique key, the tag


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much work a run does.

    Attributes:
        log: bytes of a log file.
        puts: messages of a round of puts.
        pairs: rounds of each side that count.
        opens: rounds of each side where a store is opened in each.
        warm_ups: rounds of each side before them.
        sync: messages of a sync round for each caller, at least.
        queries: look-ups of a round.
        rebuilt: messages of the store whose derived files are lost.
        killed: bytes of log of the store that is killed.
        roll_log: bytes of a log file where rolls are measured.
        heaps: Java heaps to try, the smallest first.
    """

    log: int = 1 << 30
    puts: int = 250_000
    pairs: int = 5
    opens: int = 3
    warm_ups: int = 1
    sync: int = 2_000
    queries: int = 20_000
    rebuilt: int = 1_000_000
    killed: int = 1 << 30
    roll_log: int = 64 << 20
    heaps: tuple[str, ...] = ("64m", "96m", "128m", "192m", "256m", "384m", "512m", "768m", "1g")


FULL = Sizes()
QUICK = Sizes(
    log=256 << 20,
    puts=60_000,
    pairs=3,
    opens=1,
    sync=400,
    queries=5_000,
    rebuilt=150_000,
    killed=64 << 20,
    roll_log=16 << 20,
    heaps=("128m", "512m", "1g"),
)


class Expected:
    """What was put into the topics of a store, to compare with what is read back."""

    def __init__(self) -> None:
        self._topics: dict[str, tuple[int, int, int]] = {}
        self._next: dict[tuple[str, str], int] = defaultdict(int)

    def take(self, side: str, topic: str, count: int, body: int) -> int:
        """The number of the first of ``count`` messages that a side will put."""
        start = self._next[side, topic]
        self._next[side, topic] = end = start + count
        self._topics[topic] = (end, end * (end - 1) // 2, body)
        return start

    def __iter__(self) -> Iterator[tuple[str, tuple[int, int, int]]]:
        return iter(self._topics.items())

    @property
    def messages(self) -> int:
        """Messages of all topics of one side."""
        return sum(count for count, _, _ in self._topics.values())


def index_entries(store: Path) -> int:
    """Entries in the index files of a store."""
    total = 0
    for path in (store / "index").iterdir():
        with path.open("rb") as file:
            count = read_header(file.read(40))[5]
        total += max(0, count - 1)
    return total


class Comparison:
    """Measures every row; a part that is refused has no figures."""

    def __init__(self, directory: Path, sizes: Sizes, say: Callable[[str], None]) -> None:
        self.rows = new_rows()
        self.limits = limits.measure(directory)
        self.latencies: list[tuple[str, str, dict]] = []
        #: parts that have no figures, and why
        self.refused: dict[str, str] = {}
        self._directory = directory
        self._sizes = sizes
        self._say = say
        self._pair: Pair
        self._expected = Expected()
        self._log = sizes.log

    def run(self, only: str = "") -> dict[str, Row]:
        """Measure, and return the rows that have figures.

        A part in which a side could not do its work, or did other work than was asked, has none:
        `refused` says why, and the others go on.
        """
        parts = (
            self._puts,
            self._ready,
            self._four_threads,
            self._batches,
            self._bodies_1k,
            self._syncs,
            self._reads,
            self._rolls,
            self._cold,
            self._lost,
            self._killed,
            self._memory,
        )
        self._pair = Pair(self._directory)
        try:
            for part in parts:
                name = part.__name__.strip("_")
                if not only or name in only.split(","):
                    self._attempt(name, part)
        finally:
            self._pair.end()
        return {name: row for name, row in self.rows.items() if row.pairs}

    def _attempt(self, name: str, part: Callable[[], None]) -> None:
        """Measure one part, with a new pair behind one that was refused."""
        before = {row.name: list(row.pairs) for row in self.rows.values()}
        try:
            part()
        except Refusal as reason:
            lost = [row for row in self.rows.values() if row.pairs != before[row.name]]
            for row in lost:
                row.pairs = before[row.name]
            self.refused[name] = str(reason)
            self._say(f"  {name}: no result: {reason}")
            with suppress(Refusal, OSError):
                self._pair.end()
            fresh = self._directory / f"behind-{name}"
            fresh.mkdir()
            self._pair = Pair(fresh)

    # ---- what the parts share

    @contextmanager
    def _stores(self, name: str, **settings: object) -> Iterator[None]:
        """A pair of empty, warm stores; compared with each other and removed afterwards."""
        self._expected = Expected()
        log = settings.pop("log", self._sizes.log)
        self._log = log
        self._say(f"{name}: opening and warming both stores")
        self._pair.open(name, log=log, **settings)
        yield
        self._verify(name)
        self._pair.close(name)

    def _verify(self, name: str) -> None:
        self._say(f"{name}: reading everything back")
        filled = self._log * 28 // 100 // WARM_UP_BODY // 64 * 64 + 1
        for side, worker in self._pair.workers.items():
            worker.ask("settle")
            for topic, (count, total, body) in self._expected:
                found = worker.ask("verify", topic=topic, body=body)
                if (found["messages"], found["sum"]) != (count, total):
                    raise Refusal(f"{side} put {count} messages into {topic}, read {found}")
            entries = index_entries(worker.directory / name)
            wanted = (self._expected.messages + filled) * KEYS_PER_MESSAGE
            if entries != wanted:
                raise Refusal(f"{side} has {entries} index entries, it should have {wanted}")

    def _rounds(self, title: str, work: Callable[[str, Worker], dict], pairs: int = 0) -> list:
        """Rounds in turns: [(Java's answer, rmqcore's), ...] of those that count."""
        done = []
        pairs = pairs or self._sizes.pairs
        for turn in range(-self._sizes.warm_ups, pairs):
            self._say(f"{title}: {'warm-up' if turn < 0 else f'pair {turn + 1} of {pairs}'}")
            answers = []
            for side, worker in self._pair.workers.items():
                answers.append(work(side, worker))
                worker.ask("settle")
            if turn >= 0:
                self._same_work(title, *answers)
                done.append(tuple(answers))
        return done

    @staticmethod
    def _same_work(title: str, java: dict, ours: dict) -> None:
        for name in ("messages", "hits", "sum", "letters"):
            if name in java and name in ours and java[name] != ours[name]:
                raise Refusal(f"{title}: {name} of Java {java[name]}, of rmqcore {ours[name]}")

    def _fill(self, name: str, done: list, *, time: str = "seconds", did: str = "") -> None:
        row = self.rows[name]
        row.pairs = [(a["messages"] / a[time], b["messages"] / b[time]) for a, b in done]
        first = done[0][1]
        size = f", {first['bytes'] / 1e6:.0f} MB" if "bytes" in first else ""
        row.did = f"{first['messages']:,} messages{size} a round; {did}"
        self._say(f"  {row.title}: {row.ratio:.2f}x")

    def _put(self, topic: str, count: int, *, body: int = BODY, ours: dict | None = None, **how):
        """Work for `_rounds`: puts of fresh messages."""

        def work(side: str, worker: Worker) -> dict:
            start = self._expected.take(side, topic, count, body)
            put = {"topic": topic, "start": start, "count": count, "body": body}
            more = {"threads": 1, "queues": 4, "ready": 0} | how
            return worker.ask("put", **put, **more, **(ours or {} if side == "rmqcore" else {}))

        return work

    # ---- puts

    def _puts(self) -> None:
        with self._stores("put"):
            done = self._rounds("put", self._put("T", self._sizes.puts))
            self._fill("put", done, did="built in the loop; async flush; dispatch beside")
            did = "the same rounds until queues and index have caught up"
            self._fill("put_dispatch", done, time="dispatched", did=did)
        self._beside_limits("put", done)

    def _beside_limits(self, name: str, done: list) -> None:
        best = self.limits.bytes_per_second()
        share = max(b["bytes"] / b["seconds"] / best for _, b in done)
        self.rows[name].beside = f"{share:.0%} of memcpy plus CRC"

    def _ready(self) -> None:
        with self._stores("put_message"):
            done = self._rounds("put_message", self._put("T", self._sizes.puts, ready=1))
            self._fill("put_message", done, did="built before; async flush; dispatch beside")

    def _four_threads(self) -> None:
        with self._stores("put_4"):
            done = self._rounds("put, 4 threads", self._put("T", self._sizes.puts, threads=4))
            self._fill("put_4", done, did="built in the loop; async flush; 4 threads")

    def _bodies_1k(self) -> None:
        with self._stores("put_1k"):
            work = self._put("T", self._sizes.puts * 2 // 5, body=1024)
            done = self._rounds("put, 1 KiB", work)
            self._fill("put_1k", done, did="built in the loop; async flush; dispatch beside")
        self._beside_limits("put_1k", done)

    def _batches(self) -> None:
        count = self._sizes.puts // 64 * 64
        for name, encoded in (("batch_encoded", 1), ("batch_list", 0), ("put_columns", 0)):

            def work(side: str, worker: Worker, name: str = name, encoded: int = encoded) -> dict:
                start = self._expected.take(side, "B", count, BODY)
                put = {"topic": "B", "start": start, "count": count, "body": BODY}
                if name == "put_columns" and side == "rmqcore":
                    return worker.ask("columns", **put)
                return worker.ask("batch", **put, encoded=encoded)

            with self._stores(name):
                done = self._rounds(self.rows[name].title, work)
                made = "encoded before the loop" if encoded else "encoded in the loop"
                self._fill(name, done, did=f"{made}; async flush; dispatch beside")
            self._beside_limits(name, done)

    def _syncs(self) -> None:
        raw, each = limits.RawSync(self._directory), self._sizes.sync
        rates: list[float] = []
        plain = self._put("T", each)

        def one(side: str, worker: Worker) -> dict:
            if side == "java":
                rates.append(raw.rate(each))
            return plain(side, worker)

        with self._stores("sync", log=self._sizes.log // 4, flush="SYNC"):
            done = self._rounds("sync flush, 1 caller", one)
            self._fill("sync_1", done, did="each waits for the disk")
            counted = rates[-len(done) :]
            shares = sorted(
                b["messages"] / b["seconds"] / rate
                for (_, b), rate in zip(done, counted, strict=True)
            )
            middle = shares[len(shares) // 2]
            raw_rate = sorted(counted)[len(counted) // 2]
            text = f"{middle:.2f} of raw fdatasync ({raw_rate / 1e3:.2f} k/s; wanted 0.9)"
            self.rows["sync_1"].beside = text
            raw.close()
            for callers in (8, 64):
                count = each * (4 if callers == 8 else 10)
                work = self._put("T", count, threads=callers)
                done = self._rounds(f"sync flush, {callers} threads", work)
                self._fill(f"sync_{callers}", done, did="each waits for the disk")
                work = self._put("T", count, threads=callers, ours={"tasks": callers})
                done = self._rounds(f"sync flush, {callers} asyncio tasks", work)
                did = "each waits for the disk; Java: threads"
                self._fill(f"sync_{callers}_async", done, did=did)

    # ---- reads

    def _reads(self) -> None:
        total, queries = self._sizes.puts * 2, self._sizes.queries
        with self._stores("reads"):
            fill = self._put("T", total // 2)
            for side, worker in self._pair.workers.items():
                for _ in range(2):
                    fill(side, worker)
                worker.ask("settle")
            did = "every record's size read"
            self._fill("get", self._rounds("get", self._get(0)), did=did)
            did = "topic, body, tags, keys, both offsets read of each"
            self._fill("get_decoded", self._rounds("get, decoded", self._get(1)), did=did)
            did = "one thread on both sides; rmqcore: 11 columns with body and keys"
            self._fill("scan", self._rounds("scan to Arrow", self._scan), did=did)
            seeds = iter(range(1_000_000))

            def query(_: str, worker: Worker) -> dict:
                wanted = {"start": 0, "range": total, "count": queries, "seed": next(seeds)}
                answer = worker.ask("query", topic="T", **wanted)
                if answer["hits"] != queries:
                    raise Refusal(f"{queries} keys are there, {answer['hits']} were found")
                return answer

            did = f"random keys among {total:,}; one hit each"
            self._fill("query", self._rounds("query", query), did=did)

    @staticmethod
    def _get(decode: int) -> Callable[[str, Worker], dict]:
        return lambda _, worker: worker.ask("get", topic="T", decode=decode)

    @staticmethod
    def _scan(side: str, worker: Worker) -> dict:
        if side == "java":
            return worker.ask("get", topic="T", decode=1)
        return worker.ask("scan", topic="T")

    # ---- rolls, cold files, latency

    def _rolls(self) -> None:
        log = self._sizes.roll_log
        count = 9 * log // 413
        with self._stores("rolls", log=log):
            done = self._rounds(
                "sustained over eight rolls", self._put("T", count), pairs=self._sizes.opens
            )
            did = f"log files of {log >> 20} MiB, made and warmed while the puts run"
            self._fill("sustained", done, did=did)
            self._latency("a file rolls, 50 k/s", "T", count // 3, rate=50_000)
        with self._stores("latency"):
            self._latency("dispatch runs, full rate", "T", self._sizes.puts, rate=0)
            self._latency("a flush is in progress, 50 k/s", "T", self._sizes.puts, 50_000, 1)

    def _latency(self, title: str, topic: str, count: int, rate: int, flusher: int = 0) -> None:
        for side, worker in self._pair.workers.items():
            self._say(f"latency while {title}: {side}")
            for turn in range(2):
                start = self._expected.take(side, topic, count, BODY)
                put = {"topic": topic, "start": start, "count": count, "body": BODY}
                answer = worker.ask("latency", **put, rate=rate, flusher=flusher)
                worker.ask("settle")
                if turn:
                    self.latencies.append((title, side, answer))

    def _cold(self) -> None:
        count, done = self._sizes.puts, []
        for turn in range(self._sizes.opens):
            self._say(f"cold file: pair {turn + 1} of {self._sizes.opens}")
            answers = []
            for side, worker in self._pair.workers.items():
                path, more = worker.directory / "cold", {"log": self._sizes.log, "warm": 0}
                worker.ask("open", dir=path, flush="ASYNC", **more)
                put = {"topic": "T", "start": 0, "count": count, "body": BODY}
                answers.append(worker.ask("put", **put, threads=1, queues=4, ready=0))
                found = worker.ask("verify", topic="T", body=BODY)
                if found["messages"] != count:
                    raise Refusal(f"{side} read {found['messages']} of {count} messages back")
                worker.ask("close")
                shutil.rmtree(path)
            done.append(tuple(answers))
        self._fill("cold", done, did="a new store, log file never touched; async flush")

    # ---- opening

    def _lost(self) -> None:
        count, worker = self._sizes.rebuilt, self._pair.workers["rmqcore"]
        source = self._directory / "source"
        self._say(f"open: writing {count:,} messages")
        worker.ask("open", dir=source, log=self._sizes.log, flush="ASYNC", warm=0)
        put = {"topic": "T", "start": 0, "count": count, "body": BODY}
        worker.ask("put", **put, threads=1, queues=4, ready=0)
        worker.ask("close")
        for name in ("consumequeue", "index"):
            shutil.rmtree(source / name)
        (source / "checkpoint").unlink()
        (source / "abort").touch()
        self._opens("open_lost", dict.fromkeys(Pair.sides, source), count)
        shutil.rmtree(source)

    def _opens(self, name: str, sources: dict[str, Path], count: int) -> None:
        """Rounds of opening copies of stores; all read back in the end."""

        def work(side: str, worker: Worker) -> dict:
            path = worker.directory / name
            shutil.copytree(sources[side], path, copy_function=_copy)
            answer = worker.ask("open", dir=path, log=self._sizes.log, flush="ASYNC", warm=0)
            found = worker.ask("verify", topic="T", body=BODY)
            entries = index_entries(path)
            if (found["messages"], entries) != (count, count * KEYS_PER_MESSAGE):
                raise Refusal(f"{side} has {found['messages']} of {count} messages, {entries} keys")
            worker.ask("close")
            shutil.rmtree(path)
            return {"seconds": answer["seconds"], "messages": count, "bytes": answer["end"]}

        done = []
        for turn in range(-self._sizes.warm_ups, self._sizes.opens):
            self._say(f"{self.rows[name].title}: {'warm-up' if turn < 0 else f'pair {turn + 1}'}")
            answers = tuple(work(side, worker) for side, worker in self._pair.workers.items())
            if turn >= 0:
                done.append(answers)
        self._fill(name, done, did="until all is dispatched; warmed-up process, files in memory")

    def _killed(self) -> None:
        count = self._sizes.killed // 413
        sources = {}
        for side in Pair.sides:
            self._say(f"open after kill -9: {side} writes {self._sizes.killed >> 20} MiB of log")
            worker = Worker(side, self._directory / "killed")
            sources[side] = path = worker.directory / "store"
            worker.ask("open", dir=path, log=self._sizes.log, flush="ASYNC", warm=0)
            put = {"topic": "T", "start": 0, "count": count, "body": BODY}
            worker.ask("put", **put, threads=1, queues=4, ready=0)
            worker.kill()
        self.rows["open_killed"].title += f", {self._sizes.killed >> 20} MiB of log"
        self._opens("open_killed", sources, count)
        shutil.rmtree(self._directory / "killed")

    # ---- memory

    def _memory(self) -> None:
        """The smallest heap at which Java keeps 95 % of its rate, and rmqcore at that rate."""
        full, _ = self._java_rate("3g")
        for heap in self._sizes.heaps:
            try:
                rate, java = self._java_rate(heap)
            except Refusal:
                continue
            if rate >= 0.95 * full:
                break
        else:
            raise Refusal(f"Java keeps 95 % of its {full:.0f} messages a second with no heap tried")
        for _ in range(_TRIES):
            reached, ours = self._paced(round(rate))
            if reached >= 0.95 * rate:
                break
        else:
            raise Refusal(f"rmqcore put {reached:.0f} a second, asked for {rate:.0f}")
        row = self.rows["memory"]
        row.pairs = [(java / (1 << 20), ours / (1 << 20))]
        row.did = (
            f"highest RssAnon while putting {rate / 1e6:.2f} M/s (Java with 3g: {full / 1e6:.2f}); "
            f"Java's heap {heap}"
        )
        self._say(f"  {row.title}: {row.ratio:.1f} times less")

    def _paced(self, rate: int) -> tuple[float, int]:
        """The rate that rmqcore reached when asked for one, and the anonymous memory it took."""
        self._say(f"memory: rmqcore at {rate} messages a second")
        worker = Worker("rmqcore", self._directory / "memory")
        path = worker.directory / "store"
        worker.ask("open", dir=path, log=self._sizes.log, flush="ASYNC", warm=1)
        worker.ask("put", topic="First", start=0, count=1, body=BODY, threads=1, queues=1, ready=0)
        worker.ask("warm")
        put = {"topic": "T", "start": 0, "count": self._sizes.puts * 3, "body": BODY}
        answer, most = _watched(worker, "pace", **put, rate=rate)
        worker.ask("close")
        worker.end()
        shutil.rmtree(path)
        return answer["messages"] / answer["seconds"], most

    def _java_rate(self, heap: str) -> tuple[float, int]:
        """Java's rate over three rounds with a heap, and the anonymous memory it took."""
        self._say(f"memory: Java with a heap of {heap}")
        worker = Worker("java", self._directory / "memory", heap=heap)
        path, count = worker.directory / "store", self._sizes.puts
        try:
            worker.ask("open", dir=path, log=self._sizes.log, flush="ASYNC", warm=1)
            rates, memory = [], 0
            for turn in range(4):
                put = {"topic": "T", "start": turn * count, "count": count, "body": BODY}
                how = {"threads": 1, "queues": 4, "ready": 0}
                answer, most = _watched(worker, "put", **put, **how)
                rates.append(count / answer["seconds"])
                memory = max(memory, most)
            worker.ask("close")
        finally:
            worker.end()
            shutil.rmtree(path)
        return statistics.median(rates[1:]), memory


def _watched(worker: Worker, command: str, **arguments: object) -> tuple[dict, int]:
    """A command's answer, and the most anonymous memory that the side had meanwhile."""
    most, done = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.is_set():
            most = max(most, worker.anonymous_bytes())
            time.sleep(0.02)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        return worker.ask(command, **arguments), most
    finally:
        done.set()
        thread.join()


def _copy(source: str, target: str) -> None:
    """Copy a file of a store: zeros are not written, and are reserved where the source has them so.

    rmqcore reserves its files whole, and would have to reserve a sparse copy anew at opening.
    """
    step = 1 << 20
    with Path(source).open("rb") as read, Path(target).open("wb") as write:
        while data := read.read(step):
            if data.count(0) == len(data):
                write.seek(len(data), 1)
            else:
                write.write(data)
        size = write.tell()
        write.truncate(size)
        if size and os.fstat(read.fileno()).st_blocks * 512 >= size:
            os.posix_fallocate(write.fileno(), 0, size)
