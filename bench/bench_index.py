"""The hash index: insertion and look-up."""

from __future__ import annotations

import numpy as np
import pytest

from rmqcore._index import index_file_size, index_hash, put_key, put_keys, walk_chain

pytestmark = pytest.mark.measure

SLOTS, ENTRIES = 100_000, 400_000
BEGAN_MS = 1_700_000_000_000


def filled(count: int) -> bytearray:
    data = bytearray(index_file_size(SLOTS, ENTRIES))
    hashes = np.array([index_hash(f"TopicTest#K{n}") for n in range(count)], np.int32)
    offsets = np.arange(count, dtype=np.int64) * 425
    put_keys(data, SLOTS, ENTRIES, hashes, offsets, offsets + BEGAN_MS, 0, count)
    return data


@pytest.mark.benchmark(group="put_key")
def bench_put_key_one(benchmark, figures, count):
    total = count(100_000)
    keys = [f"TopicTest#K{number}" for number in range(total)]

    def fresh():
        return (bytearray(index_file_size(SLOTS, ENTRIES)),), {}

    def insert(data):
        for number, key in enumerate(keys):
            put_key(data, SLOTS, ENTRIES, key, number, BEGAN_MS)

    benchmark.pedantic(insert, setup=fresh, rounds=5)
    figures(messages=total)


@pytest.mark.benchmark(group="put_key")
def bench_put_key_batch(benchmark, figures, count):
    total = count(100_000)
    hashes = np.array([index_hash(f"TopicTest#K{n}") for n in range(total)], np.int32)
    offsets = np.arange(total, dtype=np.int64)

    def fresh():
        data = bytearray(index_file_size(SLOTS, ENTRIES))
        return (data, SLOTS, ENTRIES, hashes, offsets, offsets + BEGAN_MS, 0, total), {}

    benchmark.pedantic(put_keys, setup=fresh, rounds=5)
    figures(messages=total)


@pytest.mark.benchmark(group="walk_chain")
@pytest.mark.parametrize("key", ["TopicTest#K77", "TopicTest#no such key"])
def bench_walk_chain(benchmark, figures, count, key):
    data = filled(count(399_999))
    key_hash = index_hash(key)
    benchmark(walk_chain, data, SLOTS, ENTRIES, key_hash)
    figures(messages=1, note="hit" if key.endswith("K77") else "miss")
