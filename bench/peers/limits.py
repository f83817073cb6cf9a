"""What this machine can do at best: copy bytes, check them, force them to the disk."""

from __future__ import annotations

import mmap
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rmqcore._codec import crc32, crc32_implementation

_SIZE = 128 << 20
_RECORD = 413


@dataclass(frozen=True, slots=True)
class Limits:
    """Physical limits, measured in the run that they stand beside.

    Attributes:
        copy_rate: bytes a second of memcpy into a warm mapped file.
        crc_rate: bytes a second of CRC-32 over one long buffer.
    """

    copy_rate: float
    crc_rate: float

    def bytes_per_second(self) -> float:
        """Copying and checking the same bytes, one after the other."""
        return 1 / (1 / self.copy_rate + 1 / self.crc_rate)


def _best(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(7):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)


def measure(directory: Path) -> Limits:
    """Measure memory and CRC limits now."""
    source = os.urandom(_SIZE)
    path = directory / "limits"
    with path.open("w+b") as file:
        file.truncate(_SIZE)
        with mmap.mmap(file.fileno(), _SIZE) as target:
            target[:] = source
            copy = _best(lambda: target.__setitem__(slice(None), source))
    path.unlink()
    return Limits(_SIZE / copy, _SIZE / _best(lambda: crc32(source)))


class RawSync:
    """Writes of one record's bytes, each forced to the disk by fdatasync; nothing else."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "raw"
        self._file = self._path.open("w+b", buffering=0)
        for _ in range(64):
            self._file.write(bytes(1 << 20))
        os.fsync(self._file.fileno())
        self._at = 0

    def rate(self, count: int) -> float:
        """Writes with fdatasync a second."""
        fd, record = self._file.fileno(), b"x" * _RECORD
        began = time.perf_counter()
        for _ in range(count):
            os.pwrite(fd, record, self._at)
            os.fdatasync(fd)
            self._at = (self._at + _RECORD) % (63 << 20)
        return count / (time.perf_counter() - began)

    def close(self) -> None:
        """Remove the file."""
        self._file.close()
        self._path.unlink()


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {
        "processor": f"{model}, {os.cpu_count()} cores",
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "CRC-32": crc32_implementation(),
        "load before the run": f"{os.getloadavg()[0]:.2f}",
    }
