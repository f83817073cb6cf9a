"""Waiting for messages: woken by arrival, by time, by closing; in threads and coroutines."""

import asyncio
import decimal
import fractions
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty

import numpy as np
import pytest
from consume.conftest import SMALL, TOPIC, bodies, places, put
from patience import TIMEOUT_S, until_async

import rmqcore
from rmqcore import Consumer, StoreClosedError
from rmqcore.store.consume.arrivals import Sleeper

pytestmark = pytest.mark.engine


@pytest.fixture
def store(store_path):
    with rmqcore.open_store(store_path) as store:
        yield store


def test_a_message_that_is_there_is_not_waited_for(store):
    put(store, 2)
    assert store.wait("T", 0, 0)
    assert store.wait("T", 0, 1, timeout_ms=0)
    assert not store.wait("T", 0, 2, timeout_ms=0)


@pytest.fixture
def slept(monkeypatch):
    """For how long, in seconds, threads were to sleep that wait for messages."""
    seconds, sleep = [], Sleeper.sleep
    monkeypatch.setattr(Sleeper, "sleep", lambda self, s: seconds.append(s) or sleep(self, s))
    return seconds


def test_a_wait_ends_with_its_time(store, slept):
    began = time.monotonic()
    assert not store.wait("T", 0, 0, timeout_ms=60)
    assert time.monotonic() - began > 0.05
    assert max(slept) <= 0.06


def test_a_wait_ends_with_the_message_and_no_sooner(store, when_asleep):
    put(store, 1, queue_id=1)
    when_asleep(lambda: put(store, 3))
    assert store.wait("T", 0, 2)
    assert store.max_queue_offset("T", 0) == 3


def test_a_wait_asks_nothing_while_nothing_comes(store, monkeypatch, when_asleep, slept):
    asked = []
    most = store.max_queue_offset
    monkeypatch.setattr(
        store.parts.inner, "max_queue_offset", lambda *args: asked.append(1) or most(*args)
    )
    when_asleep(lambda: put(store, 1))
    assert store.wait("T", 0, 0)
    assert len(asked) <= 3
    assert set(slept) == {math.inf}


def test_two_threads_that_are_the_first_to_wait_are_both_woken(store, monkeypatch, when_asleep):
    arrivals, told, others = store.parts.consuming._arrivals, threading.Event(), []
    listen = arrivals._listen

    def slowly_at_first(listener):
        monkeypatch.setattr(arrivals, "_listen", listen)
        others.append(threads.submit(store.wait, "T", 0, 0))
        assert told.wait(TIMEOUT_S)
        return listen(listener)

    def tell():
        put(store, 1)
        assert store.max_queue_offset("T", 0) == 1
        told.set()

    monkeypatch.setattr(arrivals, "_listen", slowly_at_first)
    when_asleep(tell)
    with ThreadPoolExecutor(1) as threads:
        assert store.wait("T", 0, 0)
        assert others[0].result(TIMEOUT_S)


def test_closing_ends_waits(store, when_asleep):
    when_asleep(store.close)
    with pytest.raises(StoreClosedError):
        store.wait("T", 0, 0)
    with pytest.raises(StoreClosedError):
        store.wait("T", 0, 0)


def test_closing_ends_waits_for_leases(store, when_asleep):
    when_asleep(store.close)
    with pytest.raises(StoreClosedError):
        store.lease("g", TOPIC, timeout_ms=None)


def test_a_lease_waits_for_a_topic_that_is_not_there_yet(store, when_asleep):
    when_asleep(lambda: put(store, 1, queue_id=5))
    assert bodies(store.lease("g", TOPIC, timeout_ms=None)) == [b"0"]


def test_a_lease_waits_for_what_comes_again(store, slept):
    put(store, 1)
    began = time.monotonic()
    assert len(store.lease("g", TOPIC, lease_ms=100)) == 1
    (again,) = store.lease("g", TOPIC, timeout_ms=None)
    assert time.monotonic() - began > 0.05
    # no longer than the lease, whose end is kept to 16 ms
    assert max(slept, default=0) <= 0.12
    assert again.place.attempt == 1


def test_a_lease_waits_for_what_is_given_back_and_ends_when_its_holder_goes(store, when_asleep):
    put(store, 1)
    (found,) = store.lease("g", TOPIC)
    when_asleep(lambda: store.give_back("g", [found.place], delay_ms=0))
    assert len(store.lease("g", TOPIC, timeout_ms=None)) == 1
    when_asleep(lambda: store.release_leases("h"))
    assert store.lease("g", TOPIC, holder="h", timeout_ms=None) == []


async def somebody_waits(store):
    await until_async(
        lambda: store.parts.consuming._arrivals._sleepers, "somebody who waits for a message"
    )


def test_coroutines_wait_without_blocking_the_loop(store, when_asleep):
    async def main():
        waiting = asyncio.create_task(store.wait_async("T", 0, 0))
        await somebody_waits(store)
        # the loop is free to let it come
        put(store, 1)
        assert await waiting
        assert bodies(await store.lease_async("g", TOPIC)) == [b"0"]
        waiting = asyncio.create_task(store.lease_async("g", TOPIC, timeout_ms=None))
        await somebody_waits(store)
        put(store, 1)
        assert bodies(await waiting) == [b"0"]
        when_asleep(lambda: put(store, 1))
        assert await store.wait_async("T", 0, 2)
        assert bodies(await store.lease_async("g", TOPIC)) == [b"0"]
        when_asleep(lambda: put(store, 1))
        assert bodies(await store.lease_async("g", TOPIC, timeout_ms=None)) == [b"0"]

    asyncio.run(main())


def test_waits_of_coroutines_end_with_their_time(store):
    async def main():
        began = time.monotonic()
        assert not await store.wait_async("T", 0, 0, timeout_ms=60)
        assert await store.lease_async("g", TOPIC, timeout_ms=60) == []
        return time.monotonic() - began

    assert asyncio.run(main()) > 0.1


def test_a_queue_is_followed(store):
    put(store, 40)

    async def main():
        seen = []
        async for message in store.follow("T", 0, 3):
            seen.append(bytes(message.body))
            if len(seen) == 37:
                put(store, 3)
            if len(seen) == 40:
                break
        return seen

    assert asyncio.run(main()) == [b"%d" % number for number in [*range(3, 40), 0, 1, 2]]


def test_a_time_to_wait_is_any_number_and_nothing_else(store, store_path):
    with Consumer(store, "g", TOPIC) as consumer, rmqcore.Queue(store_path / "queue") as queue:
        waits = (
            lambda wait: store.wait("T", 0, 0, wait),
            lambda wait: store.lease("g", TOPIC, timeout_ms=wait),
            lambda wait: consumer.receive(timeout_ms=wait),
            lambda wait: queue.get(timeout=wait),
        )
        for wait in waits:
            for number in (np.float32(0.001), np.int64(0), fractions.Fraction(1, 1000), True - 1):
                with suppress(Empty):
                    assert not wait(number)
            for wrong in ("1", decimal.Decimal(1), [1]):
                with pytest.raises(rmqcore.ArgumentError, match="expected a number"):
                    wait(wrong)


async def next_of(followed):
    return await asyncio.wait_for(anext(followed), TIMEOUT_S)


def test_a_queue_is_followed_beyond_a_deletion_of_its_topic(store):
    """What is put to a topic that was made anew is not passed over, be it less or more."""

    async def main():
        followed = store.follow("T", 0)
        for count in (3, 5, 2):
            put(store, count)
            bodies = [bytes((await next_of(followed)).body) for _ in range(count)]
            assert bodies == [b"%d" % number for number in range(count)]
            store.delete_topic("T")
        waiting = asyncio.create_task(next_of(followed))
        await until_async(lambda: store.parts.consuming._arrivals._sleepers, "a wait")
        put(store, 1)
        assert (await waiting).queue_offset == 0

    asyncio.run(main())


def test_a_queue_is_followed_once_while_its_old_files_go(store_path):
    async def main(store):
        followed, seen = store.follow("T", 0), []
        for number in range(3):
            # the one behind them lets the others' file go, which is held by who was handed them
            for size in [8000] * 16 + [1]:
                store.put("T", bytes(size))
                seen.append((await next_of(followed)).queue_offset)
            store.consumer_offsets.commit("T", "g", 0, len(seen))
            assert store.delete_consumed_files() > 0, number
        return seen

    with rmqcore.open_store(store_path, **SMALL) as store:
        assert asyncio.run(main(store)) == list(range(3 * 17))


def test_following_ends_with_the_store(store, when_asleep):
    put(store, 1)

    async def main():
        async for _ in store.follow("T", 0):
            when_asleep(store.close)

    with pytest.raises(StoreClosedError):
        asyncio.run(main())


# ---- the consumer


def test_a_loop_over_a_consumer_ends_with_close(store, when_asleep):
    put(store, 3)
    seen = []
    consumer = Consumer(store, "g", TOPIC)
    when_asleep(lambda: put(store, 1))
    for message in consumer:
        seen.append(message.body)
        assert consumer.ack(message) == 1
        if len(seen) == 4:
            break
    when_asleep(consumer.close)
    assert list(consumer) == []
    assert seen == [b"0", b"1", b"2", b"0"]
    assert list(consumer) == []
    with pytest.raises(StoreClosedError):
        consumer.receive()


def test_an_asynchronous_loop_over_a_consumer_ends_with_close(store):
    put(store, 3)

    async def main():
        seen = []

        async def close():
            await somebody_waits(store)
            consumer.close()

        async with Consumer(store, "g", TOPIC) as consumer:
            closing = asyncio.create_task(close())
            async for message in consumer:
                seen.append(message.body)
                consumer.ack(message)
        await closing
        return seen

    assert asyncio.run(main()) == [b"0", b"1", b"2"]


def test_what_a_consumer_leaves_comes_to_the_next_at_once(store):
    put(store, 3)
    with Consumer(store, "g", TOPIC) as consumer:
        found = consumer.receive(3)
        consumer.ack(found[1])
    with Consumer(store, "g", TOPIC) as other:
        again = other.receive(3)
        assert bodies(again) == [b"0", b"2"]
        assert [m.reconsume_times for m in again] == [1, 1]
        assert other.receive(timeout_ms=0) == []


def test_a_consumer_that_is_given_up_leaves_nothing_behind_in_the_same_process(store_path):
    with rmqcore.open_store(store_path) as store:
        put(store, 1)
        Consumer(store, "g", TOPIC).receive()
    with rmqcore.open_store(store_path) as store:
        assert len(Consumer(store, "g", TOPIC).receive(timeout_ms=0)) == 1


def test_a_consumer_settles_several_at_once(store):
    put(store, 6)
    with Consumer(store, "g", TOPIC, lease_ms=60_000) as consumer:
        found = consumer.receive(6)
        assert consumer.extend(*found) == 6
        assert consumer.ack(*found[:2]) == 2
        assert consumer.nack(*found[2:4], delay_ms=0) == 2
        assert consumer.nack(found[4]) == 1
        (lag,) = consumer.lag()
        assert (lag.committed_offset, lag.ready, lag.leased) == (2, 2, 2)
        assert bodies(consumer.receive(9)) == [b"2", b"3"]


def test_what_no_consumer_has_handed_out_is_refused(store):
    put(store, 1)
    with Consumer(store, "g", TOPIC) as consumer, pytest.raises(rmqcore.ArgumentError):
        consumer.ack(store.get_message("T", 0, 0).messages[0])


def test_a_consumer_says_at_once_what_is_wrong_with_it(store):
    with pytest.raises(rmqcore.ArgumentError, match="subscriptions"):
        Consumer(store, "g", {})
    with pytest.raises(rmqcore.ArgumentError, match="lease_ms"):
        Consumer(store, "g", TOPIC, lease_ms=0)
    assert places([]) == []
