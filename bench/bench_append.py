"""Puts: one message a call, prepared messages, encoded batches, and waiting for the disk."""

from __future__ import annotations

import threading

import pytest
from payload import BODY_SIZE, TOPIC, message

from rmqcore import Durability
from rmqcore._codec import encode_batch

pytestmark = pytest.mark.measure

BATCH = 64
LOG_SIZE = 256 << 20


def fresh_store(stores, **settings):
    def setup():
        return (stores(log_size=LOG_SIZE, **settings),), {}

    return setup


@pytest.mark.benchmark(group="put")
@pytest.mark.parametrize("body_size", [BODY_SIZE, 1024])
def bench_put_one(benchmark, figures, stores, count, body_size):
    """``store.put``, one thread; body and key are made inside the timed loop."""
    total = count(400_000 if body_size == BODY_SIZE else 150_000)

    def run(store):
        put = store.put
        for number in range(total):
            put(
                TOPIC,
                b"%0*d" % (body_size, number),
                queue_id=number & 3,
                tags="TagA",
                keys=f"K{number}",
            )
        return store

    store = benchmark.pedantic(run, setup=fresh_store(stores), rounds=5)
    assert sum(store.max_queue_offset(TOPIC, queue) for queue in range(4)) == total
    note = "asynchronous flush, file warm, dispatch running beside"
    figures(messages=total, size=store.max_phy_offset, note=note)


@pytest.mark.benchmark(group="put")
def bench_put_and_dispatch(benchmark, figures, stores, count):
    """The same until consume queues and index have caught up."""
    total = count(400_000)

    def run(store):
        put = store.put
        for number in range(total):
            put(
                TOPIC,
                b"%0256d" % number,
                queue_id=number & 3,
                tags="TagA",
                keys=f"K{number}",
            )
        assert store.max_queue_offset(TOPIC, 0) == total // 4
        return store

    store = benchmark.pedantic(run, setup=fresh_store(stores), rounds=5)
    figures(messages=total, size=store.max_phy_offset, note="consume queues and index caught up")


@pytest.mark.benchmark(group="put")
def bench_put_message_prepared(benchmark, figures, stores, count):
    """``store.put_message`` of messages made before."""
    messages = [message(number) for number in range(count(200_000))]

    def run(store):
        put_message = store.put_message
        for one in messages:
            put_message(one)
        return store

    store = benchmark.pedantic(run, setup=fresh_store(stores), rounds=3)
    figures(messages=len(messages), size=store.max_phy_offset, note="prepared messages")


@pytest.mark.benchmark(group="put")
def bench_put_batch_64(benchmark, figures, stores, count):
    """``store.put_messages`` of encoded batch bodies, as a broker gets them."""
    batches = max(2, count(400_000) // BATCH)
    bodies = [
        encode_batch([message(BATCH * batch + n) for n in range(BATCH)]) for batch in range(batches)
    ]

    def run(store):
        put_messages = store.put_messages
        for body in bodies:
            put_messages(body, topic=TOPIC)
        return store

    store = benchmark.pedantic(run, setup=fresh_store(stores), rounds=5)
    figures(messages=batches * BATCH, size=store.max_phy_offset, note="encoded batches of 64")


@pytest.mark.benchmark(group="put sync")
@pytest.mark.parametrize("callers", [1, 8, 64])
def bench_put_sync(benchmark, figures, stores, count, callers):
    """Every caller waits until its message is on the disk."""
    each = max(2, count(3_000) // callers)

    def run(store):
        def work():
            for number in range(each):
                receipt = store.put(TOPIC, b"%0256d" % number)
                assert receipt.durability is Durability.DISK

        threads = [threading.Thread(target=work) for _ in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return store

    setup = fresh_store(stores, flush_disk_type="SYNC_FLUSH")
    store = benchmark.pedantic(run, setup=setup, rounds=2)
    figures(messages=each * callers, size=store.max_phy_offset, note=f"{callers} threads wait")
