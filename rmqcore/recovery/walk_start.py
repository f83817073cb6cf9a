"""With which file of the log recovery begins to walk, and from which on it compares CRCs."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from rmqcore.files.log_walker import first_record

if TYPE_CHECKING:
    from rmqcore.files.commit_log import CommitLog
    from rmqcore.files.store_checkpoint import StoreCheckpoint
    from rmqcore.files.store_mark import StoreMark

#: Where no mark says how far the disk has all, this many log files are examined for a clock that
#: was set back.
_FILES_LOOKED_AT: Final = 8


class WalkStart:
    """Chooses the first files of a log that is not empty, by what the store says of itself.

    Args:
        log: the log.
        checkpoint, mark: as they were read.
        clean_shutdown: False when the abort marker was found.

    Source: RocketMQ store/CommitLog.java, isMappedFileMatchedRecover.
    """

    def __init__(
        self,
        log: CommitLog,
        checkpoint: StoreCheckpoint,
        mark: StoreMark,
        *,
        clean_shutdown: bool,
    ) -> None:
        self._log = log
        self._checkpoint = checkpoint
        self._mark = mark
        self._clean_shutdown = clean_shutdown

    def checked_from(self) -> int:
        """Number of the first file whose records are compared with their CRC."""
        files = self._log.queue.files
        if self._clean_shutdown:
            return self.last_written_file()
        limit = self._checkpoint.min_timestamp_ms
        number = self._last_stored_by(limit, len(files) - 1)
        # where the clock was set back, the checkpoint's time may be later than that of records
        # which were put behind it
        first = max(0, number - _FILES_LOOKED_AT)
        if self._mark.log_end:
            first = self.file_at(self._mark.log_end)
        records = [first_record(file) for file in files[first : number + 1]]
        for at, (before, after) in enumerate(pairwise(records)):
            if before and after and after.store_timestamp_ms < before.store_timestamp_ms:
                return self._last_stored_by(limit, first + at)
        return number

    def _last_stored_by(self, limit_ms: int, number: int) -> int:
        """Number of the last file, up to one, whose first record was stored by a time; else 0."""
        for candidate in range(number, -1, -1):
            record = first_record(self._log.queue.files[candidate])
            if record is not None and record.store_timestamp_ms <= limit_ms:
                return candidate
        return 0

    def last_written_file(self) -> int:
        """Number of the last file that begins with a record; 0 without one."""
        files = self._log.queue.files
        for number in range(len(files) - 1, 0, -1):
            if first_record(files[number]) is not None:
                return number
        return 0

    def walked_from(
        self, checked_from: int, index_resumes_at: int | None, open_check_bytes: int
    ) -> int:
        """Number of the first file that is compared with queues and index, all being well.

        Args:
            checked_from: number of the first file whose CRCs are compared.
            index_resumes_at: physical offset from which on the index may lack keys; None without
                an index.
            open_check_bytes: how much of the log's end is compared at most; see `StoreConfig`.
        """
        log = self._log
        last = log.queue.files[self.last_written_file()]
        floor = last.file_from_offset + log.queue.file_size - open_check_bytes
        wanted = log.queue.files[checked_from].file_from_offset
        if index_resumes_at is not None:
            wanted = min(wanted, max(index_resumes_at, log.min_offset))
        wanted = min(wanted, max(floor, log.min_offset))
        wanted = min(wanted, max(self._mark.log_end, floor, log.min_offset))
        return self.file_at(wanted)

    def derived_from(self, needed: int, usual: int) -> int:
        """Number of the first file that queues which lack units need.

        Args:
            needed: physical offset from which the log may have units that queues lack; what the
                mark says goes first.
            usual: number of the file from which the log would be walked else.
        """
        if self._mark.derive_from >= 0:
            needed = self._mark.derive_from
        return min(usual, self.file_at(needed))

    def file_at(self, offset: int) -> int:
        """Number of the file that holds the byte at a physical offset; the last one in front of it.

        0 when there is none.
        """
        files = self._log.queue.files
        numbers = [n for n, file in enumerate(files) if file.file_from_offset <= offset]
        return numbers[-1] if numbers else 0
