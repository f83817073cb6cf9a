"""What is whole in a log and what is not, also where files are missing or have a wrong length.

Believes nothing but records that are whole, name their own offset and have a right CRC.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rmqcore._codec import BLANK_SIZE, blank_record
from rmqcore.files.deleted_topics import DeletedTopics
from rmqcore.files.log_walker import FileWalk, GoodRecord, find_good_record, view_of
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.native.derive._dispatch import DispatchBatch
from rmqcore.native.format._next_record import ScanStatus
from rmqcore.recovery.judge import BLANK_IN_FRONT, used_bytes
from rmqcore.scan.runner import Runner, run
from rmqcore.scan.split import Split
from rmqcore.scan.unit_files import BATCH_UNITS, UNITS, UnitFiles

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from rmqcore.native.derive._dispatch import QueueStretch

QueueKey = tuple[str, int]


class OffsetRange(NamedTuple):
    """Messages of one queue that follow each other in the log without a break.

    Attributes:
        first, stop: queue offsets, the latter behind the last.
        phy_offset: of the first message.
    """

    first: int
    stop: int
    phy_offset: int


#: what the log has of each queue, in log order
OffsetRanges = dict[QueueKey, list[OffsetRange]]


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of one log file where no whole record is.

    Attributes:
        start, stop: physical offsets.
        reason: what lies at its beginning.
        timestamp_ms: store time of a record beside it.
        given_up: whole records inside, which go because the gap is too small for any record.
        following_ms: store time of the whole record behind; 0 for the end of a file.
    """

    start: int
    stop: int
    reason: str
    timestamp_ms: int
    given_up: int = 0
    following_ms: int = 0


@dataclass(slots=True)
class FileSurvey:
    """One log file.

    Attributes:
        start, path: where it begins in the log, and where it lies.
        size: its bytes; -1 for a file that is missing.
        records: whole records.
        first_ms, last_ms: store time of the first and the last of them; 0 without any.
        gaps: in front of whole records, in log order.
        end: physical offset behind the last whole record.
        ends_in_blank: an end-of-file record stands there.
        behind_blank: physical offset of a whole record behind that, which may be left of a longer
            log; -1 without any.
        used_behind: bytes behind ``end`` up to the last one that is not zero.
        reason: what lies at ``end``.
        runs: what the whole records say of their queues.
        batch_runs: the same of stored batches.
    """

    start: int
    path: Path
    size: int
    records: int = 0
    first_ms: int = 0
    last_ms: int = 0
    gaps: list[Gap] = field(default_factory=list)
    end: int = 0
    ends_in_blank: bool = False
    behind_blank: int = -1
    used_behind: int = 0
    reason: str = ""
    runs: OffsetRanges = field(default_factory=dict)
    batch_runs: OffsetRanges = field(default_factory=dict)


def is_blank_at(path: Path, position: int, size: int) -> bool:
    """Whether an end-of-file record stands in a log file; False of a file that cannot be read.

    Args:
        path: of the file.
        position: in it.
        size: bytes that files of the log have.
    """
    if size - position < BLANK_SIZE:
        return False
    try:
        with path.open("rb") as opened:
            opened.seek(position)
            return opened.read(BLANK_SIZE) == blank_record(size - position)
    except OSError:
        return False


def survey_log(
    store: Path,
    files: list[tuple[int, Path, int]],
    file_size: int,
    *,
    gap_min: int,
    verify_crc_property: bool = False,
    multi_dispatch: bool = False,
    deleted: DeletedTopics | None = None,
    jobs: int | Runner = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[FileSurvey]:
    """Look at every file of a log, and at those that are missing between two.

    Args:
        store: the store's directory.
        files: (physical offset, path, bytes) of each log file, in order, whole multiples of
            ``file_size`` apart.
        file_size: bytes that every file should have.
        gap_min: a smaller gap takes the record behind it with it.
        verify_crc_property: demand the ``__CRC32#`` property of every record.
        multi_dispatch: records are fanned out to light queues (LMQ).
        deleted: topics that were deleted: no run goes on over their end; None for none.
        jobs: processes, or what else runs a function over splits.
        progress: called with (bytes of log done, bytes in all).
    """
    if not files:
        return []
    splits = [
        Split(str(store), str(files[0][1].parent), start, start + file_size, start, file_size)
        for start in range(files[0][0], files[-1][0] + 1, file_size)
    ]
    work = partial(
        survey_file,
        gap_min=gap_min,
        verify_crc_property=verify_crc_property,
        multi_dispatch=multi_dispatch,
        deleted=deleted,
    )
    return list(run(work, splits, jobs=jobs, progress=progress))


def survey_file(
    split: Split,
    *,
    gap_min: int,
    verify_crc_property: bool,
    multi_dispatch: bool,
    deleted: DeletedTopics | None,
) -> FileSurvey:
    """Look at one log file; the split is the file.

    Args:
        split: a whole file of the log.
        gap_min: a smaller gap takes the record behind it with it, in bytes.
        verify_crc_property: demand the ``__CRC32#`` property of every record.
        multi_dispatch: records are fanned out to light queues (LMQ).
        deleted: see `survey_log`.
    """
    return _FileWalk(split, gap_min, verify_crc_property, multi_dispatch, deleted).run()


def survey_again(
    file: FileSurvey,
    file_size: int,
    *,
    gap_min: int,
    verify_crc_property: bool,
    multi_dispatch: bool,
    deleted: DeletedTopics,
    stop: int | None = None,
    past_blank: bool = False,
) -> FileSurvey:
    """Look at a log file again, with another end.

    Args:
        file: what the first look has found.
        file_size: bytes that a file of this log has.
        gap_min: bytes; a smaller gap takes the record behind it with it.
        verify_crc_property: demand the ``__CRC32#`` property of every record.
        multi_dispatch: records are fanned out to light queues (LMQ).
        deleted: see `survey_log`.
        stop: physical offset inside the file where a record ends, up to which it is looked at; None
            for all of it.
        past_blank: an end-of-file record in front of whole ones is damage.

    Raises:
        OSError: the file cannot be read.
    """
    log, size = str(file.path.parent), None if stop is None else stop - file.start
    split = Split(log, log, file.start, file.start + file_size, file.start, file_size)
    walk = _FileWalk(split, gap_min, verify_crc_property, multi_dispatch, deleted, size)
    walk.past_blank = past_blank
    return walk.run()


class _FileWalk:
    """One walk over one file, from gap to gap."""

    def __init__(
        self,
        split: Split,
        gap_min: int,
        verify_crc_property: bool,
        multi_dispatch: bool,
        deleted: DeletedTopics | None,
        size: int | None = None,
    ) -> None:
        self._deleted = deleted
        self._gap_min = gap_min
        #: an end-of-file record in front of a whole record is damage
        self.past_blank = False
        self._file_end = split.end
        path = split.path_at(split.start)
        self._found = FileSurvey(split.start, path, path.stat().st_size if path.is_file() else -1)
        self._found.end = split.start
        self._batch = DispatchBatch(keys=False, multi_dispatch=multi_dispatch)
        self._by_property = verify_crc_property
        size = min(split.size if size is None else size, max(0, self._found.size))
        self._file = MappedFile(path, size, split.start, OpenFiles(), writable=False)

    def run(self) -> FileSurvey:
        try:
            if self._file.size:
                self._walk()
        finally:
            self._batch.clear()
            self._file.close()
        return self._found

    def _walk(self) -> None:
        found, file = self._found, self._file
        stop = found.start + file.size
        walk = FileWalk(view_of(file), self._scan, found.start, stop, file_end=self._file_end)
        looked_again = -1
        for step in walk:
            self._note_batch()
            found.end, found.reason = step.phy_offset, step.reason
            found.ends_in_blank = step.status is ScanStatus.BLANK
            if found.ends_in_blank:
                following = self._following(found.end)
                found.behind_blank = -1 if following is None else following.phy_offset
                if following is not None and self.past_blank:
                    found.reason = BLANK_IN_FRONT
                    found.ends_in_blank = False
                    walk.go_on(self._note_gap(found.end, following))
            elif not step.is_good:
                following = self._following(found.end)
                if following is None:
                    found.used_behind = used_bytes([file], found.end - found.start)
                    return
                if looked_again == found.end:
                    walk.go_on(self._note_gap(found.end, following))
                else:
                    # a writer may have put both meanwhile, what is here first
                    looked_again = found.end
                    walk.go_on(found.end)

    def _scan(
        self, buffer: ReadableBuffer, at: int, stop: int, /, *, base_offset: int
    ) -> tuple[int, int]:
        return self._batch.scan(
            buffer,
            at,
            stop,
            base_offset=base_offset,
            verify_crc=True,
            verify_crc_property=self._by_property,
        )

    def _following(self, phy_offset: int) -> GoodRecord | None:
        return find_good_record([self._file], phy_offset + 1 - self._found.start)

    def _note_gap(self, start: int, following: GoodRecord) -> int:
        """Note a gap in front of a whole record; where the walk goes on."""
        found, stop, given_up = self._found, following.phy_offset, 0
        if found.gaps and found.gaps[-1].stop == start:
            before = found.gaps.pop()
            start, given_up = before.start, before.given_up
        if stop - start < self._gap_min:
            stop, given_up = following.end_offset, given_up + 1
        following_ms = following.store_timestamp_ms
        before_ms = found.last_ms or following_ms
        found.gaps.append(Gap(start, stop, found.reason, before_ms, given_up, following_ms))
        found.end = stop
        return stop

    def _note_batch(self) -> None:
        """Take over what the batch says of records and queues."""
        batch, found = self._batch, self._found
        if batch.record_count:
            found.records += batch.record_count
            found.last_ms = batch.store_timestamp
            found.first_ms = found.first_ms or batch.store_timestamp
        for stretch in batch.stretches():
            key = stretch.topic, stretch.queue_id
            begin = 0 if self._deleted is None else self._deleted.counts_from(stretch.topic)
            if stretch.inner_batch:
                runs = found.batch_runs.setdefault(key, [])
                for unit in np.frombuffer(stretch.batch_units, BATCH_UNITS):
                    phy_offset, _, base, count = unit.item()
                    add_run(runs, OffsetRange(base, base + count, phy_offset), begin)
                continue
            runs = found.runs.setdefault(key, [])
            for one in _parted(stretch, begin):
                add_run(runs, one, begin)
        batch.clear()


def _parted(stretch: QueueStretch, begin: int) -> Iterator[OffsetRange]:
    """The runs of a stretch, in two where it goes on over a physical offset."""
    for first, units in stretch.plain():
        offsets = np.frombuffer(units, UNITS)["phy_offset"]
        at = int(np.searchsorted(offsets, begin))
        for start, stop in ((0, at), (at, len(offsets))):
            if start < stop:
                yield OffsetRange(first + start, first + stop, int(offsets[start]))


def add_run(runs: list[OffsetRange], following: OffsetRange, begin: int = 0) -> None:
    """Add a run behind those that are known.

    Args:
        runs: of one queue, in the order of the log; changed.
        following: what the log has behind them.
        begin: physical offset from which records are of another topic of that name: a number there
            that follows the last one before has rotted.
    """
    goes_on = runs and runs[-1].stop == following.first
    if goes_on and not runs[-1].phy_offset < begin <= following.phy_offset:
        runs[-1] = runs[-1]._replace(stop=following.stop)
    else:
        runs.append(following)


def lacking(runs: list[OffsetRange]) -> Iterator[tuple[int, int]]:
    """(first, stop) of the queue offsets between the least and the greatest that no run has."""
    behind: int | None = None
    for one in sorted(runs):
        if behind is not None and one.first > behind:
            yield behind, one.first
        behind = one.stop if behind is None else max(behind, one.stop)


def merged_runs(files: list[FileSurvey], deleted: DeletedTopics) -> OffsetRanges:
    """The runs of all files of what is in a queue, and was not deleted with its topic.

    Args:
        files: in the order of the log.
        deleted: topics that were deleted, as `survey_log` was given.
    """
    merged = _merged((file.runs for file in files), deleted.counts_from)
    begins = {topic: deleted.counts_from(topic) for topic, _ in merged}
    return {
        key: [one for one in found if one.phy_offset >= begins[key[0]]]
        for key, found in merged.items()
    }


def merged_batch_runs(files: list[FileSurvey]) -> OffsetRanges:
    """The runs of stored batches of all files."""
    return _merged(file.batch_runs for file in files)


def _merged(
    parts: Iterable[OffsetRanges], counts_from: Callable[[str], int] = lambda _: 0
) -> OffsetRanges:
    merged: OffsetRanges = {}
    for part in parts:
        for key, runs in part.items():
            known, begin = merged.setdefault(key, []), counts_from(key[0])
            for one in runs:
                add_run(known, one, begin)
    return merged


def present_runs(files: UnitFiles, key: QueueKey, runs: list[OffsetRange]) -> list[OffsetRange]:
    """The runs of a queue without those of a topic that was deleted and made again since.

    A topic that was made again counts from 0 again. Its runs begin with the record that the
    queue's number 0 leads to, or, where that unit is lost, where numbers step back to some that the
    queue has there.

    Args:
        files: the store's consume queues.
        key: topic and number of the queue.
        runs: of the queue, in the order of the log.
    """
    begin, size = files.unit_head(key, 0)
    number = bisect_left(runs, begin, key=lambda one: one.phy_offset)
    if size > 0 and number < len(runs) and runs[number].phy_offset == begin:
        steps_back = number + 1 < len(runs) and runs[number + 1].first <= runs[number].first
        if number == 0 or steps_back:
            # whatever number that record has now, the queue has begun with it
            return runs[number:]
    if size > 0 and 0 < number < len(runs) and runs[number].first < runs[number - 1].stop:
        return runs[number:]
    for number in range(len(runs) - 1, 0, -1):
        one = runs[number]
        if one.first < runs[number - 1].stop:
            begin, size = files.unit_head(key, one.stop - 1)
            alone = one.stop - one.first == 1
            if size > 0 and (begin == one.phy_offset if alone else begin > one.phy_offset):
                return runs[number:]
    return runs


def has_offset(runs: list[OffsetRange], queue_offset: int) -> bool:
    """True when the log has a whole record with this queue offset.

    Args:
        runs: of one queue.
        queue_offset: number of a message in it.
    """
    return any(one.first <= queue_offset < one.stop for one in runs)


def last_with_records(files: list[FileSurvey]) -> int:
    """Number of the last file with a whole record; -1 for none."""
    return max((number for number, file in enumerate(files) if file.records), default=-1)


def gaps_of(files: list[FileSurvey], file_size: int) -> Iterator[tuple[FileSurvey, Gap]]:
    """Every gap that whole records follow, with its file; the end of a file is one, too.

    Args:
        files: in the order of the log.
        file_size: bytes of a whole file.
    """
    last = last_with_records(files)
    before_ms = 0
    for number, file in enumerate(files[: last + 1]):
        for gap in file.gaps:
            yield file, gap
        before_ms = file.last_ms or before_ms
        if number < last and not file.ends_in_blank:
            after_ms = next(other.first_ms for other in files[number + 1 :] if other.first_ms)
            reason = "the file is missing" if file.size < 0 else file.reason
            if file.size == 0:
                reason = "the file is empty"
            yield file, Gap(file.end, file.start + file_size, reason, before_ms or after_ms)
