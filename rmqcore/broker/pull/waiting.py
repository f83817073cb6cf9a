"""Long polling: pulls that found nothing wait for the next message of their queue.

Source: RocketMQ broker/longpolling/PullRequestHoldService.java.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from rmqcore.remoting import Connection
from rmqcore.remoting.turns import TURN_S

#: A pull that may wait longer is answered after this; Java clients give up after 30 s.
WAIT_S_MAX: Final = 30.0
#: A pull is refused as busy when its connection has this many waiting, or this many on its queue.
_OF_ONE_CONNECTION_MAX: Final = 20_000
_OF_ONE_QUEUE_MAX: Final = 1024
#: A request is refused when the expressions of those that wait, of its connection or of all, would
#: have more characters than this.
_TEXTS_OF_ONE_MAX: Final = 4 << 20
_TEXTS_MAX: Final = 64 << 20
#: An expression's first characters are not counted, so that long ones displace no usual ones.
_USUAL_TEXT: Final = 256
#: A round wakes this many requests, and no further one after so many seconds: a POP may look into
#: very many queues. Then the event loop serves others before the next round.
WOKEN_AT_ONCE: Final = 64
WOKEN_FOR_S: Final = TURN_S


@dataclass(slots=True, eq=False)
class WaitingPull:
    """One pull that waits.

    Attributes:
        connection: who asks; a pull goes with its connection.
        queue: topic and queue id that it waits for.
        wake: answers it; called once, on the event loop, with whether something has arrived.
        text_size: characters of what it keeps.
    """

    connection: Connection
    queue: tuple[str, int]
    wake: Callable[[bool], None]
    text_size: int = 0
    timer: asyncio.TimerHandle | None = field(default=None)

    @property
    def owner(self) -> Hashable:
        """The connection whose budget it is: of several calls over one, all are that one's."""
        return self.connection.owner


_Item = TypeVar("_Item", bound=Hashable)


class Wakes(Generic[_Item]):
    """Wakes who waits, one of each connection in turn, and none from within another.

    So many are woken at once; between two such rounds the event loop serves everybody else.

    Args:
        wake: wakes one, on the event loop.
    """

    def __init__(self, wake: Callable[[_Item], None]) -> None:
        self._wake = wake
        #: by connection, who is to be woken, and how often
        self._waiting: OrderedDict[Hashable, OrderedDict[_Item, int]] = OrderedDict()
        self._is_planned = False

    def add(self, connection: Hashable, item: _Item, times_max: int = 1) -> None:
        """Have one woken, or once more, but no more often than that; `begin` lets it happen.

        Args:
            connection: whose turn it is to be.
            item: who is to be woken.
            times_max: at most this often, in all that was added and is not woken yet.
        """
        items = self._waiting.setdefault(connection, OrderedDict())
        items[item] = min(times_max, items.get(item, 0) + 1)

    def begin(self) -> None:
        """Wake some at once, unless that goes on already."""
        if self._waiting and not self._is_planned:
            self._is_planned = True
            self._round()

    def _round(self) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + WOKEN_FOR_S
        try:
            for number in range(WOKEN_AT_ONCE):
                if not self._waiting or (number and loop.time() > end_s):
                    break
                connection, items = self._waiting.popitem(last=False)
                item, times = items.popitem(last=False)
                if times > 1:
                    items[item] = times - 1
                if items:
                    self._waiting[connection] = items
                self._wake(item)
        finally:
            self._is_planned = bool(self._waiting)
            if self._is_planned:
                loop.call_soon(self._round)


class WaitingTexts:
    """How long the texts are that requests keep while they wait."""

    def __init__(self) -> None:
        self._sizes: Counter[Hashable] = Counter()

    def have_room(self, connection: Hashable, size: int) -> bool:
        """Tell whether one more request of a connection may keep so many characters.

        Args:
            connection: of the client.
            size: characters of the texts that the request keeps.
        """
        more = max(0, size - _USUAL_TEXT)
        return not more or (
            self._sizes[connection] + more <= _TEXTS_OF_ONE_MAX
            and self._sizes.total() + more <= _TEXTS_MAX
        )

    def add(self, connection: Hashable, size: int) -> None:
        """Note that a request waits.

        Args:
            connection: of the client.
            size: characters of the texts that the request keeps.
        """
        if size > _USUAL_TEXT:
            self._sizes[connection] += size - _USUAL_TEXT

    def remove(self, connection: Hashable, size: int) -> None:
        """Note that a request waits no more.

        Args:
            connection: of the client.
            size: the same as for `add`.
        """
        if size > _USUAL_TEXT:
            self._sizes[connection] -= size - _USUAL_TEXT
            if not self._sizes[connection]:
                del self._sizes[connection]


class WaitingPulls:
    """The pulls that wait, by queue and by connection."""

    def __init__(self) -> None:
        self._by_queue: dict[tuple[str, int], dict[WaitingPull, None]] = {}
        self._by_connection: dict[Hashable, set[WaitingPull]] = {}
        #: by connection and queue, how many wait
        self._counts: Counter[tuple[Hashable, tuple[str, int]]] = Counter()
        self._texts = WaitingTexts()
        self._wakes = Wakes[WaitingPull](lambda pull: self._answer(pull, True))
        self._released = False

    def __len__(self) -> int:
        return sum(map(len, self._by_queue.values()))

    def waiting(self) -> list[tuple[tuple[str, int], Connection]]:
        """Topic and queue id of each pull that waits, and who asks; on any thread."""
        pulls = [pull for own in list(self._by_connection.values()) for pull in list(own)]
        return [(pull.queue, pull.connection) for pull in pulls]

    def add(self, pull: WaitingPull, timeout_s: float) -> bool:
        """Let a pull wait for an arrival, or for at most these seconds; False: it may not.

        Args:
            pull: who waits, and for which queue.
            timeout_s: seconds; `WAIT_S_MAX` at most.
        """
        loop = asyncio.get_running_loop()
        if self._released:
            loop.call_soon(pull.wake, False)
            return True
        place = (pull.owner, pull.queue)
        if (
            len(self._by_connection.get(pull.owner, ())) >= _OF_ONE_CONNECTION_MAX
            or self._counts[place] >= _OF_ONE_QUEUE_MAX
            or not self._texts.have_room(pull.owner, pull.text_size)
        ):
            return False
        self._counts[place] += 1
        self._texts.add(pull.owner, pull.text_size)
        self._by_queue.setdefault(pull.queue, {})[pull] = None
        self._by_connection.setdefault(pull.owner, set()).add(pull)
        pull.timer = loop.call_later(min(timeout_s, WAIT_S_MAX), self._answer, pull, False)
        return True

    def forget(self, connection: Connection) -> None:
        """Let the pulls of a connection go that was closed: nobody is there to be answered."""
        for pull in list(self._by_connection.get(connection, ())):
            self._remove(pull)

    def arrived(self, topic: str, queue_id: int) -> None:
        """Answer the pulls that wait for a queue; the rest of very many in the next rounds.

        Args:
            topic: of the queue; nobody may wait for it.
            queue_id: of the queue.
        """
        for pull in self._by_queue.get((topic, queue_id), ()):
            self._wakes.add(pull.owner, pull)
        self._wakes.begin()

    def release(self) -> None:
        """Answer all pulls that wait, and every later one at once: the broker is about to stop."""
        self._released = True
        for pull in [pull for pulls in self._by_queue.values() for pull in pulls]:
            self._answer(pull, False)

    def _answer(self, pull: WaitingPull, arrived: bool) -> None:
        if self._remove(pull):
            pull.wake(arrived)

    def _remove(self, pull: WaitingPull) -> bool:
        others, own = self._by_queue.get(pull.queue), self._by_connection.get(pull.owner)
        if others is None or own is None or pull not in others:
            return False
        del others[pull]
        own.discard(pull)
        self._texts.remove(pull.owner, pull.text_size)
        place = (pull.owner, pull.queue)
        self._counts[place] -= 1
        if not self._counts[place]:
            del self._counts[place]
        if not others:
            del self._by_queue[pull.queue]
        if not own:
            del self._by_connection[pull.owner]
        if pull.timer is not None:
            pull.timer.cancel()
        return True
