"""Plans a scan: finds where the published log ends, and cuts it into splits.

A cut is where a record begins: the start of a file, or what a consume-queue unit points at and the
log confirms. Nothing is guessed.
"""

from __future__ import annotations

import errno
import os
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from rmqcore.config import StoreConfig, load_config
from rmqcore.errors import UNREADABLE, CorruptStoreError, is_bad_sector
from rmqcore.files.consume_queue import ConsumeQueue
from rmqcore.files.log_walker import GoodRecord, find_good_record, good_record_at
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.files.mapped_file_queue import numbered_files
from rmqcore.files.store_dir import StoreDir, subdirectories
from rmqcore.native.derive._dispatch import DispatchBatch
from rmqcore.native.format._next_record import RECORD_HEAD_SIZE, ScanStatus
from rmqcore.recovery.geometry import fitted_config
from rmqcore.scan.log_walk import CHUNK_SIZE, Damage, LogWalk
from rmqcore.scan.queue_units import QueueUnits
from rmqcore.scan.shown_topics import ShownTopics
from rmqcore.scan.split import Split
from rmqcore.scan.unit_ranges import UnitRange

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

SPLIT_SIZE = 256 << 20
#: Places to cut are looked for in this many consume queues, those that were written last.
_QUEUES_CUT_AT = 4
#: Where no queue names a place to cut, a plan walks at most this many bytes of the log for one.
_WALK_MAX = 256 << 20
#: A cut that was found by walking lies at most this many bytes, or one record, behind its target.
_CUT_CHUNK_SIZE = 64 << 10
#: Whether the end of the log has moved is seen by this many bytes before and behind it.
_SEEN_BYTES = 64
#: What lies in front of a place in the log is told by a checksum of at most so many bytes: with
#: those of most records come their times.
_TAIL_SIZE = 4096
#: A writer dispatches this many bytes of the log together, to one queue after the other.
_DISPATCHED_AT_ONCE = 64 << 20
#: A split ends at the end of a log file when that makes it shorter by no more than this fraction,
#: one part in this many.
_SHORTER_MAX = 8
_ConfigSource = StoreConfig | str | Path | None


def plan(
    store_path: str | os.PathLike[str],
    *,
    split_size: int = SPLIT_SIZE,
    start_phy_offset: int | None = None,
    end_phy_offset: int | None = None,
    topics: Iterable[str] | None = None,
    config: _ConfigSource = None,
) -> list[Split]:
    """Cut the published log of a store, cold or live, into splits in log order.

    Args:
        store_path: the store's directory; only read.
        split_size: bytes that a split should have; it has somewhat fewer where a file ends, and
            more where nothing tells where a record begins.
        start_phy_offset: plan only from here on; a record must begin there.
        end_phy_offset: plan only what lies before; a record must begin there.
        topics: leave out what lies before the first message of these topics, as their consume
            queues know it.
        config: settings of the store, as for `open_store`.

    Returns:
        the splits; none when there is nothing to read.

    Raises:
        StoreNotFoundError: no store is there.
        ConfigError: a setting contradicts the files.
        CorruptStoreError: a log file has another length, or is missing between two.
    """
    log = open_log(store_path, config=config)
    return log.splits(split_size, start_phy_offset, end_phy_offset, topics)


def open_log(
    store_path: str | os.PathLike[str],
    *,
    config: _ConfigSource = None,
    before: LogPlan | None = None,
) -> LogPlan:
    """The log of a store as it is now; only read.

    Args:
        store_path: the store's directory.
        config: settings of the store, as for `open_store`.
        before: the same log, some time ago: what has come since is looked for behind its end, and
            thousands of queues are not looked at for it.

    Raises:
        StoreNotFoundError: no store is there.
        ConfigError: a setting contradicts the files.
        CorruptStoreError: a log file has another length, or is missing between two.
    """
    asked = load_config(config)
    directory = StoreDir(store_path, asked.store_path_commit_log)
    directory.require()
    return LogPlan(directory, fitted_config(asked, directory, index=False), before=before)


class LogPlan:
    """The log files of a store, and what the consume queues tell about them.

    Attributes:
        directory, config: of the store.
        start, end: physical offsets between which the log is published.
        claimed_end: where it ends by the word of the queues that are cut at.
        files: (physical offset, path, bytes) of each log file.
        trusted_end: up to here consume queues know every record of their queues.
        ends_in_blank: the last file that holds records ends in an end-of-file record.
        queue_count: consume queues that have files, when they were counted last.

    Args:
        strict: raise where a file has a wrong length or is missing, and where the disk refuses to
            give what the log may end in; else the log goes up to the end of that file.
        before: as for `open_log`.
    """

    def __init__(
        self,
        directory: StoreDir,
        config: StoreConfig,
        *,
        strict: bool = True,
        before: LogPlan | None = None,
    ) -> None:
        self.directory = directory
        self.config = config
        self.file_size = config.mapped_file_size_commit_log
        self.files = [file for file in numbered_files(directory.commit_log) if file[2]]
        self._starts = [start for start, _, _ in self.files]
        self.ends_in_blank = False
        self._strict = strict
        if strict:
            self._check_files()
        self._open_files = OpenFiles()
        #: where the last record was looked for; the next one is mostly beside it
        self._log_file: MappedFile | None = None
        self._queues: dict[Path, ConsumeQueue | None] = {}
        self.queue_count = self.known_end = self.claimed_end = self.end = 0
        self._walk_left = _WALK_MAX
        self.start = self.files[0][0] if self.files else 0
        #: where a record is known to end; behind the last place that the disk has refused to give
        self._known_before = self._unreadable_to = 0
        if before is not None and self._goes_on(before):
            self._known_before, self.queue_count = before.end, before.queue_count
            paths = [queue.queue.directory for queue in before._cut_queues]
            self._set_cut_queues(self._opened(path) for path in paths)
            self.end = self._published_end()
        if not 0 < self.known_end <= self.end <= self.known_end + _DISPATCHED_AT_ONCE:
            self._set_cut_queues(self._fresh_queues())
            self.end = self._published_end()
        self._tail = self._bytes_before(self.end)
        self.trusted_end = self._trusted_end()
        self._seen = self._seen_now()

    def _set_cut_queues(self, queues: Iterable[ConsumeQueue | None]) -> None:
        self._cut_queues = [queue for queue in queues if queue is not None]
        #: behind the last record that a queue which is cut at knows
        self.known_end = max((self._known_end(queue) for queue in self._cut_queues), default=0)

    def _goes_on(self, before: LogPlan) -> bool:
        """True when the log still has what lay before its end then."""
        there = self._bytes_before(before.end)
        return before.file_size == self.file_size and there != b"" and there == before._tail

    def _bytes_before(self, end: int, size: int = _SEEN_BYTES) -> bytes:
        """The bytes of its file that end at a physical offset, so many at most."""
        file = self._file_at(end - 1) if end > 0 else None
        if file is None:
            return b""
        size = min(size, end - file.file_from_offset)
        try:
            return file.read_bytes(end - file.file_from_offset - size, size)
        except (CorruptStoreError, FileNotFoundError):
            # the file was cut short or removed meanwhile
            return b""
        except OSError as error:
            if not self._strict and is_bad_sector(error):
                return b""
            raise

    def tail_at(self, phy_offset: int) -> int | None:
        """A checksum of what lies in front of a physical offset; another log has another there.

        Args:
            phy_offset: where a record ends.

        Returns:
            a CRC-32; None where nothing of the log lies there.
        """
        tail = self._bytes_before(phy_offset, _TAIL_SIZE)
        return zlib.crc32(tail) if tail else None

    @property
    def place(self) -> str:
        """The store's directory, for errors."""
        return str(self.directory.path)

    def shown_topics(self, named: Iterable[str], *, services: bool) -> ShownTopics:
        """What is shown of each topic.

        Args:
            named: topics that the caller asks for by name.
            services: whether topics of the broker's own are shown, too.
        """
        return ShownTopics(self.directory, named, services=services)

    def is_current(self) -> bool:
        """True when the log still begins and ends where it did when this was made."""
        return self._seen == self._seen_now()

    def _seen_now(self) -> tuple[object, ...]:
        """What changes whenever a record or a file comes or goes: a few bytes around the end."""
        try:
            listed = self.directory.commit_log.stat()
            seen: list[object] = [listed.st_ino, listed.st_mtime_ns]
            for start, path, size in self.files:
                if start + size >= self.end:
                    at = max(0, self.end - start - _SEEN_BYTES)
                    with path.open("rb") as file:
                        seen.append(os.pread(file.fileno(), 2 * _SEEN_BYTES, at))
        except OSError:
            return ()
        return tuple(seen)

    def queues(self) -> dict[str, set[int]]:
        """Topics that have consume queues, and the queues of each."""
        root = self.directory.consume_queue
        return {
            topic: {
                int(name)
                for name in subdirectories(root / topic)
                if name.isascii() and name.isdigit()
            }
            for topic in subdirectories(root)
        }

    @property
    def cut_keys(self) -> list[tuple[str, int]]:
        """(topic, queue id) of the consume queues that tell where the log may be cut."""
        return [(queue.topic, queue.queue_id) for queue in self._cut_queues]

    def _trusted_end(self) -> int:
        """Physical offset up to which every queue has all its messages."""
        if self.directory.is_locked():
            return self._record_before(min(self.known_end, self.end) - _DISPATCHED_AT_ONCE)
        # after an abort the queues' last units may not be on the disk, and nobody has recovered
        # yet
        return self.start if self.directory.was_aborted else min(self.known_end, self.end)

    def _record_before(self, phy_offset: int) -> int:
        """Where the last record at or before an offset begins that a cut queue knows."""
        found = self.start
        for queue in self._cut_queues:
            unit = queue.unit_at(queue.first_at_or_above(phy_offset + 1) - 1)
            if unit is not None and found < unit[0] <= phy_offset and self._confirms(unit):
                found = unit[0]
        return found

    def _check_files(self) -> None:
        for number, (start, path, size) in enumerate(self.files):
            if number and start != self.files[number - 1][0] + self.file_size:
                raise CorruptStoreError(
                    self.directory.commit_log,
                    self.files[number - 1][0] + self.file_size,
                    f"a file is missing before {path.name}",
                )
            if size > self.file_size:
                raise CorruptStoreError(
                    path, -1, f"the file has {size} bytes, files here have {self.file_size}"
                )

    def _fresh_queues(self) -> Iterable[ConsumeQueue]:
        """The consume queues that were written last: their units say where records begin."""
        found, root = [], self.directory.consume_queue
        for topic in subdirectories(root):
            for name in subdirectories(root / topic):
                queue = root / topic / name
                files = numbered_files(queue)
                if files:
                    found.append((_modified_ns(files[-1][1]), files[-1][0], queue))
        self.queue_count = len(found)
        for _, _, path in sorted(found, reverse=True)[:_QUEUES_CUT_AT]:
            opened = self._opened(path)
            if opened is not None:
                yield opened

    def _opened(self, path: Path) -> ConsumeQueue | None:
        """The consume queue in a directory, opened once; None when it is of no use."""
        if path not in self._queues:
            self._queues[path] = self._open(path)
        return self._queues[path]

    def _open(self, path: Path) -> ConsumeQueue | None:
        if not (path.name.isascii() and path.name.isdigit()):
            return None
        queue = ConsumeQueue(
            path,
            path.parent.name,
            int(path.name),
            self.config.mapped_file_size_consume_queue,
            OpenFiles(),
            writable=False,
        )
        try:
            queue.load()
        except (CorruptStoreError, OSError):
            return None
        return queue

    # ---- the end

    def _published_end(self) -> int:
        """Physical offset behind the last good record."""
        ends = (queue.end_phy_offset for queue in self._cut_queues)
        claimed = self.claimed_end = max(ends, default=0)
        for number in range(len(self.files) - 1, -1, -1):
            start, _, size = self.files[number]
            if number == 0 or self._is_begun(start, size, claimed):
                known = max(self.known_end, self._known_before)
                begin = known if start < known <= start + size else start
                return self._walk_to_end(begin, start + min(size, self.file_size), claimed)
        return 0

    def _is_begun(self, start: int, size: int, claimed: int) -> bool:
        """True when a log file holds records, though the first one may be damaged."""
        file = self._file_at(start)
        try:
            if file is None or good_record_at(file, 0) is not None:
                return file is not None
            head = file.read_bytes(0, min(size, RECORD_HEAD_SIZE))
            # a record that a writer has just begun, or was killed in, has no size yet
            damaged = claimed > start or (any(head) and not self.directory.was_aborted)
            return damaged and find_good_record([file]) is not None
        except (CorruptStoreError, FileNotFoundError):
            # it was cut short meanwhile, or its writer had made it ahead and has removed it
            return False
        except OSError as error:
            if not is_bad_sector(error):
                raise
            return True

    def _known_end(self, queue: ConsumeQueue) -> int:
        """Where the last record that a queue knows ends, when the log has it."""
        unit = queue.unit_at(queue.max_offset - 1)
        return 0 if unit is None or not self._confirms(unit) else unit[0] + unit[1]

    def _walk_to_end(self, begin: int, stop: int, claimed: int) -> int:
        """The end of the last good record between two offsets of one file.

        Zeros end the log, unless a queue claims that it goes on behind them.
        """
        end = begin
        for status, end in self._walked(begin, stop, CHUNK_SIZE, verify_crc=True):
            self.ends_in_blank = status is ScanStatus.BLANK
            if status is ScanStatus.EMPTY and end >= claimed:
                break
        if self._unreadable_to < stop:
            return end
        if self._strict:
            path = self.files[bisect_right(self._starts, begin) - 1][1]
            raise OSError(errno.EIO, UNREADABLE, str(path))
        return stop

    def _walked(
        self, begin: int, stop: int, chunk_size: int, *, verify_crc: bool
    ) -> Iterator[tuple[ScanStatus, int]]:
        """Walk records; after each piece, how it ended, and where the last good record ends."""
        batch, end = DispatchBatch(), begin

        def kernel(
            buffer: ReadableBuffer, at: int, end: int, /, *, base_offset: int
        ) -> tuple[int, int]:
            return batch.scan(buffer, at, end, base_offset=base_offset, verify_crc=verify_crc)

        def damaged(damage: Damage) -> None:
            if damage.reason == UNREADABLE:
                self._unreadable_to = max(self._unreadable_to, damage.next_offset)

        walk = LogWalk(self.split(begin, stop), on_damage=damaged, chunk_size=chunk_size)
        for status in walk.run(kernel):
            if batch.record_count or status is ScanStatus.BLANK:
                end = batch.end_offset
            batch.clear()
            yield status, end

    def record_at(self, phy_offset: int) -> bytes | None:
        """The good record at a physical offset, None for none; the plan may be `strict`."""
        file = self._file_at(phy_offset)
        found = self._good_at(file, phy_offset, self._strict)
        if file is None or found is None:
            return None
        return file.read_bytes(phy_offset - file.file_from_offset, found.size)

    def good_record_at(self, phy_offset: int) -> GoodRecord | None:
        """Where the good record at a physical offset ends, and its time; None for none."""
        return self._good_at(self._file_at(phy_offset), phy_offset, False)

    @staticmethod
    def _good_at(file: MappedFile | None, phy_offset: int, strict: bool) -> GoodRecord | None:
        if file is None:
            return None
        try:
            return good_record_at(file, phy_offset - file.file_from_offset)
        except (CorruptStoreError, FileNotFoundError):
            # the file was cut short or removed meanwhile
            return None
        except OSError as error:
            if not strict and is_bad_sector(error):
                return None
            raise

    def _confirms(self, unit: tuple[int, int]) -> bool:
        """True when the log has the record that a consume-queue unit speaks of."""
        found = self._good_at(self._file_at(unit[0]), unit[0], False)
        return found is not None and found.size == unit[1]

    def _file_at(self, phy_offset: int) -> MappedFile | None:
        number = bisect_right(self._starts, phy_offset) - 1
        if number < 0 or phy_offset >= self.files[number][0] + self.files[number][2]:
            return None
        start, path, size = self.files[number]
        file = self._log_file
        if file is None or file.file_from_offset != start:
            file = MappedFile(path, size, start, self._open_files, writable=False)
            self._log_file = file
        return file

    # ---- cutting

    def file_start(self, phy_offset: int) -> int:
        """Where the file that holds a physical offset begins."""
        return self.split(phy_offset, phy_offset).first_file

    def split(self, start: int, end: int, units: Iterable[UnitRange] | None = None) -> Split:
        """The split between two physical offsets; of some units' records only, where given.

        Args:
            start: physical offset where a record begins.
            end: physical offset behind the last record.
            units: ranges of consume-queue units; None: every record.
        """
        origin = self.files[0][0] if self.files else 0
        return Split(
            str(self.directory.path),
            str(self.directory.commit_log),
            start,
            end,
            start - (start - origin) % self.file_size,
            self.file_size,
            None if units is None else tuple(units),
            0 if units is None else self.config.mapped_file_size_consume_queue,
        )

    def splits(
        self,
        split_size: int = SPLIT_SIZE,
        start: int | None = None,
        end: int | None = None,
        topics: Iterable[str] | None = None,
    ) -> list[Split]:
        """Cut the log into splits, in log order.

        Args:
            split_size: bytes that a split should have; see `plan`.
            start: physical offset where a record begins; None: where the log begins.
            end: physical offset behind the last record; None: where the log ends.
            topics: leave out what lies before the first message of these topics.
        """
        low = self.start if start is None else max(start, self.start)
        high = self.end if end is None else min(end, self.end)
        if topics is not None:
            low = self._first_message(low, high, set(topics))
        cuts = [low]
        while cuts[-1] < high:
            cuts.append(self.cut_behind(cuts[-1], max(1, split_size), high))
        return [self.split(a, b) for a, b in pairwise(cuts)]

    def cut_behind(self, start: int, split_size: int, high: int) -> int:
        """Where a split that begins at ``start`` and has about ``split_size`` bytes ends.

        Args:
            start: where a record begins.
            split_size: bytes.
            high: where the last split ends.
        """
        target = start + split_size
        file_start = target - (target - self.files[0][0]) % self.file_size
        if target >= high:
            return high
        if file_start > start and target - file_start <= split_size // _SHORTER_MAX:
            return file_start
        found = [self._first_unit(queue, target) for queue in self._cut_queues]
        file_end = file_start + self.file_size
        nearest = file_start if file_start > start else file_end
        cut = min((offset for offset in found if offset is not None), default=nearest)
        cut = min(cut, file_end, high)
        if abs(cut - target) <= split_size:
            return cut
        begin = max(start, file_start)
        if target - begin > self._walk_left:
            return cut
        self._walk_left -= target - begin
        ends = (end for _, end in self._walked(begin, cut, _CUT_CHUNK_SIZE, verify_crc=False))
        walked = next((end for end in ends if end >= target), cut)
        # behind the last record of a file is no place for a cut
        return walked if self.record_at(walked) is not None else cut

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """Queue offsets of a queue's first message in the log, and behind its last unit.

        None for a queue that is not there, or of batches.

        Args:
            topic: topic of the queue.
            queue_id: number of the queue in its topic.
        """
        queue = self._opened(self.directory.consume_queue / topic / str(queue_id))
        if queue is None or not queue.max_offset:
            return None
        queue.correct_min_offset(self.start)
        return queue.min_offset, queue.max_offset

    def place_in_log(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Physical offset from which on a queue has what comes from a queue offset on.

        None for a queue that is not there, or of batches, or that does not know the place.

        Args:
            topic: topic of the queue.
            queue_id: number of the queue in its topic.
            queue_offset: number of a message, or that of the next one.
        """
        queue = self._opened(self.directory.consume_queue / topic / str(queue_id))
        if queue is None or not max(1, queue.min_offset) <= queue_offset <= queue.max_offset:
            return None
        # of a record that is damaged the queue has no place, but those that follow
        units = map(queue.unit_at, range(queue_offset, queue.max_offset))
        return next((unit[0] for unit in units if unit is not None), queue.end_phy_offset)

    def last_of_queue(self, topic: str, queue_id: int) -> GoodRecord | None:
        """The last record that a queue knows; None for none.

        Args:
            topic: topic of the queue.
            queue_id: number of the queue in its topic.
        """
        queue = self._opened(self.directory.consume_queue / topic / str(queue_id))
        unit = None if queue is None else queue.unit_at(queue.max_offset - 1)
        return None if unit is None else self.good_record_at(unit[0])

    def _first_unit(self, queue: ConsumeQueue, target: int) -> int | None:
        """The first record of a queue at or behind ``target`` that the log confirms."""
        queue.correct_min_offset(target)
        unit = queue.unit_at(queue.min_offset)
        if unit is None or unit[0] < target or not self._confirms(unit):
            return None
        return unit[0]

    def _first_message(self, low: int, high: int, topics: set[str]) -> int:
        """Where the first message of some topics lies that their consume queues know."""
        units = QueueUnits(self.directory, self.config)
        keys = units.keys(topics, None)
        if keys is None or not units.are_whole(keys, self.start, self.end):
            # queues are lost, or hold batches
            return low
        first = max(self.trusted_end, low)
        for topic, queue_id in keys:
            queue = self._opened(self.directory.consume_queue / topic / str(queue_id))
            if queue is None:
                return low
            unit = self._first_unit(queue, low)
            if unit is not None:
                first = min(first, unit)
            elif queue.end_phy_offset > low:
                return low
        return max(low, min(first, high))


def _modified_ns(path: Path) -> int:
    """When a file was last written, Unix nanoseconds; 0 for one that is gone."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
