"""`QueueRange`: a stretch of one queue, with what is needed to pull it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from rmqcore.client import MessageQueue
from rmqcore.scan.mark import Mark


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Messages of one queue of one broker; a plain value, which other processes may be sent.

    Attributes:
        queue: topic, broker name and queue id.
        addresses: of the broker: the master's, and those of its slaves.
        first: queue offset of the first message.
        stop: behind the last one.
        last: of the last message; None where it is not known. Messages behind it are another
            topic's, which was made with this name since; a piece has that of its whole.
    """

    queue: MessageQueue
    addresses: tuple[str, ...]
    first: int
    stop: int
    last: Mark | None = None

    @property
    def count(self) -> int:
        """How many offsets it has."""
        return max(0, self.stop - self.first)

    def __str__(self) -> str:
        topic, broker, queue_id = self.queue
        return f"{topic}/{broker}/{queue_id} from {self.first} to {self.stop}"

    def cut(self, size: int) -> Iterator[QueueRange]:
        """The same range in pieces of so many offsets."""
        for first in range(self.first, self.stop, max(1, size)):
            yield replace(self, first=first, stop=min(first + size, self.stop))


def cut_ranges(ranges: Iterable[QueueRange], size_max: int, least: int = 1) -> list[QueueRange]:
    """Ranges in pieces that may be read beside each other.

    Args:
        ranges: those that have no message are left out.
        size_max: offsets of a piece.
        least: pieces that there are, where there are so many messages.
    """
    ranges = [one for one in ranges if one.count]
    total = sum(one.count for one in ranges)
    size = min(size_max, -(-total // max(1, least))) if total else 1
    return [piece for one in ranges for piece in one.cut(size)]


def packed_ranges(ranges: Iterable[QueueRange], size_max: int) -> Iterator[tuple[QueueRange, ...]]:
    """Ranges that are read one after the other, because each alone has so little to read.

    Args:
        ranges: in any order; those of one broker come together.
        size_max: offsets of all that come together.
    """
    pack: list[QueueRange] = []
    for one in sorted(ranges, key=lambda one: (one.queue.broker_name, one.queue, one.first)):
        size = sum(each.count for each in pack) + one.count
        if pack and (size > size_max or pack[-1].queue.broker_name != one.queue.broker_name):
            yield tuple(pack)
            pack = []
        pack.append(one)
    if pack:
        yield tuple(pack)
