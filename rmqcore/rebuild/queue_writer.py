"""Writes consume queues by position, so that splits can be done in any order, by any process.

A unit's place follows from its queue offset, so nothing has to be sorted or merged. What lies
between two stretches of a queue is filled in afterwards.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rmqcore.files.consume_queue import HOLE_UNITS_MAX, ConsumeQueue
from rmqcore.files.mapped_file import OpenFiles
from rmqcore.files.unit_file import UNIT_HEAD
from rmqcore.native.derive.runs import TopicRuns, begins_anew, is_alone, with_more_follow
from rmqcore.native.format._numbers import UNIT_SIZE

if TYPE_CHECKING:
    from rmqcore.files.deleted_topics import DeletedTopics
    from rmqcore.native.derive._dispatch import DispatchBatch, QueueStretch
    from rmqcore.scan.unit_files import UnitFiles

QueueKey = tuple[str, int]


@dataclass(slots=True)
class QueuesWritten:
    """What one worker has derived.

    Attributes:
        records: records walked.
        runs: for each queue the stretches written, as (first queue offset, offset behind); what
            lies between two is not filled yet.
        batches: for each queue of stored batches its units.
        skipped: units left out because their queue offset was taken by an earlier record.
        jumped: units left out because the records beside theirs follow each other.
        begun_anew: queues whose numbers begin again with 0 inside of what was walked, or whose
            topic was deleted there.
        unaddressable: units left out because no queue can have their place.
        too_far: (physical offset, reason) of units left out because their queue offset is so far
            behind the one before that it cannot be true.
    """

    records: int = 0
    runs: dict[QueueKey, list[tuple[int, int]]] = field(default_factory=dict)
    batches: dict[QueueKey, bytearray] = field(default_factory=dict)
    skipped: int = 0
    jumped: int = 0
    begun_anew: set[QueueKey] = field(default_factory=set)
    unaddressable: int = 0
    too_far: list[tuple[int, str]] = field(default_factory=list)


class QueueWriter:
    """Writes the units of dispatch batches into files below a fresh directory.

    Args:
        root: takes the place of ``consumequeue``.
        file_size: bytes of a file.
        batch_queues: queues that are stored as batches whatever the record says.
        deleted: topics that were deleted, whose records are passed over; None for none.
        alone: no other writer writes below ``root``: what was written of a queue that begins anew
            is removed. Where others do, the parts do not fit together, and all is written again.
        before: the files that the new ones take the place of; None where nobody asks them.
        no_begins: physical offsets of records whose number 0 begins nothing.
    """

    def __init__(
        self,
        root: Path,
        file_size: int,
        batch_queues: frozenset[QueueKey],
        deleted: DeletedTopics | None = None,
        *,
        alone: bool = True,
        before: UnitFiles | None = None,
        no_begins: frozenset[int] = frozenset(),
    ) -> None:
        self._before = before
        self._no_begins = no_begins
        #: queues that were begun anew with a single record, by its physical offset
        self._begun_alone: dict[int, QueueKey] = {}
        self._deleted = deleted
        self._alone = alone
        self._root = root
        self._file_size = file_size
        self._batch_queues = batch_queues
        self._open_files = OpenFiles()
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self._runs = TopicRuns()
        self.written = QueuesWritten()

    def write(self, batch: DispatchBatch) -> None:
        """Write what a batch adds.

        Of several records that claim a queue offset the one has it that the queue led to before,
        or else the first one.

        Where the numbers of a queue begin again with 0, its topic was made again: what was written
        of it before goes.

        Raises:
            DiskFullError: no room.
        """
        self.written.records += batch.record_count
        self.written.unaddressable += batch.unaddressable_count
        for whole, more_follow in with_more_follow(batch.stretches()):
            key = whole.topic, whole.queue_id
            stretch = self._counting(whole)
            if stretch is None:
                continue
            self._runs.add(stretch)
            if stretch.first_queue_offset == 0 and self._has(key):
                anew = self._begins_anew(stretch, key, more_follow=more_follow)
                if not (anew or self._began_with(key, stretch)):
                    self.written.skipped += 1
                    continue
                self._begin_anew(key)
            self._drop_jumped(stretch, key)
            plain = key in self.written.runs
            if key in self._batch_queues or (stretch.inner_batch and not plain):
                self.written.batches.setdefault(key, bytearray()).extend(stretch.batch_units)
            else:
                for first, units in stretch.plain():
                    self._append(key, first, units)

    def _begins_anew(self, stretch: QueueStretch, key: QueueKey, *, more_follow: bool) -> bool:
        phy_offset, _ = UNIT_HEAD.unpack_from(stretch.units)
        if phy_offset in self._no_begins or not begins_anew(stretch, more_follow=more_follow):
            return False
        if is_alone(stretch):
            self._begun_alone[phy_offset] = key
        return True

    def misjudged(self) -> set[int]:
        """After the walk: with which records it has begun queues anew whose number 0 has rotted."""
        return self._runs.misjudged(self._begun_alone)

    def drop_emptied(self) -> None:
        """After the walk: remove what it has written of queues that a deletion has emptied.

        A queue that the store has files of stays.
        """
        if self._deleted is not None:
            for key in self._runs.emptied(self._deleted.lacks_files, {}):
                self._begin_anew(key)

    def _counting(self, stretch: QueueStretch) -> QueueStretch | None:
        """The part of a stretch that is of no deleted topic; None for nothing."""
        if self._deleted is None:
            return stretch
        return stretch.since(self._deleted.counts_from(stretch.topic))

    def _has(self, key: QueueKey) -> bool:
        return bool(self.written.runs.get(key) or self.written.batches.get(key))

    def _began_with(self, key: QueueKey, stretch: QueueStretch) -> bool:
        """Whether the first record of a stretch, which says number 0, had it in the queue before.

        So it is no number that has rotted, though the record behind does not go on from it.
        """
        first = UNIT_HEAD.unpack_from(stretch.units)
        return self._before is not None and self._before.unit_head(key, 0) == first

    def _begin_anew(self, key: QueueKey) -> None:
        self.written.begun_anew.add(key)
        self.written.runs.pop(key, None)
        self.written.batches.pop(key, None)
        queue = self._queues.pop(key, None)
        if queue is not None:
            queue.close()
        if self._alone:
            shutil.rmtree(self._root / key[0] / str(key[1]), ignore_errors=True)

    def _drop_jumped(self, stretch: QueueStretch, key: QueueKey) -> None:
        """Drop the last unit of a queue where the records beside its own follow each other."""
        record = self._runs.jumped(*key) if self._alone else None
        runs = self.written.runs.get(key)
        if record is not None and runs and runs[-1] == (record.first, record.stop):
            runs.pop()
            self.written.jumped += 1
            self.queue(key).cut_at(stretch.first_queue_offset)

    def _append(self, key: QueueKey, first: int, units: memoryview) -> None:
        runs = self.written.runs.setdefault(key, [])
        count = len(units) // UNIT_SIZE
        if runs:
            skip = min(count, max(0, runs[-1][1] - first))
            self.written.skipped += skip
            self._keep_places(key, first, bytes(units[: skip * UNIT_SIZE]))
            first, count, units = first + skip, count - skip, units[skip * UNIT_SIZE :]
            if not count:
                return
            if first - runs[-1][1] > HOLE_UNITS_MAX:
                self._note_too_far(key, first, runs[-1][1], units)
                return
        if runs and first == runs[-1][1]:
            runs[-1] = (runs[-1][0], first + count)
        else:
            runs.append((first, first + count))
        self.queue(key).write(first, units)

    def _keep_places(self, key: QueueKey, first: int, units: bytes) -> None:
        """Give the places of earlier records to those that the queue led to there before."""
        if self._before is None or not units:
            return
        before = self._before.units(key, first, len(units) // UNIT_SIZE)
        for at in range(0, len(units), UNIT_SIZE):
            if UNIT_HEAD.unpack_from(before, at) == UNIT_HEAD.unpack_from(units, at):
                unit = memoryview(units)[at : at + UNIT_SIZE]
                self.queue(key).write(first + at // UNIT_SIZE, unit)

    def _note_too_far(self, key: QueueKey, first: int, behind: int, units: memoryview) -> None:
        phy_offset, _ = UNIT_HEAD.unpack_from(units)
        reason = (
            f"the record names offset {first} of {key[0]}/{key[1]}, where {behind} comes next; "
            "rmqcore doctor plan STORE says what can be saved"
        )
        self.written.too_far.append((phy_offset, reason))

    def queue(self, key: QueueKey) -> ConsumeQueue:
        """The files of a queue, which are written by position."""
        queue = self._queues.get(key)
        if queue is None:
            directory = self._root / key[0] / str(key[1])
            queue = ConsumeQueue(
                directory, *key, self._file_size, self._open_files, in_any_order=True
            )
            self._queues[key] = queue
        return queue

    def close(self) -> None:
        """Close the files."""
        while self._queues:
            self._queues.popitem()[1].close()
