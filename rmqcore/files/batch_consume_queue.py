"""The consume queue of a BatchCQ topic: one unit for each stored batch of messages."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rmqcore._codec import LAYOUT
from rmqcore.errors import CorruptConsumeQueueError
from rmqcore.files.consume_queue import ConsumeQueue
from rmqcore.files.unit_file import UNIT_HEAD, UnitFile
from rmqcore.native.format._numbers import BATCH_UNIT_SIZE, UNIT_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

_BASE_AND_COUNT = struct.Struct(">qh")
_BASE_AT = LAYOUT["batch_consume_queue_unit"]["base_offset"][0]


class BatchConsumeQueue(UnitFile):
    """Units of 46 bytes that name the offset of their first message and how many they hold.

    - Files are numbered by bytes of units, queue offsets by messages: a unit is found by binary
      search over its base offset.

    Layout: docs/format/consume-queue.md, "Batch unit".
    Source: RocketMQ store/queue/BatchConsumeQueue.java.
    """

    unit_size = BATCH_UNIT_SIZE
    #: the next message gets this queue offset or a greater one
    _end_least = 0

    def _show(self) -> None:
        # units that no reader is shown count, too: the next queue offset follows from the last one
        end = sum(self._base(self.unit_end - 1)) if self.unit_end > self.first_unit else 0
        end = max(end, self._end_least)
        self.min_offset = self._base(self.unit_start)[0] if self.unit_start < self.unit_end else end
        self.max_offset = end
        if not self.queue.writable:
            # another process's files are not compared with the log: the ends have to be true
            self._check(self.units_from(self.unit_start, 2))
            self._check(self.units_from(max(self.unit_start, self.unit_end - 2), 2))

    def _check(self, units: bytes) -> None:
        """Raise when units do not follow one another: a search would pass over batches.

        Args:
            units: 46 bytes each, one behind the other.

        Raises:
            CorruptConsumeQueueError: one holds no message, or begins before the one in front ends.
        """
        before = 0
        for at in range(0, len(units), BATCH_UNIT_SIZE):
            base, count = _BASE_AND_COUNT.unpack_from(units, at + _BASE_AT)
            phy_offset, size = UNIT_HEAD.unpack_from(units, at)
            if size <= 0 or count <= 0 or base < before:
                raise CorruptConsumeQueueError(
                    self.queue.directory,
                    -1,
                    f"queue {self.topic}/{self.queue_id}: the unit of the batch at {phy_offset} "
                    f"says {count} messages from queue offset {base} on, {size} bytes, behind one "
                    f"that ends at {before}; open the store for writing, which derives it again "
                    "from the log",
                )
            before = base + count

    def _base(self, number: int) -> tuple[int, int]:
        """(queue offset of its first message, how many it holds) of a unit."""
        unit = self.unit(number)
        return (0, 0) if unit is None else _BASE_AND_COUNT.unpack_from(unit, _BASE_AT)

    @property
    def first_unit_offset(self) -> int:
        """Queue offset of the first message in the files, hidden or not."""
        return self._base(self.first_unit)[0]

    def append_batches(self, units: bytes) -> None:
        """Append units in log order; those of records that the queue has already are left out.

        Args:
            units: 46 bytes each.

        Raises:
            DiskFullError: no room.
        """
        start = 0
        while start < len(units) and UNIT_HEAD.unpack_from(units, start)[0] < self.end_phy_offset:
            start += BATCH_UNIT_SIZE
        if start == len(units):
            return
        last = len(units) - BATCH_UNIT_SIZE
        self.write(self.unit_end, memoryview(units)[start:])
        if self.unit_start == self.unit_end:
            self.min_offset = _BASE_AND_COUNT.unpack_from(units, start + _BASE_AT)[0]
        unit_end = self.unit_end + (len(units) - start) // BATCH_UNIT_SIZE
        end_phy_offset = sum(UNIT_HEAD.unpack_from(units, last))
        max_offset = sum(_BASE_AND_COUNT.unpack_from(units, last + _BASE_AT))
        # one statement without a call, in which no signal handler can raise: or the units would
        # come twice
        self.unit_end, self.end_phy_offset, self.max_offset = unit_end, end_phy_offset, max_offset

    def end_at(self, offset: int) -> None:
        """Set the next queue offset; it gets to the disk with the next batch only."""
        self._end_least = offset
        self._show()

    def blank_between(self, start_phy_offset: int, stop_phy_offset: int) -> int:
        """As `ConsumeQueue.blank_between`, but nothing: a reader finds out that a batch is gone."""
        return 0

    # ---- reading

    def _unit_of(self, offset: int) -> int:
        """Number of the unit that holds a message."""
        low, high = self.unit_start, self.unit_end
        while low < high:
            middle = (low + high) // 2
            if sum(self._base(middle)) <= offset:
                low = middle + 1
            else:
                high = middle
        return low

    def read_units(self, offset: int, count: int) -> bytes:
        """The 20-byte heads of up to ``count`` units, from the one that holds ``offset`` on.

        Args:
            offset: queue offset of any message of the first batch.
            count: batches at most; fewer at the end of the queue.

        Raises:
            CorruptStoreError: a file has become shorter than it was, or units do not follow one
                another.
        """
        number = self._unit_of(offset)
        # of a wrong unit the search finds the one in front, itself, or the one behind; the next
        # read begins where the first one behind these says
        before = max(0, min(2, number - self.unit_start))
        units = self.units_from(number - before, before + count + 2)
        self._check(units)
        if number < self.unit_end and self._base(number)[0] > offset:
            # a hole is what a repair of the log leaves, or wrong units have misled the search
            self._check(self.units_from(self.unit_start, self.unit_end - self.unit_start))
        units = units[before * BATCH_UNIT_SIZE : (before + count) * BATCH_UNIT_SIZE]
        return b"".join(units[at : at + UNIT_SIZE] for at in range(0, len(units), BATCH_UNIT_SIZE))

    def offset_after(self, offset: int, units: int) -> int:
        """Queue offset behind ``units`` units from the one that holds ``offset``.

        Args:
            offset: queue offset of any message of the first batch.
            units: batches to pass over; beyond the last one is the queue's end.

        Raises:
            CorruptStoreError: a file has become shorter than it was.
        """
        number = self._unit_of(offset) + units
        return self._base(number)[0] if number < self.unit_end else self.max_offset

    def with_tags_codes(self, units: bytes, _: Callable[[int], int]) -> bytes:
        """The units as they are: batches have no extension file."""
        return units

    def unit_at(self, offset: int) -> tuple[int, int] | None:
        """(phy_offset, size) of the batch that holds a message."""
        if not self.min_offset <= offset < self.max_offset:
            return None
        unit = self.unit(self._unit_of(offset))
        return None if unit is None else UNIT_HEAD.unpack_from(unit)

    def has_batch(self, offset: int, count: str, phy_offset: int) -> bool:
        """Tell whether the queue has a batch where its record says.

        Args:
            offset: queue offset of its first message.
            count: how many messages it holds, as its record says; compared where it is a number.
            phy_offset: of its record.
        """
        number = self._unit_of(offset)
        first, held = self._base(number)
        unit = self.unit(number) or bytes(BATCH_UNIT_SIZE)
        known = count.isascii() and count.isdigit() and len(count) < 10
        there = UNIT_HEAD.unpack_from(unit)[0], first, held
        return there == (phy_offset, offset, int(count) if known else held)


#: a consume queue of either kind
StoredQueue = ConsumeQueue | BatchConsumeQueue
