"""Consume queues written by position: splits can be worked on in any order, by any process.

A unit's place follows from its queue offset, so nothing has to be sorted or merged. What lies
between two stretches of a queue is filled in afterwards.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rmqcore.errors import CorruptConsumeQueueError, DiskFullError
from rmqcore.files.consume_queue import FILLER, HOLE_UNITS_MAX
from rmqcore.native.format._numbers import UNIT_SIZE

if TYPE_CHECKING:
    from rmqcore.native.derive._dispatch import DispatchBatch

_FILES_OPEN_MAX = 256
QueueKey = tuple[str, int]


@dataclass(slots=True)
class QueuesWritten:
    """What one worker has derived.

    Attributes:
        records: records walked.
        runs: for each queue the stretches written, as (first queue offset, offset behind).
        batches: for each queue of stored batches its units.
        skipped: units left out because their queue offset was taken by an earlier record.
    """

    records: int = 0
    runs: dict[QueueKey, list[tuple[int, int]]] = field(default_factory=dict)
    batches: dict[QueueKey, bytearray] = field(default_factory=dict)
    skipped: int = 0


class QueueWriter:
    """Writes the units of dispatch batches into files below a fresh directory.

    Args:
        root: takes the place of ``consumequeue``.
        file_size: bytes of a file.
        batch_queues: queues that are stored as batches whatever the record says.
    """

    def __init__(self, root: Path, file_size: int, batch_queues: frozenset[QueueKey]) -> None:
        self._root = root
        self._file_size = file_size
        self._batch_queues = batch_queues
        self._open: OrderedDict[Path, int] = OrderedDict()
        self.written = QueuesWritten()

    def take(self, batch: DispatchBatch) -> None:
        """Write what a batch adds; the first record that claims a queue offset has it.

        Raises:
            CorruptConsumeQueueError: a queue offset jumps too far to be true.
            DiskFullError: no room.
        """
        self.written.records += batch.record_count
        for stretch in batch.stretches():
            key = stretch.topic, stretch.queue_id
            plain = key in self.written.runs
            if key in self._batch_queues or (stretch.inner_batch and not plain):
                self.written.batches.setdefault(key, bytearray()).extend(stretch.batch_units)
            else:
                for first, units in stretch.plain():
                    self._append(key, first, units)

    def _append(self, key: QueueKey, first: int, units: memoryview) -> None:
        runs = self.written.runs.setdefault(key, [])
        count = len(units) // UNIT_SIZE
        if runs:
            skip = min(count, max(0, runs[-1][1] - first))
            self.written.skipped += skip
            first, count, units = first + skip, count - skip, units[skip * UNIT_SIZE :]
            if not count:
                return
            if first == runs[-1][1]:
                runs[-1] = (runs[-1][0], first + count)
            else:
                self.fill(key, runs[-1][1], first)
                runs[-1] = (runs[-1][0], first + count)
        else:
            runs.append((first, first + count))
        self.write(key, first, units)

    def fill(self, key: QueueKey, start: int, stop: int) -> None:
        """Put fillers where the log has no message.

        Raises:
            CorruptConsumeQueueError: there are too many of them to be true.
        """
        if stop - start > HOLE_UNITS_MAX:
            raise CorruptConsumeQueueError(
                self._root / key[0] / str(key[1]),
                -1,
                f"the next message has queue offset {stop}, {start} was expected",
            )
        self.write(key, start, memoryview(FILLER * (stop - start)))

    def write(self, key: QueueKey, first: int, units: memoryview | bytes) -> None:
        """Write units at their place."""
        at = first * UNIT_SIZE
        rest = memoryview(units)
        directory = self._root / key[0] / str(key[1])
        while rest:
            start = at - at % self._file_size
            part = rest[: start + self._file_size - at]
            self._write_at(directory / f"{start:020d}", at - start, part)
            at += len(part)
            rest = rest[len(part) :]

    def _write_at(self, path: Path, position: int, data: memoryview) -> None:
        try:
            fd = self._descriptor(path)
            while data:
                count = os.pwrite(fd, data, position)
                position += count
                data = data[count:]
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFullError(path) from error
            raise

    def _descriptor(self, path: Path) -> int:
        fd = self._open.get(path)
        if fd is not None:
            self._open.move_to_end(path)
            return fd
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if os.fstat(fd).st_size < self._file_size:
            os.ftruncate(fd, self._file_size)
        self._open[path] = fd
        if len(self._open) > _FILES_OPEN_MAX:
            os.close(self._open.popitem(last=False)[1])
        return fd

    def close(self) -> None:
        """Let the files go."""
        while self._open:
            os.close(self._open.popitem()[1])
