"""Reads: by queue, by key, by time."""

from __future__ import annotations

import random

import pytest
from payload import TOPIC, message

pytestmark = pytest.mark.measure


@pytest.fixture
def filled(stores, count):
    total = count(200_000)
    store = stores(log_size=256 << 20)
    for number in range(total):
        store.put_message(message(number))
    assert store.max_queue_offset(TOPIC, 3) == total // 4
    return store, total


def queue_offsets(store):
    """Gets of 32 over every queue."""
    for queue_id in range(4):
        offset, end = 0, store.max_queue_offset(TOPIC, queue_id)
        while offset < end:
            result = store.get_message(TOPIC, queue_id, offset, max_messages=32)
            yield result
            offset = result.next_queue_offset


@pytest.mark.benchmark(group="get")
def bench_get_32(benchmark, figures, filled):
    """Gets of 32 messages; the size of every record is read."""
    store, total = filled

    def run():
        return sum(len(result.sizes()) for result in queue_offsets(store))

    assert benchmark(run) == total
    figures(messages=total, size=store.max_phy_offset, note="size of each record read")


@pytest.mark.benchmark(group="get")
def bench_get_32_decoded(benchmark, figures, filled):
    """Gets of 32 messages; topic, body, tags, keys and offset of each are read."""
    store, total = filled

    def run():
        found = 0
        for result in queue_offsets(store):
            for one in result.messages:
                if one.topic and one.body and one.tags and one.keys and one.queue_offset >= 0:
                    found += 1
        return found

    assert benchmark(run) == total
    figures(messages=total, size=store.max_phy_offset, note="decoded, CRC checked")


@pytest.mark.benchmark(group="query")
def bench_query_message(benchmark, figures, filled, count):
    """Look-ups of random keys."""
    store, total = filled
    chance = random.Random(1)
    keys = [f"K{chance.randrange(total)}" for _ in range(count(5_000))]

    def run():
        return sum(len(store.query_message(TOPIC, key, max_messages=32)) for key in keys)

    assert benchmark(run) == len(keys)
    figures(messages=len(keys))


@pytest.mark.benchmark(group="query")
def bench_queue_offset_by_time(benchmark, figures, filled):
    """Binary search over the store times of one queue."""
    store, _ = filled
    middle = store.message_at(store.min_phy_offset).store_timestamp_ms + 1
    benchmark(store.queue_offset_by_time, TOPIC, 0, middle)
    figures(messages=1)
