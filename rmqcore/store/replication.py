"""The log as replication sees it: bytes at offsets, which a master sends and a slave appends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqcore.config import StoreConfig
from rmqcore.errors import CorruptRecordError, StoreNotWritableError
from rmqcore.files.commit_log import CommitLog
from rmqcore.files.commit_log_writer import CommitLogWriter
from rmqcore.files.store_mark import StoreMark
from rmqcore.native.format._message import status_text
from rmqcore.native.format._next_record import ScanStatus, next_record
from rmqcore.native.log._tail import END_OF_FILE, LogTail
from rmqcore.services.flush import GroupCommitService
from rmqcore.services.flush_policy import FlushPolicy
from rmqcore.services.reput import ReputMessageService

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Replication:
    """Bytes of the log: of any store to read, of one whose role is SLAVE to append.

    - A master's bytes are appended as they are, in the order of its log, without a hole.
    - Whole records are checked before anybody sees them, and dispatched like any other; a part of
      a record waits for the rest, and is dropped when the store is closed.

    Threads: one appends.
    Source: RocketMQ store/DefaultMessageStore.java, appendToCommitLog.
    Differs: RocketMQ appends whatever comes.
    """

    config: StoreConfig
    log: CommitLog
    _mark: StoreMark
    _log_writer: CommitLogWriter
    _tail: LogTail
    _reput: ReputMessageService
    _flush_policy: FlushPolicy
    _group_commit: GroupCommitService

    def _check_open(self) -> None:
        raise NotImplementedError

    def why_not_appended(self) -> str | None:
        """Why a master's bytes are refused at this moment; None when they are not."""
        raise NotImplementedError

    @property
    def appended_offset(self) -> int:
        """Physical offset behind the last byte appended; 0 for an empty log."""
        return self._tail.appended_offset

    @property
    def log_file_size(self) -> int:
        """Bytes of a log file."""
        return self.log.queue.file_size

    def has_room(self, size: int) -> bool:
        """Whether so many bytes can be appended without beginning another log file."""
        written = self._tail.appended_offset - self._log_writer.attached_offset
        return 0 < size <= self.log.queue.file_size - written and bool(self.log.queue.files)

    def append_data(self, data: Buffer, phy_offset: int) -> None:
        """Append bytes of the master's log; an empty log begins with them.

        Args:
            data: as they lie in the master's log; records may be cut anywhere.
            phy_offset: where; the end of this log, or a multiple of the file size in an empty one.

        Raises:
            MessageIllegalError: they do not follow this log's end; nothing was written.
            CorruptRecordError: they are no records of this place; what lies before them in
                ``data``, up to the end of a log file, may have been appended, they were not.
            StoreNotWritableError: the store is no slave's, or takes nothing at this moment.
            DiskFullError: no room for the next log file; a later call tries again.
        """
        self._check_open()
        begins = phy_offset > self.appended_offset == 0 or not self.log.queue.files
        if begins and self._tail.follows:
            self._check_beginning(data, phy_offset)
            self._reput.offset = phy_offset
            self._log_writer.begin(phy_offset)
        with memoryview(data).cast("B") as rest:
            at = 0
            while at < len(rest):
                file_at = self._log_writer.attached_offset
                room = file_at + self.log.queue.file_size - phy_offset - at
                piece = rest[at : at + room] if room > 0 else rest[at:]
                answer = self._tail.append_data(piece, phy_offset + at)
                if answer is True:
                    at += len(piece)
                elif answer == END_OF_FILE:
                    self._log_writer.roll(file_at)
                else:
                    self._check_open()
                    reason = self.why_not_appended() or "the store is being opened or closed"
                    raise StoreNotWritableError(reason)
        if self._flush_policy.waits_for_disk:
            # readers see what is there
            self._group_commit.flush_soon()

    def _check_beginning(self, data: Buffer, phy_offset: int) -> None:
        """Refuse to begin a log with what none begins with: where it begins is decided by that."""
        self._log_writer.check_beginning(phy_offset)
        file_size = self.log.queue.file_size
        with memoryview(data).cast("B") as all_of_it:
            status, _, _ = next_record(
                all_of_it,
                0,
                min(len(all_of_it), file_size),
                base_offset=phy_offset,
                file_end=phy_offset + file_size,
                verify_crc=True,
            )
        if status < 0 or status is ScanStatus.EMPTY:
            raise CorruptRecordError("the master's data", phy_offset, status_text(status))

    def drop_partial(self) -> int:
        """Take back a part of a record at the end; the offset behind the last whole one."""
        self._tail.drop_partial()
        return self._tail.appended_offset

    # ---- what is compared with the other side's

    @property
    def unsure_offset(self) -> int:
        """From here on a crash may have left other bytes than were appended.

        Recovery drops what is no record; a lost page of properties or of a topic makes a record
        that only the other side can tell from the right one, as no CRC covers them. It stays unsure
        until it was compared, however often the store is closed and opened meanwhile.
        """
        unsure = self._mark.unsure_from
        return self.log.max_offset if unsure < 0 else unsure

    def note_compared(self) -> None:
        """Note that all of the log was compared with the other side's, and is the same.

        Raises:
            OSError: that could not be written; it is compared again after the next opening.
        """
        self._mark.unsure_from = -1
        self._mark.store()

    def record_begin(self, phy_offset: int) -> int:
        """Where the record begins that holds a byte; the end of the log for one behind it."""
        file_size = self.log.queue.file_size
        at = max(self.log.min_offset, phy_offset - phy_offset % file_size)
        while (head := self.log.record_head(at)) is not None and at + head[0] <= phy_offset:
            at += head[0]
        return at

    # ---- what a master sends

    def bytes_at(self, phy_offset: int, size: int) -> memoryview | None:
        """Bytes of the log as they are, at most ``size``, of one file; None: there are none."""
        view = self.log.view(phy_offset, size)
        if view is None:
            return None
        at = phy_offset - view.base_offset
        return memoryview(view.buffer)[at : min(view.end, at + size)]

    def store_time_at(self, phy_offset: int) -> int | None:
        """Store time of the record at an offset, Unix milliseconds; None when none begins there."""
        head = self.log.record_head(phy_offset)
        return None if head is None else head[1]
