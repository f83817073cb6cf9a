"""Which queue a message goes to: its group's, or the next one.

The same group goes to the same queue as with Apache's proxy, while the number of queues stays.

Source: RocketMQ proxy/grpc/v2/producer/SendMessageActivity.java, SendMessageQueueSelector; Guava
Hashing.java, consistentHash; java.lang.String, hashCode.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

from rmqcore.proxy.cluster import BrokerQueues

_Place = TypeVar("_Place", bound=Sequence[Any])
_Answer = TypeVar("_Answer")
_MULTIPLIER: Final = 2_862_933_555_777_941_757
_MASK: Final = 2**64 - 1
_TOPICS_MAX: Final = 10_000
#: A broker that has not answered in this time is taken to be slow, for some seconds more.
_SLOW_S: Final = 1.0
_SLOW_FOR_S: Final = 10.0


class QueueChoice:
    """Chooses queues; the next one topic by topic."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def place(
        self,
        topic: str,
        places: Sequence[_Place],
        key: str | None,
        slow: Collection[str] = (),
    ) -> _Place:
        """One of a topic's places.

        Args:
            topic: its name.
            places: one or more.
            key: what has the same goes to the same; None takes the next one.
            slow: names of brokers, not all, that are passed over where no key says which one.
        """
        if key is not None:
            return places[consistent_hash(java_hash(key), len(places))]
        turn = self._turns.get(topic, 0)
        if len(self._turns) >= _TOPICS_MAX:
            self._turns.clear()
        if slow:
            turns = range(turn, turn + len(places))
            turn = next((t for t in turns if places[t % len(places)][0] not in slow), turn)
        self._turns[topic] = turn + 1
        return places[turn % len(places)]


class SlowBrokers:
    """Brokers that take long to answer, or do not answer, while others may do.

    Args:
        monotonic_s: seconds of a clock that never steps back.
    """

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        #: by broker, when each send was begun that it has still to answer, the oldest first
        self._asked: dict[str, dict[object, float]] = {}
        #: by broker, until when it is taken to be slow
        self._until_s: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._asked or self._until_s)

    async def answer_of(self, broker_name: str, answer: Awaitable[_Answer]) -> _Answer:
        """Wait for an answer, and note how long that takes.

        Args:
            broker_name: who answers.
            answer: is waited for.
        """
        this, began_s = object(), self._monotonic_s()
        self._asked.setdefault(broker_name, {})[this] = began_s
        try:
            return await answer
        finally:
            asked = self._asked[broker_name]
            del asked[this]
            if not asked:
                del self._asked[broker_name]
            now_s = self._monotonic_s()
            if now_s - began_s >= _SLOW_S:
                self._until_s[broker_name] = now_s + _SLOW_FOR_S
            else:
                self._until_s.pop(broker_name, None)

    def among(self, brokers: Sequence[BrokerQueues]) -> Collection[str]:
        """The names of those among brokers; none where all that can be written to are."""
        now_s = self._monotonic_s()
        names = {each.broker_name for each in brokers if each.writable}
        slow = {name for name in names if self._is_slow(name, now_s)}
        return slow if slow != names else ()

    def _is_slow(self, broker_name: str, now_s: float) -> bool:
        oldest_s = next(iter(self._asked.get(broker_name, {}).values()), now_s)
        return now_s - oldest_s >= _SLOW_S or now_s < self._until_s.get(broker_name, now_s)


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
