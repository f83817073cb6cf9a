"""``consumerLeases.log``: what groups have leased and acknowledged, one record behind the other.

Each change is appended in one write, which a kill of the process does not undo; now and then all
that holds is written anew, and takes the file's place. What a power cut leaves is read up to the
first record that is not whole. The page docs/format/consumer-leases.md has the bytes.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from rmqcore.errors import NO_ROOM, CorruptConfigFileError, DiskFullError
from rmqcore.files.config_file import place_of_damaged
from rmqcore.files.store_dir import NOT_A_FILE
from rmqcore.files.zeros import PAGE_SIZE, read_small
from rmqcore.native.base._mapped import reserve
from rmqcore.world import sync_directory, sync_fd, sync_file

#: The number in the file's first record; a file with another one is refused.
_VERSION: Final = 1
_HEADER: Final = struct.Struct(">IBH")
_HEADED: Final = struct.Struct(">BH")
_SPAN: Final = struct.Struct(">IqI")
_LEASED: Final = struct.Struct(">IqIqII")
_BEGUN: Final = struct.Struct(">Iq")
_NUMBER: Final = struct.Struct(">I")
_NAMED_QUEUE: Final = struct.Struct(">Ii")
_HANDED: Final = struct.Struct(">IqII")
_FILE_MODE: Final = 0o644
#: Room on the disk that the next file has before it is written; twice what this one has where that
#: is more: all that holds takes no more than it took to say it.
_RESERVE_SIZE: Final = 1 << 16
#: Behind damage, whole records up to this size are looked for: names are shorter.
_LOOKED_AT_MAX: Final = 1024


class _Kind(IntEnum):
    VERSION = 0
    QUEUE = 1
    HOLDER = 2
    BEGUN = 3
    LEASED = 4
    DONE = 5
    CLOSED = 6
    HANDED = 7


_KINDS: Final = frozenset(_Kind)


class QueueNamed(NamedTuple):
    """From here on a number stands for a group's queue."""

    number: int
    group: str
    topic: str
    queue_id: int


class HolderNamed(NamedTuple):
    """From here on a number stands for a holder; 0 is nobody."""

    number: int
    holder: str


class Begun(NamedTuple):
    """A group has done with all that lies before an offset, and with nothing behind it."""

    queue: int
    queue_offset: int


class Leased(NamedTuple):
    """Messages that follow one another are leased; those before them that were not, are done with.

    Attributes:
        due_ms: Unix time at which they come again; 0 when they may at once.
        holder: number of who has them.
        times: how often they were handed out.
    """

    queue: int
    queue_offset: int
    messages: int
    due_ms: int
    holder: int
    times: int


class Done(NamedTuple):
    """Messages that follow one another are acknowledged, or passed over."""

    queue: int
    queue_offset: int
    messages: int


class Handed(NamedTuple):
    """Messages that follow one another were leased by a call that another process has made.

    Attributes:
        times: how often they were handed out, this time among them.
        call: name of the call.
    """

    queue: int
    queue_offset: int
    messages: int
    times: int
    call: str


class Closed(NamedTuple):
    """The store was closed; ``consumerOffset.json`` agrees with all before."""


Entry: TypeAlias = QueueNamed | HolderNamed | Begun | Leased | Done | Handed | Closed


def to_bytes(entry: Entry) -> bytes:
    """The record of an entry."""
    match entry:
        case Done():
            return _record(_Kind.DONE, _SPAN.pack(*entry))
        case Leased():
            return _record(_Kind.LEASED, _LEASED.pack(*entry))
        case Begun():
            return _record(_Kind.BEGUN, _BEGUN.pack(*entry))
        case QueueNamed(number, group, topic, queue_id):
            names = f"{group}\0{topic}".encode()
            return _record(_Kind.QUEUE, _NAMED_QUEUE.pack(number, queue_id) + names)
        case Handed(_, _, _, _, call):
            return _record(_Kind.HANDED, _HANDED.pack(*entry[:-1]) + call.encode())
        case HolderNamed(number, holder):
            return _record(_Kind.HOLDER, _NUMBER.pack(number) + holder.encode())
        case Closed():
            return _record(_Kind.CLOSED, b"")


def _record(kind: _Kind, payload: bytes) -> bytes:
    headed = _HEADED.pack(kind, len(payload)) + payload
    return zlib.crc32(headed).to_bytes(4, "big") + headed


def _has_whole_record(raw: bytes, start: int) -> bool:
    """Whether a record of some kind, whole, begins at or behind a place."""
    for at in range(start, len(raw) - _HEADER.size + 1):
        crc, kind, size = _HEADER.unpack_from(raw, at)
        end = at + _HEADER.size + size
        if (
            size <= _LOOKED_AT_MAX
            and kind in _KINDS
            and end <= len(raw)
            and zlib.crc32(memoryview(raw)[at + 4 : end]) == crc
        ):
            return True
    return False


def _read(kind: int, payload: bytes) -> Entry:
    """The entry of a record's payload; raises ValueError or struct.error when it is none."""
    match kind:
        case _Kind.DONE:
            return Done(*_SPAN.unpack(payload))
        case _Kind.LEASED:
            return Leased(*_LEASED.unpack(payload))
        case _Kind.HANDED:
            queue, offset, count, times = _HANDED.unpack_from(payload)
            return Handed(queue, offset, count, times, payload[_HANDED.size :].decode())
        case _Kind.BEGUN:
            return Begun(*_BEGUN.unpack(payload))
        case _Kind.QUEUE:
            number, queue_id = _NAMED_QUEUE.unpack_from(payload)
            group, _, topic = payload[_NAMED_QUEUE.size :].decode().partition("\0")
            return QueueNamed(number, group, topic, queue_id)
        case _Kind.HOLDER:
            (number,) = _NUMBER.unpack_from(payload)
            return HolderNamed(number, payload[_NUMBER.size :].decode())
        case _Kind.CLOSED:
            return Closed()
    raise ValueError(f"a record of kind {kind}")


class LeaseJournal:
    """The file; one writer.

    Attributes:
        damaged_at: where the file is damaged in front of whole records, which do not count: set by
            `entries` when it ends there; -1 where it is not. A torn end is no damage.
        is_copy: whether it was copied from another store's, as `entries` has found.
        may_lack_some: True until a `replace` that succeeds, where what is appended may not count:
            behind a `sync` that failed, as the disk may lack some of what was appended before, and
            a later `sync` would not tell; in a new file whose name may not be on the disk; and
            behind a part of a record that could not be taken back.

    Threads: one at a time.
    Durability: page_cache when `append` returns, disk when `replace` does.
    """

    def __init__(self, path: Path, check_there: Callable[[], object] = bool) -> None:
        """Name the file; nothing is opened. ``check_there`` raises where it is another store's."""
        self.path = path
        self._check_there = check_there
        #: becomes the next file: it has room on the disk, which a full one has no more of
        self._next = path.with_suffix(".reserve")
        self.damaged_at = -1
        self.is_copy = False
        self.may_lack_some = False
        self._file = -1
        self._size = 0
        #: up to this size there is room for the next file, or none to look for yet
        self._room = 0

    @property
    def size(self) -> int:
        """Bytes that have been written."""
        return self._size

    def entries(self) -> Iterator[Entry]:
        """All entries up to the first record that is not whole; none without a file.

        Raises:
            CorruptConfigFileError: the file is of another kind or of a later release.
            OSError: it cannot be read.
        """
        try:
            raw = read_small(self.path)
        except FileNotFoundError:
            return
        except IsADirectoryError as error:
            raise CorruptConfigFileError(self.path, -1, NOT_A_FILE) from error
        at, first = 0, True
        while at + _HEADER.size <= len(raw):
            crc, kind, size = _HEADER.unpack_from(raw, at)
            end = at + _HEADER.size + size
            if end > len(raw) or zlib.crc32(memoryview(raw)[at + 4 : end]) != crc:
                break
            payload = raw[at + _HEADER.size : end]
            if first:
                self._check_version(kind, payload)
                first = False
            else:
                try:
                    entry = _read(kind, payload)
                except (ValueError, struct.error) as error:
                    raise CorruptConfigFileError(self.path, at, str(error)) from error
                if isinstance(entry, HolderNamed) and entry.number == 0:
                    self.is_copy = entry.holder != _name_of(self.path.stat())
                else:
                    yield entry
            at = end
        if first and raw:
            raise CorruptConfigFileError(
                self.path, 0, "it is no journal of leases; move it away to go on without"
            )
        if at < len(raw) and _has_whole_record(raw, at + 1):
            self.damaged_at = at

    def keep_damaged(self) -> Path:
        """Copy the file as it is, before `replace` puts another in its place; the copy's path.

        Raises:
            OSError: the system refused.
        """
        raw = read_small(self.path)
        kept = place_of_damaged(self.path, raw)
        kept.write_bytes(raw)
        sync_file(kept)
        sync_directory(kept.parent)
        return kept

    def _check_version(self, kind: int, payload: bytes) -> None:
        if kind != _Kind.VERSION or payload != _NUMBER.pack(_VERSION):
            raise CorruptConfigFileError(
                self.path, 0, f"it is no journal of leases of version {_VERSION}"
            )

    def write(self, records: bytes, held: Callable[[], Iterable[Entry]]) -> None:
        """As `append`; where a new file is needed for it, or has room for it, in such a one.

        Args:
            records: of what is new.
            held: all that holds, for a new file.
        """
        if self.may_lack_some:
            self.replace(held())
        try:
            self.append(records)
        except DiskFullError:
            # what has been overtaken is not in it, and room is kept for it
            self.replace(held())
            self.append(records)

    def append(self, records: bytes) -> None:
        """Write records behind those that there are: all of them, or none.

        Raises:
            DiskFullError: there is no room.
            OSError: the system refused otherwise.
        """
        try:
            written = os.write(self._file, records)
        except OSError as error:
            raise self._as_full(error) from error
        if written < len(records):
            # the rest had no room; half a record would hide all records behind it
            try:
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            except OSError:
                self.may_lack_some = True
            raise DiskFullError(self.path)
        self._size += written
        if self._size > self._room:
            self._keep_room(0)

    def sync(self) -> None:
        """Bring all that was appended to the disk.

        Raises:
            OSError: the disk refused.
        """
        try:
            sync_fd(self._file)
        except OSError:
            self.may_lack_some = True
            raise

    def replace(self, entries: Iterable[Entry]) -> None:
        """Write a new file in place of the old one, which stays when that fails.

        What the old one took of the disk is room for the next: so a full disk takes what groups
        acknowledge, without which nothing on it can be deleted.

        Raises:
            DiskFullError: there is no room.
            OSError: the system refused otherwise.
            StoreNotFoundError: the store that it is of has another name now.
        """
        self._check_there()
        # this directory only: a store that was removed must not come into being again
        self.path.parent.mkdir(exist_ok=True)
        file = self._opened_next()
        lacking, self.may_lack_some = self.may_lack_some, True
        try:
            if os.fstat(file).st_size:
                os.ftruncate(file, 0)  # what a kill has left of one
            with suppress(OSError):
                reserve(file, 0, _RESERVE_SIZE, keep_size=True)
            _write(file, _record(_Kind.VERSION, _NUMBER.pack(_VERSION)))
            pending = bytearray(to_bytes(HolderNamed(0, _name_of(os.fstat(file)))))
            for entry in entries:
                pending += to_bytes(entry)
                if len(pending) >= 1 << 16:
                    _write(file, pending)
                    pending.clear()
            _write(file, pending)
            sync_fd(file)
            os.replace(self._next, self.path)  # noqa: PTH105 - one system call, named as such
            self._go_on_in(file)
        except BaseException as error:
            # a handler raises what it likes, and may come behind the rename
            if _is_at(file, self.path):
                self._go_on_in(file)
                raise
            os.close(file)
            self.may_lack_some = lacking
            if isinstance(error, OSError):
                self._keep_room()
                raise self._as_full(error) from error
            raise
        sync_directory(self.path.parent)
        self.may_lack_some = False
        self._keep_room()

    def _opened_next(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            return os.open(self._next, flags, _FILE_MODE)
        except IsADirectoryError as error:
            raise CorruptConfigFileError(self._next, -1, NOT_A_FILE) from error

    def _keep_room(self, truncate: int = os.O_TRUNC) -> None:
        """Keep room for the next file, if there is any now; with 0 beside that which it has."""
        # where there is less than wanted, it is looked for again a page later
        self._room = self._size + PAGE_SIZE
        with suppress(OSError):
            self._check_there()
            flags = os.O_WRONLY | os.O_CREAT | truncate | os.O_CLOEXEC
            file = os.open(self._next, flags, _FILE_MODE)
            try:
                reserved = _reserve_up_to(file, max(_RESERVE_SIZE, 2 * self._size))
                self._room = max(self._room, reserved)
            finally:
                os.close(file)

    def _go_on_in(self, file: int) -> None:
        former = self._file
        # until the name is on the disk, too: a power cut may bring the former file back
        self._file, self._size, self.may_lack_some = file, os.fstat(file).st_size, True
        if former not in {-1, file}:
            os.close(former)

    def _as_full(self, error: OSError) -> OSError:
        if error.errno in NO_ROOM:
            return DiskFullError(self.path)
        if error.filename is None:
            error.filename = str(self.path)
        return error

    def close(self) -> None:
        """Let the file go; idempotent."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def _name_of(status: os.stat_result) -> str:
    """A name that a file has, and no copy of it."""
    return f"{status.st_dev:x}.{status.st_ino:x}"


def _is_at(file: int, path: Path) -> bool:
    """Tell whether a file is the one that has a name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file), path.stat())
    return False


def _reserve_up_to(file: int, size: int) -> int:
    """Reserve so many bytes of a file, or as many as there are; how many.

    One call takes all or nothing.
    """
    at, step = 0, size
    while at < size and step >= PAGE_SIZE:
        try:
            reserve(file, at, step, keep_size=True)
        except OSError:
            step //= 2
        else:
            at += step
    return at


def _write(file: int, raw: bytes | bytearray) -> None:
    rest = memoryview(raw)
    while rest:
        count = os.write(file, rest)
        if count == 0:
            raise OSError(errno.ENOSPC, "nothing was written")
        rest = rest[count:]
