"""One file of fixed size: reserved on disk, mapped on demand, written or read at positions.

Knows no record format. A buffer that was read keeps its mapping alive, whatever happens to the
file meanwhile.
"""

from __future__ import annotations

import errno
import os
import resource
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from weakref import ref

from rmqcore.errors import (
    NO_ROOM,
    CorruptStoreError,
    DiskFullError,
    Naming,
    StoreClosedError,
    Syncing,
)
from rmqcore.files.store_dir import room_at
from rmqcore.files.zeros import ZEROS, holds_nothing, zero_pages
from rmqcore.native.base._mapped import Descriptor, MappedRegion, reserve, zero_range
from rmqcore.world import sync_data

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

#: The status of a file counts its space in blocks of this many bytes.
_BLOCK_SIZE = 512
#: No file system makes a folio of more bytes than this.
_FOLIO_MAX = 2 << 20
_DESCRIPTORS_MAX = 4096
_MAPPINGS_MAX = 4096
_MAP_COUNT = Path("/proc/sys/vm/max_map_count")
#: The process's open files, by which a file without a name gets one; not there in some chroots.
_DESCRIPTORS = "/proc/self/fd"


def _descriptors_allowed() -> int:
    """Half of what the process may have: the rest is for sockets, and for other stores."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else max(8, soft // 2)


@cache
def _mappings_allowed() -> int:
    """Half of what the process may have: advice on a part of a mapping makes two of it."""
    try:
        return max(8, int(_MAP_COUNT.read_text()) // 2)
    except (OSError, ValueError):
        return _MAPPINGS_MAX


class OpenFiles:
    """A bound on what a store holds open: descriptors and mappings, least recently used out first.

    - Closing here never breaks a reader: a descriptor closes, and a mapping goes away, when its
      last user is done with it.
    - Uses are noted from half of the bound on; below it nothing is let go soon.
    - Files are known by weak references: one that nobody uses any more closes at once, and does
      not wait for the garbage collector, which counts no descriptors.
    - All stores of a process together hold no more than half of what it may have.

    Args:
        descriptors_max: most open descriptors.
        mappings_max: most mappings. Half are for whoever maps a file here, a quarter each for the
            log and the index files that fast reads keep mapped (``kept_max``).
    """

    #: no WeakSet: one that another thread adds to cannot be iterated over
    _of_all_stores: ClassVar[dict[ref[OpenFiles], None]] = {}
    _allowed: ClassVar[dict[str, int]] = {}
    #: upper bounds of how many are open: an opening adds one, a closing subtracts none; near the
    #: limit all are counted anew
    _at_most: ClassVar[dict[str, int]] = {"_handle": 0, "_region": 0}

    def __init__(
        self, *, descriptors_max: int = _DESCRIPTORS_MAX, mappings_max: int = _MAPPINGS_MAX
    ) -> None:
        allowed = {"_handle": _descriptors_allowed(), "_region": _mappings_allowed()}
        mappings_max = min(mappings_max, allowed["_region"])
        #: files of one kind that may be kept mapped besides those counted here
        self.kept_max = max(1, mappings_max // 4)
        self.check_there: Callable[[], object] = bool  # raises where names are another store's
        self._limits = {
            "_handle": min(descriptors_max, allowed["_handle"]),
            "_region": max(1, mappings_max // 2),
        }
        self._open: dict[str, OrderedDict[ref[MappedFile], None]] = {
            "_handle": OrderedDict(),
            "_region": OrderedDict(),
        }
        #: kinds of which nearly as many are open as may be: from then on each use is noted, so
        #: that the least used are closed
        self.tight: frozenset[str] = frozenset()
        OpenFiles._allowed = allowed
        OpenFiles._of_all_stores[ref(self, OpenFiles._forget_store)] = None

    def opened(self, file: MappedFile, kind: str) -> None:
        """Note that a file has just opened its ``_handle`` or ``_region``.

        Takes no lock, each step is whole by itself: a finalizer may come here in between.

        Args:
            file: that has opened something.
            kind: which of the two, by its name.
        """
        held = self._open[kind]
        held.pop(ref(file), None)
        held[ref(file, self._forget)] = None
        with suppress(KeyError):
            while len(held) > self._limits[kind]:
                self._let_go_first(kind)
            if 2 * len(held) > self._limits[kind]:
                self.tight |= {kind}
            OpenFiles._at_most[kind] += 1
            if 2 * OpenFiles._at_most[kind] > OpenFiles._allowed[kind]:
                self._share(kind)

    def _forget(self, file: ref[MappedFile]) -> None:
        for held in self._open.values():
            held.pop(file, None)

    @staticmethod
    def _forget_store(store: ref[OpenFiles]) -> None:
        OpenFiles._of_all_stores.pop(store, None)

    def _let_go_first(self, kind: str) -> None:
        """Close the least recently used one; `KeyError` when none is open."""
        first, _ = self._open[kind].popitem(last=False)
        if file := first():
            file.let_go(kind)

    def _share(self, kind: str) -> None:
        """Close what all stores hold open above their bound, of the store with the most first."""
        stores = [store for one in list(OpenFiles._of_all_stores) if (store := one())]
        total = sum(len(store._open[kind]) for store in stores)
        allowed = OpenFiles._allowed[kind]
        if 2 * total > allowed:
            self.tight |= {kind}
        with suppress(KeyError):
            for _ in range(total - allowed):
                max(stores, key=lambda store: len(store._open[kind]))._let_go_first(kind)
        OpenFiles._at_most[kind] = min(total, allowed)

    def used(self, file: MappedFile, kind: str) -> None:
        """Note that a file is used; see `opened`."""
        # it may have been closed just now
        with suppress(KeyError):
            self._open[kind].move_to_end(ref(file))

    def let_go_oldest(self) -> bool:
        """Close half of the descriptors, for a process that has none left; False without any."""
        count = (len(self._open["_handle"]) + 1) // 2
        with suppress(KeyError):
            for _ in range(count):
                self._let_go_first("_handle")
        return count > 0

    def closed(self, file: MappedFile) -> None:
        """Note that a file is gone."""
        self._forget(ref(file))


class MappedFile:
    """A file of fixed size with its positions.

    - ``wrote_position >= committed_position >= flushed_position``, all bytes inside the file.
    - What lies below ``wrote_position`` never changes until the file is truncated or destroyed.
    - In a store opened for reading nothing is mapped: bytes come through ``pread``, so a file that
      is cut short by its owner is an error value, never a signal.

    Args:
        path: the file; its name is ``file_from_offset`` as 20 digits, or any other.
        size: bytes it has, or is created with.
        file_from_offset: offset of its first byte in the queue of files.
        open_files: the bound it counts against.
        writable: False opens for reading only.

    Source: RocketMQ store/logfile/DefaultMappedFile.java.
    """

    __slots__ = (
        "__weakref__",
        "_handle",
        "_open_files",
        "_region",
        "_reserved",
        "available",
        "committed_position",
        "file_from_offset",
        "flushed_position",
        "path",
        "size",
        "writable",
        "write_buffer",
        "wrote_position",
    )

    def __init__(
        self,
        path: Path,
        size: int,
        file_from_offset: int,
        open_files: OpenFiles,
        *,
        writable: bool = True,
    ) -> None:
        self.path = path
        self.size = size
        self.file_from_offset = file_from_offset
        self.writable = writable
        self.available = True
        self.wrote_position = 0
        self.committed_position = 0
        self.flushed_position = 0
        self.write_buffer: MappedRegion | None = None
        self._open_files = open_files
        self._handle: Descriptor | None = None
        self._region: MappedRegion | None = None
        self._reserved = 0

    # ---- opening and closing

    @property
    def handle(self) -> Descriptor:
        """The open descriptor; hold the object while its ``fd`` is used.

        Raises:
            StoreClosedError: the file has been deleted or closed.
        """
        handle = self._handle
        if handle is None:
            if not self.available:
                raise StoreClosedError(f"{self.path}: it has been deleted or closed")
            handle = self._open(self.path, os.O_RDWR if self.writable else os.O_RDONLY)
            self._handle = handle
            self._open_files.opened(self, "_handle")
        elif "_handle" in self._open_files.tight:
            self._open_files.used(self, "_handle")
        return handle

    def _open(self, path: Path, flags: int) -> Descriptor:
        self._open_files.check_there()
        while True:
            try:
                return Descriptor(os.open(path, flags | os.O_CLOEXEC, 0o644))
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                if not self._open_files.let_go_oldest():
                    raise

    @property
    def region(self) -> MappedRegion:
        """The shared mapping of the whole file."""
        region = self._region
        if region is None:
            handle = self.handle
            region = MappedRegion(handle.fd, self.size, path=self.path)
            self._region = region
            if self.available:
                self._open_files.opened(self, "_region")
        elif "_region" in self._open_files.tight:
            self._open_files.used(self, "_region")
        return region

    def let_go(self, kind: str) -> None:
        """Drop the descriptor or the mapping: its last user closes it; it opens again at need."""
        setattr(self, kind, None)

    def create(self, *, whole: bool, over_zeros: bool = True) -> None:
        """Create the file with its full length.

        Args:
            whole: reserve every byte on disk now; else space is reserved ahead of each write.
            over_zeros: replace a file that holds nothing, which an interrupted caller leaves.

        Raises:
            DiskFullError: there is no room; nothing is left behind.
            OSError: the file exists and holds data, or any other refusal.
        """
        self._open_files.check_there()
        if whole:  # mapped: one that could not be would be made, and removed, by every put
            MappedRegion(None, self.size, writable=False, path=self.path)
        if over_zeros and self.path.exists() and holds_nothing(self.path):
            self.path.unlink()
        with room_at(self.path):
            handle = self._create_nameless(whole=whole) or self._create_named(whole=whole)
        self._handle = handle
        self._open_files.opened(self, "_handle")

    def _create_nameless(self, *, whole: bool) -> Descriptor | None:
        """Give the file its name when it has its length, so that a kill leaves no shorter one.

        Returns:
            None where the file system knows no files without a name, or nothing is at /proc.
        """
        try:
            handle = self._open(self.path.parent, os.O_RDWR | os.O_TMPFILE)
            descriptors = os.open(_DESCRIPTORS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
                return None
            raise
        try:
            self._set_length(handle.fd, whole=whole)
            os.link(str(handle.fd), self.path, src_dir_fd=descriptors, follow_symlinks=True)
        except FileExistsError as error:
            raise FileExistsError(error.errno, error.strerror, str(self.path)) from None
        finally:
            os.close(descriptors)
        return handle

    def _create_named(self, *, whole: bool) -> Descriptor:
        handle = self._open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            self._set_length(handle.fd, whole=whole)
        except BaseException:
            self.path.unlink(missing_ok=True)
            raise
        return handle

    def _set_length(self, fd: int, *, whole: bool) -> None:
        if not whole:
            os.ftruncate(fd, self.size)
        elif not reserve(fd, 0, self.size):
            for at in range(0, self.size, len(ZEROS)):
                os.pwrite(fd, ZEROS[: self.size - at], at)

    def reserve_from(self, position: int) -> None:
        """Reserve all from a position on, so that no store through the mapping meets a full disk.

        Files that RocketMQ made, or that were copied sparse, have holes. What is there stays.

        Raises:
            DiskFullError: there is no room.
        """
        handle = self.handle
        if os.fstat(handle.fd).st_blocks * _BLOCK_SIZE >= self.size:
            return
        with room_at(self.path):
            if not reserve(handle.fd, position, self.size - position):
                for at in range(position, self.size, len(ZEROS)):
                    os.pwrite(handle.fd, os.pread(handle.fd, len(ZEROS), at), at)

    def close(self) -> None:
        """Close descriptor and mapping for good; views that were handed out stay valid."""
        self.available = False
        self._open_files.closed(self)
        region, self._region, self._handle = self._region, None, None
        if region is not None:
            region.retire()

    def forget(self) -> None:
        """Hold it open no longer than its last reader does; its owner has removed it."""
        self._open_files.closed(self)

    def destroy(self) -> None:
        """Remove the file; readers that have it open read on until they release it.

        Raises:
            OSError: it could not be removed, and is as it was.
        """
        self._open_files.check_there()
        try:
            handle = self.handle
        except FileNotFoundError:
            self.close()
            return
        self.path.unlink(missing_ok=True)
        self.available = False
        self._open_files.closed(self)
        self._handle = handle

    # ---- reading and writing

    def read(self, position: int, size: int) -> memoryview:
        """``size`` bytes from ``position``: zero-copy where the file is ours, else read.

        Args:
            position: of the first byte in the file.
            size: bytes, all of them in the file.

        Raises:
            CorruptStoreError: the file has become shorter than it was.
            IndexError: outside the file.
        """
        if position < 0 or size < 0 or position > self.size - size:
            raise IndexError(f"{self.path}: bytes {position} to {position + size}")
        if self.writable:
            return memoryview(self.region)[position : position + size].toreadonly()
        return memoryview(self.read_bytes(position, size))

    def read_bytes(self, position: int, size: int) -> bytes:
        """A copy of ``size`` bytes through the descriptor; see `LogFile.read_bytes`.

        Raises:
            CorruptStoreError: the file has become shorter than it was.
        """
        handle = self.handle
        with Naming(self.path):
            data = os.pread(handle.fd, size, position)
            while len(data) < size:
                more = os.pread(handle.fd, size - len(data), position + len(data))
                if not more:
                    raise self._cut_short(position + len(data))
                data += more
        return data

    def _cut_short(self, position: int) -> CorruptStoreError:
        reason = f"the file was cut short: it ends at byte {position}"
        return CorruptStoreError(self.path, self.file_from_offset + position, reason)

    def read_into(self, position: int, buffer: WriteableBuffer) -> None:
        """Fill a buffer from ``position`` on, through the descriptor; see `LogFile.read_into`.

        Raises:
            CorruptStoreError: the file has become shorter than it was.
        """
        handle = self.handle
        with memoryview(buffer) as view, Naming(self.path):
            done = os.preadv(handle.fd, [view], position)
            while done < len(view):
                more = os.preadv(handle.fd, [view[done:]], position + done)
                if not more:
                    raise self._cut_short(position + done)
                done += more

    def write(self, position: int, data: ReadableBuffer, *, reserve_step: int = 0) -> None:
        """Write through the descriptor, reserving space ahead where asked.

        Args:
            position: of the first byte in the file.
            data: bytes, none of them behind the file's end.
            reserve_step: reserve the disk's space in steps of this many bytes; 0 reserves none.

        Raises:
            DiskFullError: there is no room; the bytes were not stored.
            OSError: the system refused; some of the bytes may be stored.
        """
        handle = self.handle
        view = memoryview(data).cast("B")
        end = position + len(view)
        try:
            if reserve_step and end > self._reserved:
                ahead = min(self.size, -(-end // reserve_step) * reserve_step)
                reserve(handle.fd, position, ahead - position, keep_size=True)
                self._reserved = ahead
            while view:
                count = os.pwrite(handle.fd, view, position)
                position += count
                view = view[count:]
        except OSError as error:
            if error.errno in NO_ROOM:
                raise DiskFullError(self.path, os.strerror(error.errno)) from error
            raise

    def begin_writes(self, *, large_folios: bool) -> None:
        """Choose how the kernel keeps the part of the mapping that is written from now on.

        XFS, and ext4 from Linux 6.16 on, keep up to 2 MiB of a file as one folio. It costs one page
        fault; but a byte that is stored through the mapping makes all of it dirty, and the next
        flush writes all of it.

        Args:
            large_folios: False for one page at a time; what reading has brought in of that part
                is let go for it.
        """
        start = self.wrote_position - self.wrote_position % _FOLIO_MAX
        if large_folios:
            self.region.advise("hugepage", start)
            return
        self.region.advise("random", start)
        self.region.advise("dontneed", start)
        handle = self.handle
        os.posix_fadvise(handle.fd, start, 0, os.POSIX_FADV_DONTNEED)

    def end_writes(self) -> None:
        """The mapping is only read from now on."""
        self.region.advise("normal")

    def zero_from(self, position: int) -> None:
        """Make everything from ``position`` on read as zeros, so that no old tail comes back.

        Space that is reserved stays reserved, and no more of it becomes so. It goes from the end to
        the front: whoever is killed in the middle leaves no good record behind zeros.
        """
        handle = self.handle
        changed = False
        for start, stop in reversed(self.data_stretches(position)):
            for at in reversed(range(start, stop, len(ZEROS))):
                zeros = ZEROS[: stop - at]
                if os.pread(handle.fd, len(zeros), at) == zeros:
                    continue
                changed = True
                if not zero_range(handle.fd, at, len(zeros)):
                    zero_pages(handle.fd, at, at + len(zeros))
        if changed:
            sync_data(handle.fd)

    def data_stretches(self, position: int) -> list[tuple[int, int]]:
        """(first byte, end) of each stretch from ``position`` on that may hold data, in order.

        To be asked before any of it is read: reading ahead fills the page cache behind a stretch,
        and what is in there counts as data.
        """
        fd, found = self.handle.fd, []
        while (start := self.data_from(position)) < self.size:
            position = min(os.lseek(fd, start, os.SEEK_HOLE), self.size)
            found.append((start, position))
        return found

    def data_from(self, position: int) -> int:
        """The first byte from ``position`` on that may hold data; ``size`` when none does.

        What was reserved and never written is passed over without being read.
        """
        handle = self.handle
        if position >= self.size:
            return self.size
        try:
            return min(os.lseek(handle.fd, position, os.SEEK_DATA), self.size)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return self.size
            raise

    @property
    def removed(self) -> bool:
        """True when somebody has removed the file, or put another in its place."""
        handle = self._handle
        return not self.path.exists() if handle is None else os.fstat(handle.fd).st_nlink == 0

    # ---- positions

    @property
    def read_position(self) -> int:
        """Bytes that a reader may see."""
        return self.wrote_position if self.write_buffer is None else self.committed_position

    @property
    def full(self) -> bool:
        """True when nothing more can be written."""
        return self.wrote_position >= self.size

    def set_positions(self, position: int) -> None:
        """Say that the first ``position`` bytes are written, committed and flushed."""
        self.wrote_position = self.committed_position = self.flushed_position = position

    def commit(self, *, goes_last: int) -> None:
        """Copy what the transient pool's buffer holds beyond the committed position to the file.

        Args:
            goes_last: how many bytes at the front of it are written last, by themselves: a kill may
                break off the write of the others.
        """
        start, wrote = self.committed_position, self.wrote_position
        if self.write_buffer is not None and wrote > start:
            data = memoryview(self.write_buffer)[start:wrote]
            self.write(start + goes_last, data[goes_last:])
            self.write(start, data[:goes_last])
            self.committed_position = wrote

    def flush(self) -> int:
        """Write through to the disk what is written (or committed) and not flushed.

        Returns:
            the flushed position.

        Raises:
            OSError: the disk refused; the store must not go on as if nothing happened.
        """
        position = self.read_position
        if position > self.flushed_position:
            if self.write_buffer is not None:
                self.sync()
            else:
                start, region = self.flushed_position, self.region
                with Syncing(self.path):
                    region.sync(start, position - start)
            self.flushed_position = position
        return position

    def sync(self) -> None:
        """Write through to the disk everything that was written through the descriptor."""
        handle = self.handle
        with Syncing(self.path):
            sync_data(handle.fd)

    def __repr__(self) -> str:
        return f"MappedFile({str(self.path)!r}, wrote={self.wrote_position}, size={self.size})"
