"""Puts from coroutines: each completes at the durability asked for, and none blocks the loop."""

from __future__ import annotations

import asyncio
import time

import pytest

from rmqcore import Durability, Message, MessageIllegalError, PutMessageStatus, open_store
from rmqcore._codec import encode_batch

pytestmark = pytest.mark.engine

SIZES = {"mapped_file_size_commit_log": 65536, "mapped_file_size_consume_queue": 2000}


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_each_put_reaches_its_durability(tmp_path, flush):
    async def run():
        async with open_store(tmp_path / "s", flush_disk_type=flush, **SIZES) as store:
            usual = await store.put_async("T", b"1", tags="t", keys=("a", "b"))
            disk = await store.put_message_async(Message("T", b"2"), durability="disk")
            cache = await store.put_async("T", b"3", durability="page_cache")
            many = await store.put_messages_async([Message("T", b"4"), Message("T", b"5")])
            encoded = await store.put_messages_async(
                encode_batch([Message("T", b"6")]), topic="T", durability="disk"
            )
            assert [m.body for m in store.messages("T", 0)] == [b"1", b"2", b"3", b"4", b"5", b"6"]
            return usual, disk, cache, many, encoded

    usual, disk, cache, many, encoded = asyncio.run(run())
    expected = Durability.DISK if flush == "SYNC_FLUSH" else Durability.PAGE_CACHE
    assert (usual.durability, many.durability) == (expected, expected)
    assert (disk.durability, encoded.durability) == (Durability.DISK, Durability.DISK)
    assert cache.durability is Durability.PAGE_CACHE
    assert many.message_count == 2


def test_tasks_share_flushes_and_the_loop_goes_on(tmp_path):
    async def run():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        with open_store(tmp_path / "s", flush_disk_type="SYNC_FLUSH", **SIZES) as store:
            flush = store._flusher.flush
            flushes = []

            def slow():
                flushes.append(1)
                time.sleep(0.02)
                return flush()

            store._flusher.flush = slow
            ticking = asyncio.create_task(tick())
            puts = [store.put_async("T", b"%d" % n) for n in range(100)]
            receipts = await asyncio.gather(*puts)
            ticking.cancel()
            store._flusher.flush = flush
            return receipts, len(flushes), ticks

    receipts, flushes, ticks = asyncio.run(run())
    assert {receipt.durability for receipt in receipts} == {Durability.DISK}
    assert sorted(receipt.queue_offset for receipt in receipts) == list(range(100))
    assert flushes <= 10
    assert ticks >= 5


def test_a_slow_disk_is_a_status(tmp_path):
    async def run():
        settings = SIZES | {"flush_disk_type": "SYNC_FLUSH", "sync_flush_timeout_ms": 30}
        with open_store(tmp_path / "s", **settings) as store:
            flush = store._flusher.flush
            store._flusher.flush = lambda: (time.sleep(1.0), flush())[1]
            receipt = await store.put_message_async(Message("T", b"x"))
            store._flusher.flush = flush
            return receipt

    receipt = asyncio.run(run())
    assert receipt.status is PutMessageStatus.FLUSH_DISK_TIMEOUT
    assert receipt.durability is Durability.PAGE_CACHE
    assert "30 ms" in receipt.reason


def test_each_waits_its_own_time_for_a_slow_disk(tmp_path):
    async def run():
        settings = SIZES | {"flush_disk_type": "SYNC_FLUSH", "sync_flush_timeout_ms": 100}
        with open_store(tmp_path / "s", **settings) as store:
            flush = store._flusher.flush
            store._flusher.flush = lambda: (time.sleep(1.5), flush())[1]

            async def put(after):
                await asyncio.sleep(after)
                began = time.monotonic()
                receipt = await store.put_message_async(Message("T", b"x"))
                return receipt.status, time.monotonic() - began

            told = await asyncio.gather(*(put(after) for after in (0, 0.02, 0.06, 0.09)))
            cancelled = asyncio.create_task(store.put_async("T", b"y"))
            await asyncio.sleep(0.02)
            cancelled.cancel()
            store._flusher.flush = flush
            await asyncio.sleep(4)  # two slow flushes had begun or were to begin
            return told, await store.put_message_async(Message("T", b"z"))

    told, last = asyncio.run(run())
    assert {status for status, _ in told} == {PutMessageStatus.FLUSH_DISK_TIMEOUT}
    assert all(0.09 < seconds < 1.2 for _, seconds in told)
    assert last.durability is Durability.DISK


def test_a_full_file_rolls_without_blocking(tmp_path):
    async def run():
        with open_store(tmp_path / "s", **SIZES) as store:
            for number in range(50):
                await store.put_async("T", b"x" * 5000, keys=f"K{number}")
            return store.max_queue_offset("T", 0), len(store.log.queue.files)

    count, files = asyncio.run(run())
    assert count == 50
    assert files >= 4


def test_a_callers_mistake_raises(tmp_path):
    async def run():
        with open_store(tmp_path / "s", **SIZES) as store:
            with pytest.raises(MessageIllegalError):
                await store.put_async("../up", b"x")
            with pytest.raises(MessageIllegalError):
                await store.put_messages_async([])

    asyncio.run(run())
