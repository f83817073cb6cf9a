"""Judges a place of the log without a good record: is it the end, a torn tail, or damage?

Each verdict names the crash, or the rot, that leaves such a place behind.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rmqcore._codec import record_layout
from rmqcore.config import OnCorruption
from rmqcore.errors import CorruptRecordError
from rmqcore.files.log_walker import GoodRecord, find_good_record, good_record_at
from rmqcore.native.format._message_ext import status_text
from rmqcore.native.format._next_record import ScanStatus, lacks_size_only
from rmqcore.recovery.report import Ending

if TYPE_CHECKING:
    from rmqcore.files.mapped_file import MappedFile
    from rmqcore.files.mapped_file_queue import MappedFileQueue
    from rmqcore.recovery.report import RecoveryReport

_log = logging.getLogger("rmqcore")
_READ_SIZE = 1 << 20
#: How the property with a record's CRC begins; ten digits and a separator follow.
_CRC = b"__CRC32#\x01"
_CRC_SIZE = len(_CRC) + 11
#: What is said of a blank, the record that ends a file, where a queue leads behind it.
BLANK_IN_FRONT = "an end-of-file record stands in front of whole records"
SAVED_BY_REPAIR = "rmqcore doctor plan STORE says what a repair saves"


class Judge:
    """Decides about the places where the walk over the log finds no good record.

    Args:
        log: the log's files.
        policy: what is done about damage in front of good records.
        report: is told of each verdict.
        clean_shutdown: the last writer closed the store, so everything was on the disk.
        no_page_lost: the machine has been running since the store was last found in order: what
            was written is there, whether or not it was on the disk.
        flushed_until_ms: store time up to which the log was on the disk, from the checkpoint.
        known_end: physical offset behind the last record that a consume queue knows.
    """

    def __init__(
        self,
        log: MappedFileQueue,
        policy: OnCorruption,
        report: RecoveryReport,
        *,
        clean_shutdown: bool,
        no_page_lost: bool,
        flushed_until_ms: int,
        known_end: int,
    ) -> None:
        self._log = log
        self._policy = policy
        self._clean_shutdown = clean_shutdown
        self._no_page_lost = no_page_lost
        self._flushed_until_ms = flushed_until_ms
        self._known_end = known_end
        self._report = report
        #: (first byte, end) of each damaged stretch that the walk goes on behind
        self.passed_over: list[tuple[int, int]] = []
        #: physical offset of a whole record behind a blank in the same file, by that blank's
        self.behind_blanks: dict[int, int] = {}

    def at_blank(self, file: MappedFile, at: int) -> int | None:
        """Where the log ends, at the blank that ends a file; None: it goes on in the next file.

        The blank is written before the next file gets its first record: with that file there, the
        blank belongs to the log, and a slave may have it.

        Source: RocketMQ store/CommitLog.java, recoverNormally.

        Args:
            file: of the log.
            at: position of the blank in it.
        """
        following = find_good_record([file], at + 1)
        if following is not None:
            self.behind_blanks[file.file_from_offset + at] = following.phy_offset
        return None if self._behind(file) else file.file_from_offset + at

    def at_no_record(self, file: MappedFile, at: int, status: ScanStatus) -> GoodRecord | None:
        """Decide about a place where neither a good record nor a file's end is.

        Args:
            file: of the log.
            at: position in it.
            status: what a reader has found there.

        Returns:
            the good record with which the walk goes on; None: the log ends here.

        Raises:
            CorruptRecordError: it is damage, and no ``on_corruption`` says what to do about it.
        """
        following = find_good_record([file, *self._behind(file)], at + 1)
        if following is None:
            self._at_last(file, at, status)
            return None
        return self._in_front_of(file, at, status, following)

    def _at_last(self, file: MappedFile, at: int, status: ScanStatus) -> None:
        """No good record follows."""
        if status is ScanStatus.EMPTY:
            # Nothing was written here yet. A put that was killed before it stored its size word,
            # the last of its steps, leaves the same: that put was never acknowledged.
            return
        # Closing writes everything through, and a process that is killed takes no page with it:
        # no crash has left this in place of a record that was there. It has rotted, or was
        # overwritten. Only published records get into a queue.
        known = self._no_page_lost and file.file_from_offset + at < self._known_end
        certain = self._clean_shutdown or known or _never_had_crc(file, at, status)
        if certain and self._policy is OnCorruption.RAISE:
            raise self._damage(file, at, status, "no good record")
        # A power cut while the last record was on its way: some of its pages are on the disk,
        # others are not. RocketMQ, which stores a record's size first, leaves it by a kill, too.
        self._end_torn(file, at)

    def _in_front_of(
        self, file: MappedFile, at: int, status: ScanStatus, following: GoodRecord
    ) -> GoodRecord | None:
        """Good records follow."""
        if not self._clean_shutdown and self._is_unpublished(file, at, following):
            # A kill inside a batch, or a commit of the transient pool: the first record gets its
            # size word when all others are stored, so good records lie behind one without a size,
            # or with a part of it. It was not acknowledged.
            self._end_torn(file, at)
            return None
        flushed = self._clean_shutdown or following.store_timestamp_ms < self._flushed_until_ms
        # nor was a whole record on its way
        flushed |= _never_had_crc(file, at, status)
        if not (flushed or self._no_page_lost):
            # A power cut during a flush: pages reach the disk in any order, so a record may be
            # there before the one in front of it. No flush has returned since either was put.
            self._end_torn(file, at)
            return None
        # Records are written, and flushed, in log order, so this place was written before what
        # follows, and has been on the disk where that is. A kill takes no page with it, and a
        # power cut none from the disk: it has rotted, or was overwritten.
        if self._policy is OnCorruption.RAISE:
            goes_on = f"good records follow from {following.phy_offset}"
            raise self._damage(file, at, status, goes_on)
        if self._policy is OnCorruption.SKIP:
            offset, reason = file.file_from_offset + at, status_text(status)
            _log.warning("%s at %d: %s; passed over", file.path, offset, reason)
            self._report.ending = Ending.DAMAGED
            if (stretch := (offset, following.phy_offset)) not in self.passed_over:
                # the log may be walked once more
                self._report.damaged.append((offset, reason))
                self.passed_over.append(stretch)
            return following
        self._end_torn(file, at)
        return None

    def _is_unpublished(self, file: MappedFile, at: int, following: GoodRecord) -> bool:
        """True for a record that lacks nothing but its size word, and that no queue knows."""
        offset = file.file_from_offset + at
        size = following.phy_offset - offset
        if offset < self._known_end or size > file.size - at:
            return False
        return lacks_size_only(file.read(at, size), base_offset=offset)

    def _behind(self, file: MappedFile) -> list[MappedFile]:
        files = self._log.files
        return files[files.index(file) + 1 :]

    @staticmethod
    def _damage(file: MappedFile, at: int, status: ScanStatus, goes_on: str) -> CorruptRecordError:
        what = f"{status_text(status)}; {goes_on}. Nothing was changed. "
        advice = f"{SAVED_BY_REPAIR}. "
        if _never_had_crc(file, at, status):
            what = f"the record is whole, and was put without the CRC of all of it; {goes_on}. "
            advice = "Nothing was changed. Open the store without force_verify_prop_crc. "
        reason = (
            f'{what}{advice}Read the store as it is with mode="r", or open it with '
            'on_corruption="skip" to go on without what is damaged, or on_corruption="truncate" to '
            "end the log here, and lose what follows"
        )
        return CorruptRecordError(file.path, file.file_from_offset + at, reason)

    def _end_torn(self, file: MappedFile, at: int) -> None:
        rest = [file, *self._behind(file)]
        report = self._report
        report.ending = Ending.TORN
        report.dropped_bytes = used_bytes(rest, at)
        report.dropped_records = _count_good(rest, at + 1)
        _log.warning(
            "%s: the log ends torn at %d; %d bytes with %d good records are cut off",
            file.path,
            file.file_from_offset + at,
            report.dropped_bytes,
            report.dropped_records,
        )


def _never_had_crc(file: MappedFile, at: int, status: ScanStatus) -> bool:
    """True for a whole record without the CRC property that reads demand.

    No crash leaves that of one that had it, as the last of its properties: what has not reached the
    disk is zero.
    """
    record = good_record_at(file, at) if status is ScanStatus.BAD_CRC else None
    if record is None:
        return False
    data = bytes(file.read(at, record.size))
    at, size = record_layout(data)["properties"]
    last = data[at:][:size][-_CRC_SIZE:]
    return b"\0" not in last and not last.startswith(_CRC)


def used_bytes(files: list[MappedFile], at: int) -> int:
    """Bytes from position ``at`` of the first file up to the last one that is not zero.

    Args:
        files: of the log, in order; at least one.
        at: position in the first one.

    Raises:
        CorruptStoreError: a file has become shorter than it was.
    """
    end = files[0].file_from_offset + at
    for file in files:
        start = at if file is files[0] else 0
        while (start := file.data_from(start)) < file.size:
            data = bytes(file.read(start, min(_READ_SIZE, file.size - start)))
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
