"""rmqcore, doing what it is told; the twin of rocketmq/PeerBench.java.

One command a line on standard input, ``NAME key=value ...``; one answer a line on standard output,
``ANSWER {json}`` or ``FAILED reason``. It runs in a process of its own, as Java's store does, so
that the harness costs neither side anything. What one command alone needs is imported by it: the
memory of a process that puts is that of the store, not of what other rows of the table use.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from collections.abc import Callable

from rmqcore import DefaultMessageStore, Durability, Message, open_store
from rmqcore._codec import encode_batch

BATCH = 64
TAG = "TagA"
now = time.perf_counter


def filler(size: int) -> bytes:
    """What follows the number in a body of ``size`` bytes."""
    return b"x" * (size - 8)


def message(topic: str, number: int, rest: bytes, queue_id: int) -> Message:
    """The message with a number; the same bytes as Work.java's."""
    return Message(
        topic,
        number.to_bytes(8, "big") + rest,
        queue_id=queue_id,
        tags=TAG,
        keys=f"K{number}",
        properties={"UNIQ_KEY": f"7F000001{number:024X}"},
    )


def wait_until(moment: float) -> None:
    """Sleep until a moment; one that has passed costs nothing."""
    left = moment - now()
    if left > 0:
        time.sleep(left)


class Engine:
    """The open store and the commands on it; each answers what it did and the seconds taken."""

    def __init__(self) -> None:
        self.store: DefaultMessageStore

    def wait_dispatched(self) -> None:
        """Wait for the background service; nobody helps it, as on Java's side."""
        while self.store.dispatch_behind_bytes:
            time.sleep(0.0001)

    def open(self, *, dir: str, log: int, flush: str, warm: int, **settings: object) -> dict:
        began = now()
        self.store = open_store(
            dir,
            profile="rocketmq",
            mapped_file_size_commit_log=log,
            flush_disk_type=f"{flush}_FLUSH",
            warm_mapped_file_enable=bool(warm),
            **settings,
        )
        self.wait_dispatched()
        return {"seconds": now() - began, "end": self.store.max_phy_offset}

    def close(self) -> dict:
        self.store.close()
        return {}

    def warm(self) -> dict:
        """Make the log file resident that the first put has made; Java does so by itself."""
        self.store.log.queue.last.region.warm_up(expect_empty=False)
        return {}

    def settle(self) -> dict:
        """Dispatched, on the disk, and no thread at work."""
        self.wait_dispatched()
        self.store.flush()
        for _ in range(300):
            before = time.process_time()
            time.sleep(0.1)
            if time.process_time() - before < 0.02:
                break
        return {"end": self.store.max_phy_offset}

    # ---- puts

    def _timed(self, work: Callable[[], object], messages: int) -> dict:
        before, began = self.store.max_phy_offset, now()
        work()
        seconds = now() - began
        self.wait_dispatched()
        dispatched = now() - began
        size = self.store.max_phy_offset - before
        return {"seconds": seconds, "dispatched": dispatched, "messages": messages, "bytes": size}

    def put(
        self,
        *,
        topic: str,
        start: int,
        count: int,
        body: int,
        threads: int,
        queues: int,
        ready: int,
        tasks: int = 0,
    ) -> dict:
        """One message a call: by threads or asyncio tasks, built in the loop or before it."""
        rest = filler(body)
        if ready:
            made = [message(topic, n, rest, n % queues) for n in range(start, start + count)]
            return self._timed(lambda: self._put_ready(made), count)
        if tasks:
            return self._timed(lambda: self._put_in_tasks(topic, start, count, rest, tasks), count)
        shares = [range(start + k, start + count, threads) for k in range(threads)]
        if threads == 1:
            return self._timed(lambda: self._put_each(topic, shares[0], rest, queues), count)
        return self._timed(lambda: self._put_in_threads(topic, shares, rest, queues), count)

    def _put_each(self, topic: str, numbers: range, rest: bytes, queues: int) -> None:
        put = self.store.put
        for number in numbers:
            put(
                topic,
                number.to_bytes(8, "big") + rest,
                queue_id=number % queues,
                tags=TAG,
                keys=f"K{number}",
                properties={"UNIQ_KEY": f"7F000001{number:024X}"},
            )

    def _put_ready(self, messages: list[Message]) -> None:
        put_message = self.store.put_message
        for one in messages:
            if not put_message(one).ok:
                raise RuntimeError("a put was refused")

    def _put_in_threads(self, topic: str, shares: list[range], rest: bytes, queues: int) -> None:
        failures: list[BaseException] = []

        def work(numbers: range) -> None:
            try:
                self._put_each(topic, numbers, rest, queues)
            except BaseException as error:  # noqa: BLE001 - raised again by the caller
                failures.append(error)

        threads = [threading.Thread(target=work, args=(share,)) for share in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def _put_in_tasks(self, topic: str, start: int, count: int, rest: bytes, tasks: int) -> None:
        import asyncio

        async def work(numbers: range) -> None:
            for n in numbers:
                receipt = await self.store.put_message_async(message(topic, n, rest, n % 4))
                if receipt.durability is not Durability.DISK:
                    raise RuntimeError(f"not on the disk: {receipt}")

        async def together() -> None:
            shares = [range(start + k, start + count, tasks) for k in range(tasks)]
            await asyncio.gather(*(work(share) for share in shares))

        asyncio.run(together())

    def batch(self, *, topic: str, start: int, count: int, body: int, encoded: int) -> dict:
        """Batches of 64: bodies encoded before the loop, or lists of messages."""
        rest, batches = filler(body), count // BATCH
        lists = [
            [message(topic, start + BATCH * i + n, rest, i & 3) for n in range(BATCH)]
            for i in range(batches)
        ]
        put_messages = self.store.put_messages
        if not encoded:

            def work() -> None:
                for batch in lists:
                    if not put_messages(batch).ok:
                        raise RuntimeError("a batch was refused")

            return self._timed(work, batches * BATCH)
        bodies = [encode_batch(batch) for batch in lists]
        lists.clear()

        def work_encoded() -> None:
            for i, encoded_body in enumerate(bodies):
                if not put_messages(encoded_body, topic=topic, queue_id=i & 3).ok:
                    raise RuntimeError("a batch was refused")

        return self._timed(work_encoded, batches * BATCH)

    def columns(self, *, topic: str, start: int, count: int, body: int) -> dict:
        """The same messages as rows of one table of 16,384 a batch, made before the loop."""
        import pyarrow as pa

        rest, numbers = filler(body), range(start, start + count // BATCH * BATCH)
        whole = pa.table(
            {
                "queue_id": pa.array([(n - start) // BATCH & 3 for n in numbers], pa.int32()),
                "body": pa.array([n.to_bytes(8, "big") + rest for n in numbers], pa.binary()),
                "tags": [TAG] * len(numbers),
                "keys": [f"K{n}" for n in numbers],
                "unique_key": [f"7F000001{n:024X}" for n in numbers],
            }
        )
        table = pa.Table.from_batches(whole.to_batches(max_chunksize=16384))

        def work() -> None:
            if not self.store.put_columns(table, topic=topic).ok:
                raise RuntimeError("a table was refused")

        return self._timed(work, len(numbers))

    def pace(self, *, topic: str, start: int, count: int, body: int, rate: int) -> dict:
        """Puts at a steady rate, ``rate`` a second."""
        rest, began = filler(body), now()
        for first in range(0, count, 64):
            wait_until(began + first / rate)
            self._put_each(topic, range(start + first, start + min(count, first + 64)), rest, 4)
        seconds = now() - began
        self.wait_dispatched()
        return {"seconds": seconds, "messages": count}

    def latency(
        self, *, topic: str, start: int, count: int, body: int, rate: int, flusher: int
    ) -> dict:
        """Nanoseconds of each put; with ``flusher`` another thread flushes without end."""
        rest, taken = filler(body), [0] * count
        stop = threading.Event()
        put, clock = self.store.put, time.perf_counter_ns

        def flush() -> None:
            while not stop.is_set():
                self.store.parts.files.writer.flush()
                time.sleep(0)

        thread = threading.Thread(target=flush)
        if flusher:
            thread.start()
        began = now()
        for i in range(count):
            if rate and i % 16 == 0:
                wait_until(began + i / rate)
            number = start + i
            data, key = number.to_bytes(8, "big") + rest, f"K{number}"
            properties = {"UNIQ_KEY": f"7F000001{number:024X}"}
            at = clock()
            put(topic, data, queue_id=number & 3, tags=TAG, keys=key, properties=properties)
            taken[i] = clock() - at
        seconds = now() - began
        stop.set()
        if flusher:
            thread.join()
        taken.sort()
        return {
            "seconds": seconds,
            "messages": count,
            "p50": taken[count // 2],
            "p99": taken[int(count * 0.99)],
            "p999": taken[int(count * 0.999)],
            "max": taken[-1],
        }

    # ---- reads

    def _gets(self, topic: str):
        store = self.store
        queues = sum(name == topic for name, _ in store.queues())
        for queue_id in range(queues):
            offset, end = 0, store.max_queue_offset(topic, queue_id)
            while offset < end:
                result = store.get_message(topic, queue_id, offset, max_messages=32)
                if not len(result):
                    raise RuntimeError(f"queue {queue_id} at {offset}: {result.status}")
                yield result
                offset = result.next_queue_offset

    def get(self, *, topic: str, decode: int) -> dict:
        """The whole topic, 32 a call."""
        messages = total = letters = 0
        began = now()
        if decode:
            for result in self._gets(topic):
                for one in result.messages:
                    messages += 1
                    total += len(one.body) + one.queue_offset + one.phy_offset
                    letters += len(one.topic) + len(one.tags) + len(one.keys[0])
        else:
            for result in self._gets(topic):
                messages += len(result)
                total += sum(result.sizes())
        seconds = now() - began
        return {"seconds": seconds, "messages": messages, "sum": total, "letters": letters}

    def scan(self, *, topic: str) -> dict:
        """The whole topic as Arrow record batches, none of them kept: body, keys, tags, times."""
        from pyarrow import compute

        from rmqcore.scan import DEFAULT_COLUMNS, read_store

        rows, began = 0, now()
        for batch in read_store(self.store.path, DEFAULT_COLUMNS, topics=[topic]):
            rows += batch.to_arrow().num_rows
        seconds = now() - began
        total = 0
        for batch in read_store(self.store.path, DEFAULT_COLUMNS, topics=[topic]):
            table = batch.to_arrow()
            sizes = compute.binary_length(table["body"])
            columns = (table["queue_offset"], table["phy_offset"], sizes)
            total += sum(compute.sum(column).as_py() for column in columns)
        return {"seconds": seconds, "messages": rows, "sum": total}

    def query(self, *, topic: str, start: int, range: int, count: int, seed: int) -> dict:
        """Look-ups of random keys, the keys made in the loop; as Java's, no message decoded."""
        import random

        chance, query_message = random.Random(seed), self.store.query_message
        numbers = [start + chance.randrange(range) for _ in [None] * count]
        hits = size = 0
        began = now()
        for number in numbers:
            result = query_message(topic, f"K{number}", max_messages=32)
            hits += len(result)
            size += result.buffer_total_size
        return {"seconds": now() - began, "messages": count, "hits": hits, "bytes": size}

    def verify(self, *, topic: str, body: int) -> dict:
        """Every message of a topic, read back and compared with what was put."""
        rest, messages, total = filler(body), 0, 0
        for result in self._gets(topic):
            for one in result.messages:
                number = int.from_bytes(one.body[:8], "big")
                if (one.topic, one.body, one.tags, one.keys, one.unique_key) != (
                    topic,
                    number.to_bytes(8, "big") + rest,
                    TAG,
                    (f"K{number}",),
                    f"7F000001{number:024X}",
                ):
                    raise RuntimeError(f"message {number} is not what was put: {one}")
                messages += 1
                total += number
        return {"messages": messages, "sum": total}


def main() -> None:
    engine = Engine()
    for line in sys.stdin:
        name, *pairs = line.split()
        arguments: dict[str, str | int] = {}
        for pair in pairs:
            key, value = pair.split("=", 1)
            arguments[key] = int(value) if value.lstrip("-").isdigit() else value
        try:
            answer = getattr(engine, name)(**arguments)
        except Exception as error:  # noqa: BLE001 - told to the harness
            traceback.print_exc()
            print(f"FAILED {type(error).__name__}: {error}".replace("\n", " "), flush=True)
        else:
            print("ANSWER " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
