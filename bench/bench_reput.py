"""From the log to consume queues and index: the kernel, and recovery."""

from __future__ import annotations

import shutil

import pytest
from payload import BODY_SIZE, TOPIC, message

from rmqcore import open_store
from rmqcore.native.derive._dispatch import DispatchBatch

pytestmark = pytest.mark.measure


@pytest.mark.benchmark(group="dispatch")
@pytest.mark.parametrize("verify_crc", [False, True])
def bench_scan(benchmark, figures, region, count, verify_crc):
    """Scan a region into units and keys."""
    total = count(20_000)
    data = region(total)
    batch = DispatchBatch()
    at, _ = benchmark(batch.scan, data, 0, len(data), base_offset=0, verify_crc=verify_crc)
    assert at == len(data)
    assert len(batch) == total
    figures(messages=total, size=len(data), note="with CRC" if verify_crc else "")


@pytest.mark.benchmark(group="open")
@pytest.mark.parametrize("lost", ["nothing", "derived files"])
def bench_open(benchmark, figures, directory, count, lost):
    """Open a store that was closed, and one that has its log only."""
    total = count(400_000)
    path = directory / "store"
    with open_store(path) as store:
        for number in range(total):
            store.put_message(message(number))
        size = store.max_phy_offset

    def setup():
        if lost != "nothing":
            shutil.rmtree(path / "consumequeue")
            shutil.rmtree(path / "index")
            (path / "checkpoint").unlink()
        return (), {}

    def run():
        with open_store(path) as store:
            assert sum(store.max_queue_offset(TOPIC, queue) for queue in range(4)) == total

    benchmark.pedantic(run, setup=setup, rounds=3)
    figures(messages=total, size=size, note=f"bodies of {BODY_SIZE} bytes, {lost} lost")
