"""What a connection consumes, delivered by the event loop of a worker of Celery's."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from rmqcore.adapters.names import topic_of

if TYPE_CHECKING:
    from rmqcore.store.protocol import MessageStore

#: All topics of queues begin with this.
_TOPICS: Final = topic_of("kombu", "")
_BELL_BYTES: Final = 4096


class LoopDelivery:
    """Has an event loop deliver when there may be something, and at a time at the latest.

    Args:
        loop: kombu's ``Hub``.
        store: that is consumed from.
        deliver: delivers what is there; seconds after which to look again, or None where something
            was there, for at once.

    Threads: `wake` from any; the others from that of the loop.
    """

    def __init__(self, loop: Any, store: MessageStore, deliver: Callable[[], float | None]) -> None:
        self._loop = loop
        self._deliver = deliver
        self._monotonic_s = store.world.monotonic_s
        self._pid = os.getpid()
        self._due = False
        self._looks_at = math.inf
        # one side wakes the loop, which polls the other
        self._polled, self._bell = socket.socketpair()
        self._polled.setblocking(False)
        self._bell.setblocking(False)
        loop.add_reader(self._polled, self._woken)
        loop.on_tick.add(self._tick)
        self._forget = store.on_arrival(self._arrived)
        self.wake()

    def end(self) -> None:
        """Deliver no more; a forked child leaves its parent's loop as it is."""
        self._forget()
        if self._pid == os.getpid():
            self._loop.on_tick.discard(self._tick)
            self._loop.remove_reader(self._polled)
        self._polled.close()
        self._bell.close()

    def wake(self) -> None:
        """Let the loop look for messages in its next round."""
        if not self._due:
            self._due = True
            # it is awake where the other side is full, and has ended where it is closed
            with suppress(OSError):
                self._bell.send(b"\0")

    def _arrived(self, queues: Sequence[tuple[str, int]]) -> None:
        if any(topic.startswith(_TOPICS) for topic, _ in queues):
            self.wake()

    def _woken(self) -> None:
        with suppress(OSError):
            self._polled.recv(_BELL_BYTES)

    def _tick(self) -> None:
        if not self._due:
            return
        self._due = False
        after_s = None
        try:
            after_s = self._deliver()
        finally:
            if after_s is None:
                self.wake()
            else:
                self._look_again(after_s)

    def _look_again(self, after_s: float) -> None:
        at = self._monotonic_s() + after_s
        if at < self._looks_at:
            self._looks_at = at
            self._loop.call_later(after_s, self._look)

    def _look(self) -> None:
        self._looks_at = math.inf
        self.wake()
