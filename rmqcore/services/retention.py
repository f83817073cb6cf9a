"""Retention: deletes old log files by age, disk use and quota; then queue and index files.

`CleanCommitLogService` decides about log files, `CleanConsumeQueueService` follows with consume
queues and index. Both decide only; the store's own objects delete. A store whose configuration
names no retention has neither.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final, Protocol

from rmqcore.config import StoreConfig
from rmqcore.errors import do_each
from rmqcore.files.mapped_file_queue import MappedFileQueue
from rmqcore.files.store_trace import Note, unnoted
from rmqcore.native.base._lock import ReentrantLock
from rmqcore.services.running_flags import RunningFlag, RunningFlags
from rmqcore.services.service import Service
from rmqcore.world import REAL, World

_log = logging.getLogger("rmqcore")

MANUAL_DELETE_ROUNDS: Final = 20
_RECOVERY_MARGIN: Final = 2
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFileInfo:
    """What retention knows of one commit-log file."""

    #: file name, 20 digits.
    name: str
    #: physical offset of its first byte.
    file_from_offset: int
    #: bytes on disk.
    size: int
    #: Unix time of its last write, milliseconds.
    modified_ms: int
    #: False once its deletion has begun and readers still hold it.
    available: bool = True


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """How full the file system of a path is."""

    #: bytes in use, by anybody.
    used: int
    #: bytes that may still be written.
    usable: int

    @property
    def percent(self) -> int:
        """Share in use, 0 to 100, rounded up as RocketMQ does."""
        total = self.used + self.usable
        return -(-self.used * 100 // total) if total > 0 else 0

    def without(self, size: int) -> DiskUsage:
        """The usage after ``size`` bytes have been freed."""
        return DiskUsage(max(0, self.used - size), self.usable + size)


@dataclass(frozen=True, slots=True)
class PlannedDeletion:
    """One file that goes, and the sentence that says why."""

    file: LogFileInfo
    reason: str


@dataclass(frozen=True, slots=True)
class CleanReport:
    """What one round did."""

    #: files deleted.
    deleted: tuple[PlannedDeletion, ...]
    #: the first file that could not be deleted, and why; it is tried again.
    failed: PlannedDeletion | None = None
    #: the error that the system gave for it; None: a reader still holds it.
    error: OSError | None = None


class CleanableLog(Protocol):
    """The commit log as its cleaner sees it."""

    def log_files(self) -> Sequence[LogFileInfo]:
        """All files, oldest first."""

    def delete_log_file(self, file: LogFileInfo) -> bool:
        """Delete the oldest file; False when a reader still holds it."""


class DerivedFiles(Protocol):
    """Consume queues, or the index, as their cleaner sees them."""

    def delete_before(self, min_phy_offset: int) -> int:
        """Delete files that point only below the offset; returns how many."""


class CommitLogFiles:
    """The files of a commit log as `CleanableLog`."""

    def __init__(
        self, queue: MappedFileQueue, needed_from: Callable[[], int], note: Note = unnoted
    ) -> None:
        """Look at the files of a log.

        Args:
            queue: the files.
            needed_from: physical offset from which on the store itself still reads: what is not
                dispatched or not on disk yet.
            note: takes down which files are deleted.
        """
        self._queue = queue
        self._needed_from = needed_from
        self._note = note

    def log_files(self) -> list[LogFileInfo]:
        """All files, oldest first.

        Raises:
            OSError: a file cannot be examined.
        """
        return [
            LogFileInfo(
                name=file.path.name,
                file_from_offset=file.file_from_offset,
                size=file.size,
                modified_ms=file.path.stat().st_mtime_ns // 1_000_000,
            )
            for file in self._queue.files
        ]

    def delete_log_file(self, file: LogFileInfo) -> bool:
        """Delete the oldest file; readers that hold its bytes keep them.

        Returns:
            False while the store itself has still to read the file.

        Raises:
            OSError: the file cannot be removed.
        """
        oldest = self._queue.files[0]
        if oldest.file_from_offset != file.file_from_offset:
            return False
        if oldest.file_from_offset + oldest.size > self._needed_from():
            return False
        self._queue.remove_first(1)
        self._note("expired", 1, file.name)
        return True


def disk_usage(path: Path) -> DiskUsage:
    """Ask the file system.

    Raises:
        OSError: the path is not there.
    """
    stat = os.statvfs(path)
    return DiskUsage((stat.f_blocks - stat.f_bfree) * stat.f_frsize, stat.f_bavail * stat.f_frsize)


def local_hour(now_ms: int) -> int:
    """Hour of the day, 0 to 23, local time."""
    return time.localtime(now_ms / 1000).tm_hour


class CleanCommitLogService:
    """Deletes old log files, and refuses puts while the disk is nearly full.

    - The last file is never deleted, and no file before an older one.
    - A file goes by age in the hours of ``delete_when``, while the disk is above
      ``disk_max_used_space_ratio``, or on request; by quota at any hour; whatever its age while
      the disk is above ``disk_space_clean_forcibly_ratio``, and then no more than needed.
    - Above ``disk_space_warning_level_ratio`` puts are refused; they resume 2 percentage points
      below it.

    Threads: ``run_once`` is for one; the questions are for any.
    Source: RocketMQ store/DefaultMessageStore.java, CleanCommitLogService.
    Differs: RocketMQ lets puts resume only below the forcible ratio, which other files on the disk
        may never allow; it deletes whole batches where one file was enough; it knows no quota.
    """

    def __init__(
        self,
        config: StoreConfig,
        log: CleanableLog,
        flags: RunningFlags,
        *,
        usage: Callable[[], DiskUsage],
        keep_from: Callable[[], int | None] = lambda: None,
        archived_end: Callable[[], int | None] = lambda: None,
        hour: Callable[[int], int] = local_hour,
        world: World = REAL,
    ) -> None:
        """Watch a log; nothing happens before ``run_once``.

        Args:
            config: the settings; only those of retention are read, afresh in each round.
            log: the files and how to delete one.
            flags: raised while the disk is nearly full.
            usage: how full the disk is, see `disk_usage`.
            keep_from: physical offset from which on age and quota delete nothing (what a consumer
                or a delay level has still to read), or None. A disk above the forcible ratio
                deletes it all the same, unless ``clean_file_forcibly_enable`` is off.
            archived_end: physical offset up to which an archive has the log, where nothing else may
                be deleted at all; None where that is no matter.
            hour: hour of the day of a time in milliseconds.
            world: whose clock tells how old a file is; it waits between two deletions.
        """
        self.config = config
        self._log = log
        self._flags = flags
        self._usage = usage
        self._keep_from = keep_from
        self._archived_end = archived_end
        self._hour = hour
        self._world = world
        self._manual_rounds = 0

    def configure(self, config: StoreConfig) -> None:
        """Take a store's settings when they change."""
        self.config = config

    def request_deletion(self) -> None:
        """Delete expired files in the next 20 rounds at any hour.

        Source: RocketMQ DefaultMessageStore.java, executeDeleteFilesManually.
        """
        self._manual_rounds = MANUAL_DELETE_ROUNDS

    def run_once(self, now_ms: int) -> CleanReport:
        """Look at the disk, set the running flags, delete at most ``delete_file_batch_max`` files.

        A file that cannot be deleted ends the round and is tried again in the next.
        """
        self._watch_disk()
        planned = self.plan(now_ms)[: self.config.delete_file_batch_max]
        if self._manual_rounds:
            self._manual_rounds -= 1
        deleted: list[PlannedDeletion] = []
        for deletion in planned:
            if deleted:
                self._world.sleep(self.config.delete_commit_log_files_interval_ms / 1000)
            try:
                gone = self._log.delete_log_file(deletion.file)
            except OSError as error:
                return CleanReport(tuple(deleted), deletion, error)
            if not gone:
                return CleanReport(tuple(deleted), deletion)
            _log.info("deleted %s: %s", deletion.file.name, deletion.reason)
            deleted.append(deletion)
        if deleted:
            self._watch_disk()
        return CleanReport(tuple(deleted))

    def delete_before(self, phy_offset: int) -> int:
        """Delete the files that lie below a physical offset, whatever their age; the last stays.

        Returns:
            files deleted; fewer than there are where the store has still to read one.

        Raises:
            OSError: a file cannot be deleted.
        """
        count = 0
        for file, following in itertools.pairwise(list(self._log.log_files())):
            if following.file_from_offset > phy_offset or not self._log.delete_log_file(file):
                break
            count += 1
        return count

    def plan(self, now_ms: int | None = None) -> list[PlannedDeletion]:
        """Say what the rounds from now on would delete, and why; nothing is touched.

        Args:
            now_ms: the time to assume; None is the clock's.
        """
        now_ms = self._world.clock_ms() if now_ms is None else now_ms
        files = list(self._log.log_files())
        # asked once, and only where something would go
        keep_from = cache(self._keep_from)
        usage = self._usage()
        state = _State(
            now_ms, usage, sum(file.size for file in files), self._why_age_counts(now_ms, usage)
        )
        planned: list[PlannedDeletion] = []
        archived = self._archived_end()
        for file, following in itertools.pairwise(files):
            if archived is not None and following.file_from_offset > archived:
                break
            reason = self._why(file, state, partial(_is_kept, keep_from, following))
            if reason is None:
                break
            planned.append(PlannedDeletion(file, reason))
            state = state.without(file)
        return planned

    def why_will_be_deleted(
        self, file: str | Path | LogFileInfo, now_ms: int | None = None
    ) -> str | None:
        """Say why a log file is due for deletion.

        Args:
            file: the file, its path or its name.
            now_ms: the time to assume; None is the clock's.

        Returns:
            A sentence, with the hour when the file waits for one; None when the file is not due,
            is the last one, or is no log file of this store.
        """
        name = file.name if isinstance(file, LogFileInfo) else Path(file).name
        now_ms = self._world.clock_ms() if now_ms is None else now_ms
        for deletion in self.plan(now_ms):
            if deletion.file.name == name:
                return deletion.reason
        hours = ";".join(f"{hour:02}" for hour in sorted(self.config.delete_hours))
        keep_from, archived = self._keep_from(), self._archived_end()
        files = list(self._log.log_files())
        for log_file, following in itertools.pairwise(files):
            kept = keep_from is not None and following.file_from_offset > keep_from
            kept = kept or (archived is not None and following.file_from_offset > archived)
            if kept or not self._expired(log_file, now_ms):
                break
            if log_file.name == name:
                return f"{self._age_sentence(log_file, now_ms)}; it goes at {hours} o'clock"
        return None

    def _why(self, file: LogFileInfo, state: _State, is_kept: Callable[[], bool]) -> str | None:
        """The first reason that holds for the oldest of the files that are left."""
        if not file.available:
            return "its deletion has begun, and was held up by a reader"
        limit = _clamped(self.config.disk_space_clean_forcibly_ratio, 30, 85)
        if self.config.clean_file_forcibly_enable and state.usage.percent > limit:
            return (
                f"{state.usage.percent} % of the disk is in use, more than "
                f"disk_space_clean_forcibly_ratio={limit}"
            )
        reason = self._why_expected(file, state)
        return None if reason is None or is_kept() else reason

    def _why_expected(self, file: LogFileInfo, state: _State) -> str | None:
        """The first reason of those that delete nothing which somebody has still to read."""
        quota = self.config.retention_bytes
        if quota is not None and state.log_size > quota:
            return f"the log has {state.log_size} bytes, more than retention_bytes={quota}"
        if state.by_age is not None and self._expired(file, state.now_ms):
            return f"{self._age_sentence(file, state.now_ms)}, and {state.by_age}"
        return None

    def _why_age_counts(self, now_ms: int, usage: DiskUsage) -> str | None:
        """Why expired files are deleted at this moment; None when they are not."""
        if self._hour(now_ms) in self.config.delete_hours:
            return f"delete_when={self.config.delete_when} is now"
        limit = _clamped(self.config.disk_max_used_space_ratio, 10, 95)
        if usage.percent > limit:
            return (
                f"{usage.percent} % of the disk is in use, more than "
                f"disk_max_used_space_ratio={limit}"
            )
        return "deletion was requested" if self._manual_rounds else None

    @property
    def reserved_ms(self) -> int:
        """For how long a file is kept after it was last written."""
        return self.config.file_reserved_time_hours * _HOUR_MS

    def _expired(self, file: LogFileInfo, now_ms: int) -> bool:
        return now_ms >= file.modified_ms + self.reserved_ms

    def _age_sentence(self, file: LogFileInfo, now_ms: int) -> str:
        age_hours = (now_ms - file.modified_ms) / _HOUR_MS
        return (
            f"it was last written {age_hours:.1f} hours ago, at least "
            f"file_reserved_time_hours={self.config.file_reserved_time_hours}"
        )

    def _watch_disk(self) -> None:
        """Raise the disk-full flag above the warning ratio, clear it well below."""
        percent = self._usage().percent
        limit = _clamped(self.config.disk_space_warning_level_ratio, 35, 90)
        resume = limit - _RECOVERY_MARGIN
        if percent > limit:
            reason = (
                f"{percent} % of the disk is in use, more than "
                f"disk_space_warning_level_ratio={limit}; puts resume at {resume} %"
            )
            if self._flags.raise_flag(RunningFlag.DISK_FULL, reason):
                _log.error("puts are refused: %s", reason)
        elif percent <= resume and self._flags.clear_flag(RunningFlag.DISK_FULL):
            _log.info("puts are accepted again: %d %% of the disk is in use", percent)


@dataclass(frozen=True, slots=True)
class _State:
    """What a decision depends on, beside the file: as it is when all before have gone."""

    now_ms: int
    usage: DiskUsage
    log_size: int
    by_age: str | None

    def without(self, file: LogFileInfo) -> _State:
        """The state after the file has gone."""
        return _State(
            self.now_ms, self.usage.without(file.size), self.log_size - file.size, self.by_age
        )


def _is_kept(keep_from: Callable[[], int | None], following: LogFileInfo) -> bool:
    """Tell whether the file before another has something that is still to be read."""
    offset = keep_from()
    return offset is not None and following.file_from_offset > offset


def _clamped(percent: int, least: int, most: int) -> int:
    return min(most, max(least, percent))


class CleanConsumeQueueService:
    """Deletes consume-queue and index files that point only into deleted parts of the log.

    Source: RocketMQ store/DefaultMessageStore.java, CleanConsumeQueueService.
    """

    def __init__(self, min_phy_offset: Callable[[], int], *derived: DerivedFiles) -> None:
        """Watch the beginning of a log.

        Args:
            min_phy_offset: physical offset of the oldest byte in the log.
            derived: consume queues and index.
        """
        self._min_phy_offset = min_phy_offset
        self._derived = derived
        self._cleaned_up_to = 0

    def run_once(self) -> int:
        """Follow the log's minimum; returns the files deleted.

        Raises:
            OSError: a file could not be deleted, others were; the next round tries again.
        """
        min_phy_offset = self._min_phy_offset()
        if min_phy_offset <= self._cleaned_up_to:
            return 0
        each = (partial(files.delete_before, min_phy_offset) for files in self._derived)
        deleted = sum(do_each(each))
        self._cleaned_up_to = min_phy_offset
        return deleted


class RetentionService(Service):
    """Runs both cleaners one after the other; a full batch is followed by the next one at once."""

    tries_again = True

    def __init__(
        self,
        clean_log: CleanCommitLogService,
        clean_queues: CleanConsumeQueueService,
        *,
        clock: Callable[[], int],
        interval_s: float,
    ) -> None:
        """Prepare the rounds; see `Service`.

        Args:
            clean_log: deletes log files.
            clean_queues: follows with consume queues and index.
            clock: Unix time in milliseconds, by which files have become old; for any thread.
            interval_s: seconds between two rounds.
        """
        super().__init__("RetentionService")
        self._interval_s = interval_s
        self.clean_log = clean_log
        self.clean_queues = clean_queues
        self._clock = clock
        self._round_lock = ReentrantLock()

    def delete_before(self, phy_offset: int) -> int:
        """Delete what lies below a physical offset; see `CleanCommitLogService.delete_before`."""
        with self._round_lock.within():
            count = self.clean_log.delete_before(phy_offset)
            self.clean_queues.run_once()
            return count

    def why_will_be_deleted(self, file: str | Path) -> str | None:
        """Say why the next rounds delete a file; see `CleanCommitLogService`."""
        return self.clean_log.why_will_be_deleted(file, self._clock())

    def run(self, now: float) -> float:
        """One round of each cleaner; a call beside a running round waits for it first.

        Raises:
            OSError: a file cannot be deleted, or the disk not be asked; the rest is done.
        """
        with self._round_lock.within():
            try:
                report = self.clean_log.run_once(self._clock())
            finally:
                # whatever became of that: what they hold is room, too
                self.clean_queues.run_once()
        if report.error is not None:
            raise report.error
        is_full = len(report.deleted) >= self.clean_log.config.delete_file_batch_max
        return 0.0 if is_full else self._interval_s

    def configure(self, config: StoreConfig) -> None:
        """Take a store's settings when they change."""
        self.clean_log.configure(config)

    def delete_now(self) -> None:
        """Delete what is expired, whatever the hour, in this call and the rounds that follow."""
        self.clean_log.request_deletion()
        try:
            rest_s = self.run(0.0)
        except OSError as error:
            _log.warning("what is expired is not all deleted, and is tried again: %s", error)
            rest_s = 0.0
        if rest_s == 0.0:
            self.wakeup()
