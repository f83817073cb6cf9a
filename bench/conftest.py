"""What the benchmarks share: payloads, warm stores, machine facts and the closing table.

A benchmark says how many messages and bytes one round handled (`figures`); the table at the end
shows rates beside the physical limit measured in the same run. Under ``--benchmark-disable`` each
runs once over a few messages, so that none can rot.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from payload import message

from rmqcore import DefaultMessageStore, open_store
from rmqcore._codec import crc32, crc32_implementation, encode_record

_rows: list[Figure] = []


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the closing table."""

    name: str
    messages: int
    size: int
    seconds: float
    note: str


@pytest.fixture
def figures(request, benchmark) -> Callable[..., None]:
    """Record what one round did: ``figures(messages=..., size=...)`` after the benchmark ran."""

    def record(*, messages: int, size: int = 0, note: str = "") -> None:
        if benchmark.disabled or benchmark.stats is None:
            return
        seconds = benchmark.stats.stats.median
        benchmark.extra_info |= {
            "messages": messages,
            "ns_per_message": round(seconds / messages * 1e9, 1),
            "MB_per_s": round(size / seconds / 1e6, 1),
            "note": note,
        }
        _rows.append(Figure(request.node.name, messages, size, seconds, note))

    return record


@pytest.fixture
def count(benchmark) -> Callable[[int], int]:
    """How many messages a round handles: the number wanted, or a few in the smoke run."""
    return lambda wanted: 500 if benchmark.disabled else wanted


@pytest.fixture
def directory() -> Iterator[Path]:
    """An empty directory on the disk that the figures are about."""
    with tempfile.TemporaryDirectory(prefix="rmqcore-bench-") as path:
        yield Path(path)


@pytest.fixture
def stores(directory) -> Iterator[Callable[..., DefaultMessageStore]]:
    """Open stores whose log files are warm: pages resident and writable before the timing."""
    opened: list[DefaultMessageStore] = []

    def make(*, log_size: int, **settings: object) -> DefaultMessageStore:
        settings.setdefault("mapped_file_size_commit_log", log_size)
        store = open_store(directory / f"store{len(opened)}", **settings)
        store.log.queue.last.region.warm_up(expect_empty=False)
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


@pytest.fixture(scope="session")
def region() -> Callable[[int], bytes]:
    """Bytes of a commit log with so many records, as they stand in a file."""
    made: dict[int, bytes] = {}

    def make(records: int) -> bytes:
        if records not in made:
            parts, offset = [], 0
            for number in range(records):
                part = encode_record(
                    message(number),
                    queue_offset=number // 4,
                    phy_offset=offset,
                    store_timestamp_ms=1_700_000_000_000 + number,
                )
                parts.append(part)
                offset += len(part)
            made[records] = b"".join(parts)
        return made[records]

    return make


def _gigabytes_per_second(work: Callable[[], object], size: int) -> float:
    best = min(_timed(work) for _ in range(5))
    return size / best / 1e9


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _limits() -> list[str]:
    """The physical limits of this machine, measured now."""
    size = 64 << 20
    source, target = os.urandom(size), bytearray(size)
    copy = _gigabytes_per_second(lambda: target.__setitem__(slice(None), source), size)
    check = _gigabytes_per_second(lambda: crc32(source), size)
    with tempfile.NamedTemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        began, syncs = time.perf_counter(), 0
        while time.perf_counter() - began < 1.0:
            os.pwrite(file.fileno(), b"x" * 512, syncs % 2048 * 512)
            os.fdatasync(file.fileno())
            syncs += 1
        rate = syncs / (time.perf_counter() - began)
    return [
        f"memcpy {copy:.1f} GB/s, CRC-32 {check:.1f} GB/s ({crc32_implementation()}), "
        f"fdatasync of 512 bytes {rate:.0f}/s",
        f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}, "
        f"Linux {platform.release()}",
    ]


def pytest_terminal_summary(terminalreporter) -> None:
    """Print the table: rate and bytes beside the limits."""
    if not _rows:
        return
    write = terminalreporter.write_line
    terminalreporter.section("rates (median round)")
    width = max(len(row.name) for row in _rows)
    write(f"{'':{width}}  {'M/s':>9}  {'ns each':>10}  {'MB/s':>9}")
    for row in _rows:
        rate, each = row.messages / row.seconds / 1e6, row.seconds / row.messages * 1e9
        speed = f"{row.size / row.seconds / 1e6:9.0f}" if row.size else " " * 9
        write(f"{row.name:{width}}  {rate:9.3f}  {each:10.1f}  {speed}  {row.note}".rstrip())
    for line in _limits():
        write(line)
