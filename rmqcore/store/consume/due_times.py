"""A table of the times at which leases end: 16 bytes for each, whatever their number."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator
from typing import Final

#: One slot covers two to the power of this many milliseconds.
_SLOT_BITS: Final = 4


class DueTimes:
    """Pairs (queue, offset) by the time at which they are looked at again.

    A signal handler may raise between any two steps: each of them leaves a table that can be used.

    A pair whose time changes is added once more; who looks at it knows which time holds.
    """

    def __init__(self) -> None:
        self._slots: dict[int, array[int]] = {}
        self._order: list[int] = []

    def add(self, due_ms: int, queue: int, offset: int) -> None:
        """Look at a message of a queue at a time, or a little later.

        Args:
            due_ms: Unix milliseconds; it is looked at up to 16 ms later.
            queue: number of the queue, as leases count them.
            offset: queue offset of the message.
        """
        number = due_ms >> _SLOT_BITS
        slot = self._slots.get(number)
        if slot is None:
            # a time without a slot is passed over, a slot without its time would never be looked at
            heapq.heappush(self._order, number)
            slot = self._slots[number] = array("q")
        slot.extend((queue, offset))

    def next_ms(self) -> int | None:
        """When to call `until` next, Unix milliseconds; None when there is nothing to wait for."""
        return (self._order[0] + 1) << _SLOT_BITS if self._order else None

    def until(self, now_ms: int) -> Iterator[tuple[int, int]]:
        """Take out the pairs (queue, offset) whose time has come.

        A slot goes when all of it was looked at: who is interrupted begins anew with it.
        """
        while self._order and (self._order[0] + 1) << _SLOT_BITS <= now_ms:
            number = self._order[0]
            pairs = iter(self._slots.get(number, ()))
            yield from zip(pairs, pairs, strict=True)
            self._slots.pop(number, None)
            heapq.heappop(self._order)
