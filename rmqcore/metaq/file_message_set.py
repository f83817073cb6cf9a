"""FileMessageSet: the records of one segment file, or a view of some of them.

Owns one file's bytes: append, flush, recovery, slices, positional reads, zero-copy transfer. It
knows no other segment and never locks; `MessageStore` serialises the appends.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from rmqcore.errors import CorruptRecordError, DiskFullError, Naming, StoreClosedError
from rmqcore.metaq._message_set import encode_many, find_record, scan_file
from rmqcore.metaq._segment_tail import Location, SegmentTail
from rmqcore.metaq.message import Verdict
from rmqcore.world import REAL, World, sync_directory

_COPY_SIZE = 1 << 20


class MessageSet(Protocol):
    """Records that can be read, sent and cut into views. Source: MetaQ MessageSet.java."""

    @property
    def message_count(self) -> int:
        """Messages, as far as they have been counted."""

    @property
    def size_in_bytes(self) -> int:
        """Bytes of this view."""

    def append_buffer(self, buffer: bytes, message_count: int = 1) -> Location:
        """Write whole records behind the last one.

        Args:
            buffer: whole records, one behind the other.
            message_count: how many they are.

        Returns:
            where they lie.

        Raises:
            OSError: the disk refused; nothing was appended.
        """

    def flush(self) -> None:
        """Make every byte durable."""

    def slice(self, offset: int, limit: int) -> MessageSet:
        """View the bytes from ``offset`` up to the absolute position ``limit``.

        Args:
            offset: position of the first byte in the file.
            limit: position behind the last byte; the view may end before it.
        """

    def read(self, size: int | None = None, at: int | None = None) -> bytes:
        """Copy bytes out.

        Args:
            size: bytes; None: the whole view.
            at: absolute position in the file (the view's offset is not added); None: the view.
        """

    def write_header(self, opaque: int) -> bytes:
        """The reply line that precedes this view on the wire."""

    def send(self, connection: socket.socket) -> int:
        """Hand this view to a socket without copying it."""


class SegmentFile:
    """An open segment file; the descriptor lives as long as anyone holds this object.

    A view that is being sent keeps it alive when the segment is deleted meanwhile.
    """

    __slots__ = ("fd", "path")

    def __init__(self, path: Path, *, writable: bool, create: bool = False) -> None:
        self.fd = -1
        self.path = path
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        self.fd = os.open(path, flags, 0o644)

    def __del__(self, close=os.close) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        if self.fd >= 0:
            close(self.fd)

    def fileno(self) -> int:
        """The descriptor, for `os.sendfile` and asyncio."""
        return self.fd

    def size(self) -> int:
        """Bytes in the file now."""
        return os.fstat(self.fd).st_size


@dataclass(frozen=True, slots=True)
class SegmentRecovery:
    """What opening the newest segment found and did.

    Attributes:
        path: the segment.
        start: logical offset of its first byte.
        valid_up_to: bytes of whole, verified records (or trusted ones, after a fast boot).
        message_count: messages that were verified.
        truncated: bytes cut off behind them.
        verdict: what stood there.
        saved: where the cut bytes were kept because whole messages were among them.
    """

    path: Path
    start: int
    valid_up_to: int
    message_count: int
    truncated: int
    verdict: Verdict
    saved: Path | None = None


class FileMessageSet:
    """The records of one segment file, or an immutable view of a range of it.

    Invariants:
        - ``high_water_mark`` bytes are known to be on disk; ``size_in_bytes`` are written.
        - A view covers ``[offset, offset + size_in_bytes)`` of the file and never changes.

    Source: MetaQ FileMessageSet.java.
    """

    def __init__(
        self,
        file: SegmentFile,
        offset: int = 0,
        limit: int | None = None,
        *,
        mutable: bool = False,
        start: int = 0,
        acknowledged: int = 0,
        fast_boot: bool = False,
        repair: bool = False,
        world: World = REAL,
    ) -> None:
        """Open a file as a segment that grows, or view a range of it.

        Args:
            file: the open file.
            offset: first byte of the view.
            limit: absolute end position of the view; None: the end of the file.
            mutable: recover the file and take appends behind its last valid record.
            start: logical offset of the file's first byte.
            acknowledged: bytes that were on disk when they were confirmed.
            fast_boot: trust the acknowledged bytes without reading them.
            repair: cut the file although acknowledged bytes are damaged; they are kept beside it.
            world: durable flush and failpoints.

        Raises:
            CorruptRecordError: acknowledged bytes are damaged or missing, and not ``repair``.
        """
        self.file = file
        self.offset = offset
        self._world = world
        self._tail: SegmentTail | None = None
        self.recovery: SegmentRecovery | None = None
        if mutable:
            trusted = min(acknowledged, file.size()) if fast_boot else 0
            self.recovery = self._recover(start, trusted, 0 if repair else acknowledged)
            self._size = self._high_water_mark = self.recovery.valid_up_to
            self._tail = SegmentTail(
                file.fd,
                str(file.path),
                start,
                self._size,
                message_count=self.recovery.message_count,
            )
        else:
            end = file.size()
            self._size = max(0, (end if limit is None else min(end, limit)) - offset)
            self._high_water_mark = self._size

    @property
    def path(self) -> Path:
        """The file."""
        return self.file.path

    @property
    def mutable(self) -> bool:
        """True while this segment takes appends."""
        return self._tail is not None

    @property
    def tail(self) -> SegmentTail:
        """The native append position.

        Raises:
            StoreClosedError: the segment is immutable.
        """
        if self._tail is None:
            raise StoreClosedError(f"{self.path}: this segment takes no appends")
        return self._tail

    @property
    def message_count(self) -> int:
        """Messages verified at opening and appended since; 0 for a view."""
        return self._tail.message_count if self._tail is not None else 0

    @property
    def size_in_bytes(self) -> int:
        """Bytes written."""
        return self._tail.size if self._tail is not None else self._size

    @property
    def high_water_mark(self) -> int:
        """Bytes known to be on disk."""
        return self._high_water_mark

    def append(self, message_id: int, data: bytes, flag: int = 0, checksum: int = -1) -> Location:
        """Write one message behind the last; see `SegmentTail.append`.

        Args:
            message_id: number that no other message has.
            data: attribute and payload, as `encode_data` packs them.
            flag: 1 when there is an attribute.
            checksum: CRC of ``data``; -1: it is computed here.

        Raises:
            OSError: the disk refused; nothing was appended.

        Durability: page_cache until `flush`.
        """
        try:
            return self.tail.append(message_id, data, flag, checksum)
        except OSError as error:
            raise disk_error(error, self.path) from error

    def append_many(self, messages: Iterable[tuple[int, bytes, int]]) -> Location:
        """Write ``(message_id, data, flag)`` rows as one location."""
        rows = list(messages)
        return self.append_buffer(encode_many(rows), len(rows))

    def append_buffer(self, buffer: bytes, message_count: int = 1) -> Location:
        """Write bytes that already are whole records; see `MessageSet.append_buffer`."""
        try:
            return self.tail.append_buffer(buffer, message_count)
        except OSError as error:
            raise disk_error(error, self.path) from error

    def flush(self) -> None:
        """Make every written byte durable; the high-water mark rises to what was written before.

        Raises:
            OSError: the disk refused; the mark stays, and the bytes must not be taken as stored.
        """
        tail = self._tail
        if tail is None:
            return
        target = tail.size
        self._world.failpoint("before_sync")
        self._world.sync(self.file.fd)
        self._world.failpoint("after_sync")
        self._high_water_mark = max(self._high_water_mark, target)
        tail.flushed(target)

    def freeze(self) -> None:
        """Flush, and take no more appends."""
        if self._tail is not None:
            self.flush()
            self._size = self._tail.size
            self.abandon()

    def abandon(self) -> None:
        """Take no more appends, without a flush: after a failed one, or in a forked child."""
        if self._tail is not None:
            self._size = self._tail.size
            self._tail.close()
            self._tail = None

    def slice(self, offset: int, limit: int) -> FileMessageSet:
        """View the durable bytes from ``offset`` to the absolute position ``limit``.

        See `MessageSet.slice` for the arguments.

        Differs: the original clips a view to the file's size, so that a reader may see bytes
        which a power cut takes back; here it is clipped to the high-water mark.
        """
        return FileMessageSet(self.file, offset, min(limit, self._high_water_mark))

    def read(self, size: int | None = None, at: int | None = None) -> bytes:
        """Copy bytes out; fewer than asked for at the end of the file.

        Args:
            size: bytes; None: the whole view.
            at: absolute position in the file (the view's offset is not added); None: the view.
        """
        size = self.size_in_bytes if size is None else size
        position = self.offset if at is None else at
        parts = []
        while size > 0:
            with Naming(self.path):
                part = os.pread(self.file.fd, size, position)
            if not part:
                break
            parts.append(part)
            position += len(part)
            size -= len(part)
        return b"".join(parts)

    def write_header(self, opaque: int) -> bytes:
        """The reply line before this view: ``value <size> <opaque>``."""
        return b"value %d %d\r\n" % (self.size_in_bytes, opaque)

    def send(self, connection: socket.socket) -> int:
        """Hand this view to a blocking socket in the kernel; return the bytes sent.

        Raises:
            CorruptRecordError: the file became shorter meanwhile.
        """
        sent = 0
        size = self.size_in_bytes
        while sent < size:
            step = os.sendfile(connection.fileno(), self.file.fd, self.offset + sent, size - sent)
            if step == 0:
                raise CorruptRecordError(
                    self.path, self.offset + sent, Verdict.READ_FAILED.sentence
                )
            sent += step
        return sent

    async def send_async(self, transport: asyncio.WriteTransport) -> int:
        """Hand this view to an asyncio transport in the kernel; return the bytes sent.

        A copy goes where the kernel cannot: a file system that has no sendfile.

        Raises:
            CorruptRecordError: the file became shorter meanwhile.
        """
        file = cast("BinaryIO", self.file)  # the loop asks for its descriptor only
        loop = asyncio.get_running_loop()
        size = self.size_in_bytes
        try:
            sent = await loop.sendfile(transport, file, self.offset, size, fallback=False)
        except asyncio.SendfileNotAvailableError:  # also what a client that has gone looks like
            # a position of its own, and as little at a time as the client reads
            with open(f"/proc/self/fd/{self.file.fd}", "rb", buffering=0) as copied:
                sent = await loop.sendfile(transport, copied, self.offset, size)
        if sent != self.size_in_bytes:
            raise CorruptRecordError(self.path, self.offset + sent, Verdict.READ_FAILED.sentence)
        return sent

    def close(self) -> None:
        """Flush a segment that grows; the descriptor closes with its last view."""
        self.freeze()

    def _recover(self, start: int, at: int, acknowledged: int) -> SegmentRecovery:
        """Find the last valid record from ``at`` on and cut the file behind it."""
        size = self.file.size()
        valid_up_to, count, code = scan_file(self.file.fd, at, size)
        verdict = Verdict(code)
        if verdict is Verdict.READ_FAILED:
            raise CorruptRecordError(self.path, start + valid_up_to, verdict.sentence)
        if valid_up_to < acknowledged:
            missing = acknowledged - valid_up_to
            raise CorruptRecordError(
                self.path,
                start + valid_up_to,
                f"{verdict.sentence}, where {missing} more bytes were confirmed to be on disk; "
                "restore the file, or open with repair=True to go on without them",
            )
        saved = None
        if valid_up_to < size:
            stop = _used_up_to(self.file.fd, valid_up_to, size)
            if find_record(self.file.fd, valid_up_to + 1, stop) >= 0:
                saved = self._save(valid_up_to, stop)
            self._world.failpoint("before_truncate")
            os.ftruncate(self.file.fd, valid_up_to)
            self._world.failpoint("after_truncate")
        if size != acknowledged:  # what a killed process wrote may be in the page cache alone
            self._world.sync(self.file.fd)
        truncated = size - valid_up_to
        return SegmentRecovery(self.path, start, valid_up_to, count, truncated, verdict, saved)

    def _save(self, at: int, stop: int) -> Path:
        """Keep the bytes that will be cut; the name does not end in ``.meta``.

        No copy is written over that holds anything else: the file may have been cut in the same
        place before.
        """
        name = f"{self.path.name}.{at}"
        path = self.path.with_name(f"{name}.cut")
        for number in itertools.count(2):
            if not path.exists() or self._holds(path, at):
                break
            path = self.path.with_name(f"{name}-{number}.cut")
        try:
            with path.open("wb", buffering=0) as copy:
                while at < stop:
                    part = self.read(min(_COPY_SIZE, stop - at), at)
                    if not part:
                        break
                    at += copy.write(part)
                self._world.sync(copy.fileno())
            sync_directory(path.parent)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise disk_error(error, path) from error
        return path

    def _holds(self, path: Path, at: int) -> bool:
        """Whether a copy begins no other way than this file from a position on."""
        with path.open("rb") as copy:
            while part := copy.read(_COPY_SIZE):
                if self.read(len(part), at) != part:
                    return False
                at += len(part)
        return True


def _used_up_to(fd: int, at: int, size: int) -> int:
    """Where the last hole of a file begins, and some zeros more that a record may end in.

    Args:
        fd: of the file.
        at: position that is looked at first.
        size: bytes of the file.
    """
    end = at
    try:
        while (begin := os.lseek(fd, end, os.SEEK_DATA)) < size:
            end = os.lseek(fd, begin, os.SEEK_HOLE)
    except OSError as error:
        if error.errno != errno.ENXIO:  # no data follows
            return size
    return min(size, end + _COPY_SIZE)


def disk_error(error: OSError, path: Path) -> OSError:
    """The same failure, typed when the disk is full.

    Args:
        error: of the system.
        path: of the file.

    Returns:
        it is not raised here.
    """
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return DiskFullError(path)
    return error
