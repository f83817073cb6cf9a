"""What is in a sealed log file: its CRC walk, its queues, its times, where records begin."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rmqcore.native.columns._columns import ColumnDecoder
from rmqcore.native.columns._row_filter import RowFilter
from rmqcore.native.derive._dispatch import DispatchBatch
from rmqcore.scan.log_walk import LogWalk
from rmqcore.scan.manifest import ArchivedFile, QueueRow
from rmqcore.scan.split import Split
from rmqcore.scan.unit_files import BATCH_UNITS, UNITS

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from rmqcore.native.derive._dispatch import QueueStretch

#: The index beside a file names record starts that are about this many bytes apart.
START_STEP = 4 << 20
#: The manifest names record starts that are about this many bytes apart.
CUT_STEP = 64 << 20
_READ_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class ArchivedFileSurvey:
    """A log file, and what the index beside it says.

    Attributes:
        file: without the tag of its object.
        starts: physical offsets where records begin, every 4 MiB.
    """

    file: ArchivedFile
    starts: tuple[int, ...]

    def index(self) -> bytes:
        """The object beside the file."""
        content = {**self.file.as_dict(), "starts": self.starts}
        return json.dumps(content, separators=(",", ":")).encode()


def survey(split: Split, delays_ms: tuple[int, ...]) -> ArchivedFileSurvey:
    """Walk a whole log file, and say what is in it.

    Args:
        split: the whole of a sealed file.
        delays_ms: delay of level 1, 2, ..., of the store.

    Raises:
        CorruptRecordError: a record is damaged; the file is not to be archived as it is.
        CorruptStoreError, RecordsGoneError: it was cut short, or deleted.
    """
    topics = _queues(split, delays_ms)
    rows, first_ms, last_ms, starts = _records(split)
    file = ArchivedFile(
        split.start,
        split.file_size,
        sha256_of(split),
        "",
        rows,
        first_ms,
        last_ms,
        tuple(_thinned(starts, CUT_STEP)),
        topics,
    )
    return ArchivedFileSurvey(file, tuple(starts))


def _queues(split: Split, delays_ms: tuple[int, ...]) -> dict[str, list[QueueRow]] | None:
    """By topic the queues that the file has messages of; every CRC is compared."""
    batch = DispatchBatch(delays_ms=delays_ms, keys=False)

    def kernel(
        buffer: ReadableBuffer, at: int, stop: int, /, *, base_offset: int
    ) -> tuple[int, int]:
        return batch.scan(buffer, at, stop, base_offset=base_offset, verify_crc=True)

    found: dict[tuple[str, int], list[int]] = {}
    unsure = False
    for _ in LogWalk(split).run(kernel):
        unsure = unsure or batch.unaddressable_count > 0
        for stretch in batch.stretches():
            _add(found, stretch)
        batch.clear()
    if unsure:
        return None
    topics: dict[str, list[QueueRow]] = {}
    for (topic, queue_id), (count, size, first, last) in sorted(found.items()):
        topics.setdefault(topic, []).append((queue_id, count, size, first, last))
    return topics


def _add(found: dict[tuple[str, int], list[int]], stretch: QueueStretch) -> None:
    for count, size, first, last in _runs(stretch):
        known = found.setdefault((stretch.topic, stretch.queue_id), [0, 0, first, last])
        known[0] += count
        known[1] += size
        known[2], known[3] = min(known[2], first), max(known[3], last)


def _runs(stretch: QueueStretch) -> Iterator[tuple[int, int, int, int]]:
    """(messages, bytes, first queue offset, last) of what a stretch has."""
    if stretch.inner_batch:
        for _, size, base, count in np.frombuffer(stretch.batch_units, BATCH_UNITS).tolist():
            yield count, size, base, base + count - 1
        return
    for first, data in stretch.plain():
        sizes = np.frombuffer(data, UNITS)["size"]
        yield len(sizes), int(sizes.astype(np.int64).sum()), first, first + len(sizes) - 1


def _records(split: Split) -> tuple[int, int, int, list[int]]:
    """(records, lowest store time, highest, where records begin every 4 MiB)."""
    decoder = ColumnDecoder(("phy_offset", "store_timestamp"), rows=RowFilter(uncommitted=True))
    rows, first_ms, last_ms, starts = 0, 2**63 - 1, 0, [split.start]
    for _ in LogWalk(split).run(decoder.decode):
        if not decoder.row_count:
            continue
        batch = decoder.take()
        times, offsets = batch.numbers("store_timestamp"), batch.numbers("phy_offset")
        rows += len(offsets)
        first_ms, last_ms = min(first_ms, int(times.min())), max(last_ms, int(times.max()))
        while (at := int(offsets.searchsorted(starts[-1] + START_STEP))) < len(offsets):
            starts.append(int(offsets[at]))
    return rows, first_ms if rows else 0, last_ms, starts[1:]


def _thinned(starts: list[int], step: int) -> Iterator[int]:
    """Of record starts those that are about ``step`` bytes apart."""
    last: int | None = None
    for start in starts:
        if last is None or start - last >= step:
            if last is not None:
                yield start
            last = start


def sha256_of(split: Split) -> str:
    """The SHA-256 of a whole file in a directory, hexadecimal."""
    digest = hashlib.sha256()
    with split.path_at(split.start).open("rb", buffering=0) as stream:
        while data := stream.read(_READ_SIZE):
            digest.update(data)
    return digest.hexdigest()
