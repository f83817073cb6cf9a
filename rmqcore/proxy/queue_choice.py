"""Which queue a message goes to: its group's, or the next one.

The same group goes to the same queue as with Apache's proxy, while the number of queues stays.

Source: RocketMQ proxy/grpc/v2/producer/SendMessageActivity.java, SendMessageQueueSelector; Guava
Hashing.java, consistentHash; java.lang.String, hashCode.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, TypeVar

_Place = TypeVar("_Place")
_MULTIPLIER: Final = 2_862_933_555_777_941_757
_MASK: Final = 2**64 - 1
_TOPICS_MAX: Final = 10_000


class QueueChoice:
    """Chooses queues; the next one topic by topic."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def place(self, topic: str, places: Sequence[_Place], key: str | None) -> _Place:
        """One of a topic's places.

        Args:
            topic: its name.
            places: one or more.
            key: what has the same goes to the same; None takes the next one.
        """
        if key is not None:
            return places[consistent_hash(java_hash(key), len(places))]
        turn = self._turns.get(topic, 0)
        if len(self._turns) >= _TOPICS_MAX:
            self._turns.clear()
        self._turns[topic] = turn + 1
        return places[turn % len(places)]


@lru_cache(maxsize=4096)
def java_hash(text: str) -> int:
    """Java's hash of a text, a signed number of 32 bits."""
    raw = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack("<H", raw):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


@lru_cache(maxsize=4096)
def consistent_hash(number: int, count: int) -> int:
    """One of this many buckets, of which few change when there is one more.

    Args:
        number: a hash; its lowest 64 bits count.
        count: of buckets, 1 or more.

    Returns:
        0 to ``count - 1``.
    """
    state, candidate = number & _MASK, 0
    while True:
        state = (_MULTIPLIER * state + 1) & _MASK
        following = int((candidate + 1) / (((state >> 33) + 1) / 2.0**31))
        if following >= count:
            return candidate
        candidate = following
