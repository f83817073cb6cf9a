"""The log reader: finds files of the commit log, slices them, decodes the record at an offset.

Never writes, and does not know the writer: a `PublishedOffset` says how far the log may be read. A
`View` is a stretch of readable bytes of one file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from rmqcore._codec import BLANK_SIZE, check_record
from rmqcore.errors import CorruptRecordError, is_bad_sector
from rmqcore.native.format._message_ext import MessageExt, find_message, status_text
from rmqcore.native.format._next_record import RECORD_HEAD_SIZE, ScanStatus, next_record
from rmqcore.native.read._log_map import LogMap

if TYPE_CHECKING:
    from pathlib import Path

    from _typeshed import ReadableBuffer

    from rmqcore.files.mapped_file import MappedFile
    from rmqcore.files.mapped_file_queue import MappedFileQueue
    from rmqcore.native.base._published import PublishedOffset

#: bytes read at first for one record of another process's file
LIKELY_RECORD_SIZE = 65536
_FETCHED_AT_ONCE: Final = 256 * 1024
_SEARCHED_AT_ONCE: Final = 64 * 1024
#: no message is larger that a producer puts
_SEARCHED_MOST: Final = 64 * 1024 * 1024
_MAGIC_AT: Final = 4
#: what both magic codes of a record begin with
_MAGIC: Final = b"\xda\xa3\x20"


class View(NamedTuple):
    """Readable bytes of one log file.

    Attributes:
        buffer: the bytes; a slice of it keeps the mapping alive.
        base_offset: physical offset of its first byte.
        end: readable bytes in the buffer.
        path: the file; of an archive its URL.
    """

    buffer: ReadableBuffer
    base_offset: int
    end: int
    path: Path | str


class CommitLog:
    """Reads the records of the log back, from any of its files.

    - Records never span files; a file that has no room for the next one ends in an end-of-file
      record.
    - Nothing at or behind ``end`` is handed out.

    Args:
        queue: the log's files.
        end: how far the log may be read. The log writer publishes it there; of another process's
            log, the store that follows it (`ReadOnlyMessageStore`).
        mapped: True where every readable byte is in the mappings of its files, so that kernels may
            follow physical offsets; False where it has to be read, or gets to the files later.
        demand_crc: hand out no record without a right ``__CRC32#`` property.

    Threads: any.
    Source: RocketMQ store/CommitLog.java.
    """

    def __init__(
        self,
        queue: MappedFileQueue,
        end: PublishedOffset,
        *,
        mapped: bool = False,
        demand_crc: bool = False,
    ) -> None:
        self.queue = queue
        self.end = end
        #: the mapped files, for kernels; None where not every readable byte is mapped
        self.mapped: LogMap | None = None
        if mapped and not demand_crc:
            self.mapped = LogMap(end, queue.file_size, held_max=queue.open_files.kept_max)
        self.demand_crc = demand_crc

    def load(self, *, lengthen: bool = False, any_lost: bool = False) -> None:
        """Take in the files; all that they hold may be read until the end is found.

        Args:
            lengthen: as for `MappedFileQueue.load`.
            any_lost: the same.

        Raises:
            CorruptStoreError: a file has another length, or a file is missing between two.
        """
        self.queue.load(lengthen=lengthen, keep_first=True, any_lost=any_lost)
        self.end.move_to(self.queue.max_offset)

    @property
    def min_offset(self) -> int:
        """Offset of the first byte there is; 0 in an empty log."""
        return self.queue.min_offset

    @property
    def max_offset(self) -> int:
        """Offset behind the last readable byte; 0 in an empty log."""
        return self.end.offset if self.queue.files else 0

    def _readable(self, file: MappedFile) -> int:
        """Bytes of a file that may be read now."""
        return max(0, min(self.end.offset - file.file_from_offset, file.size))

    def view(self, offset: int, size: int) -> View | None:
        """Readable bytes around ``offset``; None when the log holds none there.

        Args:
            offset: physical offset that the view contains.
            size: bytes from there on that the caller would like to see. A file of ours is shown
                whole; of another process's file that much is read, or what there is of it.
        """
        file = self.queue.find(offset)
        if file is None:
            return None
        position = offset - file.file_from_offset
        end = self._readable(file)
        if position >= end:
            return None
        if file.writable:
            region = file.region
            if self.mapped is not None:
                self.mapped.add(region, file.path, file.file_from_offset)
            return View(region, file.file_from_offset, end, file.path)
        data = file.read_bytes(position, min(size, end - position))
        return View(data, offset, len(data), file.path)

    def read(self, offset: int, size: int) -> memoryview | None:
        """``size`` bytes from ``offset``, zero-copy where the file is mapped; None when gone.

        Args:
            offset: physical offset.
            size: bytes, all of them in one file.

        Raises:
            CorruptStoreError: the file has become shorter than it was.
        """
        file = self.queue.find(offset)
        if file is None:
            return None
        position = offset - file.file_from_offset
        if size < 0 or position > self._readable(file) - size:
            return None
        return file.read(position, size)

    def fetch(self, begin: int, end: int) -> None:
        """Read bytes into memory without the interpreter's lock; what is not there, not.

        Args:
            begin: physical offset; one that is gone ends it.
            end: physical offset behind the last byte, perhaps in a later file.

        Raises:
            CorruptStoreError: a file has become shorter than it was.
        """
        while begin < end and (view := self.view(begin, 0)) is not None:
            file = self.queue.find(begin)
            size = min(end - begin, view.base_offset + view.end - begin, _FETCHED_AT_ONCE)
            if file is None:
                return
            file.read_into(begin - file.file_from_offset, bytearray(size))
            begin += size

    def record_head(self, offset: int) -> tuple[int, int] | None:
        """What the record at ``offset`` says of itself, when one names that offset.

        Returns:
            (bytes, store_timestamp_ms); None when no record is there.
        """
        status, size, stored_ms = self._at(offset, RECORD_HEAD_SIZE)
        return (size, stored_ms) if status is ScanStatus.PARTIAL else None

    def behind_blank(self, offset: int) -> int | None:
        """Where the log goes on when the end-of-file record lies at ``offset``, else None."""
        status, size, _ = self._at(offset, BLANK_SIZE)
        return offset + size if status is ScanStatus.BLANK else None

    def lies_in_a_record(self, offset: int) -> bool:
        """Whether a whole record begins in front of an offset, and ends behind it."""
        file = self.queue.find(offset)
        if file is None:
            return False
        first = max(file.file_from_offset, offset - _SEARCHED_MOST)
        # the magic code of a record that begins just in front of the offset lies behind it
        end = min(
            offset + _MAGIC_AT + len(_MAGIC) - 1, file.file_from_offset + self._readable(file)
        )
        while first < end:
            begin = max(first, end - _SEARCHED_AT_ONCE)
            found = bytes(self.read(begin, end - begin) or b"")
            at = len(found)
            while (at := found.rfind(_MAGIC, 0, at)) >= 0:
                start = begin + at - _MAGIC_AT
                head = self.record_head(start) if start >= first else None
                if head is not None:
                    return start + head[0] > offset
            # one that lies in both
            end = begin + len(_MAGIC) - 1 if begin > first else first
        return False

    def _at(self, offset: int, size: int) -> tuple[ScanStatus, int, int]:
        """What ``size`` bytes at an offset say, as `next_record`; EMPTY when they are gone."""
        head = self.read(offset, size)
        file = self.queue.find(offset)
        if head is None or file is None:
            return ScanStatus.EMPTY, 0, 0
        file_end = file.file_from_offset + file.size
        return next_record(head, 0, size, base_offset=offset, file_end=file_end)

    def message_at(self, offset: int) -> MessageExt | None:
        """The message that begins at ``offset``; None where none begins.

        Raises:
            CorruptRecordError: one begins there, but its bytes contradict each other.

        Source: RocketMQ store/DefaultMessageStore.java, lookMessageByOffset.
        """
        if self.mapped is not None and offset >= self.min_offset:
            message = self.mapped.message_at(offset)
            if message is None or isinstance(message, MessageExt):
                return message
        size, is_guess = LIKELY_RECORD_SIZE, True
        while True:
            try:
                view = self.view(offset, size)
            except OSError as error:
                if not (is_guess and is_bad_sector(error)):
                    raise
                # it may lie behind the record
                size, is_guess = RECORD_HEAD_SIZE, False
                continue
            if view is None:
                return None
            found = find_message(
                view.buffer,
                offset - view.base_offset,
                view.end,
                path=view.path,
                base_offset=view.base_offset,
            )
            if not isinstance(found, int):
                if self.demand_crc and found is not None:
                    self._check_crc(found, view.path)
                return found
            if found <= size or found > self.queue.file_size:
                raise CorruptRecordError(view.path, offset, status_text(ScanStatus.TRUNCATED))
            size = found

    @staticmethod
    def _check_crc(message: MessageExt, path: Path | str) -> None:
        try:
            check_record(message.record, verify_crc_property=True)
        except CorruptRecordError as error:
            raise CorruptRecordError(path, message.phy_offset, error.reason) from None

    def close(self) -> None:
        """Close the files."""
        if self.mapped is not None:
            self.mapped.clear()
        self.queue.close()
