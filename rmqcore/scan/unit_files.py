"""Reads consume-queue units as they lie on disk, also from damaged or incomplete files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rmqcore._codec import LAYOUT
from rmqcore.errors import Naming, is_bad_sector
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.files.mapped_file_queue import numbered_files
from rmqcore.files.store_dir import StoreDir, names_directory
from rmqcore.files.unit_file import UNIT_HEAD
from rmqcore.files.zeros import is_blank_behind, read_pages, read_small, read_up_to
from rmqcore.native.base._mapped import Descriptor
from rmqcore.native.format._numbers import BATCH_UNIT_SIZE, FILLER_SIZE, UNIT_SIZE

UNITS = np.dtype([("phy_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
BATCH_UNITS = np.dtype(
    {
        "names": ["phy_offset", "size", "base", "count"],
        "formats": [">i8", ">i4", ">i8", ">i2"],
        "offsets": [
            LAYOUT["batch_consume_queue_unit"][name][0]
            for name in ("phy_offset", "size", "base_offset", "batch_size")
        ],
        "itemsize": BATCH_UNIT_SIZE,
    }
)
#: the same units, with what else is compared of each
BATCH_UNIT_TAGS = np.dtype(
    {
        "names": ["tags_code"],
        "formats": [">i8"],
        "offsets": [LAYOUT["batch_consume_queue_unit"]["tags_code"][0]],
        "itemsize": BATCH_UNIT_SIZE,
    }
)
#: This many units are examined at a time.
LOOK_UNITS = 1 << 16
QueueKey = tuple[str, int]
#: The name of a directory has at most this many bytes.


def empty_units(units: NDArray[np.void]) -> NDArray[np.bool_]:
    """Which units stand for no message: zeros and fillers."""
    empty: NDArray[np.bool_] = units["phy_offset"] == 0
    return empty & np.isin(units["size"], (0, FILLER_SIZE))


class UnitFiles:
    """Reads the files of every queue; bytes that no file has read as zeros.

    Args:
        directory: of the store.
        file_size: bytes of a consume-queue file.
        unreadable: gets the paths of files that the disk refuses to give, whose refused bytes read
            as zeros, too; None raises there.
    """

    def __init__(
        self, directory: StoreDir, file_size: int, *, unreadable: set[Path] | None = None
    ) -> None:
        self._unreadable = unreadable
        self._directory = directory
        self._file_size = file_size
        self._known: dict[QueueKey, dict[int, int]] = {}
        self._open_files = OpenFiles()
        self._files: dict[tuple[QueueKey, int], MappedFile] = {}
        self._batches: dict[QueueKey, NDArray[np.void]] = {}

    def path(self, key: QueueKey) -> Path:
        """Directory of a queue."""
        return self._directory.consume_queue / key[0] / str(key[1])

    def batch_path(self, key: QueueKey) -> Path:
        """Directory of a queue of stored batches."""
        return self._directory.batch_consume_queue / key[0] / str(key[1])

    def has(self, key: QueueKey) -> bool:
        """True when the queue has any file."""
        return bool(self._starts(key))

    def has_no_gap(self, key: QueueKey) -> bool:
        """True when the queue has files, whole ones, and each begins where the one before ends."""
        starts = self._starts(key)
        steps = {after - before for before, after in pairwise(sorted(starts))}
        return steps <= {self._file_size} and set(starts.values()) == {self._file_size}

    def has_batches(self, key: QueueKey) -> bool:
        """True when the queue is one of stored batches."""
        return len(self.batches(key)) > 0

    def has_any(self, key: QueueKey) -> bool:
        """True when the queue, of either kind, has any file."""
        return self.has(key) or self.has_batches(key)

    def forget(self, key: QueueKey) -> None:
        """Look for the files of a queue anew, after its writer may have added some."""
        self._known.pop(key, None)

    def _starts(self, key: QueueKey) -> dict[int, int]:
        found = self._known.get(key)
        if found is None:
            listed = numbered_files(self.path(key)) if names_directory(key[0]) else []
            found = {start: size for start, _, size in listed}
            self._known[key] = found
        return found

    def units(self, key: QueueKey, first: int, count: int) -> bytes:
        """The bytes of ``count`` units from number ``first`` on.

        Args:
            key: topic and queue id.
            first: number of the first unit, 0 or more.
            count: units of 20 bytes each.
        """
        at, stop = first * UNIT_SIZE, (first + count) * UNIT_SIZE
        parts = []
        while at < stop:
            start = at - at % self._file_size
            size = min(stop, start + self._file_size) - at
            data = b""
            if start in self._starts(key):
                data = self._pread(key, start, size, at - start)
            parts.append(data.ljust(size, b"\0"))
            at += size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def unit_head(self, key: QueueKey, number: int) -> tuple[int, int]:
        """(phy_offset, size) of the unit with a number; zeros for one that is not there.

        Args:
            key: topic and queue id.
            number: of the unit; a negative one is not there.
        """
        return UNIT_HEAD.unpack_from(self.units(key, number, 1)) if number >= 0 else (0, 0)

    def first_unit(self, key: QueueKey) -> tuple[int, int]:
        """(phy_offset, size) of the message with number 0; zeros for a queue without it."""
        if self.has_batches(key):
            phy_offset, size, base, _ = self.batches(key)[0].item()
            return (phy_offset, size) if base == 0 else (0, 0)
        return self.unit_head(key, 0)

    def is_blank_behind(self, key: QueueKey, number: int) -> bool:
        """True when the files have nothing but zeros from a unit on.

        Args:
            key: topic and queue id.
            number: of the unit.
        """
        at = number * UNIT_SIZE
        for start in self._starts(key):
            if start + self._file_size > at:
                handle = self._handle(key, start)
                if handle is not None and not is_blank_behind(handle.fd, max(0, at - start)):
                    return False
        return True

    def _pread(self, key: QueueKey, start: int, size: int, at: int) -> bytes:
        handle = self._handle(key, start)
        if handle is None:
            return b""
        path = self.path(key) / f"{start:020d}"
        try:
            with Naming(path):
                return read_up_to(handle.fd, at, size)
        except OSError as error:
            self._note_refused(path, error)
            return read_pages(handle.fd, at, size)

    def _note_refused(self, path: Path, error: OSError) -> None:
        """Note a file that the disk refuses to give, where that is wanted; else raise."""
        if self._unreadable is None or not is_bad_sector(error):
            raise error
        self._unreadable.add(path)

    def _handle(self, key: QueueKey, start: int) -> Descriptor | None:
        """A file, open; None when it has gone."""
        file = self._files.get((key, start))
        if file is None:
            path = self.path(key) / f"{start:020d}"
            file = MappedFile(path, self._file_size, 0, self._open_files, writable=False)
            self._files[key, start] = file
        try:
            return file.handle
        except FileNotFoundError:
            return None

    def batches(self, key: QueueKey) -> NDArray[np.void]:
        """Every unit of a queue of stored batches, up to the first that is all zeros."""
        found = self._batches.get(key)
        if found is None:
            listed = numbered_files(self.batch_path(key)) if names_directory(key[0]) else []
            files = (self._read_small(path) for _, path, _ in listed)
            whole = (data[: len(data) // BATCH_UNIT_SIZE * BATCH_UNIT_SIZE] for data in files)
            found = np.frombuffer(b"".join(whole), BATCH_UNITS)
            used = np.flatnonzero(found["size"])
            found = found[: int(used[-1]) + 1] if len(used) else found[:0]
            self._batches[key] = found
        return found

    def _read_small(self, path: Path) -> bytes:
        try:
            return read_small(path)
        except OSError as error:
            self._note_refused(path, error)
            return b""

    def bounds(self, key: QueueKey) -> tuple[int, int]:
        """(first, behind the last) unit number that the queue's files have room for.

        Of a file that is longer than files are, what is too much counts for nothing.
        """
        starts = self._starts(key)
        if not starts:
            return 0, 0
        last = max(starts)
        size = min(max(starts[last], 0), self._file_size)
        return min(starts) // UNIT_SIZE, (last + size) // UNIT_SIZE

    def end(self, key: QueueKey) -> int:
        """Number behind the last unit of a size."""
        first, behind = self.bounds(key)
        for start, stop in reversed(list(self.stretches(key, first, behind))):
            units = np.frombuffer(self.units(key, start, stop - start), UNITS)
            used = np.flatnonzero(units["size"])
            if len(used):
                return start + int(used[-1]) + 1
        return first

    def stretches(self, key: QueueKey, low: int, high: int) -> Iterator[tuple[int, int]]:
        """(first, behind the last) unit number of what files have between two numbers, in order.

        Each is of `LOOK_UNITS` at most. What no file has is passed over: any name may be in a
        directory, and the one behind a gap may begin at 2**62.

        Args:
            key: topic and queue id.
            low: number of the first unit.
            high: number behind the last.
        """
        for start, behind in self._covered(key):
            stop = min(behind, high)
            for first in range(max(start, low), stop, LOOK_UNITS):
                yield first, min(first + LOOK_UNITS, stop)

    def _covered(self, key: QueueKey) -> list[tuple[int, int]]:
        """Unit numbers that files have: of those that lie one behind the other as one stretch."""
        found: list[tuple[int, int]] = []
        for start, size in sorted(self._starts(key).items()):
            first = start // UNIT_SIZE
            stop = (start + min(max(size, 0), self._file_size)) // UNIT_SIZE
            if found and first <= found[-1][1]:
                found[-1] = found[-1][0], max(found[-1][1], stop)
            else:
                found.append((first, stop))
        return found

    def queue_end(self, key: QueueKey) -> int | None:
        """Number behind the last message of a queue of either kind; None without any file."""
        if self.has_batches(key):
            _, _, base, count = self.batches(key)[-1].item()
            return int(base + count)
        return self.end(key) if self.has(key) else None

    def close(self) -> None:
        """Close the files."""
        while self._files:
            self._files.popitem()[1].close()
