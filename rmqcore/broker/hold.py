"""Long polling: pulls that found nothing wait for the next message of their queue.

Source: RocketMQ broker/longpolling/PullRequestHoldService.java.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from rmqcore.remoting import Connection

#: a client that asks for more is answered earlier; Java clients give up after 30 s
HOLD_S_MAX: Final = 30.0
#: a client has one pull a queue and group; whose pulls are more is answered at once
_OF_ONE_CONNECTION_MAX: Final = 20_000
_OF_ONE_QUEUE_MAX: Final = 1024
#: so many are woken at once; between two such rounds the event loop serves everybody else
_WOKEN_AT_ONCE: Final = 64


@dataclass(slots=True, eq=False)
class HeldPull:
    """One pull that waits.

    Attributes:
        connection: who asks; a pull goes with its connection.
        queue: topic and queue id that it waits for.
        wake: answers it; called once, on the event loop, with whether something has arrived.
    """

    connection: Connection
    queue: tuple[str, int]
    wake: Callable[[bool], None]
    timer: asyncio.TimerHandle | None = field(default=None)


class PullHold:
    """The pulls that wait, by queue and by connection."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], dict[HeldPull, None]] = {}
        self._of: dict[Connection, set[HeldPull]] = {}
        #: by connection and queue, how many wait
        self._counts: Counter[tuple[Connection, tuple[str, int]]] = Counter()
        #: those whose queue has something, and that have not been woken yet
        self._waking: dict[HeldPull, None] = {}
        self._released = False

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def hold(self, pull: HeldPull, timeout_s: float) -> None:
        """Let a pull wait for an arrival, or until its time is over."""
        loop = asyncio.get_running_loop()
        held, place = len(self._of.get(pull.connection, ())), (pull.connection, pull.queue)
        full = held >= _OF_ONE_CONNECTION_MAX or self._counts[place] >= _OF_ONE_QUEUE_MAX
        if self._released or full:
            loop.call_soon(pull.wake, False)
            return
        self._counts[place] += 1
        self._held.setdefault(pull.queue, {})[pull] = None
        self._of.setdefault(pull.connection, set()).add(pull)
        pull.timer = loop.call_later(min(timeout_s, HOLD_S_MAX), self._answer, pull, False)

    def forget(self, connection: Connection) -> None:
        """Let the pulls of a connection go that was closed: nobody is there to be answered."""
        for pull in list(self._of.get(connection, ())):
            self._take(pull)

    def arrived(self, topic: str, queue_id: int) -> None:
        """Answer the pulls that wait for a queue; the rest of very many in the next rounds."""
        found = self._held.get((topic, queue_id))
        if found:
            going_on = bool(self._waking)
            self._waking.update(found)
            if not going_on:
                self._wake_some()

    def _wake_some(self) -> None:
        for pull in list(islice(self._waking, _WOKEN_AT_ONCE)):
            del self._waking[pull]
            self._answer(pull, True)
        if self._waking:
            asyncio.get_running_loop().call_soon(self._wake_some)

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
