"""Compares the units of batch consume queues with the log, while recovery walks it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from rmqcore.errors import CorruptConsumeQueueError
from rmqcore.native.format._numbers import BATCH_UNIT_SIZE

if TYPE_CHECKING:
    from rmqcore.files.batch_consume_queue import BatchConsumeQueue

#: physical offset, size, tags code, store time, queue offset of the first message, how many; what
#: follows is RocketMQ's compaction's
_UNIT = struct.Struct(">qiqqqh")


class _Unit(NamedTuple):
    phy_offset: int
    size: int
    tags_code: int
    store_timestamp_ms: int
    first: int
    message_count: int

    @classmethod
    def read(cls, units: bytes, at: int = 0) -> _Unit:
        return cls._make(_UNIT.unpack_from(units, at))

    @property
    def end(self) -> int:
        return self.first + self.message_count


class BatchCheck:
    """Finds the first unit of each queue that is not what the log says, stretch by stretch."""

    def __init__(self) -> None:
        #: by (topic, queue id): number of the unit that the next record of it has
        self._next: dict[tuple[str, int], int] = {}

    def next_unit(self, queue: BatchConsumeQueue, wanted: bytes) -> int:
        """Number of the unit with which a comparison goes on.

        Args:
            queue: whose units are compared.
            wanted: as of `first_wrong`.
        """
        number = self._next.get((queue.topic, queue.queue_id))
        if number is None:
            number = queue.first_at_or_above(_Unit.read(wanted).phy_offset)
        return number

    def first_wrong(self, queue: BatchConsumeQueue, wanted: bytes) -> int | None:
        """Number of the first unit that is there and wrong; None when all that are there are right.

        Args:
            queue: whose units are compared.
            wanted: its next units, of 46 bytes each, as they are derived from the log.

        Raises:
            CorruptConsumeQueueError: the place that a record names is not the one that its queue
                has it at, beside batches that agree with that.
        """
        number = self.next_unit(queue, wanted)
        there = queue.units_from(number, len(wanted) // BATCH_UNIT_SIZE)
        self._next[queue.topic, queue.queue_id] = number + len(wanted) // BATCH_UNIT_SIZE
        for at in range(0, len(there), BATCH_UNIT_SIZE):
            old, new = _Unit.read(there, at), _Unit.read(wanted, at)
            place = number + at // BATCH_UNIT_SIZE
            if old == new:
                continue
            if old.phy_offset == new.phy_offset:
                # records that agree with each other come together: these are the queue's own
                before = queue.units_from(place - 1, 1) if place > queue.unit_start else b""
                if _is_of_queue(old, new, before, queue.units_from(place + 1, 1)):
                    raise _wrong_place(queue, old, new)
            return place
        return None

    def forget(self, key: tuple[str, int]) -> None:
        """Compare a queue from its next record on: it has been begun anew.

        Args:
            key: (topic, queue id).
        """
        self._next.pop(key, None)


def _is_of_queue(old: _Unit, new: _Unit, before: bytes, behind: bytes) -> bool:
    """Tell whether the batches beside a record agree with its unit, and not with the record.

    Args:
        old: its unit.
        new: the unit that the record asks for.
        before: the unit in front of it, empty without one.
        behind: the unit behind it, empty without one.
    """
    beside = [(_Unit.read(unit).end, old.first, new.first) for unit in (before,) if unit]
    beside += [(_Unit.read(unit).first, old.end, new.end) for unit in (behind,) if unit]
    by_unit = [met == mine for met, mine, _ in beside]
    by_record = [met == named for met, _, named in beside]
    return bool(beside) and all(by_unit) and not all(by_record)


def _wrong_place(queue: BatchConsumeQueue, old: _Unit, new: _Unit) -> CorruptConsumeQueueError:
    return CorruptConsumeQueueError(
        queue.queue.directory,
        -1,
        f"the batch at {new.phy_offset} says that its queue offset is {new.first}; the queue has "
        f"it at {old.first}, beside batches that agree with that; rmqcore doctor plan STORE says "
        "what a repair does",
    )
