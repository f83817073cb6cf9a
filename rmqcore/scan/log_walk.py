"""Walking a split through a kernel: read in large pieces, record by record, damage told apart.

Files are read with ``pread``: one that is deleted or cut short meanwhile is an error with path and
offset, never a signal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rmqcore._codec import BLANK_MAGIC, check_record
from rmqcore.errors import CorruptRecordError, CorruptStoreError, RecordsGoneError
from rmqcore.native.format._message import status_text
from rmqcore.native.format._next_record import ScanStatus, find_head
from rmqcore.scan.split import Split

CHUNK_SIZE = 512 << 10
_HEAD_SIZE = 36


class Kernel(Protocol):
    """What works on the bytes: `DispatchBatch.scan`, `ColumnDecoder.decode` and their like."""

    def __call__(
        self, buffer: memoryview, at: int, stop: int, /, *, base_offset: int
    ) -> tuple[int, int]:
        """Work on the records between two positions: (where it stopped, why)."""
        ...


@dataclass(frozen=True, slots=True)
class Damage:
    """A place where no good record is.

    Attributes:
        path: the log file.
        phy_offset: where it begins.
        next_offset: where good records go on, or the split ends.
        reason: what is there.
    """

    path: Path
    phy_offset: int
    next_offset: int
    reason: str


class LogWalk:
    """One walk over one split.

    Args:
        split: what to walk.
        on_damage: called for each damaged place, after which the walk goes on with the next good
            record; None raises instead.
        on_progress: called with the number of bytes that have been walked since the last call.
        chunk_size: bytes read at once; a larger record is read whole all the same.
    """

    def __init__(
        self,
        split: Split,
        *,
        on_damage: Callable[[Damage], None] | None = None,
        on_progress: Callable[[int], None] | None = None,
        chunk_size: int = CHUNK_SIZE,
    ) -> None:
        self._split = split
        self._on_damage = on_damage
        self._on_progress = on_progress
        self._chunk_size = max(_HEAD_SIZE, chunk_size)
        self._buffer = bytearray(min(self._chunk_size, max(split.size, _HEAD_SIZE)))
        self._fd = -1
        self._file_start = 0
        self._path = Path(split.commit_log)

    def run(self, kernel: Kernel) -> Iterator[ScanStatus]:
        """Feed the split to a kernel, piece by piece.

        Yields after each call of the kernel, with its answer: what it has made is to be taken then,
        before the buffer changes.

        Raises:
            CorruptRecordError: a damaged place, without ``on_damage``.
            CorruptStoreError: a file is shorter than it should be.
            RecordsGoneError: a file is gone.
        """
        at = self._split.start
        while at < self._split.end:
            self._file_start = self._split.file_start(at)
            self._path = self._split.path_at(self._file_start)
            file_end = self._file_start + self._split.file_size
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                at = self._gone(at, min(file_end, self._split.end))
                continue
            try:
                yield from self._run_file(kernel, at, min(file_end, self._split.end))
            finally:
                os.close(self._fd)
            at = file_end

    def _run_file(self, kernel: Kernel, at: int, stop: int) -> Iterator[ScanStatus]:
        size = self._chunk_size
        while at < stop:
            length = min(size, stop - at)
            view = self._read(at, length)
            if view is None:
                return
            status, reached = ScanStatus.CAPACITY, 0
            while status is ScanStatus.CAPACITY:
                reached, code = kernel(view, reached, length, base_offset=at)
                status = ScanStatus(code)
                yield status
            head = bytes(view[reached : reached + _HEAD_SIZE])
            before, at = at, at + reached
            size = self._chunk_size
            if status is ScanStatus.OK:
                self._progressed(at - before)
                continue
            if status in (ScanStatus.BLANK, ScanStatus.TRUNCATED) and self._ends_file(head, at):
                self._progressed(stop - before)
                return
            if status is ScanStatus.TRUNCATED and before + length < stop:
                if reached:
                    self._progressed(reached)
                    continue
                size = _claimed_size(head, at)
                if length < size <= stop - at:
                    continue
                size = self._chunk_size
            at = self._damaged(at, stop, status_text(status))
            self._progressed(at - before)

    def _ends_file(self, head: bytes, at: int) -> bool:
        """True at an end-of-file record that reaches to the file's end."""
        left = self._file_start + self._split.file_size - at
        return head[:8] == left.to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big", signed=True)

    def _progressed(self, size: int) -> None:
        if self._on_progress is not None and size:
            self._on_progress(size)

    # ---- reading

    def _read(self, at: int, length: int) -> memoryview | None:
        """Bytes of the open file; None when it ends before, and that is not to be raised."""
        if len(self._buffer) < length:
            self._buffer = bytearray(length)
        view = memoryview(self._buffer)[:length]
        done = 0
        while done < length:
            count = os.preadv(self._fd, [view[done:]], at - self._file_start + done)
            if count == 0:
                reason = f"the file was cut short: it ends at byte {at - self._file_start + done}"
                if self._on_damage is None:
                    raise CorruptStoreError(self._path, at + done, reason)
                end = min(self._file_start + self._split.file_size, self._split.end)
                self._on_damage(Damage(self._path, at + done, end, reason))
                return None
            done += count
        return view

    def _gone(self, at: int, stop: int) -> int:
        if self._on_damage is None:
            raise RecordsGoneError(self._path, at)
        self._on_damage(Damage(self._path, at, stop, "the file is gone"))
        return stop

    # ---- damage

    def _damaged(self, at: int, stop: int, reason: str) -> int:
        if self._on_damage is None:
            raise CorruptRecordError(self._path, at, reason)
        following = self._find_good(at + 1, stop)
        self._on_damage(Damage(self._path, at, following, reason))
        return following

    def _find_good(self, at: int, stop: int) -> int:
        """The first good record from ``at`` on, or ``stop``."""
        while at < stop:
            data = os.pread(self._fd, min(CHUNK_SIZE, stop - at), at - self._file_start)
            found = find_head(data, 0, len(data), base_offset=at)
            while found >= 0:
                if self._good_at(at + found, stop):
                    return at + found
                found = find_head(data, found + 1, len(data), base_offset=at)
            if len(data) < _HEAD_SIZE:
                return stop
            at += len(data) - _HEAD_SIZE + 1
        return stop

    def _good_at(self, at: int, stop: int) -> bool:
        size = int.from_bytes(os.pread(self._fd, 4, at - self._file_start), "big", signed=True)
        if not 0 < size <= stop - at:
            return False
        record = os.pread(self._fd, size, at - self._file_start)
        try:
            return check_record(record) == size
        except CorruptRecordError:
            return False


def _claimed_size(head: bytes, at: int) -> int:
    """The size that a record claims, 0 when its head is not that of a record at this offset."""
    if len(head) < _HEAD_SIZE or int.from_bytes(head[28:36], "big", signed=True) != at:
        return 0
    return int.from_bytes(head[:4], "big", signed=True)
