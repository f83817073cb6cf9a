"""A consume queue: where in the commit log each message of one queue lies.

The unit of the message with queue offset n is number n, of 20 bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rmqcore._codec import LAYOUT
from rmqcore.errors import CorruptConsumeQueueError
from rmqcore.files.consume_queue_ext import EXT_ADDRESS_BELOW, ConsumeQueueExt
from rmqcore.files.unit_file import UNIT_HEAD, UnitFile
from rmqcore.native.format._numbers import FILLER_SIZE, UNIT_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rmqcore.files.mapped_file import OpenFiles

#: one unit: physical offset, size of the record, tags code
UNIT = struct.Struct(">qiq")
FILLER = UNIT.pack(0, FILLER_SIZE, 0)
#: A hole of more units than this between two messages counts as corruption.
HOLE_UNITS_MAX = 1 << 20
#: what the name of a light queue begins with
LIGHT_QUEUE_PREFIX = "%LMQ%"
#: the topic whose units carry a time of delivery in place of a tags code
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
_TAGS_CODE_AT = LAYOUT["consume_queue_unit"]["tags_code"][0]
_TAGS_CODE = struct.Struct(">q")
#: with these a tags code begins that is a hash, or a time of delivery
_NO_ADDRESS = b"\0\xff"
_UNITS_READ = 4096


def jumped(directory: Path, number: int, expected: int) -> CorruptConsumeQueueError:
    """The error of a queue offset that jumps too far to be true.

    Args:
        directory: of the queue.
        number: the queue offset.
        expected: the one with which the queue goes on.
    """
    reason = f"the next message has queue offset {number}, {expected} was expected"
    return CorruptConsumeQueueError(directory, -1, reason)


class ConsumeQueue(UnitFile):
    """The units of one queue of one topic.

    - Offsets count messages; ``min_offset <= max_offset``.
    - A filler stands before the first message of a queue that does not begin with 0, and for a
      message that the log has lost. Readers pass over it.

    Args:
        directory: of the queue's files.
        topic, queue_id: whose queue it is.
        file_size: bytes of a file, a multiple of 20.
        open_files: the bound on descriptors.
        writable: False follows another process's files.
        in_any_order: `write` comes in any order, and other processes write to the same files.

    Layout: docs/format/consume-queue.md.
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
        in_any_order: bool = False,
    ) -> None:
        super().__init__(
            directory,
            topic,
            queue_id,
            file_size,
            open_files,
            writable=writable,
            in_any_order=in_any_order,
        )
        self.plain_files = self.queue
        self.ext: ConsumeQueueExt | None = None

    def _show(self) -> None:
        self.min_offset, self.max_offset = self.unit_start, self.unit_end

    @property
    def first_unit_offset(self) -> int:
        """Queue offset of the first unit in the files, hidden or not."""
        return self.first_unit

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
        count = len(units) // UNIT_SIZE
        if not self.queue.files or self.unit_end < self.first_unit:
            self._begin(first_offset)
        skip = self.unit_end - first_offset
        if skip >= count:
            return 0
        if skip < 0:
            self.fill(self.unit_end, first_offset)
            self.unit_end = first_offset
        elif skip > 0:
            units = units[skip * UNIT_SIZE :]
        self.write(self.unit_end, units)
        self.end_phy_offset = sum(UNIT_HEAD.unpack_from(units, len(units) - UNIT_SIZE))
        self.unit_end += len(units) // UNIT_SIZE
        self.max_offset = self.unit_end
        return len(units) // UNIT_SIZE

    def jumps_to(self, first_offset: int) -> bool:
        """True for a queue offset with a hole before it that is too large to be one."""
        has_units = bool(self.queue.files) and self.unit_end > self.first_unit
        return has_units and first_offset - self.unit_end > HOLE_UNITS_MAX

    def _begin(self, first_offset: int) -> None:
        """Create the first file; what lies before the first message becomes fillers."""
        before = first_offset % (self.queue.file_size // UNIT_SIZE)
        if not self.queue.files:
            # the name of the file says where the queue begins
            self.queue.append_file((first_offset - before) * UNIT_SIZE)
        self.write(first_offset - before, memoryview(FILLER * before))
        self.unit_start = self.unit_end = first_offset
        self._show()

    def fill(self, start: int, stop: int) -> None:
        """Put fillers where the log has no message.

        Args:
            start: queue offset of the first filler.
            stop: queue offset behind the last.

        Raises:
            CorruptConsumeQueueError: there are too many of them to be true.
            DiskFullError: no room.
        """
        if stop - start > HOLE_UNITS_MAX:
            raise jumped(self.queue.directory, stop, start)
        self.write(start, memoryview(FILLER * (stop - start)))

    def end_at(self, offset: int) -> None:
        """Set the next queue offset; places before it that have no unit get fillers.

        A queue all of whose units are hidden begins anew there rather than get very many.

        Raises:
            DiskFullError: no room.
        """
        if offset > self.unit_end + HOLE_UNITS_MAX and self.unit_start == self.unit_end:
            self.destroy()
        if not self.queue.files:
            self._begin(offset)
        while self.unit_end < offset:
            step = min(offset, self.unit_end + HOLE_UNITS_MAX)
            self.fill(self.unit_end, step)
            self.unit_end = step
        self._show()

    # ---- comparing with the log

    def mend_units(
        self,
        first_offset: int,
        units: memoryview,
        is_good: Callable[[int], bool],
        is_named: Callable[[int], bool],
    ) -> int:
        """Compare units that are there with what the log says, and write those anew that differ.

        A tags code that is the address of an extension unit with this tags code is left as it is,
        and so is one that is a time of delivery: it follows the delays that were configured when it
        was written. A filler stays where the record is damaged. Where two records name one place,
        the one that the unit leads to keeps it.

        Args:
            first_offset: queue offset of the first one.
            units: 20 bytes each, as they are derived from the log.
            is_good: tells of a physical offset whether the record there is undamaged.
            is_named: tells of a queue offset whether the record that its unit leads to names it.

        Returns:
            how many were written anew.
        """
        start = max(first_offset, self.first_unit)
        skipped = (start - first_offset) * UNIT_SIZE
        there = self.read_units(start, (len(units) - skipped) // UNIT_SIZE)
        wanted = bytes(units[skipped : skipped + len(there)])
        if there == wanted:
            return 0
        mended = 0
        for at in range(0, len(there), UNIT_SIZE):
            old, new = there[at : at + UNIT_SIZE], wanted[at : at + UNIT_SIZE]
            number, record = start + at // UNIT_SIZE, UNIT_HEAD.unpack_from(new)[0]
            if not self._differ(old, new) or (old == FILLER and not is_good(record)):
                continue
            if UNIT_HEAD.unpack_from(old)[0] == record or not is_named(number):
                self._overwrite(number, new)
                mended += 1
        self._set_end(self.unit_end)
        return mended

    def blank_between(self, start_phy_offset: int, stop_phy_offset: int) -> int:
        """Put fillers in place of the units of a damaged stretch of the log; how many.

        Args:
            start_phy_offset: physical offset at which the stretch begins.
            stop_phy_offset: physical offset behind it; units of records from there on stay.

        Raises:
            OSError: the system refused; those before are replaced.
        """
        count = 0
        for number in range(self.first_at_or_above(start_phy_offset), self.unit_end):
            unit = self.unit(number)
            if unit is not None and unit != FILLER:
                if UNIT_HEAD.unpack_from(unit)[0] >= stop_phy_offset:
                    break
                self._overwrite(number, FILLER)
                count += 1
        return count

    def _differ(self, there: bytes, wanted: bytes) -> bool:
        if there[:_TAGS_CODE_AT] != wanted[:_TAGS_CODE_AT]:
            return True
        tags_code = int.from_bytes(there[_TAGS_CODE_AT:UNIT_SIZE], "big", signed=True)
        if self.topic == SCHEDULE_TOPIC:
            return False
        if self.ext is not None and tags_code < EXT_ADDRESS_BELOW:
            tags_code = self.ext.tags_code_at(tags_code) or 0
        return _TAGS_CODE.pack(tags_code) != wanted[_TAGS_CODE_AT:UNIT_SIZE]

    def delete_before(self, min_phy_offset: int) -> int:
        """Remove files all of whose messages are gone, the extension's too; how many went.

        Args:
            min_phy_offset: physical offset of the log's first record.

        Raises:
            OSError: a file could not be removed.
        """
        gone = super().delete_before(min_phy_offset)
        return gone if self.ext is None else gone + self.ext.delete_before(self._addresses())

    def _addresses(self) -> Iterator[int]:
        """The addresses of extension units that messages have, from the first message on."""
        for start in range(self.unit_start, self.unit_end, _UNITS_READ):
            for _, _, tags_code in UNIT.iter_unpack(self.units_from(start, _UNITS_READ)):
                if tags_code < EXT_ADDRESS_BELOW:
                    yield tags_code

    # ---- reading

    def read_units(self, offset: int, count: int) -> bytes:
        """Up to ``count`` units from ``offset``, fewer at the end of the queue.

        Args:
            offset: queue offset of the first one, which the queue has.
            count: units at most, of 20 bytes each.

        Raises:
            CorruptStoreError: a file has become shorter than it was.
        """
        return self.units_from(offset, count)

    def offset_after(self, offset: int, units: int) -> int:
        """Queue offset behind ``units`` units from the one that holds ``offset``.

        Args:
            offset: queue offset of any message of the first unit.
            units: how many to pass over; here each is one message.
        """
        return offset + units

    def with_tags_codes(self, units: bytes, tags_code_of: Callable[[int], int]) -> bytes:
        """The same units, addresses of the extension file replaced by the tags codes there.

        Args:
            units: 20 bytes each.
            tags_code_of: tells the tags code of the message at a physical offset, where the
                extension file has no unit.
        """
        if not units[_TAGS_CODE_AT::UNIT_SIZE].translate(None, _NO_ADDRESS):
            return units
        changed = bytearray(units)
        for at in range(0, len(units), UNIT_SIZE):
            phy_offset, _, address = UNIT.unpack_from(units, at)
            if address < EXT_ADDRESS_BELOW:
                tags_code = None if self.ext is None else self.ext.tags_code_at(address)
                if tags_code is None:
                    tags_code = tags_code_of(phy_offset)
                _TAGS_CODE.pack_into(changed, at + _TAGS_CODE_AT, tags_code)
        return bytes(changed)

    def unit_at(self, offset: int) -> tuple[int, int] | None:
        """(phy_offset, size) of a message; None outside the queue and for a filler."""
        if not self.min_offset <= offset < self.max_offset:
            return None
        unit = self.unit(offset)
        return None if unit is None or unit == FILLER else UNIT_HEAD.unpack_from(unit)
