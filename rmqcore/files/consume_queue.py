"""A consume queue: where in the commit log each message of one queue lies.

Unit n is 20 bytes at byte 20 n of the queue's files. It is written and read through descriptors,
so ten thousand queues need no ten thousand mappings. Everything here can be derived from the log.
"""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING

from rmqcore.errors import CorruptConsumeQueueError
from rmqcore.files.consume_queue_ext import EXT_ADDRESS_BELOW, ConsumeQueueExt
from rmqcore.files.mapped_file_queue import MappedFileQueue
from rmqcore.native.read._fast_reads import UnitQueue, good_units, message_units

if TYPE_CHECKING:
    from pathlib import Path

    from rmqcore.files.mapped_file import MappedFile, OpenFiles

UNIT_SIZE = 20
FILLER_SIZE = 0x7FFFFFFF
FILLER = struct.pack(">qiq", 0, FILLER_SIZE, 0)
#: units that a hole between two messages may have before it counts as corruption
HOLE_UNITS_MAX = 1 << 20
RESERVE_STEP = 65536
#: the topic whose units carry a time of delivery in place of a tags code
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
_TAGS_CODE_AT = 12
_FIRST_LOOK = 4096
_LOOK_MAX = 64 << 10
_FILES_CHECKED = 3
_FIRST_FILLERS_LOOK = 8
_FILLERS_LOOK = 4096
_HEAD = struct.Struct(">qi")
_TAGS_CODE = struct.Struct(">q")


class ConsumeQueue(UnitQueue):
    """The units of one queue of one topic.

    - Offsets count messages; ``min_offset <= max_offset``.
    - A filler unit stands where no message is: before the first message of a queue that does not
      begin with 0, and for a message that the log has lost. Readers pass over it.
    - Units below ``max_offset`` are written, and never change.

    Args:
        directory: of the queue's files.
        topic, queue_id: whose queue it is.
        file_size: bytes of a file, a multiple of 20.
        open_files: the bound on descriptors.
        writable: False follows another process's files.

    Threads: one writer (the dispatcher) and any readers.
    Layout: docs/format/consume-queue.md.
    Durability: none until `flush`.
    Source: RocketMQ store/ConsumeQueue.java.
    """

    unit_size = UNIT_SIZE

    def __init__(
        self,
        directory: Path,
        topic: str,
        queue_id: int,
        file_size: int,
        open_files: OpenFiles,
        *,
        writable: bool = True,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.queue = MappedFileQueue(
            directory, file_size, open_files, writable=writable, sync_names=False
        )
        if self.unit_size == UNIT_SIZE:
            self.plain_files = self.queue
        self.end_phy_offset = 0
        self.ext: ConsumeQueueExt | None = None
        self._dirty: set[MappedFile] = set()
        self._dirty_lock = threading.Lock()

    # ---- opening

    def load(self) -> None:
        """Take in the files and find the end of the queue.

        The last three files are looked at unit by unit; the first unit that cannot be one ends
        the queue, and what follows is derived from the log again.

        Raises:
            CorruptStoreError: a file has a wrong length, or one is missing.
        """
        self.queue.load(lengthen=True)
        files = self.queue.files
        self.min_offset = self.first_unit_offset
        self.max_offset = self.min_offset
        start = max(0, len(files) - _FILES_CHECKED)
        self._set_end(files[start].file_from_offset if files else 0)
        self._extend()

    def follow(self) -> None:
        """Take in what another process has written meanwhile."""
        while True:
            last = self.queue.last
            if (
                last is None
                or self.max_offset * self.unit_size >= last.file_from_offset + last.size
            ):
                self.queue.follow()
            self.min_offset = max(self.min_offset, self.first_unit_offset)
            self.max_offset = max(self.max_offset, self.first_unit_offset)
            before = self.max_offset
            self._extend()
            if self.max_offset == before:
                return

    def _set_end(self, byte_offset: int) -> None:
        self.max_offset = byte_offset // self.unit_size
        unit = self._unit_before(self.max_offset)
        self.end_phy_offset = 0 if unit is None else unit[0] + unit[1]

    def _unit_before(self, offset: int) -> tuple[int, int] | None:
        """(phy_offset, size) of the last unit below ``offset`` that is no filler."""
        look = _FIRST_FILLERS_LOOK
        while offset > self.min_offset:
            file = self.queue.find((offset - 1) * self.unit_size)
            if file is None:
                return None
            first = file.file_from_offset // self.unit_size
            start = max(self.min_offset, offset - look, first)
            look = _FILLERS_LOOK
            units = self._block(file, start, offset)
            _, last = message_units(units, self.unit_size)
            if last >= 0:
                return _HEAD.unpack_from(units, last * self.unit_size)
            offset = start
        return None

    def _next_message(self, offset: int, stop: int) -> tuple[int, int]:
        """The first message from ``offset`` on, below ``stop``.

        Returns:
            (queue offset, physical offset); the second is -1 when there is none.
        """
        look = _FIRST_FILLERS_LOOK
        while offset < stop:
            file = self.queue.find(offset * self.unit_size)
            if file is None:
                return offset, -1
            behind = (file.file_from_offset + file.size) // self.unit_size
            end = min(stop, offset + look, behind)
            look = _FILLERS_LOOK
            units = self._block(file, offset, end)
            first, _ = message_units(units, self.unit_size)
            if first >= 0:
                return offset + first, _HEAD.unpack_from(units, first * self.unit_size)[0]
            offset = end
        return stop, -1

    def _block(self, file: MappedFile, start: int, stop: int) -> bytes:
        """The units from queue offset ``start`` to ``stop``, which lie in one file."""
        at = start * self.unit_size - file.file_from_offset
        return file.read_bytes(at, (stop - start) * self.unit_size)

    def _read_unit(self, offset: int) -> bytes | None:
        at = offset * self.unit_size
        file = self.queue.find(at)
        if file is None:
            return None
        return file.read_bytes(at - file.file_from_offset, self.unit_size)

    def _extend(self) -> None:
        """Move the end over the good units that follow it.

        Raises:
            CorruptConsumeQueueError: of another process's files: units follow a bad one.
        """
        broken_at = -1
        while (file := self.queue.find(self.max_offset * self.unit_size)) is not None:
            at = self.max_offset * self.unit_size - file.file_from_offset
            count, broken, self.end_phy_offset = self._good_units(file, at)
            end = file.file_from_offset + at + count * self.unit_size
            self.max_offset = end // self.unit_size
            if broken and not self.queue.writable and end != broken_at:
                # a writer may have come between two of our reads: what is still so is damage
                broken_at = end
            elif broken and not self.queue.writable:
                raise CorruptConsumeQueueError(
                    file.path,
                    end - file.file_from_offset,
                    "no unit can look like the one here, and more follow; open the store for "
                    "writing, which derives it again from the log",
                )
            elif not count or end < file.file_from_offset + file.size - file.size % self.unit_size:
                # no unit follows, perhaps because the file was cut short inside one
                return

    def _good_units(self, file: MappedFile, at: int) -> tuple[int, bool, int]:
        """What follows byte ``at`` of a file.

        Returns:
            (how many good units, True when more follow a bad one, physical offset behind the
            record of the last message).
        """
        count, look = 0, _FIRST_LOOK - _FIRST_LOOK % self.unit_size
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

    def append_units(self, first_offset: int, units: memoryview) -> int:
        """Append the units of consecutive messages; units that are there already are left alone.

        Args:
            first_offset: queue offset of the first one.
            units: 20 bytes each.

        Returns:
            how many units were written.

        Raises:
            CorruptConsumeQueueError: the hole before them is too large to be one.
            DiskFullError: no room.

        Source: RocketMQ store/ConsumeQueue.java, putMessagePositionInfo.
        Differs: a hole is filled, where RocketMQ writes the unit in a wrong place.
        """
        count = len(units) // self.unit_size
        if not self.queue.files or self.max_offset < self.first_unit_offset:
            self._begin(first_offset)
        skip = self.max_offset - first_offset
        if skip >= count:
            return 0
        if skip < 0:
            self._fill(first_offset)
        elif skip > 0:
            units = units[skip * self.unit_size :]
        self._write(self.max_offset * self.unit_size, units)
        last = units[len(units) - self.unit_size :]
        phy_offset, size = _HEAD.unpack_from(last)
        self.end_phy_offset = phy_offset + size
        self.max_offset += len(units) // self.unit_size
        return len(units) // self.unit_size

    def mend_units(self, first_offset: int, units: memoryview) -> int:
        """Compare units that are there with what the log says, and write those anew that differ.

        A tags code that is the address of an extension unit is left as it is, and so is one that
        is a time of delivery: it follows the delays that were configured when it was written.

        Args:
            first_offset: queue offset of the first one.
            units: 20 bytes each, as they are derived from the log.

        Returns:
            how many were written anew.
        """
        start = max(first_offset, self.first_unit_offset)
        skipped = (start - first_offset) * self.unit_size
        there = self.read_units(start, (len(units) - skipped) // self.unit_size)
        wanted = bytes(units[skipped : skipped + len(there)])
        if there == wanted:
            return 0
        size = self.unit_size
        mended = 0
        for at in range(0, len(there), size):
            if self._differ(there[at : at + size], wanted[at : at + size]):
                self._overwrite(start * size + at, wanted[at : at + size])
                mended += 1
        self._set_end(self.max_offset * size)
        return mended

    def mark_unsynced(self, first_offset: int, count: int) -> None:
        """Have the units that are there already brought to the disk by the next flush.

        Args:
            first_offset: queue offset of the first one.
            count: how many; those that are not there are left out.
        """
        at = max(first_offset, self.first_unit_offset) * self.unit_size
        stop = min(first_offset + count, self.max_offset) * self.unit_size
        while at < stop and (file := self.queue.find(at)) is not None:
            self._mark_dirty(file)
            at = file.file_from_offset + file.size

    def _overwrite(self, at: int, unit: bytes) -> None:
        file = self.queue.find(at)
        if file is not None:
            file.write(at - file.file_from_offset, unit)
            self._mark_dirty(file)

    def blank_between(self, start_phy_offset: int, stop_phy_offset: int) -> int:
        """Put fillers in place of the units of a damaged stretch of the log; how many."""
        offset = self._first_at_or_above(start_phy_offset)
        count = 0
        while offset < self.max_offset:
            data = self._read_unit(offset)
            if data is not None and data[:UNIT_SIZE] != FILLER:
                if _HEAD.unpack_from(data)[0] >= stop_phy_offset:
                    break
                self._overwrite(offset * self.unit_size, FILLER)
                count += 1
            offset += 1
        return count

    def _differ(self, there: bytes, wanted: bytes) -> bool:
        if there[:_TAGS_CODE_AT] != wanted[:_TAGS_CODE_AT]:
            return True
        tags_code = int.from_bytes(there[_TAGS_CODE_AT:UNIT_SIZE], "big", signed=True)
        if self.topic == SCHEDULE_TOPIC or (self.ext is not None and tags_code < EXT_ADDRESS_BELOW):
            return False
        return there != wanted

    def _begin(self, first_offset: int) -> None:
        """Create the first file; what lies before the first message becomes fillers."""
        at = first_offset * self.unit_size
        start = at - at % self.queue.file_size
        file = self.queue.last or self.queue.append_file(start)
        file.write(0, FILLER * ((at - start) // self.unit_size), reserve_step=RESERVE_STEP)
        self._mark_dirty(file)
        self.min_offset = self.max_offset = first_offset

    def _fill(self, first_offset: int) -> None:
        hole = first_offset - self.max_offset
        if hole > HOLE_UNITS_MAX:
            raise CorruptConsumeQueueError(
                self.queue.directory,
                -1,
                f"the next message has queue offset {first_offset}, {self.max_offset} was expected",
            )
        self._write(self.max_offset * self.unit_size, memoryview(FILLER * hole))
        self.max_offset = first_offset

    def _write(self, at: int, units: memoryview) -> None:
        while units:
            # not just the last: one that was to be written may have made the next already
            file = self.queue.find(at) or self.queue.append_file(at)
            position = at - file.file_from_offset
            part = units[: file.size - position]
            file.write(position, part, reserve_step=RESERVE_STEP)
            file.wrote_position = position + len(part)
            self._mark_dirty(file)
            at += len(part)
            units = units[len(part) :]

    def _mark_dirty(self, file: MappedFile) -> None:
        with self._dirty_lock:
            self._dirty.add(file)

    def flush(self) -> bool:
        """Write through to the disk; True when there was anything.

        Raises:
            OSError: the disk refused.
        """
        with self._dirty_lock:
            dirty, self._dirty = self._dirty, set()
        for file in dirty:
            if file.available:
                file.sync()
        return bool(dirty)

    def take_unsynced(self) -> list[Path]:
        """Directories whose new names are still to be brought to the disk, lowest first."""
        if not self.queue.unsynced:
            return []
        self.queue.unsynced = False
        directory = self.queue.directory
        return [directory, *directory.parents[:3]]

    # ---- reading

    def read_units(self, offset: int, count: int) -> bytes:
        """Up to ``count`` units from ``offset``, fewer at the end of the queue."""
        count = min(count, self.max_offset - offset)
        if count <= 0:
            return b""
        at = offset * self.unit_size
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

    def offset_after(self, offset: int, units: int) -> int:
        """Queue offset behind ``units`` units from the one that holds ``offset``."""
        return offset + units

    def with_tags_codes(self, units: bytes) -> bytes:
        """The same units, addresses of the extension file replaced by the tags codes there."""
        if self.ext is None:
            return units
        changed = bytearray(units)
        for at in range(_TAGS_CODE_AT, len(units), UNIT_SIZE):
            (address,) = _TAGS_CODE.unpack_from(units, at)
            if address < EXT_ADDRESS_BELOW:
                tags_code = self.ext.tags_code_at(address)
                if tags_code is not None:
                    _TAGS_CODE.pack_into(changed, at, tags_code)
        return bytes(changed)

    def unit_at(self, offset: int) -> tuple[int, int] | None:
        """(phy_offset, size) of a message; None outside the queue and for a filler."""
        if not self.min_offset <= offset < self.max_offset:
            return None
        data = self._read_unit(offset)
        if data is None or data[:20] == FILLER:
            return None
        return _HEAD.unpack_from(data)

    @property
    def first_unit_offset(self) -> int:
        """Queue offset of the first unit in the files, hidden or not."""
        return self.queue.min_offset // self.unit_size

    # ---- shrinking

    def _first_at_or_above(self, phy_offset: int) -> int:
        """The first queue offset whose message lies at or behind ``phy_offset``."""
        low, high = self.first_unit_offset, self.max_offset
        middle = low
        while low < high:
            found, at = self._next_message(middle, high)
            if 0 <= at < phy_offset:
                low = found + 1
            else:
                high = middle
            middle = (low + high) // 2
        return self._next_message(low, self.max_offset)[0]

    def correct_min_offset(self, min_phy_offset: int) -> None:
        """Hide the units whose messages the log no longer has.

        Source: RocketMQ store/ConsumeQueue.java, correctMinOffset.
        Differs: fillers stay hidden after a restart, too.
        """
        self.min_offset = self._first_at_or_above(min_phy_offset)

    def delete_before(self, min_phy_offset: int) -> int:
        """Remove files all of whose messages are gone, never the last; how many went.

        Source: RocketMQ store/MappedFileQueue.java, deleteExpiredFileByOffset.
        """
        self.correct_min_offset(min_phy_offset)
        at = self.min_offset * self.unit_size
        files = self.queue.files
        gone = sum(1 for file in files[:-1] if file.file_from_offset + file.size <= at)
        self.queue.remove_first(gone)
        return gone

    def truncate(self, end_phy_offset: int) -> int:
        """Drop the units of messages that do not end at or before ``end_phy_offset``.

        Returns:
            how many units were dropped.
        """
        before = self.max_offset
        if self.end_phy_offset > end_phy_offset:
            keep = self._first_at_or_above(end_phy_offset)
            while keep > self.min_offset and (unit := self._unit_before(keep)) is not None:
                if unit[0] + unit[1] <= end_phy_offset:
                    break
                keep -= 1
            self.max_offset = min(keep, before)
        if self.queue.writable:
            self.queue.truncate(self.max_offset * self.unit_size)
        if self.max_offset != before:
            self._set_end(self.max_offset * self.unit_size)
        return before - self.max_offset

    def close(self) -> None:
        """Let the files go."""
        self.queue.close()

    def destroy(self) -> None:
        """Remove the files."""
        self.queue.destroy()
        self.min_offset = self.max_offset = self.end_phy_offset = 0
