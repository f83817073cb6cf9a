"""The consume queue of a BatchCQ topic: one unit for each stored batch of messages."""

from __future__ import annotations

import struct

from rmqcore.files.consume_queue import UNIT_SIZE, ConsumeQueue

BATCH_UNIT_SIZE = 46
_HEAD = struct.Struct(">qi")
_BASE_AND_COUNT = struct.Struct(">qh")
_BASE_AT = 28


class BatchConsumeQueue(ConsumeQueue):
    """Units of 46 bytes that name the offset of their first message and how many they hold.

    - Files are numbered by bytes of units, queue offsets by messages: a unit is found by binary
      search over its base offset.

    Layout: docs/format/consume-queue.md, "Batch unit".
    Source: RocketMQ store/queue/BatchConsumeQueue.java.
    """

    unit_size = BATCH_UNIT_SIZE

    def load(self) -> None:
        """Take in the files; offsets become those of messages."""
        super().load()
        self._unit_end = self.max_offset
        self._unit_start = self.min_offset
        self._count_messages()

    def follow(self) -> None:
        """Take in what another process has written meanwhile."""
        self.min_offset, self.max_offset = self._unit_start, self._unit_end
        super().follow()
        self._unit_start, self._unit_end = self.min_offset, self.max_offset
        self._count_messages()

    @property
    def first_unit_offset(self) -> int:
        """Offset of the first message in the files."""
        return self._base(self.queue.min_offset // self.unit_size)[0]

    def _count_messages(self) -> None:
        first = last = (0, 0)
        if self._unit_end > self._unit_start:
            first, last = self._base(self._unit_start), self._base(self._unit_end - 1)
        self.min_offset, self.max_offset = first[0], sum(last)

    def _base(self, unit: int) -> tuple[int, int]:
        data = self._read_unit(unit)
        return (0, 0) if data is None else _BASE_AND_COUNT.unpack_from(data, _BASE_AT)

    def append_batches(self, units: bytes) -> None:
        """Append units in log order; those of records that the queue has already are left out.

        Args:
            units: 46 bytes each.

        Raises:
            DiskFullError: no room.
        """
        start = 0
        while start < len(units) and _HEAD.unpack_from(units, start)[0] < self.end_phy_offset:
            start += BATCH_UNIT_SIZE
        if start == len(units):
            return
        if not self.queue.files:
            self.queue.append_file(0)
            self._unit_start = self._unit_end = 0
            self.min_offset = _BASE_AND_COUNT.unpack_from(units, _BASE_AT)[0]
        last = len(units) - BATCH_UNIT_SIZE
        self._write(self._unit_end * BATCH_UNIT_SIZE, memoryview(units)[start:])
        self._unit_end += (len(units) - start) // BATCH_UNIT_SIZE
        self.end_phy_offset = sum(_HEAD.unpack_from(units, last))
        self.max_offset = sum(_BASE_AND_COUNT.unpack_from(units, last + _BASE_AT))

    def blank_between(self, start_phy_offset: int, stop_phy_offset: int) -> int:
        """Nothing: a batch that is gone is known by its record."""
        return 0

    def _unit_of(self, offset: int) -> int:
        """Number of the unit that holds a message."""
        low, high = self._unit_start, self._unit_end
        while low < high:
            middle = (low + high) // 2
            base, count = self._base(middle)
            if base + count <= offset:
                low = middle + 1
            else:
                high = middle
        return low

    def read_units(self, offset: int, count: int) -> bytes:
        """The 20-byte heads of up to ``count`` units, from the one that holds ``offset`` on."""
        units: list[bytes] = []
        number = self._unit_of(offset)
        while number < self._unit_end and len(units) < count:
            data = self._read_unit(number)
            if data is None:
                break
            units.append(data[:UNIT_SIZE])
            number += 1
        return b"".join(units)

    def offset_after(self, offset: int, units: int) -> int:
        """Queue offset behind ``units`` units from the one that holds ``offset``."""
        number = self._unit_of(offset) + units
        return self._base(number)[0] if number < self._unit_end else self.max_offset

    def unit_at(self, offset: int) -> tuple[int, int] | None:
        """(phy_offset, size) of the batch that holds a message."""
        units = self.read_units(offset, 1) if self.min_offset <= offset < self.max_offset else b""
        return struct.unpack_from(">qi", units) if units else None

    def correct_min_offset(self, min_phy_offset: int) -> None:
        """Hide the batches that the log no longer has."""
        while self._unit_start < self._unit_end:
            data = self._read_unit(self._unit_start)
            if data is None or struct.unpack_from(">q", data)[0] >= min_phy_offset:
                break
            self._unit_start += 1
        self._count_messages()

    def delete_before(self, min_phy_offset: int) -> int:
        """Remove files all of whose batches are gone, never the last; how many went."""
        self.correct_min_offset(min_phy_offset)
        at = self._unit_start * self.unit_size
        gone = sum(1 for file in self.queue.files[:-1] if file.file_from_offset + file.size <= at)
        self.queue.remove_first(gone)
        return gone

    def truncate(self, end_phy_offset: int) -> int:
        """Drop the batches that do not end at or before ``end_phy_offset``."""
        before = self._unit_end
        while self._unit_end > self._unit_start:
            data = self._read_unit(self._unit_end - 1)
            if data is not None:
                phy_offset, size = struct.unpack_from(">qi", data)
                if phy_offset + size <= end_phy_offset:
                    break
            self._unit_end -= 1
        self.queue.truncate(self._unit_end * self.unit_size)
        self.end_phy_offset = min(self.end_phy_offset, end_phy_offset)
        self._count_messages()
        return before - self._unit_end
