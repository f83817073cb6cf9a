"""The steps of the demonstration; each does one thing, times it and says whether it held.

A further step is a function ``(Demo) -> Step``, added to ``STEPS``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from demo.corpus import QUEUES, Corpus, Entry
from demo.writer import ACKNOWLEDGED
from rmqcore import (
    DefaultMessageStore,
    Durability,
    MessageExt,
    StoreConfig,
    StoreError,
    open_store,
)
from rmqcore.cli.progress import Bars
from rmqcore.client.blocking import Consumer, Producer
from rmqcore.doctor import verify as verify_store
from rmqcore.world import monotonic_s, sleep

_SAMPLE_EVERY = 101
_MISSES = 500
_TIMES_A_QUEUE = 200
_KILL_AT = 0.4
_SENT_MAX = 1000
_RECEIVE_TIMEOUT_S = 10.0
_SMALL_FILES = ("mappedFileSizeCommitLog=16777216", "maxHashSlotNum=10000", "maxIndexNum=40000")


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did.

    Attributes:
        name: its row in the table.
        messages, size: how many, and bytes of their bodies (of the log, where that is what was
            read); 0 where neither is counted.
        seconds: time of the engine alone, without reading the corpus.
        note: what was found, in words.
        ok: whether everything was as it has to be.
    """

    name: str
    messages: int
    size: int
    seconds: float
    note: str
    ok: bool = True

    def as_dict(self) -> dict[str, Any]:
        """The step for JSON."""
        rate = 1 / self.seconds if self.seconds else 0.0
        return {
            "name": self.name,
            "messages": self.messages,
            "bytes": self.size,
            "seconds": round(self.seconds, 6),
            "messages_per_s": round(self.messages * rate),
            "mb_per_s": round(self.size * rate / 1e6, 1),
            "note": self.note,
            "ok": self.ok,
        }


@dataclass(slots=True)
class Demo:
    """What the steps share.

    Attributes:
        path: directory of the store.
        config: its settings.
        corpus: what is put.
        bars: where progress is shown.
        store: the open store, from the first step on.
        messages, size: what was put.
        sample: some of the entries that were put, for look-ups.
    """

    path: Path
    config: StoreConfig
    corpus: Corpus
    bars: Bars
    store: DefaultMessageStore = field(init=False)
    messages: int = 0
    size: int = 0
    sample: list[Entry] = field(default_factory=list)

    def open(self) -> None:
        """Open the store for writing; shows the recovery."""
        self.store = open_store(self.path, config=self.config, progress=self.bars.recovery)
        self.bars.hide_recovery()

    def close(self) -> None:
        """Close the store when it is open."""
        with contextlib.suppress(AttributeError):
            self.store.close()


def append(demo: Demo) -> Step:
    """Put the whole corpus, one message a call."""
    demo.open()
    put = demo.store.put
    seconds, level = 0.0, Durability.MEMORY
    topics: set[str] = set()
    for entries in demo.corpus:
        began = monotonic_s()
        for topic, queue_id, key, tags, body in entries:
            receipt = put(topic, body, queue_id=queue_id, tags=tags, keys=key)
        seconds += monotonic_s() - began
        level = receipt.durability or level
        topics.add(topic)
        demo.sample += entries[demo.messages % _SAMPLE_EVERY :: _SAMPLE_EVERY]
        demo.messages += len(entries)
        demo.size += sum(len(entry.body) for entry in entries)
        demo.bars.show("append", min(demo.size, demo.corpus.size_max), demo.corpus.size_max)
    note = f"one put each, durability {level}, {len(topics)} topics"
    return Step("append", demo.messages, demo.size, seconds, note, demo.messages > 0)


def dispatch(demo: Demo) -> Step:
    """Wait until consume queues and index have everything."""
    began = monotonic_s()
    behind = demo.store.dispatch_behind_bytes
    while demo.store.dispatch_behind_bytes:
        sleep(0.001)
    seconds = monotonic_s() - began
    queues = demo.store.queues()
    units = sum(demo.store.max_queue_offset(*queue) for queue in queues)
    note = f"{units:,} units in {len(queues)} queues; {behind:,} bytes of log were left to do"
    return Step("dispatch", 0, 0, seconds, note, units == demo.messages)


def flush(demo: Demo) -> Step:
    """Write everything through to the disk."""
    began = monotonic_s()
    flushed = demo.store.flush()
    seconds = monotonic_s() - began
    note = f"{flushed:,} bytes of log on disk"
    return Step("flush", 0, 0, seconds, note, flushed == demo.store.max_phy_offset)


def read_by_queue(demo: Demo) -> Step:
    """Read every queue and compare body, keys and tags of each message with the corpus."""
    queues = _Queues(demo.store)
    for entries in demo.corpus:
        queues.compare(entries)
        demo.bars.show("read by queue", queues.messages, demo.messages)
    ok = queues.messages == demo.messages and queues.all_read(range(QUEUES))
    note = "every body, key and tag as put" if ok else "NOT what was put"
    return Step("read by queue", queues.messages, queues.size, queues.seconds, note, ok)


def tracked(bars: Bars, name: str, entries: Sequence[Entry]) -> Iterator[Entry]:
    """Hand entries through, and show how many there were."""
    for done, entry in enumerate(entries, 1):
        yield entry
        bars.show(name, done, len(entries))


def query_by_key(demo: Demo) -> Step:
    """Look sampled keys up in the index, and some that were never put."""
    hits = size = wrong = 0
    began = monotonic_s()
    for entry in tracked(demo.bars, "query by key", demo.sample):
        found = demo.store.query_message(entry.topic, entry.key).messages
        hits += len(found)
        size += len(entry.body)
        wrong += [message.body for message in found] != [entry.body]
    seconds = monotonic_s() - began
    misses = demo.sample[:_MISSES]
    for entry in misses:
        wrong += len(demo.store.query_message(entry.topic, f"{entry.key}:never"))
    note = f"{hits:,} index hits for {len(demo.sample):,} keys, none for {len(misses)} never put"
    if wrong:
        note = f"{wrong} keys answered WRONG"
    return Step("query by key", hits, size, seconds, note, not wrong)


def query_by_time(demo: Demo) -> Step:
    """Look store times up in every queue, and compare with the messages on both sides."""
    wrong = count = 0
    seconds = 0.0
    store = demo.store
    for topic, queue_id in store.queues():
        end = store.max_queue_offset(topic, queue_id)
        for offset in range(0, end, max(1, end // _TIMES_A_QUEUE)):
            stored = _store_time(store, topic, queue_id, offset) or 0
            began = monotonic_s()
            lower = store.queue_offset_by_time(topic, queue_id, stored)
            upper = store.queue_offset_by_time(topic, queue_id, stored, boundary="upper")
            seconds += monotonic_s() - began
            count += 2
            wrong += not lower <= offset <= upper
            for inside, outside in ((lower, lower - 1), (upper, upper + 1)):
                wrong += _store_time(store, topic, queue_id, inside) != stored
                wrong += _store_time(store, topic, queue_id, outside) == stored
    note = f"{wrong} offsets WRONG" if wrong else "first and last offset of each time exact"
    return Step("query by time", count, 0, seconds, note, not wrong)


def close_and_reopen(demo: Demo) -> Step:
    """Close in order and open again."""
    end = demo.store.max_phy_offset
    demo.close()
    began = monotonic_s()
    demo.open()
    seconds = monotonic_s() - began
    report = demo.store.recovery_report
    ok = report.clean_shutdown and demo.store.max_phy_offset == end and not report.findings
    note = "closed in order; the records agree with queues and index" if ok else "NOT in order"
    return Step("close, reopen", report.records, 0, seconds, note, ok)


def kill_and_recover(demo: Demo) -> Step:
    """Kill another process in the middle of its puts; open the store that it leaves."""
    demo.close()
    acknowledged = _write_and_kill(demo)
    began = monotonic_s()
    demo.open()
    seconds = monotonic_s() - began
    report = demo.store.recovery_report
    queues = _Queues(demo.store, first_queue=QUEUES)
    for entries in demo.corpus:
        if not queues.compare(entries):
            break
    ok = (
        not report.clean_shutdown
        and queues.messages >= acknowledged > 0
        and queues.all_read(range(QUEUES, 2 * QUEUES))
    )
    lost = max(0, acknowledged - queues.messages)
    note = (
        f"a writer killed after {acknowledged:,} receipts: {queues.messages:,} messages there "
        f"and as put, {lost} lost"
    )
    return Step("kill -9, recover", report.records, 0, seconds, note, ok)


def verify(demo: Demo) -> Step:
    """Close the store and let the doctor look at every byte of it."""
    end = demo.store.max_phy_offset
    demo.close()
    report = verify_store(
        demo.path,
        config=demo.config,
        progress=lambda phase, done, total: demo.bars.show(f"verify {phase}", done, total),
    )
    note = (
        f"{report.finding_count} findings in log, {report.units:,} units, "
        f"{report.index_entries:,} index entries"
    )
    return Step("verify", report.records, end, report.elapsed_s, note, report.clean)


def broker(demo: Demo) -> Step:
    """Send sampled entries to a broker and consume them from it, each in a process of its own."""
    sent = demo.sample[:: max(1, len(demo.sample) // _SENT_MAX)]
    expected = {(entry.topic, entry.key): entry for entry in sent}
    received = wrong = again = 0
    with tempfile.TemporaryDirectory(prefix="rmqcore-demo-broker-") as path, _serve(path) as names:
        began = monotonic_s()
        with Producer(names, group="demo") as producer:
            for topic, _, key, tags, body in tracked(demo.bars, "broker", sent):
                producer.send(topic, body, tags=tags, keys=key)
        topics = {entry.topic: "*" for entry in sent}
        with Consumer(names, "demo-readers", topics, start="first") as consumer:
            while expected and (message := consumer.receive(_RECEIVE_TIMEOUT_S)) is not None:
                consumer.ack(message)
                entry = expected.pop((message.topic, message.keys[0]), None)
                if entry is None:
                    again += 1
                    continue
                received += 1
                wrong += (message.body, message.tags) != (entry.body, entry.tags)
        seconds = monotonic_s() - began
    ok = received == len(sent) > 0 and not wrong
    note = f"{received:,} of {len(sent):,} sent one by one, consumed"
    note += ", every body, key and tag as sent" if ok else f"; {wrong} WRONG"
    note += f"; {again} came twice" if again else ""
    return Step("broker", received, sum(len(entry.body) for entry in sent), seconds, note, ok)


STEPS: Final[tuple[Callable[[Demo], Step], ...]] = (
    append,
    dispatch,
    flush,
    read_by_queue,
    query_by_key,
    query_by_time,
    close_and_reopen,
    kill_and_recover,
    verify,
    broker,
)


class _Queues:
    """Every queue of a store, read side by side in the order in which the corpus was put.

    Attributes:
        messages, size: what has been read and was right.
        seconds: time spent.
    """

    def __init__(self, store: DefaultMessageStore, first_queue: int = 0) -> None:
        self._store = store
        self._first_queue = first_queue
        self._queues: dict[tuple[str, int], Iterator[MessageExt]] = {}
        self.messages = 0
        self.size = 0
        self.seconds = 0.0

    def compare(self, entries: list[Entry]) -> bool:
        """Read the messages of one file; False at the first that is not there or differs."""
        began = monotonic_s()
        try:
            for topic, queue_id, key, tags, body in entries:
                message = next(self._queue(topic, self._first_queue + queue_id), None)
                if message is None or message.body != body:
                    return False
                if message.keys != (key,) or message.tags != tags:
                    return False
                self.messages += 1
                self.size += len(body)
        finally:
            self.seconds += monotonic_s() - began
        return True

    def all_read(self, queue_ids: range) -> bool:
        """True when the queues hold nothing that has not been read."""
        return all(
            next(self._queue(topic, queue_id), None) is None
            for topic, queue_id in self._store.queues()
            if queue_id in queue_ids
        )

    def _queue(self, topic: str, queue_id: int) -> Iterator[MessageExt]:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._queues[topic, queue_id] = self._store.messages(topic, queue_id)
        return queue


def _store_time(store: DefaultMessageStore, topic: str, queue_id: int, offset: int) -> int | None:
    if offset < 0:
        return None
    found = store.get_message(topic, queue_id, offset, max_messages=1).messages
    return found[0].store_timestamp_ms if found else None


@contextlib.contextmanager
def _serve(path: str) -> Iterator[str]:
    """Run ``rmqcore serve`` on free ports; the address of its name server."""
    command = [sys.executable, "-m", "rmqcore", "serve", path, "--json"]
    command += ["--port", "0", "--namesrv-port", "0"]
    for setting in _SMALL_FILES:
        command += ["-c", setting]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            line = server.stdout.readline() if server.stdout else ""
            if not line:
                raise StoreError("the broker of the demonstration did not start")
            yield str(json.loads(line)["namesrv"])
        finally:
            server.send_signal(signal.SIGTERM)


def _write_and_kill(demo: Demo) -> int:
    """Let a process write, kill it in the middle; how many of its puts had returned."""
    target = int(demo.messages * _KILL_AT)
    acknowledged = 0
    command = [sys.executable, "-m", "demo.writer"]
    command += [str(demo.path), str(demo.corpus.size_max)]
    examples = Path(__file__).parents[1]
    found = os.pathsep.join([str(examples), str(examples.parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": found}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as writer:
        if writer.stdout is None:
            return 0
        try:
            while data := writer.stdout.read(ACKNOWLEDGED.size):
                if len(data) == ACKNOWLEDGED.size:
                    (acknowledged,) = ACKNOWLEDGED.unpack(data)
                demo.bars.show("a writer, to be killed", min(acknowledged, target), target)
                if acknowledged >= target:
                    writer.kill()
        finally:
            writer.kill()
    demo.bars.hide("a writer, to be killed")
    return acknowledged
