"""The segments of one partition directory: names, loading, look-up, the high-water mark file.

Owns what a partition directory may hold and in which order it is read. Never appends.
"""

from __future__ import annotations

import bisect
import fcntl
import itertools
import os
import re
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rmqcore.errors import CorruptStoreError, StoreLockedError
from rmqcore.metaq._message_set import find_record, scan_file
from rmqcore.metaq.errors import MissingSegmentError, OffsetTooSmallError
from rmqcore.metaq.file_message_set import FileMessageSet, SegmentFile, SegmentRecovery
from rmqcore.native.base._descriptor import Descriptor
from rmqcore.native.base.lock_copies import LOCK_HOLDERS, LOCKING
from rmqcore.world import World, sync_fd

SEGMENT_SUFFIX = ".meta"
_SEGMENT_NAME = re.compile(r"(\d{1,20})\.meta", re.ASCII)
#: A file whose name is a greater number is no segment: what is appended to one has to have offsets.
_MAX_OFFSET = 2**62
_MARK = struct.Struct(">qI")


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """One file and where it begins in the partition's log.

    Attributes:
        start: logical offset of the first byte.
        messages: the file's records.

    Source: MetaQ MessageStore.java, Segment.
    """

    start: int
    messages: FileMessageSet

    @property
    def stop(self) -> int:
        """Logical offset behind the last durable byte."""
        return self.start + self.messages.high_water_mark


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets that no segment holds: ``[start, stop)``."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Partition:
    """What loading a partition directory found.

    Attributes:
        segments: ascending, never overlapping, at least one unless read-only.
        recovery: what was done to the newest one; None when read-only.
        holes: ranges between segments that no file holds.
        foreign: files ending in ``.meta`` that are no segments, left alone.
    """

    segments: tuple[Segment, ...]
    recovery: SegmentRecovery | None
    holes: tuple[Hole, ...]
    foreign: tuple[Path, ...]


class HighWaterMark:
    """A file that remembers up to which offset the log is known to be on disk.

    It is written after each durable flush and never synced itself: an older value is a lower
    bound and as right as the newest. It tells a torn tail (above: nobody was told that it is
    stored) from damage (below). MetaQ ignores the file; a directory without it has the mark 0.

    Layout: docs/metaq.md, "High-water mark".
    """

    NAME = "high-water-mark"

    def __init__(self, directory: Path, *, writable: bool) -> None:
        self.path = directory / self.NAME
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._file = Descriptor(os.open(self.path, flags, 0o644) if writable else -1)

    def read(self) -> int:
        """The remembered offset; 0 when there is none, or none that is whole."""
        if not self.path.is_file():
            # of a pipe the reading would never end
            return 0
        try:
            with self.path.open("rb") as file:
                content = file.read(_MARK.size + 1)
        except FileNotFoundError:
            return 0
        if len(content) != _MARK.size:
            return 0
        offset, crc = _MARK.unpack(content)
        return offset if 0 <= offset <= _MAX_OFFSET and crc == zlib.crc32(content[:8]) else 0

    def note(self, offset: int) -> None:
        """Remember that everything below ``offset`` is on disk."""
        number = offset.to_bytes(8, "big")
        os.pwrite(self._file.fileno(), _MARK.pack(offset, zlib.crc32(number)), 0)

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()


class DirectoryLock:
    """One writer a partition directory, held on the directory itself: no file is left behind.

    Raises:
        StoreLockedError: another process, or another handle of this one, holds it.
    """

    def __init__(self, directory: Path) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        with LOCKING:
            self._directory = Descriptor(os.open(directory, flags))
            try:
                fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._directory.close()
                raise StoreLockedError(directory) from None
            LOCK_HOLDERS.add(self)

    def sync(self) -> None:
        """Make names that were added or removed durable."""
        sync_fd(self._directory.fileno())

    def release(self) -> None:
        """Let others in; idempotent."""
        with LOCKING:
            if not self._directory.closed:
                # a child that was forked just now has a copy, with which it would stay locked
                with suppress(OSError):
                    fcntl.flock(self._directory, fcntl.LOCK_UN)
                self._directory.close()

    def after_fork_in_child(self) -> None:
        """Close the copy that a forked child has; the parent keeps the lock."""
        self._directory.close()


def segment_name(start: int) -> str:
    """Name the file of the segment that begins at ``start``: 20 digits and ``.meta``."""
    return f"{start:020d}{SEGMENT_SUFFIX}"


def segment_files(directory: Path) -> tuple[list[tuple[int, Path]], tuple[Path, ...]]:
    """List ``(start, path)`` of every segment, ascending, and what only looks like one."""
    found, foreign = [], []
    for path in directory.iterdir():
        if not path.name.endswith(SEGMENT_SUFFIX) or not path.is_file():
            continue
        match = _SEGMENT_NAME.fullmatch(path.name)
        start = int(match[1]) if match else _MAX_OFFSET + 1
        if start <= _MAX_OFFSET:
            found.append((start, path))
        else:
            foreign.append(path)
    return sorted(found), tuple(sorted(foreign))


def load_partition(
    directory: Path,
    *,
    writable: bool,
    acknowledged: int,
    offset_if_create: int,
    fast_boot: bool,
    repair: bool,
    world: World,
) -> Partition:
    """Open every segment of a directory; recover the newest one when it will grow.

    Args:
        directory: the partition's directory.
        writable: recover the newest segment, or create the first one.
        acknowledged: offset up to which the log was known to be on disk.
        offset_if_create: where a new log begins.
        fast_boot: do not read what lies below ``acknowledged``.
        repair: open although acknowledged bytes are damaged or missing.
        world: durable flush and failpoints.

    Raises:
        CorruptStoreError: segments overlap, or acknowledged bytes are damaged or missing.

    Source: MetaQ MessageStore.java, loadSegments and validateSegments.
    """
    while True:
        files, foreign = segment_files(directory)
        try:
            return _load(
                directory,
                files,
                foreign,
                writable=writable,
                acknowledged=acknowledged,
                offset_if_create=offset_if_create,
                fast_boot=fast_boot,
                repair=repair,
                world=world,
            )
        except FileNotFoundError:
            # a writer beside this reader has taken out an old one meanwhile
            if writable or segment_files(directory)[0] == files:
                raise


def _load(
    directory: Path,
    files: list[tuple[int, Path]],
    foreign: tuple[Path, ...],
    *,
    writable: bool,
    acknowledged: int,
    offset_if_create: int,
    fast_boot: bool,
    repair: bool,
    world: World,
) -> Partition:
    """Open the segments that were found."""
    if not files:
        if acknowledged > 0 and not repair:
            reason = f"no segments, but offsets up to {acknowledged} were on disk"
            raise CorruptStoreError(directory, acknowledged, reason)
        start = max(acknowledged, offset_if_create)
        created = (create_segment(directory, start, world=world),) if writable else ()
        return Partition(created, None, (), foreign)
    segments, holes = [], []
    for (start, path), (following, _) in itertools.pairwise(files):
        messages = FileMessageSet(SegmentFile(path, writable=False))
        stop = start + messages.size_in_bytes
        if stop > following:
            reason = (
                f"it ends at {stop} and overlaps the segment that begins at {following}; one of "
                "the two has grown, or is not of this log: move it away"
            )
            raise CorruptStoreError(path, following, reason)
        if stop < following:
            messages = _readable(messages)
            holes.append(Hole(start + messages.size_in_bytes, following))
        segments.append(Segment(start, messages))
    start, path = files[-1]
    last = FileMessageSet(
        SegmentFile(path, writable=writable),
        mutable=writable,
        start=start,
        acknowledged=max(0, acknowledged - start),
        fast_boot=fast_boot,
        repair=repair,
        world=world,
    )
    if not writable:
        end = start + valid_size(last)
        if end < acknowledged and not repair:
            reason = f"offsets up to {acknowledged} were on disk, and the whole records end here"
            raise CorruptStoreError(path, end, reason)
        last = _readable(last)
    segments.append(Segment(start, last))
    return Partition(tuple(segments), last.recovery, tuple(holes), foreign)


def valid_size(messages: FileMessageSet) -> int:
    """Bytes of whole, verified records at the beginning of a file."""
    valid_up_to, _, _ = scan_file(messages.file.fd, 0, messages.size_in_bytes)
    return valid_up_to


def _readable(messages: FileMessageSet) -> FileMessageSet:
    """A view up to the end of the last whole record; of all where whole ones follow damage.

    Whoever reads on there is told of the damage: behind a torn end no whole record comes.
    """
    file, valid = messages.file, -1
    while True:
        # a writer may have gone on between two looks: damage is what stays the same
        before, view = valid, FileMessageSet(file)
        valid = valid_size(view)
        size = view.size_in_bytes
        if valid == size or find_record(file.fd, valid + 1, size) < 0:
            return FileMessageSet(file, 0, valid)
        if valid == before:
            return view


def create_segment(directory: Path, start: int, *, world: World) -> Segment:
    """Create the empty segment that begins at ``start``.

    Args:
        directory: of the partition.
        start: offset of its first byte in the partition, which is its name.
        world: gives time and syncs.

    Raises:
        DiskFullError: there is no room.
        OSError: the system refused, for one because it exists.
    """
    file = SegmentFile(directory / segment_name(start), writable=True, create=True)
    return Segment(start, FileMessageSet(file, mutable=True, start=start, world=world))


def find_segment(
    segments: tuple[Segment, ...], offset: int, path: Path | str = ""
) -> Segment | None:
    """Find the segment that holds an offset; None at or behind the end of the log.

    Args:
        segments: in the order of their offsets.
        offset: in the partition, bytes.
        path: of the partition, for errors.

    Raises:
        OffsetTooSmallError: the offset lies before the first segment.
        MissingSegmentError: it lies in a hole.

    Source: MetaQ MessageStore.java, findSegment.
    """
    if not segments or offset >= segments[-1].stop:
        return None
    if offset < segments[0].start:
        raise OffsetTooSmallError(offset, segments[0].start)
    index = bisect.bisect_right(segments, offset, key=lambda segment: segment.start) - 1
    segment = segments[index]
    if offset >= segment.stop:
        raise MissingSegmentError(path, offset, segments[index + 1].start)
    return segment


def nearest_offset(segments: tuple[Segment, ...], offset: int) -> int:
    """Begin of the segment that holds an offset; outside the log its nearer end.

    Differs: inside a hole, where the original answers with the end of the log, the begin of the
    next segment.

    Source: MetaQ MessageStore.java, getNearestOffset.

    Args:
        segments: in the order of their offsets.
        offset: in the partition, bytes.
    """
    try:
        segment = find_segment(segments, offset)
    except OffsetTooSmallError as error:
        return error.min_offset
    except MissingSegmentError as error:
        return error.next_offset
    if segment is not None:
        return segment.start
    return segments[-1].stop if segments else 0
