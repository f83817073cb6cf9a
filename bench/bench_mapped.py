"""Making a log file's pages resident before they are written."""

from __future__ import annotations

import os

import pytest

from rmqcore.native.base._mapped import MappedRegion, reserve

pytestmark = pytest.mark.measure

SIZE = 64 << 20


@pytest.mark.benchmark(group="warm_up")
@pytest.mark.parametrize("way", ["populate", "touch"])
def bench_warm_up_64m(benchmark, figures, directory, way):
    numbers = iter(range(1000))

    def fresh():
        path = directory / f"{way}{next(numbers)}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        reserve(fd, 0, SIZE)
        region = MappedRegion(fd, SIZE, path=path)
        os.close(fd)
        path.unlink()
        return (region,), {}

    benchmark.pedantic(lambda region: region.warm_up(way=way), setup=fresh, rounds=5)
    figures(messages=SIZE // 4096, size=SIZE, note="per 4 KiB page, reserved and never written")
