"""What a connection consumes, delivered by the event loop of a worker of Celery's."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rmqcore.store.protocol import MessageStore

_BELL_BYTES: Final = 4096


class LoopDelivery:
    """Has an event loop deliver when there may be something, and at a time at the latest.

    It delivers where the loop has polled, so that what it hands to a pool of processes, which looks
    for that before the loop polls, is not left until the next event.

    Args:
        loop: kombu's ``Hub``.
        store: that is consumed from.
        deliver: delivers what is there; seconds after which to look again, 0 for at once.
        consumes: tells, in any thread, whether there is a consumer of a topic.

    Threads: `wake` from any; the others from that of the loop.
    """

    def __init__(
        self,
        loop: Any,
        store: MessageStore,
        deliver: Callable[[], float],
        consumes: Callable[[str], bool],
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._consumes = consumes
        self._monotonic_s = store.world.monotonic_s
        self._pid = os.getpid()
        self._due = False
        #: the timer of the next look, and when it is
        self._timer: Any = None
        self._looks_at = math.inf
        # one side wakes the loop, which polls the other
        self._polled, self._bell = socket.socketpair()
        self._polled.setblocking(False)
        self._bell.setblocking(False)
        loop.add_reader(self._polled, self._woken)
        self._forget = store.on_arrival(self._arrived)
        self.wake()

    def end(self) -> None:
        """Deliver no more; a forked child leaves its parent's loop as it is."""
        if self._pid == os.getpid():
            self._forget()
            self._loop.remove_reader(self._polled)
            self._look_at(math.inf)
        self._polled.close()
        self._bell.close()

    def wake(self) -> None:
        """Let the loop look for messages in its next round."""
        if not self._due:
            self._due = True
            self._ring()

    def _ring(self) -> None:
        # it is awake where the other side is full, and has ended where it is closed
        with suppress(OSError):
            self._bell.send(b"\0")

    def _arrived(self, queues: Sequence[tuple[str, int]]) -> None:
        if any(self._consumes(topic) for topic, _ in queues):
            self.wake()

    def _woken(self) -> None:
        # in this order: who wakes the loop from here on is found by this delivery, or rings again
        with suppress(OSError):
            self._polled.recv(_BELL_BYTES)
        self._due = False
        after_s = 0.0
        try:
            after_s = self._deliver()
        finally:
            if after_s:
                self._look_again(after_s)
            else:
                self.wake()

    def _look_again(self, after_s: float) -> None:
        now = self._monotonic_s()
        # one that is past is of a timer that somebody has cleared
        if not now < self._looks_at <= now + after_s:
            self._look_at(now + after_s)
            self._timer = self._loop.call_later(after_s, self._look)

    def _look_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._looks_at = at

    def _look(self) -> None:
        self._look_at(math.inf)
        self._ring()
