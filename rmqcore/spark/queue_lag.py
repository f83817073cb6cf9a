"""How many messages lie behind a stream, by queue, from one report of its progress to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

QueueKey = tuple[str, int]
Counts = Counter[QueueKey]

#: To ask a consume queue where its rows are takes as long as to walk over so many bytes of the log.
WALKED_A_QUEUE: Final = 16 << 10
#: A writer dispatches so many bytes of the log together, to one queue after the other: of them
#: some queues know their messages already, and some do not.
_DISPATCHED_AT_ONCE: Final = 64 << 20


class QueueLag:
    """Counts what lies between two physical offsets of a log.

    Thousands of queues are not asked for each report: what a report has counted is kept, and
    what has been read, or has come, since then is counted in the log.

    Args:
        walked: the counts between two offsets where records begin, by a look at each record.
        asked: those between any two offsets, as consume queues know them.
        cut: where a record begins, so many bytes behind an offset, and not behind another.
    """

    def __init__(
        self,
        walked: Callable[[int, int], Counts],
        asked: Callable[[int, int], Counts],
        cut: Callable[[int, int, int], int],
    ) -> None:
        self._walked = walked
        self._asked = asked
        self._cut = cut
        self._low = self._high = 0
        self._counts: Counts = Counter()
        self._seen: object = None

    def between(
        self, low: int, high: int, known_end: int, queue_count: int, seen: object = None
    ) -> Counts:
        """The counts between two offsets where records begin; only queues that have some.

        Args:
            low: the first offset; not in front of that of the call before.
            high: the end; not in front of that of the call before.
            known_end: up to here consume queues know the log.
            queue_count: how many there are.
            seen: differs when topics have come or gone, so that what was counted of one may be no
                message any more.
        """
        walk_max = queue_count * WALKED_A_QUEUE
        if walk_max < _DISPATCHED_AT_ONCE:
            return self._asked(low, high)
        changed = low - self._low + high - self._high
        goes_on = self._low <= low <= self._high <= high and changed <= walk_max
        goes_on = goes_on and seen == self._seen
        if high - low <= (min(changed, walk_max) if goes_on else walk_max):
            self._counts = self._walked(low, high)
        elif goes_on:
            self._counts = self._counts + self._walked(self._high, high)
            self._counts -= self._walked(self._low, low)
        else:
            sure = known_end - _DISPATCHED_AT_ONCE - low
            near = self._cut(low, sure, high) if sure > 0 else low
            if not low < near <= known_end:
                # not kept: what they do not know yet would be missing from then on
                return self._asked(low, high)
            self._counts = self._asked(low, near) + self._walked(near, high)
        self._low, self._high, self._seen = low, high, seen
        return self._counts
