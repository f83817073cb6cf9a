"""Long polling: pulls that found nothing wait for the next message of their queue.

Source: RocketMQ broker/longpolling/PullRequestHoldService.java.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

#: a client that asks for more is answered earlier; Java clients give up after 30 s
HOLD_S_MAX: Final = 30.0


@dataclass(slots=True, eq=False)
class HeldPull:
    """One pull that waits.

    Attributes:
        queue_offset: it waits for a message at or behind this offset.
        wake: answers it; called once, on the event loop, with whether something has arrived.
    """

    queue_offset: int
    wake: Callable[[bool], None]
    timer: asyncio.TimerHandle | None = field(default=None)


class PullHold:
    """The pulls that wait, by queue."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], set[HeldPull]] = {}
        self._released = False

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def hold(self, topic: str, queue_id: int, pull: HeldPull, timeout_s: float) -> None:
        """Let a pull wait for an arrival, or until its time is over."""
        loop = asyncio.get_running_loop()
        if self._released:
            loop.call_soon(pull.wake, False)
            return
        self._held.setdefault((topic, queue_id), set()).add(pull)
        pull.timer = loop.call_later(
            min(timeout_s, HOLD_S_MAX), self._expire, (topic, queue_id), pull
        )

    def drop(self, topic: str, queue_id: int, pull: HeldPull) -> None:
        """Forget a pull whose connection is gone."""
        self._take((topic, queue_id), pull)

    def arrived(self, topic: str, queue_id: int) -> None:
        """Answer the pulls that wait for a queue."""
        for pull in self._held.pop((topic, queue_id), ()):
            if pull.timer is not None:
                pull.timer.cancel()
            pull.wake(True)

    def arrived_in(self, queues: Iterable[tuple[str, int]]) -> None:
        """As `arrived`, for several queues."""
        for topic, queue_id in queues:
            if (topic, queue_id) in self._held:
                self.arrived(topic, queue_id)

    def release(self) -> None:
        """Answer all held pulls, and every later one at once: the broker is about to stop."""
        self._released = True
        held, self._held = self._held, {}
        for pulls in held.values():
            for pull in pulls:
                if pull.timer is not None:
                    pull.timer.cancel()
                pull.wake(False)

    def _expire(self, queue: tuple[str, int], pull: HeldPull) -> None:
        if self._take(queue, pull):
            pull.wake(False)

    def _take(self, queue: tuple[str, int], pull: HeldPull) -> bool:
        held = self._held.get(queue)
        if held is None or pull not in held:
            return False
        held.discard(pull)
        if not held:
            del self._held[queue]
        if pull.timer is not None:
            pull.timer.cancel()
        return True
