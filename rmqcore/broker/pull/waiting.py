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

#: a client that asks for more is answered earlier; Java clients give up after 30 s
HOLD_S_MAX: Final = 30.0
#: a client has one pull a queue and group; whose pulls are more has to come again later
_OF_ONE_CONNECTION_MAX: Final = 20_000
_OF_ONE_QUEUE_MAX: Final = 1024
#: characters of what those that wait have asked for, of one connection and of all
_TEXTS_OF_ONE_MAX: Final = 4 << 20
_TEXTS_MAX: Final = 64 << 20
#: so many are not counted, so that nobody's long ones take the place of usual ones
_USUAL_TEXT: Final = 256
#: so many are woken at once; between two such rounds the event loop serves everybody else
_WOKEN_AT_ONCE: Final = 64


@dataclass(slots=True, eq=False)
class HeldPull:
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
        self._waiting: OrderedDict[Connection, OrderedDict[_Item, int]] = OrderedDict()
        self._is_planned = False

    def add(self, connection: Connection, item: _Item, times_max: int = 1) -> None:
        """Have one woken, or once more, but no more often than that; `begin` lets it happen."""
        items = self._waiting.setdefault(connection, OrderedDict())
        items[item] = min(times_max, items.get(item, 0) + 1)

    def begin(self) -> None:
        """Wake some at once, unless that goes on already."""
        if self._waiting and not self._is_planned:
            self._is_planned = True
            self._round()

    def _round(self) -> None:
        try:
            for _ in range(_WOKEN_AT_ONCE):
                if not self._waiting:
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
                asyncio.get_running_loop().call_soon(self._round)


class HeldTexts:
    """How long the texts are that requests keep while they wait."""

    def __init__(self) -> None:
        self._of: Counter[Connection] = Counter()

    def have_room(self, connection: Connection, size: int) -> bool:
        """Tell whether one more request of a connection may keep so many characters."""
        more = max(0, size - _USUAL_TEXT)
        return not more or (
            self._of[connection] + more <= _TEXTS_OF_ONE_MAX
            and self._of.total() + more <= _TEXTS_MAX
        )

    def add(self, connection: Connection, size: int) -> None:
        """Note that a request waits."""
        if size > _USUAL_TEXT:
            self._of[connection] += size - _USUAL_TEXT

    def remove(self, connection: Connection, size: int) -> None:
        """Note that a request waits no more."""
        if size > _USUAL_TEXT:
            self._of[connection] -= size - _USUAL_TEXT
            if not self._of[connection]:
                del self._of[connection]


class PullHold:
    """The pulls that wait, by queue and by connection."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], dict[HeldPull, None]] = {}
        self._of: dict[Connection, set[HeldPull]] = {}
        #: by connection and queue, how many wait
        self._counts: Counter[tuple[Connection, tuple[str, int]]] = Counter()
        self._texts = HeldTexts()
        self._wakes = Wakes[HeldPull](lambda pull: self._answer(pull, True))
        self._released = False

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def waiting(self) -> list[tuple[tuple[str, int], Connection]]:
        """Topic and queue id of each pull that waits, and who asks; on any thread."""
        held = [pull for pulls in list(self._of.values()) for pull in list(pulls)]
        return [(pull.queue, pull.connection) for pull in held]

    def hold(self, pull: HeldPull, timeout_s: float) -> bool:
        """Let a pull wait for an arrival, or until its time is over; False: it may not."""
        loop = asyncio.get_running_loop()
        if self._released:
            loop.call_soon(pull.wake, False)
            return True
        held, place = len(self._of.get(pull.connection, ())), (pull.connection, pull.queue)
        if (
            held >= _OF_ONE_CONNECTION_MAX
            or self._counts[place] >= _OF_ONE_QUEUE_MAX
            or not self._texts.have_room(pull.connection, pull.text_size)
        ):
            return False
        self._counts[place] += 1
        self._texts.add(pull.connection, pull.text_size)
        self._held.setdefault(pull.queue, {})[pull] = None
        self._of.setdefault(pull.connection, set()).add(pull)
        pull.timer = loop.call_later(min(timeout_s, HOLD_S_MAX), self._answer, pull, False)
        return True

    def forget(self, connection: Connection) -> None:
        """Let the pulls of a connection go that was closed: nobody is there to be answered."""
        for pull in list(self._of.get(connection, ())):
            self._take(pull)

    def arrived(self, topic: str, queue_id: int) -> None:
        """Answer the pulls that wait for a queue; the rest of very many in the next rounds."""
        for pull in self._held.get((topic, queue_id), ()):
            self._wakes.add(pull.connection, pull)
        self._wakes.begin()

    def release(self) -> None:
        """Answer all held pulls, and every later one at once: the broker is about to stop."""
        self._released = True
        for pull in [pull for pulls in self._held.values() for pull in pulls]:
            self._answer(pull, False)

    def _answer(self, pull: HeldPull, arrived: bool) -> None:
        if self._take(pull):
            pull.wake(arrived)

    def _take(self, pull: HeldPull) -> bool:
        held, of = self._held.get(pull.queue), self._of.get(pull.connection)
        if held is None or of is None or pull not in held:
            return False
        del held[pull]
        of.discard(pull)
        self._texts.remove(pull.connection, pull.text_size)
        place = (pull.connection, pull.queue)
        self._counts[place] -= 1
        if not self._counts[place]:
            del self._counts[place]
        if not held:
            del self._held[pull.queue]
        if not of:
            del self._of[pull.connection]
        if pull.timer is not None:
            pull.timer.cancel()
        return True
