"""Auditing a split: every record, and every consume-queue unit that it demands."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rmqcore.errors import CorruptConfigFileError, CorruptRecordError, Naming, is_bad_sector
from rmqcore.files.consume_queue_ext import EXT_ADDRESS_BELOW, ConsumeQueueExt
from rmqcore.files.deleted_topics import DeletedTopics
from rmqcore.files.mapped_file import OpenFiles
from rmqcore.files.store_dir import StoreDir
from rmqcore.native.derive._dispatch import DispatchBatch
from rmqcore.native.derive.runs import TopicRuns
from rmqcore.native.format._message_ext import message_from
from rmqcore.native.format._numbers import UNIT_SIZE
from rmqcore.scan.log_walk import Damage, LogWalk
from rmqcore.scan.split import Split
from rmqcore.scan.unit_files import (
    BATCH_UNIT_TAGS,
    BATCH_UNITS,
    UNITS,
    QueueKey,
    UnitFiles,
    empty_units,
)
from rmqcore.world import sleep

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from rmqcore.native.derive._dispatch import QueueStretch

PROBLEMS_MAX = 1000
_LIVE_WAIT_S = 0.001


@dataclass(frozen=True, slots=True)
class QueueProblem:
    """A stretch of a consume queue that is not what the log demands.

    Attributes:
        path: directory of the queue.
        first, count: queue offsets.
        phy_offset: of the first message concerned.
        kind: "missing", "different", "tags" (only the tags code differs) or "order" (a record
            claims a queue offset that an earlier one has).
    """

    path: Path
    first: int
    count: int
    phy_offset: int
    kind: str


@dataclass(slots=True)
class AuditReport:
    """What the audit of a split found.

    Attributes:
        records, bytes: good records, and bytes of log walked.
        damaged: places where no good record is.
        problems: what is wrong with consume queues, the first `PROBLEMS_MAX`.
        problem_count: all of them.
        runs: for each queue the stretches of queue offsets that the log has.
        batches: for each queue of stored batches the physical offsets that the log has.
        topics: every run of queue offsets that the log has, also of records that were deleted.
        first_records: of each queue with files the physical offset of the record with number 0 that
            the queue and the log agree upon, 0 for none, or for one in front of the split's files.
        last_timestamp_ms: store time of the last record.
        unreadable: files of queues that the disk refuses to give, in part or whole.
        latest: number of the last problem of each path and kind.
    """

    records: int = 0
    bytes: int = 0
    damaged: list[Damage] = field(default_factory=list)
    problems: list[QueueProblem] = field(default_factory=list)
    problem_count: int = 0
    runs: dict[QueueKey, list[tuple[int, int]]] = field(default_factory=dict)
    batches: dict[QueueKey, list[int]] = field(default_factory=dict)
    topics: TopicRuns = field(default_factory=TopicRuns)
    first_records: dict[QueueKey, int] = field(default_factory=dict)
    last_timestamp_ms: int = 0
    unreadable: set[Path] = field(default_factory=set)
    latest: dict[tuple[Path, str], int] = field(default_factory=dict)

    def note(self, problem: QueueProblem) -> None:
        """Add a problem; one that goes on is made one with the one before."""
        number = self.latest.get((problem.path, problem.kind))
        last = None if number is None else self.problems[number]
        if number is not None and last is not None and last.first + last.count == problem.first:
            joined = last.count + problem.count
            self.problems[number] = QueueProblem(
                last.path, last.first, joined, last.phy_offset, last.kind
            )
            return
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.latest[problem.path, problem.kind] = len(self.problems)
            self.problems.append(problem)


def audit(
    split: Split,
    *,
    queue_file_size: int,
    delays_ms: tuple[int, ...],
    multi_dispatch: bool = False,
    verify_crc: bool = True,
    verify_crc_property: bool = False,
    queues: bool = True,
    live: bool = False,
) -> AuditReport:
    """Check every record of a split, and the consume-queue units that it demands.

    Args:
        split: from `plan`.
        queue_file_size: bytes of a consume-queue file.
        delays_ms: delay of level 1, 2, ...
        multi_dispatch: records are fanned out to light queues (LMQ).
        verify_crc: compare bodies with their CRC.
        verify_crc_property: demand and check the ``__CRC32#`` property instead.
        queues: also compare the consume queues.
        live: a writer is at work: what differs is read anew before it is a problem. Units that it
            has not dispatched yet are "missing" all the same.
    """
    report = AuditReport(bytes=split.size)
    batch = DispatchBatch(delays_ms=delays_ms, multi_dispatch=multi_dispatch, keys=False)

    def kernel(
        buffer: ReadableBuffer, at: int, stop: int, /, *, base_offset: int
    ) -> tuple[int, int]:
        return batch.scan(
            buffer,
            at,
            stop,
            base_offset=base_offset,
            verify_crc=verify_crc,
            verify_crc_property=verify_crc_property,
        )

    files = UnitFiles(StoreDir(split.store), queue_file_size, unreadable=report.unreadable)
    comparison = _Comparison(report, files, split, live) if queues else None
    try:
        walk = LogWalk(split, on_damage=report.damaged.append)
        for _ in walk.run(kernel):
            report.records += batch.record_count
            if batch.record_count:
                report.last_timestamp_ms = batch.store_timestamp
            if comparison is not None:
                comparison.compare(batch)
            batch.clear()
    finally:
        batch.clear()
        files.close()
    return report


class _Comparison:
    """Compares what dispatch batches demand with what is on disk."""

    def __init__(self, report: AuditReport, files: UnitFiles, split: Split, live: bool) -> None:
        self._split = split
        directory = StoreDir(split.store)
        self._ext_root = directory.consume_queue_ext
        self._has_ext = self._ext_root.is_dir()
        self._exts: dict[QueueKey, ConsumeQueueExt | None] = {}
        self._deleted = DeletedTopics(directory)
        with suppress(CorruptConfigFileError):
            # the verification of that file reports what is wrong with it
            self._deleted.load()
        self._report = report
        self._files = files
        self._live = live

    def compare(self, batch: DispatchBatch) -> None:
        for whole in batch.stretches():
            key = whole.topic, whole.queue_id
            stretch = self._counting(whole, key)
            if stretch is None:
                continue
            if self._files.has_batches(key) or (stretch.inner_batch and not self._files.has(key)):
                self._compare_batches(key, stretch.batch_units)
            else:
                for first, units in stretch.plain():
                    self._compare_units(key, first, units)

    def _counting(self, whole: QueueStretch, key: QueueKey) -> QueueStretch | None:
        """The part of a stretch that no deletion has taken out of its queue; None for nothing."""
        stretch = whole.since(self._deleted.counts_from(key[0]))
        if stretch is None:
            return None
        self._report.topics.add(stretch)
        if key not in self._report.first_records and self._files.has_any(key):
            self._report.first_records[key] = self._first_record(key)
        return stretch.since(self._report.first_records.get(key, 0))

    def _first_record(self, key: QueueKey) -> int:
        """Physical offset of the record with number 0 that the queue and the log agree upon."""
        phy_offset, size = self._files.first_unit(key)
        split = self._split
        if size < 1 or phy_offset < split.first_file:
            return 0
        start = split.file_start(phy_offset)
        try:
            path = split.path_at(start)
            with path.open("rb", buffering=0) as stream, Naming(path):
                record = os.pread(stream.fileno(), min(size, split.file_size), phy_offset - start)
            message = message_from(record)
        except (OSError, CorruptRecordError) as error:
            is_known = isinstance(error, (FileNotFoundError, CorruptRecordError))
            if not is_known and not is_bad_sector(error):
                raise
            return 0
        named = message.topic, message.queue_id, message.queue_offset, message.phy_offset
        return phy_offset if named == (*key, 0, phy_offset) else 0

    def _compare_units(self, key: QueueKey, first: int, units: memoryview) -> None:
        runs = self._report.runs.setdefault(key, [])
        count = len(units) // UNIT_SIZE
        if runs and first < runs[-1][1]:
            taken = min(count, runs[-1][1] - first)
            phy_offset = int(np.frombuffer(units[:UNIT_SIZE], UNITS)["phy_offset"][0])
            self._report.note(
                QueueProblem(self._files.path(key), first, taken, phy_offset, "order")
            )
            first, count, units = first + taken, count - taken, units[taken * UNIT_SIZE :]
            if not count:
                return
        if runs and first == runs[-1][1]:
            runs[-1] = (runs[-1][0], first + count)
        else:
            runs.append((first, first + count))
        # views are compared element by element
        if self._files.units(key, first, count) == bytes(units):
            return
        if self._live:
            # a unit may have been read while it was written, a file be added since
            sleep(_LIVE_WAIT_S)
            self._files.forget(key)
        self._compare(key, first, units)

    def _compare(self, key: QueueKey, first: int, units: memoryview) -> None:
        """Say unit by unit what differs."""
        have = np.frombuffer(self._files.units(key, first, len(units) // UNIT_SIZE), UNITS)
        want = np.frombuffer(units, UNITS)
        place = (have["phy_offset"] != want["phy_offset"]) | (have["size"] != want["size"])
        tags = have["tags_code"] != want["tags_code"]
        addresses = tags & (have["tags_code"] < EXT_ADDRESS_BELOW)
        for at in np.flatnonzero(addresses) if self._has_ext else ():
            code = self._code_of_ext(key, int(have["tags_code"][at]))
            # where the extension has no unit the record's own tags count
            tags[at] = code not in (None, want["tags_code"][at])
        empty = empty_units(have)
        missing = place & empty
        for kind, found in (
            ("missing", missing),
            ("different", place & ~empty),
            ("tags", tags & ~place),
        ):
            for start, stop in stretches_of(found):
                offset = int(want["phy_offset"][start])
                self._report.note(
                    QueueProblem(self._files.path(key), first + start, stop - start, offset, kind)
                )

    def _code_of_ext(self, key: QueueKey, address: int) -> int | None:
        """The tags code that the extension file has at an address; None for none."""
        if key not in self._exts:
            directory = self._ext_root / key[0] / str(key[1])
            found = ConsumeQueueExt(directory, OpenFiles()) if directory.is_dir() else None
            self._exts[key] = found
        ext = self._exts[key]
        return None if ext is None else ext.tags_code_at(address)

    def _compare_batches(self, key: QueueKey, units: bytes) -> None:
        wanted = np.frombuffer(units, BATCH_UNITS)
        there = self._files.batches(key)
        among = np.isin(there["phy_offset"], wanted["phy_offset"])
        known = dict(zip(there[among].tolist(), _tags_codes(there)[among].tolist(), strict=True))
        for place, tags_code in zip(wanted.tolist(), _tags_codes(wanted).tolist(), strict=True):
            phy_offset, _, base, count = place
            self._report.batches.setdefault(key, []).append(phy_offset)
            have = known.get(place)
            if have != tags_code:
                kind = "missing" if have is None else "tags"
                self._report.note(
                    QueueProblem(self._files.batch_path(key), base, count, phy_offset, kind)
                )


def _tags_codes(batches: NDArray[np.void]) -> NDArray[np.int64]:
    codes: NDArray[np.int64] = batches.view(BATCH_UNIT_TAGS)["tags_code"]
    return codes


def stretches_of(found: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """(start, stop) of each stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], found, [False])).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
