"""POPs that found nothing and wait: for a message of their topic, or for one that comes again.

Source: RocketMQ broker/longpolling/PopLongPollingService.java.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from rmqcore.broker.pop.receipts import retry_topic_of
from rmqcore.broker.pull.waiting import WaitingTexts, Wakes
from rmqcore.remoting import Connection

#: A request with this queue id takes messages of any queue of its topic.
ANY_QUEUE: Final = -1
#: A request that may wait longer is answered after this; RocketMQ's clients ask for 15 s, its proxy
#: for 20 s.
WAIT_S_MAX: Final = 60.0
#: A request is refused when this many wait for the same, or over its connection; and beyond the
#: last number unless another connection has more, which loses one.
_OF_ONE_KEY_MAX: Final = 1024
_OF_ONE_CONNECTION_MAX: Final = 10_000
_MAX: Final = 100_000

#: A request waits for messages of a topic, for a group, in a queue or in `ANY_QUEUE`.
PopKey: TypeAlias = tuple[str, str, int]
#: The same, and whether who waits takes the message: one that is only told of it stands in no
#: POP's way.
_Key: TypeAlias = tuple[str, str, int, bool]


@dataclass(slots=True, eq=False)
class WaitingPop:
    """One request that waits.

    Attributes:
        connection: who asks; a request goes with its connection.
        key: what it waits for.
        wake: answers it, or lets it wait again; called once, on the event loop, with whether
            something has come.
        text_size: characters of what it keeps.
        takes: False of a notification, which leaves the message to a POP.
    """

    connection: Connection
    key: PopKey
    wake: Callable[[bool], None]
    text_size: int = 0
    takes: bool = True
    timer: asyncio.TimerHandle | None = field(default=None)

    @property
    def owner(self) -> Hashable:
        """The connection whose budget it is: of several calls over one, all are that one's."""
        return self.connection.owner

    @property
    def full_key(self) -> _Key:
        """What it waits for, and how."""
        return *self.key, self.takes


class WaitingPops:
    """The POPs and the notifications that wait.

    One of each kind is woken for a message, that which waits longest: a notification takes none.
    """

    def __init__(self) -> None:
        self._by_key: dict[_Key, dict[WaitingPop, None]] = {}
        self._by_connection: dict[Hashable, dict[WaitingPop, None]] = {}
        #: by topic, and by retry topic: the keys that an arrival there concerns
        self._keys: dict[str, dict[_Key, None]] = {}
        self._texts = WaitingTexts()
        self._wakes = Wakes[_Key](self._wake_first)
        self._count = 0
        self._released = False

    def __len__(self) -> int:
        return self._count

    def waiting(self, key: PopKey) -> int:
        """How many POPs wait for exactly this."""
        return len(self._by_key.get((*key, True), ()))

    def add(self, pop: WaitingPop, timeout_s: float, again_s: float | None = None) -> bool:
        """Let a request wait for an arrival, or for its time to end; False: none may wait now.

        Args:
            pop: the request.
            timeout_s: for how long it may wait, seconds.
            again_s: when it is woken whatever arrives; None for never.
        """
        key = pop.full_key
        waiting, own = self._by_key.get(key, {}), self._by_connection.get(pop.owner, {})
        if (
            self._released
            or len(waiting) >= _OF_ONE_KEY_MAX
            or len(own) >= _OF_ONE_CONNECTION_MAX
            or not self._texts.have_room(pop.owner, pop.text_size)
            or not self._has_room(len(own))
        ):
            return False
        if not waiting:
            self._by_key[key] = waiting
            topic, group, _ = pop.key
            for each in {topic, retry_topic_of(group, topic)}:
                self._keys.setdefault(each, {})[key] = None
        waiting[pop] = None
        self._by_connection.setdefault(pop.owner, {})[pop] = None
        self._count += 1
        self._texts.add(pop.owner, pop.text_size)
        loop, left_s = asyncio.get_running_loop(), max(0.0, min(timeout_s, WAIT_S_MAX))
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
        longest = max(self._by_connection.values(), key=len)
        if len(longest) <= count:
            return False
        self._expire(next(iter(longest)))
        return True

    def forget(self, connection: Connection) -> None:
        """Let the requests of a connection go that was closed: an arrival wakes others."""
        for pop in list(self._by_connection.get(connection, ())):
            self._remove(pop)

    def arrived(self, topic: str, queue_id: int) -> None:
        """Wake one request of each group that waits for messages of a queue.

        Args:
            topic: of the queue; its retry topics wake those of the topic, too.
            queue_id: of the queue; who waits for any queue of the topic is woken, too.
        """
        if topic not in self._keys:
            return
        for key in self._keys[topic]:
            if key[2] in (ANY_QUEUE, queue_id) or key[0] != topic:
                self._add_wake(key)
        self._wakes.begin()

    def wake_one(self, key: PopKey) -> None:
        """Wake the POP, and the notification, that waits longest, when it is its turn."""
        for takes in (True, False):
            if (*key, takes) in self._by_key:
                self._add_wake((*key, takes))
        self._wakes.begin()

    def _add_wake(self, key: _Key) -> None:
        waiting = self._by_key[key]
        self._wakes.add(next(iter(waiting)).owner, key, len(waiting))

    def _wake_first(self, key: _Key) -> None:
        """Wake the one that waits longest and can still be answered."""
        while waiting := self._by_key.get(key):
            pop = next(iter(waiting))
            self._remove(pop)
            if not pop.connection.closed:
                pop.wake(True)
                return

    def release(self) -> None:
        """Answer all that wait, and let none wait any more: the broker is about to stop."""
        self._released = True
        for pop in [pop for pops in self._by_key.values() for pop in pops]:
            self._expire(pop)

    def _wake(self, pop: WaitingPop) -> None:
        if self._remove(pop):
            pop.wake(True)

    def _expire(self, pop: WaitingPop) -> None:
        if self._remove(pop):
            pop.wake(False)

    def _remove(self, pop: WaitingPop) -> bool:
        key = pop.full_key
        waiting = self._by_key.get(key)
        if waiting is None or pop not in waiting:
            return False
        del waiting[pop]
        own = self._by_connection[pop.owner]
        del own[pop]
        if not own:
            del self._by_connection[pop.owner]
        self._count -= 1
        self._texts.remove(pop.owner, pop.text_size)
        if pop.timer is not None:
            pop.timer.cancel()
        if not waiting:
            del self._by_key[key]
            topic, group, _ = pop.key
            for each in {topic, retry_topic_of(group, topic)}:
                keys = self._keys.get(each)
                if keys is not None:
                    keys.pop(key, None)
                    if not keys:
                        del self._keys[each]
        return True
