"""The walk over the records that consume queues name: reads them, and little else.

Their places are merged into log order. What the log contradicts is not believed: from there on the
log itself is walked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rmqcore.errors import CorruptConsumeQueueError, is_bad_sector
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.files.store_dir import StoreDir
from rmqcore.native.columns._columns import ColumnDecoder
from rmqcore.native.columns._row_filter import RowFilter
from rmqcore.native.format._next_record import ScanStatus
from rmqcore.native.read._stretches import read_stretches
from rmqcore.scan.log_walk import Damage, LogWalk
from rmqcore.scan.queue_units import places_of
from rmqcore.scan.split import Split
from rmqcore.scan.unit_files import UnitFiles
from rmqcore.scan.unit_ranges import UnitRange

#: Records that lie no further apart are read together with the bytes between them: another read
#: costs as much as decoding those.
GAP_MAX = 2048
#: This many bytes are read at once; a larger record is read whole all the same.
_WINDOW_SIZE = 1 << 20
#: This many units, of all queues together, are merged at a time.
_UNITS_AT_ONCE = 1 << 16
_STATUS = {int(status): status for status in ScanStatus}
_Places = NDArray[np.int64]


class QueueWalk:
    """One walk over the units of one split.

    Args:
        split: what to walk; it has units.
        chosen: what the decoder chooses its rows by; it counts records of the units' queues.
        on_damage: as for `LogWalk`.

    Attributes:
        bytes_read: of the log, so far.
    """

    def __init__(
        self,
        split: Split,
        chosen: RowFilter,
        *,
        on_damage: Callable[[Damage], None] | None = None,
    ) -> None:
        self._split = split
        self._chosen = chosen
        self._on_damage = on_damage
        self._open_files = OpenFiles()
        self._buffer = bytearray()
        self._at = split.start
        self.bytes_read = 0

    def run(self, decoder: ColumnDecoder) -> Iterator[ScanStatus]:
        """Decode the records, piece by piece; yields as `LogWalk.run`.

        Raises:
            CorruptConsumeQueueError: the queues name other records than the log has.
            CorruptRecordError, CorruptStoreError, RecordsGoneError: as `LogWalk.run`.
        """
        directory = StoreDir(self._split.store)
        files = UnitFiles(directory, self._split.unit_file_size)
        try:
            for places in _merged(files, self._split.units or ()):
                if places is None or not self._fits(places):
                    yield from self._walk_on(decoder)
                    return
                counted = self._chosen.of_topics_count
                for file_start, stretches in self._windows(places):
                    yield from self._decode(decoder, file_start, stretches)
                    if self._at < 0:
                        return
                if self._chosen.of_topics_count - counted != len(places):
                    self._differs(directory, places, self._chosen.of_topics_count - counted)
        finally:
            files.close()

    def _fits(self, places: _Places) -> bool:
        """Whether records can lie there: in the split, in log order, none over the next."""
        begins, ends = places[:, 0], places[:, 0] + places[:, 1]
        return bool(
            len(places) == 0
            or (
                begins[0] >= self._at
                and ends[-1] <= self._split.end
                and (begins[1:] >= ends[:-1]).all()
            )
        )

    def _windows(self, places: _Places) -> Iterator[tuple[int, _Places]]:
        """Stretches to read at once, of one file each: (where the file begins, begins and ends)."""
        if not len(places):
            return
        split = self._split
        begins, ends = places[:, 0], places[:, 0] + places[:, 1]
        files = (begins - split.first_file) // split.file_size
        new = np.flatnonzero((begins[1:] - ends[:-1] > GAP_MAX) | (files[1:] != files[:-1])) + 1
        firsts = np.concatenate(([0], new))
        lasts = np.concatenate((new - 1, [len(places) - 1]))
        stretches = np.stack((begins[firsts], ends[lasts]), 1)
        of_file = files[firsts]
        behind = np.cumsum(stretches[:, 1] - stretches[:, 0])
        first = 0
        while first < len(stretches):
            before = int(behind[first - 1]) if first else 0
            stop = int(np.searchsorted(behind, before + _WINDOW_SIZE, "right"))
            stop = min(max(stop, first + 1), int(np.searchsorted(of_file, of_file[first], "right")))
            yield split.first_file + int(of_file[first]) * split.file_size, stretches[first:stop]
            first = stop

    def _decode(
        self, decoder: ColumnDecoder, file_start: int, stretches: _Places
    ) -> Iterator[ScanStatus]:
        size = int((stretches[:, 1] - stretches[:, 0]).sum())
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        path = self._split.path_at(file_start)
        file = MappedFile(path, self._split.file_size, file_start, self._open_files, writable=False)
        try:
            whole = read_stretches(file.handle.fd, file_start, stretches, self._buffer)
        except OSError as error:
            if not (isinstance(error, FileNotFoundError) or is_bad_sector(error)):
                raise
            whole = 0
        finally:
            file.close()
        self.bytes_read += size
        stretches = stretches[:whole] if whole < len(stretches) else stretches
        number, at = 0, int(stretches[0, 0]) if whole else 0
        status = ScanStatus.OK if whole else ScanStatus.TRUNCATED
        while number < len(stretches):
            number, at, code = decoder.decode_stretches(self._buffer, stretches, number, at)
            status = _STATUS[code]
            if status is not ScanStatus.CAPACITY:
                break
            yield status
        if number < len(stretches) and at == stretches[number, 0]:
            # a unit names a wrong place, or its record is damaged: the good records end with the
            # stretch before
            at = int(stretches[number - 1, 1]) if number else self._at
        self._at = max(self._at, at)
        if status is not ScanStatus.OK or number < len(stretches):
            # walking the log from the last good record on shows what is there
            yield from self._walk_on(decoder)

    def _walk_on(self, decoder: ColumnDecoder) -> Iterator[ScanStatus]:
        """Walk what is left of the split as if there were no queues."""
        first_file = self._split.file_start(self._at)
        rest = replace(self._split, start=self._at, first_file=first_file, units=None)
        self._at = -1
        walk = LogWalk(rest, on_damage=self._on_damage, on_progress=self._progressed)
        yield from walk.run(decoder.decode)

    def _progressed(self, size: int) -> None:
        self.bytes_read += size

    def _differs(self, directory: StoreDir, places: _Places, found: int) -> None:
        error = CorruptConsumeQueueError(
            directory.consume_queue,
            int(places[0, 0]),
            f"the queues that are read have {len(places)} messages from here to "
            f"{int(places[-1, 0])}, the log has {found} of theirs; rmqcore rebuild cq "
            "STORE derives them again",
        )
        if self._on_damage is None:
            raise error
        end = int(places[-1, 0])
        self._on_damage(Damage(error.path, error.phy_offset, end, error.reason))


def _merged(files: UnitFiles, ranges: tuple[UnitRange, ...]) -> Iterator[_Places | None]:
    """(physical offset, size) of the messages of units in log order, many at a time.

    Yields None where a queue is not in log order itself, or cannot be read: it is damaged.
    """
    try:
        yield from _merged_readable(files, ranges)
    except OSError as error:
        if not is_bad_sector(error):
            raise
        yield None


def _merged_readable(files: UnitFiles, ranges: tuple[UnitRange, ...]) -> Iterator[_Places | None]:
    left = [(units, units.first) for units in ranges if units.count > 0]
    held: list[_Places] = [np.empty((0, 2), np.int64) for _ in left]
    while left:
        count = max(64, _UNITS_AT_ONCE // len(left))
        for index, (units, number) in enumerate(left):
            if not len(held[index]) and number < units.end:
                stop = min(units.end, number + count)
                places = places_of(files, UnitRange(*units.key, number, stop))
                if places is None:
                    yield None
                    return
                held[index], left[index] = places, (units, stop)
        # a queue that goes on may have records behind the last that is known of it
        open_ends = [
            held[index][-1, 0] if len(held[index]) else -1
            for index, (units, number) in enumerate(left)
            if number < units.end
        ]
        bound = min(open_ends, default=np.iinfo(np.int64).max)
        cuts = [int(np.searchsorted(part[:, 0], bound, "right")) for part in held]
        together = np.concatenate([part[:cut] for part, cut in zip(held, cuts, strict=True)])
        held = [part[cut:] for part, cut in zip(held, cuts, strict=True)]
        yield together[np.argsort(together[:, 0], kind="stable")]
        kept = [n for n, (units, at) in enumerate(left) if at < units.end or len(held[n])]
        left, held = [left[n] for n in kept], [held[n] for n in kept]
