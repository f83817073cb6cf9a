"""Bringing a store into order when it is opened: the log's end, then what is derived from it.

The log is walked record by record from a file that is known to be good. Three endings are told
apart: zeros, where nothing was written yet; a torn tail, which was never acknowledged as on disk
and is cut off; and damage in front of records that are good, which is never cut off silently.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from rmqcore.config import OnCorruption
from rmqcore.errors import CorruptRecordError, CorruptStoreError
from rmqcore.native.derive.dispatch import ScanStatus
from rmqcore.native.format._message import status_text
from rmqcore.recovery.beside_thread import BesideThread
from rmqcore.recovery.index_check import IndexCheck
from rmqcore.recovery.index_tags import index_has_tags
from rmqcore.recovery.log_search import GoodRecord, find_good_record, first_record
from rmqcore.services.flush_policy import FlushPolicy

if TYPE_CHECKING:
    from rmqcore.config import StoreConfig
    from rmqcore.derived.consume_queue_store import ConsumeQueueStore
    from rmqcore.derived.index_service import IndexService
    from rmqcore.files.commit_log import CommitLog
    from rmqcore.files.mapped_file import MappedFile
    from rmqcore.files.store_checkpoint import StoreCheckpoint
    from rmqcore.native.derive._dispatch import DispatchBatch

_log = logging.getLogger("rmqcore")
_LOOK = 1 << 20
#: after so long a walk since the last time, what was derived is brought to the disk
SAVE_EVERY_S = 1.0


class Ending(StrEnum):
    """How the log ended when it was opened."""

    CLEAN = "clean"
    TORN = "torn"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class RecoveryProgress:
    """How far a recovery is; passed to the ``progress`` callback.

    Attributes:
        phase: "queues", "log" or "index".
        done, total: queues, or bytes of the log.
    """

    phase: str
    done: int
    total: int


@dataclass(slots=True)
class RecoveryReport:
    """What opening the store found and did.

    Attributes:
        clean_shutdown: False when the last writer did not close the store.
        ending: `Ending` of the log.
        start_offset: physical offset from which the log was walked.
        end_offset: end of the log afterwards.
        records: records walked.
        dropped_bytes: bytes of a torn tail that were cut off.
        dropped_records: good records among them (put, but never acknowledged as on disk).
        damaged: (physical offset, reason) of each damaged place that was passed over.
        units_dropped: consume-queue units that pointed behind the end of the log, or at damage
            that was passed over.
        index_from: physical offset from which the index was derived again; -1 for none.
        findings: what was wrong with derived files, in words.
        elapsed_s: seconds taken.
    """

    clean_shutdown: bool = True
    ending: Ending = Ending.CLEAN
    start_offset: int = 0
    end_offset: int = 0
    records: int = 0
    dropped_bytes: int = 0
    dropped_records: int = 0
    damaged: list[tuple[int, str]] = field(default_factory=list)
    units_dropped: int = 0
    index_from: int = -1
    findings: list[str] = field(default_factory=list)
    elapsed_s: float = 0.0

    def as_dict(self) -> dict[str, object]:
        """The report as plain values, for JSON."""
        return asdict(self) | {"ending": self.ending.value}


class Recovery:
    """One recovery of one store that is open for writing.

    - Interrupted, it begins again where it had brought everything to the disk: at the end of a log
      file, after each second of an unclean start, log, queues, index and checkpoint are written
      through.
    - Dispatching is idempotent, so the walk may begin earlier than it must.

    Args:
        log, queues, index, checkpoint: the parts of the store; index None when there is none.
        config: the store's settings.
        batches: the kernel's working arrays, twice: while one is filled, the keys of the other are
            filed.
        progress: called now and then with a `RecoveryProgress`.

    Source: RocketMQ store/CommitLog.java, recoverNormally and recoverAbnormally.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueueStore,
        index: IndexService | None,
        checkpoint: StoreCheckpoint,
        config: StoreConfig,
        batches: tuple[DispatchBatch, DispatchBatch],
        progress: Callable[[RecoveryProgress], None] | None = None,
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._index_check: IndexCheck | None = None
        self._passed_over: list[tuple[int, int]] = []
        self._checkpoint = checkpoint
        self._config = config
        self._batch = batches[0]
        self._batches = batches
        self._keys = BesideThread()
        #: everything of the log below is known to be on the disk
        self._on_disk = 0
        self._timestamp_ms = 0
        self._progress = progress
        self.report = RecoveryReport()

    def run(self, *, clean_shutdown: bool) -> RecoveryReport:
        """Recover.

        Args:
            clean_shutdown: False when the abort marker was found.

        Raises:
            CorruptStoreError: the log is damaged in front of good records, or (after a clean
                shutdown) lacks records that the consume queues know. Nothing has been changed in
                the log. ``on_corruption`` says what else to do.
        """
        began = time.monotonic()
        self.report.clean_shutdown = clean_shutdown
        self._load_derived(clean_shutdown)
        try:
            if not self._log.queue.files:
                self._start_empty()
            else:
                self._walk_log(clean_shutdown)
        finally:
            self._keys.end()
        self.report.elapsed_s = time.monotonic() - began
        return self.report

    # ---- derived files

    def _load_derived(self, clean_shutdown: bool) -> None:
        self._queues.load(self._tell_queues)
        found: list[CorruptStoreError] = list(self._queues.damaged)
        if self._index is not None:
            trusted = None if clean_shutdown else self._checkpoint.index_msg_timestamp_ms
            found += self._index.load(trusted)
            tags = index_has_tags(self._index, self._log.message_at)
            for batch in self._batches:
                batch.index_tags = tags
            self._index.check_holes(self._keys_between)
        self.report.findings += [str(error) for error in found]

    def _tell_queues(self, done: int, total: int) -> None:
        if self._progress is not None and (done == total or done % 256 == 0):
            self._progress(RecoveryProgress("queues", done, total))

    def _start_empty(self) -> None:
        if self._queues.keys():
            self.report.findings.append("the log is empty, so every consume queue was dropped")
            self._queues.clear()
        if self._index is not None:
            self._index.drop_from(0)

    # ---- choosing where to begin

    def _checked_from(self, clean_shutdown: bool) -> int:
        """Number of the first file whose records are compared with their CRC."""
        files = self._log.queue.files
        if clean_shutdown:
            return self._last_written_file()
        limit = self._checkpoint.min_timestamp_ms
        for number in range(len(files) - 1, -1, -1):
            record = first_record(files[number])
            if record is not None and record.store_timestamp_ms <= limit:
                return number
        return 0

    def _last_written_file(self) -> int:
        files = self._log.queue.files
        for number in range(len(files) - 1, 0, -1):
            if first_record(files[number]) is not None:
                return number
        return 0

    def _walked_from(self, checked_from: int) -> int:
        """Number of the first file that is compared with queues and index."""
        files = self._log.queue.files
        if self._queues.damaged:
            return 0
        end = files[self._last_written_file()].file_from_offset + self._log.queue.file_size
        floor = end - self._config.open_check_bytes
        wanted = files[checked_from].file_from_offset
        if self._index is not None:
            wanted = min(wanted, max(self._index.resume_offset, self._log.min_offset))
        wanted = min(wanted, max(floor, self._log.min_offset))
        numbers = [n for n, file in enumerate(files) if file.file_from_offset <= wanted]
        return numbers[-1] if numbers else 0

    # ---- the walk

    def _walk_log(self, clean_shutdown: bool) -> None:
        checked_from = self._checked_from(clean_shutdown)
        walked_from = self._walked_from(checked_from)
        self._queues.compare = True
        self._queues.left_by_crash = not clean_shutdown
        self._queues.look_for_holes = True
        end = self._walk(walked_from, checked_from, clean_shutdown)
        self._queues.look_for_holes = False
        if self._queues.holes:
            self.report.findings += [
                f"consume queue {topic}/{queue_id} lacked units and was derived again"
                for topic, queue_id in sorted(self._queues.holes)
            ]
            self._queues.holes.clear()
            self.report.records = 0
            self._keys.wait()
            if self._index is not None and not clean_shutdown:
                self._index.settle()
            end = self._walk(0, checked_from, clean_shutdown)
        self._queues.compare = False
        self._tell_mended()
        known = self._queues.end_phy_offset()
        if clean_shutdown and known > end and self._config.on_corruption is OnCorruption.RAISE:
            raise CorruptStoreError(
                self._log.queue.directory,
                end,
                f"the log ends here, but consume queues know records up to {known}; open with "
                'on_corruption="truncate" to go on without them, or mode="r" to read what is there',
            )
        self._cut(end)

    def _tell_mended(self) -> None:
        for (topic, queue_id), count in sorted(self._queues.mended.items()):
            finding = f"consume queue {topic}/{queue_id} had {count} units that contradict the log"
            _log.warning("%s; they were written anew", finding)
            self.report.findings.append(f"{finding}; they were written anew")
        self._queues.mended.clear()

    def _walk(self, first: int, checked_from: int, clean_shutdown: bool) -> int:
        """Walk the files from number ``first`` on; the physical offset where the log ends."""
        files = self._log.queue.files
        self.report.start_offset = self._on_disk = files[first].file_from_offset
        if self._index is not None:
            self._index_check = IndexCheck(self._index)
        saved_at = time.monotonic()
        last = files[max(first, self._last_written_file())]
        total = last.file_from_offset + last.size - self.report.start_offset
        for number in range(first, len(files)):
            file = files[number]
            verify = number >= checked_from and self._config.check_crc_on_recover
            end = self._walk_file(file, verify, clean_shutdown)
            if end is not None:
                return end
            due = time.monotonic() - saved_at >= SAVE_EVERY_S
            if due and not clean_shutdown and number >= checked_from:
                self._save_progress(files[: number + 1])
                saved_at = time.monotonic()
            if self._progress is not None:
                done = file.file_from_offset + file.size - self.report.start_offset
                self._progress(RecoveryProgress("log", min(done, total), total))
        return files[-1].file_from_offset + self._log.queue.file_size

    def _walk_file(self, file: MappedFile, verify: bool, clean_shutdown: bool) -> int | None:
        """Walk one file; the end of the log when it ends here, else None."""
        at = 0
        while at < file.size:
            at, code = self._scan(file, at, verify)
            status = ScanStatus(code)
            if status is ScanStatus.CAPACITY or (status is ScanStatus.OK and at < file.size):
                continue
            if status is ScanStatus.OK:
                return None
            if status is ScanStatus.BLANK and self._blank_ends(file, at):
                return self._end_at_blank(file, at)
            following = self._judge(file, at, status, clean_shutdown)
            if following is None:
                return file.file_from_offset + at
            if following.phy_offset >= file.file_from_offset + file.size:
                return None
            at = following.phy_offset - file.file_from_offset
        return None

    def _scan(self, file: MappedFile, at: int, verify: bool) -> tuple[int, int]:
        by_property = verify and self._config.force_verify_prop_crc
        batch = self._batch
        at, code = batch.scan(
            file.region,
            at,
            file.size,
            base_offset=file.file_from_offset,
            verify_crc=verify,
            verify_crc_property=by_property,
        )
        self._queues.dispatch(batch)
        self.report.records += batch.record_count
        self._timestamp_ms = batch.store_timestamp
        # the keys before these are in now, so the arrays that held them are free
        self._keys.wait()
        self._batch = self._batches[batch is self._batches[0]]
        self._keys.start(lambda: self._file_keys(batch))
        return at, code

    def _file_keys(self, batch: DispatchBatch) -> None:
        if self._index_check is not None:
            self._index_check.take(batch)
        if self._index is not None:
            self._index.dispatch(batch)
        batch.clear()

    @staticmethod
    def _blank_ends(file: MappedFile, at: int) -> bool:
        return int.from_bytes(file.read(at, 4), "big") == file.size - at

    def _end_at_blank(self, file: MappedFile, at: int) -> int | None:
        """A file that ends in order; the log goes on in the next one, or ends here."""
        files = self._log.queue.files
        behind = files[files.index(file) + 1 :]
        if any(first_record(other) is not None for other in behind):
            return None
        if find_good_record(behind) is not None:
            return None
        return file.file_from_offset + at

    def _judge(
        self, file: MappedFile, at: int, status: ScanStatus, clean_shutdown: bool
    ) -> GoodRecord | None:
        """Decide about a place where no good record is: None ends the log there.

        Returns:
            the good record with which the walk goes on, when damage is to be passed over.

        Raises:
            CorruptRecordError: it is damage, and ``on_corruption`` is "raise".
        """
        files = self._log.queue.files
        behind = files[files.index(file) + 1 :]
        following = find_good_record([file, *behind], at + 1)
        offset = file.file_from_offset + at
        reason = status_text(status)
        policy = self._config.on_corruption
        if following is None:
            if status is ScanStatus.EMPTY:
                return None
            if clean_shutdown and policy is OnCorruption.RAISE:
                raise CorruptRecordError(file.path, offset, self._advice(reason, "no good record"))
            self._end_torn(file, at, offset)
            return None
        flushed = clean_shutdown or (
            following.store_timestamp_ms < self._checkpoint.physic_msg_timestamp_ms
        )
        if flushed and policy is OnCorruption.RAISE:
            goes_on = f"good records follow from {following.phy_offset}"
            raise CorruptRecordError(file.path, offset, self._advice(reason, goes_on))
        if flushed and policy is OnCorruption.SKIP:
            _log.warning("%s at %d: %s; passed over", file.path, offset, reason)
            self.report.ending = Ending.DAMAGED
            self.report.damaged.append((offset, reason))
            self._passed_over.append((offset, following.phy_offset))
            return following
        self._end_torn(file, at, offset)
        return None

    @staticmethod
    def _advice(reason: str, goes_on: str) -> str:
        return (
            f'{reason}; {goes_on}. Nothing was changed. Read the store with mode="r", or open it '
            'with on_corruption="skip" to go on without what is damaged, or "truncate" to end the '
            "log here"
        )

    def _end_torn(self, file: MappedFile, at: int, offset: int) -> None:
        files = self._log.queue.files
        rest = [file, *files[files.index(file) + 1 :]]
        self.report.ending = Ending.TORN
        self.report.dropped_bytes = _used_bytes(rest, at)
        self.report.dropped_records = _count_good(rest, at + 1)
        _log.warning(
            "%s: the log ends torn at %d; %d bytes with %d good records are cut off",
            file.path,
            offset,
            self.report.dropped_bytes,
            self.report.dropped_records,
        )

    # ---- afterwards

    def _cut(self, end: int) -> None:
        self._keys.wait()
        self.report.end_offset = end
        self._log.set_end(end, self._written_through(end))
        self.report.units_dropped = self._queues.truncate(end)
        for start, stop in self._passed_over:
            self.report.units_dropped += self._queues.blank_between(start, stop)
        self._queues.correct_min_offset(self._log.min_offset)
        if self._index is not None:
            self._cut_index(self._index, end)

    def _written_through(self, end: int) -> int:
        """Physical offset below which the log is on the disk.

        After a kill the end of the walked files may be in memory only, and a later record must not
        be acknowledged as on disk before them: the first flush writes them through. Where readers
        see only what is on the disk, it is brought there now.
        """
        if self.report.clean_shutdown:
            return end
        if not FlushPolicy.of(self._config).waits_for_disk:
            return self._on_disk
        for file in self._log.queue.files:
            if file.file_from_offset + file.size > self._on_disk:
                file.sync()
        return end

    def _cut_index(self, index: IndexService, end: int) -> None:
        """Drop what contradicts the log, and the keys behind its end; derive that again."""
        if not self.report.clean_shutdown:
            index.settle()
        resume = index.resume_offset
        wrong = None
        if self._index_check is not None:
            self._index_check.end(end)
            wrong = self._index_check.wrong
        if wrong is not None:
            finding = f"{index.files[wrong].path}: the index contradicts the log from here on"
            _log.warning("%s; it is derived again", finding)
            self.report.findings.append(f"{finding}; it was derived again")
            index.drop_from(wrong)
        index.truncate(end)
        if index.resume_offset < resume:
            self.report.index_from = max(index.resume_offset, self._log.min_offset)
            for _ in self._scan_range(self.report.index_from, end):
                index.dispatch(self._batch)

    def _scan_range(self, start: int, end: int) -> Iterator[None]:
        """Scan the good records between two physical offsets, one batch at a time."""
        while start < end:
            file = self._log.queue.find(start)
            if file is None:
                return
            base = file.file_from_offset
            stop = min(end - base, file.size)
            at, code = self._batch.scan(file.region, start - base, stop, base_offset=base)
            yield
            self._batch.clear()
            if code == ScanStatus.CAPACITY or (code == ScanStatus.OK and at < file.size):
                start = base + at
            elif code in (ScanStatus.OK, ScanStatus.BLANK):
                start = base + file.size
            else:
                following = find_good_record([file], at + 1)
                start = following.phy_offset if following else base + file.size

    def _keys_between(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """(physical offset, how many keys) of each record with keys in a range of the log."""
        for _ in self._scan_range(max(start, self._log.min_offset), end):
            offsets = self._batch.key_offsets[: self._batch.key_count].tolist()
            counts: dict[int, int] = {}
            for offset in offsets:
                counts[offset] = counts.get(offset, 0) + 1
            yield from counts.items()

    def _save_progress(self, walked: list[MappedFile]) -> None:
        """Bring what was walked and derived to the disk, so that the next recovery begins here.

        Args:
            walked: the files of the log up to here.
        """
        self._keys.wait()
        for file in walked:
            if file.file_from_offset >= self._on_disk:
                file.sync()
        self._on_disk = walked[-1].file_from_offset + walked[-1].size
        timestamp_ms = self._timestamp_ms
        self._queues.flush()
        checkpoint = self._checkpoint
        if self._index is not None:
            checkpoint.index_msg_timestamp_ms = max(
                checkpoint.index_msg_timestamp_ms, self._index.flush()
            )
        if timestamp_ms > checkpoint.min_timestamp_ms:
            checkpoint.physic_msg_timestamp_ms = max(
                checkpoint.physic_msg_timestamp_ms, timestamp_ms
            )
            checkpoint.logics_msg_timestamp_ms = max(
                checkpoint.logics_msg_timestamp_ms, timestamp_ms
            )
            checkpoint.flush()


def _used_bytes(files: list[MappedFile], at: int) -> int:
    """Bytes from position ``at`` of the first file up to the last one that is not zero."""
    end = files[0].file_from_offset + at
    for file in files:
        start = at if file is files[0] else 0
        while (start := file.data_from(start)) < file.size:
            data = bytes(file.read(start, min(_LOOK, file.size - start)))
            used = len(data.rstrip(b"\0"))
            if used:
                end = file.file_from_offset + start + used
            start += len(data)
    return end - files[0].file_from_offset - at


def _count_good(files: list[MappedFile], at: int) -> int:
    count = 0
    found = find_good_record(files, at)
    while found is not None:
        count += 1
        rest = [file for file in files if file.file_from_offset + file.size > found.end_offset]
        if not rest:
            break
        found = find_good_record(rest, max(0, found.end_offset - rest[0].file_from_offset))
    return count
