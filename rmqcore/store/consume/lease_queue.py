"""What one group has of one queue: what is leased, to whom and until when, and what is done with.

Only what is open takes memory: a message below `position` that is not in `open` is acknowledged.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Final

from rmqcore.files.lease_journal import Begun, Done, Entry, Leased, QueueNamed

_HOLDER_BITS: Final = 24
_TIMES_BITS: Final = 16
HOLDER_MAX: Final = (1 << _HOLDER_BITS) - 1
TIMES_MAX: Final = (1 << _TIMES_BITS) - 1


class LeaseQueue:
    """The state of one group's queue; only arithmetic, no store and no clock.

    Attributes:
        number: stands for the queue in the journal.
        group: whose it is.
        topic: of the queue.
        queue_id: its number in the topic.
        position: number of the first message that was never handed out.
        committed: what `ConsumerOffsetTable` was told last; None before that.
        committing: what it was about to be told last: an interrupt leaves open whether it was.
        gave_at: number of the lease that gave something of it last; 0 before that.
        free: messages that were handed out before and may be handed out again now.
    """

    __slots__ = (
        "_open",
        "_order",
        "_returned",
        "committed",
        "committing",
        "gave_at",
        "group",
        "number",
        "position",
        "queue_id",
        "topic",
    )

    def __init__(self, number: int, group: str, topic: str, queue_id: int) -> None:
        self.number = number
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.committed: int | None = None
        self.committing: int | None = None
        self.gave_at = 0
        self.begin(0)

    def begin(self, position: int) -> None:
        """Be done with all before an offset, and with nothing behind it."""
        self.position = position
        #: by offset: when its lease ends, how often it was handed out, who has it; in one number
        self._open: dict[int, int] = {}
        #: offsets in the order of their first lease; those that are done leave at the front
        self._order: deque[int] = deque()
        #: a heap of offsets that may be handed out again; some may be leased or done with since
        self._returned: list[int] = []

    # ---- questions

    def __len__(self) -> int:
        """Messages that are open: leased, or to be handed out again."""
        return len(self._open)

    @property
    def oldest(self) -> int:
        """Number of the first message that is not acknowledged."""
        while self._order and self._order[0] not in self._open:
            self._order.popleft()
        return self._order[0] if self._order else self.position

    @property
    def free(self) -> int:
        """Messages that may be handed out again now."""
        return len(self.free_offsets())

    def free_offsets(self) -> list[int]:
        """Offsets of the messages that may be handed out again now, in their order."""
        return sorted({each for each in self._returned if self._is_free(each)})

    def _is_free(self, offset: int) -> bool:
        return offset in self._open and self.due_ms(offset) == 0

    @property
    def is_untouched(self) -> bool:
        """Tell whether nothing was handed out since the queue was begun at its first message."""
        return not self._open and self.position == 0

    def is_open(self, offset: int) -> bool:
        """Tell whether a message was handed out and is not acknowledged."""
        return offset in self._open

    def is_held(self, offset: int, attempt: int) -> bool:
        """Tell whether somebody has a message under this attempt.

        Args:
            offset: queue offset.
            attempt: how often it was handed out before; 0 the first time.
        """
        value = self._open.get(offset)
        return value is not None and value & HOLDER_MAX > 0 and _times(value) == attempt + 1

    def is_leased(self, offset: int, times: int, due_ms: int) -> bool:
        """Tell whether one lease of a message still holds.

        Args:
            offset: queue offset.
            times: how often it was handed out, by that lease too.
            due_ms: when the lease ends, Unix time.
        """
        return self.is_held(offset, times - 1) and self.due_ms(offset) == due_ms

    def due_ms(self, offset: int) -> int:
        """When a message comes again, Unix time; 0 when it may at once, or is not open."""
        return self._open.get(offset, 0) >> _HOLDER_BITS + _TIMES_BITS

    def times(self, offset: int) -> int:
        """How often a message that is open was handed out."""
        return _times(self._open[offset])

    def holder(self, offset: int) -> int:
        """Number of who has a message that is open; 0 for nobody."""
        return self._open[offset] & HOLDER_MAX

    def who(self, offset: int) -> tuple[int, int]:
        """Number of who has a message that is open, and how often it was handed out."""
        return self.holder(offset), self.times(offset)

    def holders(self) -> set[int]:
        """Numbers of all who hold something."""
        return {value & HOLDER_MAX for value in self._open.values()} - {0}

    def held_by(self, holder: int) -> list[int]:
        """Offsets of what somebody holds."""
        return [offset for offset, value in self._open.items() if value & HOLDER_MAX == holder]

    # ---- changes

    def lease(self, offset: int, count: int, due_ms: int, holder: int, times: int) -> None:
        """Let messages that follow one another be leased, or given back with holder 0.

        A due time of 0 makes them ready at once. Those between `position` and the first are
        done with.

        Args:
            offset: queue offset of the first one.
            count: how many follow one another; 1 or more.
            due_ms: Unix milliseconds at which they come again when nobody acknowledges them.
            holder: number of who gets them, up to `HOLDER_MAX`; 0 for nobody.
            times: how often they were handed out, this time included; what is above `TIMES_MAX`
                counts as it.
        """
        value = due_ms << _TIMES_BITS | min(times, TIMES_MAX)
        value = value << _HOLDER_BITS | holder
        # a signal handler may raise between any two of these steps: an offset that is in `_order`
        # or `_returned` and not in `_open` is passed over
        for each in range(offset, offset + count):
            if each not in self._open:
                if each < self.position:
                    continue
                self._order.append(each)
            if due_ms == 0:
                heapq.heappush(self._returned, each)
            self._open[each] = value
        self.position = max(self.position, offset + count)

    def give_free(self, offset: int) -> None:
        """Let a message that is open be handed out again at once."""
        self.lease(offset, 1, 0, 0, self.times(offset))

    def take_back(self, position: int) -> None:
        """Let nothing count as handed out from an offset on, as before its first lease.

        Args:
            position: what `position` was then.
        """
        # in this order: a signal handler may raise between any two of these steps
        self.position = position
        for each in [each for each in self._open if each >= position]:
            self.done(each)
        while self._order and self._order[-1] >= position:
            self._order.pop()

    def done(self, offset: int) -> bool:
        """Be done with a message; False when it was not open."""
        return self._open.pop(offset, None) is not None

    def done_with(self, offset: int, count: int) -> None:
        """Be done with messages that follow one another, were they handed out or not.

        Args:
            offset: queue offset of the first one.
            count: how many follow one another.
        """
        span = range(offset, offset + count)
        for each in span if count <= len(self._open) else [n for n in self._open if n in span]:
            self.done(each)
        self.pass_over(offset + count)

    def done_before(self, offset: int) -> None:
        """Be done with all before an offset."""
        for each in [each for each in self._open if each < offset]:
            self.done(each)
        self.pass_over(offset)

    def pass_over(self, position: int) -> None:
        """Be done with what was never handed out before an offset."""
        self.position = max(self.position, position)

    def next_free(self) -> int | None:
        """The first message that may be handed out again; None when none may."""
        while self._returned:
            offset = self._returned[0]
            if self._is_free(offset):
                return offset
            heapq.heappop(self._returned)
        return None

    def fit(self, least: int, most: int) -> None:
        """Be done with what the queue no longer has, and with what it has not yet.

        Args:
            least: queue offset of the first message that the queue still has.
            most: queue offset behind its last message.
        """
        gone = [offset for offset in self._open if not least <= offset < most]
        for offset in gone:
            self.done(offset)
        if self.position > most:
            self._order = deque(offset for offset in self._order if offset < most)
        self.position = max(least, min(self.position, most))

    # ---- the journal

    def entries(self) -> Iterator[Entry]:
        """What says all this again."""
        yield QueueNamed(self.number, self.group, self.topic, self.queue_id)
        end = self.oldest
        yield Begun(self.number, end)
        # in the order of their offsets: replaying takes an offset that lies between two for done
        pairs = ((each, self._open[each]) for each in self._order if each in self._open)
        for offset, count, value in runs_of(pairs):
            due_ms = value >> _HOLDER_BITS + _TIMES_BITS
            yield Leased(self.number, offset, count, due_ms, value & HOLDER_MAX, _times(value))
            end = offset + count
        if end < self.position:
            yield Done(self.number, end, self.position - end)

    def timed(self) -> Iterator[tuple[int, int]]:
        """(offset, due time) of everything that comes again later."""
        for offset in self._open:
            due_ms = self.due_ms(offset)
            if due_ms:
                yield offset, due_ms


def runs_of(pairs: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """(first, count, value) of offsets that follow one another and have the same value."""
    first = count = last = -1
    for offset, value in pairs:
        if count > 0 and offset == first + count and value == last:
            count += 1
            continue
        if count > 0:
            yield first, count, last
        first, count, last = offset, 1, value
    if count > 0:
        yield first, count, last


def _times(value: int) -> int:
    return value >> _HOLDER_BITS & TIMES_MAX
