"""The commit log: every record, one after the other, over files of one size.

Appends through the native tail and reads slices; it does not recover, dispatch or decide when to
flush. A `View` is a stretch of readable bytes of one file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from rmqcore._codec import RECORD_SIZE_LEAST, check_record
from rmqcore.errors import CorruptRecordError, StoreNotWritableError
from rmqcore.files.mapped_file import MappedFile
from rmqcore.files.mapped_file_queue import MappedFileQueue
from rmqcore.native.base._turn import Turn, turns_held
from rmqcore.native.derive.dispatch import ScanStatus
from rmqcore.native.format._message import MessageExt, find_message, status_text
from rmqcore.native.read._log_map import LogMap

if TYPE_CHECKING:
    from pathlib import Path

    from _typeshed import ReadableBuffer

    from rmqcore.native.base._mapped import MappedRegion
    from rmqcore.native.log._tail import LogTail

SIZE_AND_OFFSET = 36
#: how long a put waits for the next log file
ROLL_TIMEOUT_S = 1e6
#: bytes read at first for one record of another process's file
LIKELY_RECORD_SIZE = 65536


class View(NamedTuple):
    """Readable bytes of one log file.

    Attributes:
        buffer: the bytes; a slice of it keeps the mapping alive.
        base_offset: physical offset of its first byte.
        end: readable bytes in the buffer.
        path: the file.
    """

    buffer: ReadableBuffer
    base_offset: int
    end: int
    path: Path


class FileSource(Protocol):
    """Gives the log its next file: AllocateMappedFileService, or one made on the spot."""

    def take(self, path: Path, offset: int) -> MappedFile:
        """A ready file of the log's size that begins at ``offset``."""
        ...


class BufferPool(Protocol):
    """Lends buffers of a log file's size: TransientStorePool."""

    def borrow(self) -> MappedRegion | None:
        """A buffer, or None when all are lent."""
        ...

    def give_back(self, buffer: MappedRegion) -> None:
        """Take a buffer back; its content is no longer needed."""
        ...


class CommitLog:
    """Appends records to the last file and reads them back from any.

    - Records never span files; a file that has no room for the next one ends in an end-of-file
      record.
    - Offsets below `flushed_offset` are on disk; `max_offset` is the end of what can be read.
    - After a failed flush nothing is written any more: `flush` raises, the caller makes the store
      read-only.

    Args:
        queue: the log's files, loaded.
        tail: the native end of the log.
        source: where the next file comes from.
        pool: buffers of the transient store pool, or None.
        large_folios: how the file that is written lies in memory, `MappedFile.begin_writes`.
        demand_crc: hand out no record without a right ``__CRC32#`` property.

    Threads: any number append and read; `flush_lock` orders flushes.
    Source: RocketMQ store/CommitLog.java.
    """

    def __init__(
        self,
        queue: MappedFileQueue,
        tail: LogTail,
        source: FileSource,
        pool: BufferPool | None = None,
        *,
        large_folios: bool = False,
        demand_crc: bool = False,
    ) -> None:
        self.queue = queue
        self.tail = tail
        self.flushed_offset = 0
        #: what kernels may read by physical offset; None where bytes are not read from mappings
        self.mapped: LogMap | None = None
        if queue.writable and pool is None and not demand_crc:
            self.mapped = LogMap(tail, queue.file_size)
        self.demand_crc = demand_crc
        self.flush_lock = Turn()
        self._source = source
        self._pool = pool
        self._large_folios = large_folios
        self._rolling = Turn()
        self._roll_lock = Turn()
        self._attached: MappedFile | None = None
        self._ended = False

    # ---- appending

    def attach(self) -> None:
        """Point the tail at the end of the last file, creating the first when there is none."""
        with self._roll_lock.within():
            file = self.queue.last
            if file is None or file.full:
                file = self._next_file(file)
            else:
                file.begin_writes(large_folios=self._large_folios)
            self._attach(file)

    def make_file(self, path: Path, offset: int) -> MappedFile:
        """Create a log file, reserved whole; it is not in the log yet.

        Raises:
            DiskFullError: there is no room.
        """
        file = self.queue.new_file(path, offset, whole=True)
        file.begin_writes(large_folios=self._large_folios)
        return file

    def _next_file(self, last: MappedFile | None) -> MappedFile:
        offset = 0 if last is None else last.file_from_offset + self.queue.file_size
        return self.queue.append_file(offset, self._source.take)

    def _attach(self, file: MappedFile) -> None:
        buffer = file.region
        if self._pool is not None:
            borrowed = self._pool.borrow()
            if borrowed is not None:
                wrote = file.wrote_position
                memoryview(borrowed)[:wrote] = memoryview(file.region)[:wrote]
                file.write_buffer = buffer = borrowed
        self.tail.attach(buffer, file.file_from_offset, file.wrote_position)
        self._attached = file

    def roll(self, full_at: int) -> None:
        """End the file that had no room and go on in the next.

        Args:
            full_at: `file_from_offset` of the file that was full when the caller tried; when
                another thread has rolled since, nothing is done.

        Raises:
            DiskFullError: there is no room for the next file; the log stays as it is, and a later
                put tries again.
            StoreNotWritableError: another thread is rolling, and this one must not wait: it is in a
                signal handler or a finalizer that runs inside the store.
        """
        with self._rolling.within(0.0 if turns_held() else ROLL_TIMEOUT_S) as mine:
            if not mine or self._rolling.depth > 1:
                raise StoreNotWritableError(
                    "the log is just going on to its next file, and this put, which comes from a "
                    "signal handler or a finalizer inside the store, cannot wait; put again later"
                )
            self._roll(full_at)

    def _roll(self, full_at: int) -> None:
        with self._roll_lock.within():
            file = self._attached
            if self._ended or file is None or file.file_from_offset != full_at:
                return
            fresh = self._next_file(file) if self.queue.last is file else self.queue.last
            self.tail.seal()
            self._take_position()
            if fresh is not None:
                self._attach(fresh)
            file.end_writes()

    def end_puts(self) -> None:
        """Wait for the put that is being written, and refuse every later one."""
        with self._roll_lock.within():
            self._ended = True
            self.tail.detach()

    def _take_position(self) -> None:
        """Bring the wrote positions up to the tail's.

        The tail may be a file ahead of `_attached`: a roll may have been interrupted in between.
        """
        if self._attached is None:
            return
        end = self.tail.max_offset
        for file in self.queue.files[-2:]:
            wrote = min(end - file.file_from_offset, file.size)
            file.wrote_position = max(file.wrote_position, wrote)

    @property
    def attached_offset(self) -> int:
        """`file_from_offset` of the file that the tail writes to."""
        return self._attached.file_from_offset if self._attached else -1

    # ---- flushing

    def commit(self) -> int:
        """Move what the transient pool holds into the files; the end of what can be read.

        Raises:
            DiskFullError: no room; nothing was lost, a later commit tries again.
        """
        if self._pool is None:
            return self.tail.max_offset
        with self._roll_lock.within():
            self._take_position()
            for file in self.queue.files:
                if file.write_buffer is not None:
                    file.commit()
                    if file.full and file is not self._attached:
                        buffer, file.write_buffer = file.write_buffer, None
                        self._pool.give_back(buffer)
        return self.max_offset

    def flush(self) -> int:
        """Write through to the disk all that was put before the call.

        Returns:
            the flushed offset.

        Raises:
            OSError: the disk refused.
        """
        with self.flush_lock.within():
            self.commit()
            with self._roll_lock.within():
                self._take_position()
                files = self._unflushed()
            for file in files:
                position = file.flush()
                self.flushed_offset = max(self.flushed_offset, file.file_from_offset + position)
            return self.flushed_offset

    def _unflushed(self) -> list[MappedFile]:
        """Files that hold bytes behind `flushed_offset`, oldest first."""
        found: list[MappedFile] = []
        for file in reversed(self.queue.files):
            if file.file_from_offset + file.read_position <= self.flushed_offset:
                break
            found.append(file)
        return found[::-1]

    # ---- reading

    @property
    def min_offset(self) -> int:
        """Offset of the first byte there is; 0 in an empty log."""
        return self.queue.min_offset

    @property
    def max_offset(self) -> int:
        """Offset behind the last readable byte; 0 in an empty log."""
        file = self._attached
        if file is None or file.write_buffer is not None:
            return self.queue.max_offset
        return self.tail.max_offset

    def _readable(self, file: MappedFile) -> int:
        """Bytes of a file that may be read now."""
        if self._attached is None or file.write_buffer is not None:
            return file.read_position
        return max(0, min(self.tail.max_offset - file.file_from_offset, file.size))

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
        """``size`` bytes from ``offset``, zero-copy in a store of ours; None when they are gone."""
        file = self.queue.find(offset)
        if file is None:
            return None
        position = offset - file.file_from_offset
        if size < 0 or position > self._readable(file) - size:
            return None
        return file.read(position, size)

    def record_size(self, offset: int) -> int | None:
        """Size word of the record at ``offset`` when it names that offset itself, else None."""
        head = self.read(offset, SIZE_AND_OFFSET)
        if head is None:
            return None
        size = int.from_bytes(head[:4], "big", signed=True)
        if size < RECORD_SIZE_LEAST or int.from_bytes(head[28:36], "big", signed=True) != offset:
            return None
        return size

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
        size = LIKELY_RECORD_SIZE
        while True:
            view = self.view(offset, size)
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
    def _check_crc(message: MessageExt, path: Path) -> None:
        try:
            check_record(message.record, verify_crc_property=True)
        except CorruptRecordError as error:
            raise CorruptRecordError(path, message.phy_offset, error.reason) from None

    # ---- shrinking and closing

    def set_end(self, offset: int, flushed_offset: int) -> int:
        """Cut the log at ``offset``, as recovery decided; what is behind it reads as zeros.

        Args:
            offset: where the log ends.
            flushed_offset: what lies below is known to be on the disk; the first flush writes the
                rest through, whoever wrote it.

        Returns:
            how many files were removed.
        """
        removed = self.queue.truncate(offset)
        for file in self.queue.files:
            on_disk = max(0, flushed_offset - file.file_from_offset)
            file.flushed_position = min(file.flushed_position, on_disk)
        self.flushed_offset = min(self.queue.max_offset, flushed_offset)
        return removed

    def close(self) -> None:
        """Refuse further puts and let the files go."""
        self.tail.detach()
        if self.mapped is not None:
            self.mapped.clear()
        with self._roll_lock.within():
            self._attached = None
            self.queue.close()
