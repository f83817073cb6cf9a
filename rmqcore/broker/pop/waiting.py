"""POPs that found nothing and wait: for a message of their topic, or for one that comes again.

Source: RocketMQ broker/longpolling/PopLongPollingService.java.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from rmqcore.broker.pop.receipts import retry_topic_of
from rmqcore.broker.pull.hold import HeldTexts, Wakes
from rmqcore.remoting import Connection

#: any queue of a topic
ANY_QUEUE: Final = -1
#: a client that asks for more is answered earlier; RocketMQ's ask for 15 s, its proxy for 20 s
HOLD_S_MAX: Final = 60.0
_OF_ONE_KEY_MAX: Final = 1024
_OF_ONE_CONNECTION_MAX: Final = 10_000
_MAX: Final = 100_000

#: topic, group, queue id or `ANY_QUEUE`
HoldKey: TypeAlias = tuple[str, str, int]


@dataclass(slots=True, eq=False)
class HeldPop:
    """One request that waits.

    Attributes:
        connection: who asks; a request goes with its connection.
        key: what it waits for.
        wake: answers it, or holds it again; called once, on the event loop, with whether something
            has come.
        text_size: characters of what it keeps.
    """

    connection: Connection
    key: HoldKey
    wake: Callable[[bool], None]
    text_size: int = 0
    timer: asyncio.TimerHandle | None = field(default=None)


class PopHold:
    """The POPs that wait. One of them is woken for each message, that which waits longest."""

    def __init__(self) -> None:
        self._held: dict[HoldKey, dict[HeldPop, None]] = {}
        self._of: dict[Connection, dict[HeldPop, None]] = {}
        #: by topic, and by retry topic: the keys that an arrival there concerns
        self._keys: dict[str, dict[HoldKey, None]] = {}
        self._texts = HeldTexts()
        self._wakes = Wakes[HoldKey](self._wake_first)
        self._count = 0
        self._released = False

    def __len__(self) -> int:
        return self._count

    def waiting(self, key: HoldKey) -> int:
        """How many wait for exactly this."""
        return len(self._held.get(key, ()))

    def hold(self, pop: HeldPop, timeout_s: float, again_s: float | None = None) -> bool:
        """Let a request wait for an arrival, or for its time to end; False: none may wait now.

        Args:
            pop: the request.
            timeout_s: for how long it may wait, seconds.
            again_s: when it is woken whatever arrives; None for never.
        """
        held, of = self._held.get(pop.key, {}), self._of.get(pop.connection, {})
        if (
            self._released
            or len(held) >= _OF_ONE_KEY_MAX
            or len(of) >= _OF_ONE_CONNECTION_MAX
            or not self._texts.have_room(pop.connection, pop.text_size)
            or not self._has_room(len(of))
        ):
            return False
        if not held:
            self._held[pop.key] = held
            topic, group, _ = pop.key
            for each in {topic, retry_topic_of(group, topic)}:
                self._keys.setdefault(each, {})[pop.key] = None
        held[pop] = None
        self._of.setdefault(pop.connection, {})[pop] = None
        self._count += 1
        self._texts.add(pop.connection, pop.text_size)
        loop, left_s = asyncio.get_running_loop(), max(0.0, min(timeout_s, HOLD_S_MAX))
        if again_s is not None and again_s < left_s:
            pop.timer = loop.call_later(again_s, self._wake, pop)
        else:
            pop.timer = loop.call_later(left_s, self._expire, pop)
        return True

    def _has_room(self, count: int) -> bool:
        """Make room when all places are taken: whose are the most loses the one that waits longest.

        Args:
            count: how many places the connection has that wants one more.
        """
        if self._count < _MAX:
            return True
        of = max(self._of.values(), key=len)
        if len(of) <= count:
            return False
        self._expire(next(iter(of)))
        return True

    def forget(self, connection: Connection) -> None:
        """Let the requests of a connection go that was closed: an arrival wakes others."""
        for pop in list(self._of.get(connection, ())):
            self._take(pop)

    def arrived(self, topic: str, queue_id: int) -> None:
        """Wake one request of each group that waits for messages of a queue."""
        if topic not in self._keys:
            return
        for key in self._keys[topic]:
            if key[2] in (ANY_QUEUE, queue_id) or key[0] != topic:
                self._add_wake(key)
        self._wakes.begin()

    def wake_one(self, key: HoldKey) -> None:
        """Wake the request that waits longest for something, when it is its turn."""
        if key in self._held:
            self._add_wake(key)
            self._wakes.begin()

    def _add_wake(self, key: HoldKey) -> None:
        held = self._held[key]
        self._wakes.add(next(iter(held)).connection, key, len(held))

    def _wake_first(self, key: HoldKey) -> None:
        """Wake the one that waits longest and can still be answered."""
        while held := self._held.get(key):
            pop = next(iter(held))
            self._take(pop)
            if not pop.connection.closed:
                pop.wake(True)
                return

    def release(self) -> None:
        """Answer all held requests, and hold none any more: the broker is about to stop."""
        self._released = True
        for pop in [pop for pops in self._held.values() for pop in pops]:
            self._expire(pop)

    def _wake(self, pop: HeldPop) -> None:
        if self._take(pop):
            pop.wake(True)

    def _expire(self, pop: HeldPop) -> None:
        if self._take(pop):
            pop.wake(False)

    def _take(self, pop: HeldPop) -> bool:
        held = self._held.get(pop.key)
        if held is None or pop not in held:
            return False
        del held[pop]
        of = self._of[pop.connection]
        del of[pop]
        if not of:
            del self._of[pop.connection]
        self._count -= 1
        self._texts.remove(pop.connection, pop.text_size)
        if pop.timer is not None:
            pop.timer.cancel()
        if not held:
            del self._held[pop.key]
            topic, group, _ = pop.key
            for each in {topic, retry_topic_of(group, topic)}:
                keys = self._keys.get(each)
                if keys is not None:
                    keys.pop(pop.key, None)
                    if not keys:
                        del self._keys[each]
        return True
