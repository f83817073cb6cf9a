"""Encoding, decoding and checking of records."""

from __future__ import annotations

import os
import zlib

import pytest
from payload import message

from rmqcore._codec import crc32, decode_batch, decode_record, encode_batch, encode_record

pytestmark = pytest.mark.measure


@pytest.mark.benchmark(group="crc")
@pytest.mark.parametrize("size", [64, 256, 1024, 1 << 20])
@pytest.mark.parametrize("way", ["rmqcore", "tables", "zlib"])
def bench_crc(benchmark, figures, size, way):
    data = os.urandom(size)
    work = {"rmqcore": crc32, "tables": lambda data: crc32(data, by_table=True), "zlib": zlib.crc32}
    benchmark(work[way], data)
    figures(messages=1, size=size)


@pytest.mark.benchmark(group="encode")
def bench_encode_256b(benchmark, figures):
    one = message(1)
    record = benchmark(
        encode_record, one, queue_offset=1, phy_offset=1, store_timestamp_ms=1_700_000_000_000
    )
    figures(messages=1, size=len(record))


@pytest.mark.benchmark(group="encode")
def bench_encode_batch_64(benchmark, figures):
    messages = [message(number) for number in range(64)]
    body = benchmark(encode_batch, messages)
    figures(messages=64, size=len(body))


@pytest.mark.benchmark(group="decode")
def bench_decode_256b(benchmark, figures, region):
    data = region(1)
    benchmark(decode_record, data)
    figures(messages=1, size=len(data))


@pytest.mark.benchmark(group="decode")
def bench_decode_batch_64(benchmark, figures):
    body = encode_batch([message(number) for number in range(64)])
    benchmark(decode_batch, body)
    figures(messages=64, size=len(body))
