"""Traffic counters: messages and bytes in and out by topic.

They only grow; of a topic and a group that were counted long ago they may begin anew.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

NORMAL: Final = "normal"
FIFO: Final = "fifo"
DELAY: Final = "delay"
TRANSACTION: Final = "transaction"
PRIORITY: Final = "priority"
KINDS: Final = (NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY)

#: A message is counted in the first bucket whose bound, in bytes, it does not exceed; or the last.
SIZE_BOUNDS: Final = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)


#: So many pairs of a topic and a group are counted, those that were counted last: clients make them
#: up, and each has its rates.
PAIRS_COUNTED_MAX: Final = 20_000


@dataclass(slots=True)
class StoredCounts:
    """What was stored of one topic and one type of message."""

    messages: int = 0
    size: int = 0
    calls: int = 0
    #: messages by their size, see `SIZE_BOUNDS`.
    by_size: list[int] = field(default_factory=lambda: [0] * (len(SIZE_BOUNDS) + 1))


@dataclass(slots=True)
class FetchedCounts:
    """What one group has got of one topic."""

    messages: int = 0
    size: int = 0
    calls: int = 0


class Traffic:
    """Counts of one broker since it was started.

    Attributes:
        stored: by (topic, type of message).
        fetched: by (topic, group), at most `PAIRS_COUNTED_MAX`.
        dead: dead letters by (topic, group), as many.

    Source: BrokerMetricsManager.
    """

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str], StoredCounts] = {}
        self.fetched: OrderedDict[tuple[str, str], FetchedCounts] = OrderedDict()
        self.dead: OrderedDict[tuple[str, str], int] = OrderedDict()
        #: of the pairs that are not counted any more
        self._former = FetchedCounts()

    @property
    def all_fetched(self) -> FetchedCounts:
        """What all groups have got of all topics; may be called on any thread."""
        counts = [self._former, *list(self.fetched.values())]
        return FetchedCounts(
            sum(each.messages for each in counts),
            sum(each.size for each in counts),
            sum(each.calls for each in counts),
        )

    def add_stored(self, topic: str, kind: str, messages: int, size: int) -> None:
        """Count what a send has stored.

        Args:
            topic: by name; each one has counts of its own until the broker ends.
            kind: one of `KINDS`.
            messages: how many; 1 or more.
            size: bytes of all of them.
        """
        counts = self.stored.get((topic, kind))
        if counts is None:
            counts = self.stored[topic, kind] = StoredCounts()
        counts.calls += 1
        counts.messages += messages
        counts.size += size
        each, bucket = size // messages, 0
        while bucket < len(SIZE_BOUNDS) and each > SIZE_BOUNDS[bucket]:
            bucket += 1
        counts.by_size[bucket] += messages

    def add_fetched(self, topic: str, group: str, messages: int, size: int) -> None:
        """Count what a pull was answered with.

        Args:
            topic: by name; each pair has counts of its own.
            group: by name.
            messages: how many.
            size: bytes of all of them.
        """
        counts = self.fetched.get((topic, group))
        if counts is None:
            if len(self.fetched) >= PAIRS_COUNTED_MAX:
                self._former = self._with_former(self.fetched.popitem(last=False)[1])
            counts = self.fetched[topic, group] = FetchedCounts()
        else:
            self.fetched.move_to_end((topic, group))
        counts.calls += 1
        counts.messages += messages
        counts.size += size

    def _with_former(self, counts: FetchedCounts) -> FetchedCounts:
        former = self._former
        return FetchedCounts(
            former.messages + counts.messages,
            former.size + counts.size,
            former.calls + counts.calls,
        )

    def add_dead(self, topic: str, group: str) -> None:
        """Count a message that was tried often enough.

        Args:
            topic: that it was sent to.
            group: that could not consume it.
        """
        self.dead[topic, group] = self.dead.pop((topic, group), 0) + 1
        if len(self.dead) > PAIRS_COUNTED_MAX:
            self.dead.popitem(last=False)
