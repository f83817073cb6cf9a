"""Puts from coroutines: each completes at the durability asked for, and none blocks the loop."""

from __future__ import annotations

import asyncio
import threading

import pytest
from patience import TIMEOUT_S, until_async

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


class HeldFlush:
    """Stands in the place of a store's flush, which ends only when the test lets it."""

    def __init__(self, store):
        self.flush = store.parts.log_services.flusher.flush
        self.begun = 0
        self.let_go = threading.Event()
        store.parts.log_services.flusher.flush = self

    def __call__(self):
        self.begun += 1
        assert self.let_go.wait(TIMEOUT_S)
        return self.flush()


def waiting(store):
    """A list that grows by each coroutine that begins to wait for the disk."""
    begun, wait_async = [], store.parts.log_services.group_commit.wait_async

    def noted(offset, timeout_ms):
        begun.append(offset)
        return wait_async(offset, timeout_ms)

    store.parts.log_services.group_commit.wait_async = noted
    return begun


def test_tasks_share_flushes_and_the_loop_goes_on(tmp_path):
    async def run():
        with open_store(tmp_path / "s", flush_disk_type="SYNC_FLUSH", **SIZES) as store:
            held, begun = HeldFlush(store), waiting(store)
            puts = asyncio.gather(*(store.put_async("T", b"%d" % n) for n in range(100)))
            # the loop goes on beside the flush, or nobody would let that end
            await until_async(lambda: len(begun) == 100 and held.begun, "all wait for a flush")
            assert not puts.done()
            held.let_go.set()
            return await puts, held.begun

    receipts, flushes = asyncio.run(run())
    assert {receipt.durability for receipt in receipts} == {Durability.DISK}
    assert sorted(receipt.queue_offset for receipt in receipts) == list(range(100))
    assert flushes == 1


def test_a_slow_disk_is_a_status(tmp_path):
    async def run():
        settings = SIZES | {"flush_disk_type": "SYNC_FLUSH", "sync_flush_timeout_ms": 30}
        with open_store(tmp_path / "s", **settings) as store:
            held = HeldFlush(store)
            receipt = await store.put_message_async(Message("T", b"x"))
            held.let_go.set()
            return receipt

    receipt = asyncio.run(run())
    assert receipt.status is PutMessageStatus.FLUSH_DISK_TIMEOUT
    assert receipt.durability is Durability.PAGE_CACHE
    assert "30 ms" in receipt.reason


class Jumping(asyncio.SelectorEventLoop):
    """An event loop whose time a test sets forward."""

    ahead = 0.0

    def time(self):
        return super().time() + self.ahead


def test_each_waits_its_own_time_for_a_slow_disk(tmp_path):
    async def run():
        loop = asyncio.get_running_loop()
        settings = SIZES | {"flush_disk_type": "SYNC_FLUSH", "sync_flush_timeout_ms": 6_000_000}
        with open_store(tmp_path / "s", **settings) as store:
            held, begun, puts = HeldFlush(store), waiting(store), []
            for number in range(4):
                puts.append(asyncio.ensure_future(store.put_message_async(Message("T", b"x"))))
                await until_async(lambda n=number: len(begun) > n and held.begun, "it waits")
                loop.ahead += 1400
            # the first has waited 5600 s, and each of the others 1400 s less than the one before
            cancelled = asyncio.ensure_future(store.put_async("T", b"y"))
            await until_async(lambda: len(begun) == 5, "the last one waits")
            cancelled.cancel()
            assert not any(put.done() for put in puts)
            for number in range(4):
                loop.ahead += 1000 if number == 0 else 1400
                receipt = await puts[number]
                assert receipt.status is PutMessageStatus.FLUSH_DISK_TIMEOUT
                assert not any(put.done() for put in puts[number + 1 :])
            assert held.begun == 1
            held.let_go.set()
            assert cancelled.cancelled()
            return await store.put_message_async(Message("T", b"z"))

    with asyncio.Runner(loop_factory=Jumping) as runner:
        last = runner.run(run())
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
