"""The log writer: appends to the last file of the commit log, rolls to the next one, and flushes.

Appends through the native tail, which publishes how far the log goes. Never reads a record back,
and does not recover, dispatch or decide when to flush.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Protocol

from rmqcore.errors import MessageIllegalError, StoreNotWritableError, is_broken
from rmqcore.files.file_time import renew_file_time
from rmqcore.files.kept_dirty import keep_dirty
from rmqcore.files.mapped_file_queue import OFFSET_MAX
from rmqcore.files.store_trace import Note, error_words, unnoted
from rmqcore.native.base._lock import ReentrantLock, locks_held

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rmqcore.files.commit_log import CommitLog
    from rmqcore.files.mapped_file import MappedFile
    from rmqcore.native.base._mapped import MappedRegion
    from rmqcore.native.log._tail import LogTail

#: A commit writes this many bytes of its first record last, its size: without it, nothing behind
#: it counts.
_SIZE_WORD = 4
#: What is written to such a file is on no disk once the store is closed.
_DELETED = "it was deleted while the store was open; read what it has before the store is closed"
#: A put waits this long for the next log file.
ROLL_TIMEOUT_S = 1e6


class FileSource(Protocol):
    """Gives the log its next file: AllocateMappedFileService, or one made on the spot."""

    def ready_file(self, path: Path, offset: int) -> MappedFile:
        """A ready file of the log's size that begins at ``offset``.

        Args:
            path: of the file, whose directory exists.
            offset: physical offset of its first byte.

        Raises:
            DiskFullError: there is no room.
            OSError: the system refused.
        """
        ...


class BufferPool(Protocol):
    """Has buffers of a log file's size: TransientStorePool."""

    def free(self, files: Iterable[MappedFile]) -> MappedRegion | None:
        """A buffer that none of the files has, or None."""
        ...


class CommitLogWriter:
    """Appends records to the last file of a log, and goes on in the next one.

    - Offsets below `flushed_offset` are on disk.
    - What is put may be read at once; with a transient pool when it has been committed.
    - After the first refusal of the disk every later flush raises the same error: pages that a
      failed write has dropped must not be taken as stored. The caller makes the store read-only.

    Args:
        log: the log as it is read, loaded. Without a pool its ``end`` is the tail's.
        tail: the native end of the log.
        source: where the next file comes from.
        pool: buffers of the transient store pool, or None.
        large_folios: how the file that is written lies in memory, `MappedFile.begin_writes`.
        note: takes rolls, flushes, commits and the disk's refusals down.

    Threads: any number append; `flush_lock` orders flushes.
    Source: RocketMQ store/CommitLog.java.
    """

    def __init__(
        self,
        log: CommitLog,
        tail: LogTail,
        source: FileSource,
        pool: BufferPool | None = None,
        *,
        large_folios: bool = False,
        note: Note = unnoted,
    ) -> None:
        self.log = log
        self.tail = tail
        self.flushed_offset = 0
        self.flush_lock = ReentrantLock()
        self._flush_failure: OSError | None = None
        self._queue = log.queue
        self._source = source
        self._pool = pool
        self._large_folios = large_folios
        self._note = note
        self._rolling = ReentrantLock()
        self._roll_lock = ReentrantLock()
        self._ended = False

    # ---- appending

    def attach(self) -> None:
        """Point the tail at the end of the last file, creating the first when there is none.

        Raises:
            DiskFullError: no room for a new file, or for what is still to be written of the last.
        """
        with self._roll_lock.within():
            file = self._queue.last
            if file is None or (file.full and self._has_next(file)):
                file = self._next_file(file)
            else:
                file.reserve_from(file.wrote_position)
                file.begin_writes(large_folios=self._large_folios)
            self._attach(file)

    def check_beginning(self, offset: int) -> None:
        """Refuse an offset at which no log file begins.

        Raises:
            MessageIllegalError: it is none.
        """
        size = self._queue.file_size
        if offset % size:
            raise MessageIllegalError(
                f"an empty log cannot begin at {offset}: log files of {size} bytes begin at "
                "multiples of that; mappedFileSizeCommitLog has to be the master's"
            )

    def begin(self, offset: int) -> None:
        """Let an empty log begin at ``offset``, where a file of its master's begins.

        Raises:
            DiskFullError: there is no room.
        """
        with self._roll_lock.within():
            if not self._ended:
                file = self._queue.append_file(offset, self._source.ready_file)
                self.flushed_offset = offset
                self._attach(file)
                # an empty one may be there already
                self._queue.remove_first(len(self._queue.files) - 1)
                self._note("roll", 1, f"the log begins with {file.path.name}")

    def make_file(self, path: Path, offset: int) -> MappedFile:
        """Create a log file, reserved whole; it is not in the log yet.

        Args:
            path: of the file, whose directory exists.
            offset: physical offset of its first byte.

        Raises:
            DiskFullError: there is no room.
            OSError: the system refused; the file is removed again, lest it stand behind a gap.
        """
        file = self._queue.new_file(path, offset, whole=True)
        try:
            file.begin_writes(large_folios=self._large_folios)
        except OSError:
            file.destroy()
            raise
        return file

    def _next_file(self, last: MappedFile | None) -> MappedFile:
        offset = 0 if last is None else last.file_from_offset + self._queue.file_size
        if last is not None and not self._has_next(last):
            raise StoreNotWritableError(f"the log has reached {offset}, the end of all offsets")
        return self._queue.append_file(offset, self._source.ready_file)

    def _has_next(self, file: MappedFile) -> bool:
        return file.file_from_offset <= OFFSET_MAX - 2 * self._queue.file_size

    def _attach(self, file: MappedFile) -> None:
        if self._pool is not None and file.write_buffer is None:
            free = self._pool.free(self._queue.files)
            if free is not None:
                wrote = file.wrote_position
                memoryview(free)[:wrote] = memoryview(file.region)[:wrote]
                file.write_buffer = free
        buffer = file.region if file.write_buffer is None else file.write_buffer
        # a store whose puts wait for the disk keeps single pages, lest a flush write large ones
        mapped = self._large_folios and buffer is file.region
        through = file.handle if mapped else None
        self.tail.attach(buffer, file.file_from_offset, file.wrote_position, through)

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
        with self._rolling.within(0.0 if locks_held() else ROLL_TIMEOUT_S) as mine:
            if not mine or self._rolling.depth > 1:
                raise StoreNotWritableError(
                    "the log is just going on to its next file, and this put, which comes from a "
                    "signal handler or a finalizer inside the store, cannot wait; put again later"
                )
            self._roll(full_at)

    def _roll(self, full_at: int) -> None:
        with self._roll_lock.within():
            file, fresh = self._queue.find(full_at), self._queue.last
            if self._ended or file is None or self.attached_offset != full_at:
                return
            if fresh is None or fresh is file:
                fresh = self._make_behind(file)
            self.tail.seal()
            self._update_wrote_positions()
            self._attach(fresh)
            renew_file_time(file.handle.fd)
            file.end_writes()
            self._note("roll", 1, f"to {fresh.path.name}")

    def make_next(self, full_at: int) -> None:
        """Have the file behind the last one, which is written to until a roll.

        Args:
            full_at: `file_from_offset` of the last file; of another, nothing is done.

        Raises:
            DiskFullError: there is no room.
        """
        with self._roll_lock.within():
            file = self._queue.find(full_at)
            if not self._ended and file is not None and file is self._queue.last:
                self._make_behind(file)

    def _make_behind(self, file: MappedFile) -> MappedFile:
        try:
            return self._next_file(file)
        except OSError as error:
            self._note("refused", words=f"the next log file: {error_words(error)}")
            raise

    def end_puts(self) -> None:
        """Wait for the put that is being written, and refuse every later one."""
        with self._roll_lock.within():
            self._ended = True
            self.tail.detach()

    def _update_wrote_positions(self) -> None:
        """Bring the wrote positions up to the tail's, also of the file before its own."""
        end = self.tail.max_offset
        for file in self._queue.files[-2:]:
            wrote = min(end - file.file_from_offset, file.size)
            file.wrote_position = max(file.wrote_position, wrote)

    @property
    def attached_offset(self) -> int:
        """`file_from_offset` of the file that the tail writes to."""
        return self.tail.file_from_offset

    # ---- flushing

    def commit(self) -> int:
        """Move what the transient pool holds into the files; the end of what can be read.

        Raises:
            DiskFullError: no room; nothing was lost, a later commit tries again.
        """
        if self._pool is None:
            return self.tail.max_offset
        with self._roll_lock.within():
            before, end = self.log.max_offset, self._commit_buffers()
            if end > before:
                self._note("commit", end - before)
            return end

    def _commit_buffers(self) -> int:
        """Commit every buffer, and let go of those of full files; under `_roll_lock`."""
        self._update_wrote_positions()
        for file in self._queue.files:
            if file.write_buffer is not None:
                file.commit(goes_last=_SIZE_WORD)
                if file.full and file.file_from_offset != self.attached_offset:
                    file.write_buffer = None
        end = self._queue.max_offset
        self.log.end.move_to(end)
        return end

    def flush(self) -> int:
        """Write through to the disk all that was put before the call.

        Returns:
            the flushed offset.

        Raises:
            OSError: the disk refused, now or before.
            FileNotFoundError: the file that was written has been deleted.
        """
        with self.flush_lock.within():
            if self._flush_failure is not None:
                raise self._flush_failure.with_traceback(None)
            with self._roll_lock.within():
                # one step: a put that rolls in between would leave bytes in the buffer of a file
                # that counts as flushed because the next one is
                if self._pool is None:
                    self._update_wrote_positions()
                else:
                    self._commit_buffers()
                files = self._unflushed()
            before = self.flushed_offset
            for file in files:
                try:
                    position = file.flush()
                    if file.removed:
                        raise FileNotFoundError(errno.ENOENT, _DELETED, str(file.path))
                except OSError as error:
                    # set before any other thread runs: the system reports such an error once only,
                    # so that thread's flush would succeed
                    self._flush_failure = error if is_broken(error) else None
                    keep_dirty(file, error, file.flushed_position)
                    self._note("refused", words=f"a flush: {error_words(error)}")
                    raise
                self.flushed_offset = max(self.flushed_offset, file.file_from_offset + position)
                if file.file_from_offset == self.attached_offset:
                    # of one that is sealed an archiver takes it for a change
                    renew_file_time(file.handle.fd)
            if self.flushed_offset > before:
                self._note("flush", self.flushed_offset - before)
            return self.flushed_offset

    def _unflushed(self) -> list[MappedFile]:
        """Files that hold bytes behind `flushed_offset`, oldest first.

        The last one may hold none: a roll that was interrupted has made it, and the tail still
        writes to the one before.
        """
        found: list[MappedFile] = []
        for file in reversed(self._queue.files):
            if file.read_position == 0:
                continue
            if file.file_from_offset + file.read_position <= self.flushed_offset:
                break
            found.append(file)
        return found[::-1]

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
        removed = self._queue.truncate(offset)
        for file in self._queue.files:
            on_disk = max(0, flushed_offset - file.file_from_offset)
            file.flushed_position = min(file.flushed_position, on_disk)
        self.log.end.move_to(self._queue.max_offset)
        self.flushed_offset = min(self._queue.max_offset, flushed_offset)
        return removed

    def close(self) -> None:
        """Refuse further puts and close the files."""
        self.tail.detach()
        with self._roll_lock.within():
            self.log.close()
