"""Units of one size, one behind the other in numbered files: what a consume queue is made of.

Unit n lies at byte n times its size of the files. It is written and read through descriptors, so
ten thousand queues need no ten thousand mappings. Everything here can be derived from the log.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from rmqcore.errors import CorruptConsumeQueueError, StoreClosedError
from rmqcore.files.kept_dirty import sync_or_keep_dirty
from rmqcore.files.mapped_file_queue import MappedFileQueue
from rmqcore.native.base._lock import ReentrantLock
from rmqcore.native.read._fast_reads import UnitQueue, good_units, message_units
from rmqcore.world import begin_sync

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rmqcore.files.mapped_file import MappedFile, OpenFiles

RESERVE_STEP = 65536
#: every unit begins with the physical offset and the size of its record
UNIT_HEAD = struct.Struct(">qi")
#: why a queue of another process cannot be read
DAMAGED_UNIT = (
    "no unit can look like the one here, and more follow; open the store for writing, which "
    "derives it again from the log"
)
_FIRST_READ_SIZE = 4096
_LOOK_MAX = 64 << 10
_FILES_CHECKED = 3
_FILLERS_FIRST_READ = 8
_FILLERS_READ = 4096


class UnitFile(UnitQueue):
    """Units by their number; how queue offsets become numbers is for the subclass to say.

    - ``unit_start`` is the number of the first unit that is not hidden, ``unit_end`` the one behind
      the last; ``end_phy_offset`` lies behind the last one's record.
    - A filler unit stands where no message is.
    - Units below ``unit_end`` are written, and never change.

    Args:
        directory: of the files.
        topic, queue_id: whose queue it is.
        file_size: bytes of a file, a multiple of ``unit_size``.
        open_files: the bound on descriptors.
        writable: False follows another process's files.
        in_any_order: `write` comes in any order, and other processes write to the same files.

    Threads: one writer (the dispatcher) and any readers.
    Durability: none until `flush`.
    """

    unit_size: int

    def __init__(
        self,
        directory: Path,
        topic: str,
        queue_id: int,
        file_size: int,
        open_files: OpenFiles,
        *,
        writable: bool = True,
        in_any_order: bool = False,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.queue = MappedFileQueue(
            directory, file_size, open_files, writable=writable, sync_names=False
        )
        self._new_file = self.queue.add_file_at if in_any_order else self.queue.append_file
        self.unit_start = self.unit_end = 0
        self.end_phy_offset = 0
        #: bytes written since the last flush
        self.unsynced_bytes = 0
        self._dirty: set[MappedFile] = set()
        self._dirty_lock = ReentrantLock()

    def _show(self) -> None:
        """Publish to readers, as ``min_offset`` and ``max_offset``, which messages there are."""
        raise NotImplementedError

    @property
    def first_unit(self) -> int:
        """Number of the first unit in the files, hidden or not."""
        return self.queue.min_offset // self.unit_size

    def may_lack_first_file(self, min_phy_offset: int) -> bool:
        """True where a file may be missing in front of the first one, with messages of the log.

        Retention leaves the file with the last unit before the log's first record. It leaves none
        where that unit is the last of its file, nor is there one where numbers begin with a file.

        Args:
            min_phy_offset: physical offset of the log's first record.

        Raises:
            CorruptStoreError: the first file has become shorter than it was.
        """
        if self.first_unit == 0 or self.unit_start > self.first_unit:
            return False
        units = self.units_from(self.first_unit, 1)
        first, _ = message_units(units, self.unit_size)
        return first == 0 and UNIT_HEAD.unpack_from(units)[0] > min_phy_offset

    # ---- opening

    def load(self) -> None:
        """Take in the files and find the end of the queue.

        The last three files are looked at unit by unit; the first unit that cannot be one ends
        the queue, and what follows is derived from the log again.

        Raises:
            CorruptStoreError: a file has a wrong length, or one is missing.
            CorruptConsumeQueueError: a file has a name that none of a queue has.
        """
        self.queue.load(lengthen=True)
        files = self.queue.files
        if self.queue.min_offset % self.queue.file_size:
            # no unit would be found at its place, and what is written would overlap the file
            reason = f"no file of {self.queue.file_size} bytes of a queue begins there"
            raise CorruptConsumeQueueError(files[0].path, -1, reason)
        self.unit_start = self.unit_end = self.first_unit
        start = max(0, len(files) - _FILES_CHECKED)
        self._set_end(files[start].file_from_offset // self.unit_size if files else 0)
        self._extend()
        self._show()

    def follow(self) -> None:
        """Take in what another process has written meanwhile."""
        while True:
            last = self.queue.last
            if last is None or self.unit_end * self.unit_size >= last.file_from_offset + last.size:
                self.queue.follow()
            self.unit_start = max(self.unit_start, self.first_unit)
            self.unit_end = max(self.unit_end, self.first_unit)
            before = self.unit_end
            self._extend()
            if self.unit_end == before:
                self._show()
                return

    def followed(self) -> Self:
        """A copy that has caught up with what another process has written; this one stays as it is.

        So a reader sees one state of the queue, while another thread looks for what is new.
        """
        new = type(self).__new__(type(self))
        new.__dict__.update(self.__dict__)
        new.min_offset, new.max_offset = self.min_offset, self.max_offset
        new.plain_files = self.plain_files
        new.follow()
        return new

    def _set_end(self, number: int) -> None:
        self.unit_end = number
        head = self._message_before(number)
        self.end_phy_offset = 0 if head is None else sum(head)

    def _message_before(self, number: int) -> tuple[int, int] | None:
        """(phy_offset, size) of the last unit below ``number`` that is no filler."""
        look = _FILLERS_FIRST_READ
        while number > self.unit_start:
            file = self.queue.find((number - 1) * self.unit_size)
            if file is None:
                return None
            first = file.file_from_offset // self.unit_size
            start = max(self.unit_start, number - look, first)
            look = _FILLERS_READ
            units = self._block(file, start, number)
            _, last = message_units(units, self.unit_size)
            if last >= 0:
                return UNIT_HEAD.unpack_from(units, last * self.unit_size)
            number = start
        return None

    def _next_message(self, number: int, stop: int) -> tuple[int, int]:
        """The first message from ``number`` on, below ``stop``.

        Returns:
            (number of its unit, physical offset); the second is -1 when there is none.
        """
        look = _FILLERS_FIRST_READ
        while number < stop:
            file = self.queue.find(number * self.unit_size)
            if file is None:
                return number, -1
            behind = (file.file_from_offset + file.size) // self.unit_size
            end = min(stop, number + look, behind)
            look = _FILLERS_READ
            units = self._block(file, number, end)
            first, _ = message_units(units, self.unit_size)
            if first >= 0:
                phy_offset, _ = UNIT_HEAD.unpack_from(units, first * self.unit_size)
                return number + first, phy_offset
            number = end
        return stop, -1

    def _block(self, file: MappedFile, start: int, stop: int) -> bytes:
        """The units from number ``start`` to ``stop``, which lie in one file."""
        at = start * self.unit_size - file.file_from_offset
        return file.read_bytes(at, (stop - start) * self.unit_size)

    def _extend(self) -> None:
        """Move ``unit_end`` over the good units that follow it.

        Raises:
            CorruptConsumeQueueError: of another process's files: units follow a bad one.
        """
        broken_at = -1
        while (file := self.queue.find(self.unit_end * self.unit_size)) is not None:
            at = self.unit_end * self.unit_size - file.file_from_offset
            count, broken, self.end_phy_offset = self._good_units(file, at)
            end = file.file_from_offset + at + count * self.unit_size
            self.unit_end = end // self.unit_size
            whole = end >= file.file_from_offset + file.size - file.size % self.unit_size
            broken = broken or not (whole or self.queue.writable or self._is_last(file))
            if broken and not self.queue.writable and end != broken_at:
                # a writer may have changed the file between two reads: damage is what stays the
                # same
                broken_at = end
            elif broken and not self.queue.writable:
                place = end - file.file_from_offset
                raise CorruptConsumeQueueError(file.path, place, DAMAGED_UNIT)
            elif not count or not whole:
                # no whole unit follows: the end, or the file was cut short inside a unit
                return

    def _is_last(self, file: MappedFile) -> bool:
        """False when a file behind one has units, as a writer begins none before it is full."""
        found = [one for one in self.queue.files if one.file_from_offset > file.file_from_offset]
        return not any(any(one.read_bytes(0, min(one.size, _FIRST_READ_SIZE))) for one in found)

    def _good_units(self, file: MappedFile, at: int) -> tuple[int, bool, int]:
        """What follows byte ``at`` of a file.

        Returns:
            (how many good units, True when more follow a bad one, physical offset behind the
            record of the last message).
        """
        count, look = 0, _FIRST_READ_SIZE - _FIRST_READ_SIZE % self.unit_size
        floor = self.end_phy_offset
        while at < file.size:
            size = min(look, file.size - at)
            size -= size % self.unit_size
            good, more, floor = good_units(file.read_bytes(at, size), self.unit_size, floor)
            count += good
            if good < size // self.unit_size:
                return count, more, floor
            at += size
            look = min(look * 4, _LOOK_MAX)
            if size < self.unit_size:
                break
        return count, False, floor

    # ---- writing

    def write(self, number: int, units: memoryview) -> None:
        """Write units at their place, in files that are made as they are needed.

        Args:
            number: of the first unit.
            units: bytes of whole units.

        Raises:
            DiskFullError: no room.
            OSError: the system refused; some of the units may be written.
        """
        at = number * self.unit_size
        while units:
            # not just the last file: an interrupted write may have made the next one already
            file = self.queue.find(at) or self._new_file(at)
            position = at - file.file_from_offset
            part = units[: file.size - position]
            file.write(position, part, reserve_step=RESERVE_STEP)
            file.wrote_position = position + len(part)
            self.unsynced_bytes += len(part)
            self._mark_dirty(file)
            at += len(part)
            units = units[len(part) :]

    def _overwrite(self, number: int, unit: bytes) -> None:
        file = self.queue.find(number * self.unit_size)
        if file is not None:
            file.write(number * self.unit_size - file.file_from_offset, unit)
            self._mark_dirty(file)

    def _mark_dirty(self, file: MappedFile) -> None:
        """Let the next flush sync a file that has just been written to."""
        # a file that is in the set already is synced by a flush that has not yet emptied the set
        if file not in self._dirty:
            with self._dirty_lock.within():
                self._dirty.add(file)

    def mark_unsynced(self, number: int, count: int) -> None:
        """Mark units that are there already as not flushed, so that the next flush writes them.

        Args:
            number: of the first one.
            count: how many; those that are not there are left out.
        """
        at = max(number, self.first_unit) * self.unit_size
        stop = min(number + count, self.unit_end) * self.unit_size
        while at < stop and (file := self.queue.find(at)) is not None:
            self._mark_dirty(file)
            at = file.file_from_offset + file.size

    def begin_flush(self) -> None:
        """Let the disk begin with what `flush` waits for."""
        with self._dirty_lock.within():
            dirty = list(self._dirty)
        for file in dirty:
            # its topic may be deleted just now
            with suppress(StoreClosedError, FileNotFoundError):
                begin_sync(file.handle.fd, 0, 0)

    def flush(self) -> bool:
        """Write through to the disk; True when there was anything.

        Raises:
            OSError: the disk refused.
        """
        with self._dirty_lock.within():
            dirty, self._dirty = self._dirty, set()
            self.unsynced_bytes = 0
        try:
            for file in (file for file in dirty if file.available):
                # its topic may be deleted just now
                with suppress(StoreClosedError):
                    sync_or_keep_dirty(file)
        except BaseException:
            # perhaps on an interrupt: the next flush does it again
            with self._dirty_lock.within():
                self._dirty |= dirty
            raise
        return bool(dirty)

    def pop_unsynced(self) -> list[Path]:
        """Directories with new names that are not synced yet, lowest first."""
        if not self.queue.unsynced:
            return []
        self.queue.unsynced = False
        directory = self.queue.directory
        return [directory, *directory.parents[:3]]

    # ---- reading

    def units_from(self, number: int, count: int) -> bytes:
        """Up to ``count`` units from ``number``, fewer at the end of the queue.

        Args:
            number: of the first unit, from the file's first one on.
            count: units at most; one that is not there ends it.

        Raises:
            CorruptStoreError: a file has become shorter than it was.
        """
        count = min(count, self.unit_end - number)
        if count <= 0:
            return b""
        at = number * self.unit_size
        stop = at + count * self.unit_size
        parts = []
        while at < stop:
            file = self.queue.find(at)
            if file is None:
                break
            position = at - file.file_from_offset
            size = min(stop - at, file.size - position)
            parts.append(file.read_bytes(position, size))
            at += size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def unit(self, number: int) -> bytes | None:
        """One unit; None where no file is."""
        at = number * self.unit_size
        file = self.queue.find(at)
        if file is None:
            return None
        return file.read_bytes(at - file.file_from_offset, self.unit_size)

    # ---- shrinking

    def first_at_or_above(self, phy_offset: int) -> int:
        """Number of the first unit whose message lies at or behind ``phy_offset``."""
        low, high = self.first_unit, self.unit_end
        middle, first = low, -1
        while low < high:
            found, at = self._next_message(middle, high)
            if 0 <= at < phy_offset:
                low, first = found + 1, -1
            else:
                high, first = middle, found if at >= 0 else -1
            middle = (low + high) // 2
        return first if first >= 0 else self._next_message(low, self.unit_end)[0]

    def correct_min_offset(self, min_phy_offset: int) -> None:
        """Hide the units whose messages the log no longer has.

        Source: RocketMQ store/ConsumeQueue.java, correctMinOffset.
        Differs: fillers stay hidden after a restart, too.
        """
        self.unit_start = self.first_at_or_above(min_phy_offset)
        self._show()

    def delete_before(self, min_phy_offset: int) -> int:
        """Remove files all of whose messages are gone, never the last; how many went.

        Source: RocketMQ store/MappedFileQueue.java, deleteExpiredFileByOffset.
        """
        self.correct_min_offset(min_phy_offset)
        at = self.unit_start * self.unit_size
        gone = sum(1 for file in self.queue.files[:-1] if file.file_from_offset + file.size <= at)
        self._hold_no_more(self.queue.files[:gone])
        self.queue.remove_first(gone)
        return gone

    def truncate(self, end_phy_offset: int) -> int:
        """Drop the units of messages that do not end at or before ``end_phy_offset``.

        Returns:
            how many units were dropped.
        """
        before = self.unit_end
        if self.end_phy_offset > end_phy_offset:
            keep = self.first_at_or_above(end_phy_offset)
            while keep > self.unit_start and (head := self._message_before(keep)) is not None:
                if sum(head) <= end_phy_offset:
                    break
                keep -= 1
            self.unit_end = min(keep, before)
        if self.queue.writable:
            self._remove_behind(self.unit_end)
        if self.unit_end != before:
            self._set_end(self.unit_end)
            self._show()
        return before - self.unit_end

    def cut_at(self, number: int) -> None:
        """Drop the units from one on, which are to be derived from the log again.

        Args:
            number: of the first unit that is dropped.

        Raises:
            OSError: a file cannot be cut or removed.
        """
        self._remove_behind(number)
        self._set_end(number)
        self._show()

    def _remove_behind(self, number: int) -> None:
        at = number * self.unit_size
        self._hold_no_more(file for file in self.queue.files if file.file_from_offset > at)
        self.queue.truncate(at)

    def _hold_no_more(self, files: Iterable[MappedFile]) -> None:
        """Let the next flush not hold files open that are removed: there may be very many."""
        with self._dirty_lock.within():
            self._dirty.difference_update(files)

    def close(self) -> None:
        """Close the files."""
        self.queue.close()

    def destroy(self) -> None:
        """Remove the files."""
        self._hold_no_more(self.queue.files)
        self.queue.destroy()
        self.unit_start = self.unit_end = self.end_phy_offset = 0
        self.min_offset = self.max_offset = 0
