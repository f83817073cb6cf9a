"""How far groups are behind: in messages, and in time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rmqcore.errors import CorruptStoreError, MessageIllegalError
from rmqcore.message import RETRY_PREFIX
from rmqcore.web.kept import Kept
from rmqcore.web.source import Source, bounds

#: The lags of all groups are looked up again after this long, no sooner.
_KNOWN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """How far a group is in one queue.

    Attributes:
        topic, queue_id: of the queue.
        low, high: numbers of its oldest message and behind its newest.
        offset: the next message that the group wants; None: it has committed nothing.
        behind: messages before it.
    """

    topic: str
    queue_id: int
    low: int
    high: int
    offset: int | None
    behind: int


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is in all that it consumes.

    Attributes:
        group: its name.
        topics: how many it has committed offsets of.
        behind: messages before it, retries included.
    """

    group: str
    topics: int
    behind: int


def progress(source: Source, topic: str, group: str) -> list[QueuePosition]:
    """How far a group is in a topic, queue by queue.

    Args:
        source: where both are.
        topic: which.
        group: whose.
    """
    store, offsets = source.store, source.offsets.queues(topic, group)
    rows = []
    for queue_id in sorted({*offsets, *source.queues().get(topic, ())}):
        low, high = bounds(store, topic, queue_id)
        offset = offsets.get(queue_id)
        behind = 0 if offset is None else max(0, high - max(offset, low))
        rows.append(QueuePosition(topic, queue_id, low, high, offset, behind))
    return rows


def waits_ms(source: Source, row: QueuePosition) -> int | None:
    """For how long the oldest message has been there that a group has before it in a queue.

    Args:
        source: of the store.
        row: how far a group is in the queue.

    Returns:
        milliseconds; None when there is none, or it cannot be read.
    """
    if not row.behind or row.offset is None:
        return None
    at = max(row.offset, row.low)
    try:
        found = source.store.get_message(row.topic, row.queue_id, at, max_messages=1).messages
    except CorruptStoreError:
        return None
    return max(0, source.now_ms() - found[0].store_timestamp_ms) if found else None


def longest_ms(source: Source, rows: Iterable[QueuePosition]) -> int | None:
    """The longest of `waits_ms` of some queues; None when there is nothing before the group.

    Args:
        source: of the store.
        rows: how far groups are in queues.

    Returns:
        milliseconds.
    """
    found = (waits_ms(source, row) for row in rows)
    return max((each for each in found if each is not None), default=None)


class AllLags:
    """The lags of all groups in messages, as of a moment ago.

    Args:
        source: where they are.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._kept = Kept(self._look, _KNOWN_S)

    def get(self) -> dict[str, GroupLag]:
        """By group; a group that has committed nothing is not there."""
        return self._kept.get()

    def _look(self) -> dict[str, GroupLag]:
        topics: dict[str, int] = {}
        behind: dict[str, int] = {}
        ends: dict[tuple[str, int], tuple[int, int]] = {}
        store, table = self._source.store, self._source.offsets
        for topic, group in table.pairs():
            topics[group] = topics.get(group, 0) + (not topic.startswith(RETRY_PREFIX))
            for queue_id, offset in table.queues(topic, group).items():
                place = topic, queue_id
                if place not in ends:
                    try:
                        ends[place] = bounds(store, *place)
                    except MessageIllegalError:
                        ends[place] = 0, 0
                low, high = ends[place]
                behind[group] = behind.get(group, 0) + max(0, high - max(offset, low))
        return {name: GroupLag(name, topics[name], behind.get(name, 0)) for name in topics}
