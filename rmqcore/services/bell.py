"""`Bell`: a thread waits, so long or until any other one wakes it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Bell:
    """Wakes who waits; rung several times before the wait, it counts once.

    Threads: any may ring, a signal handler and a finalizer too; one waits.
    """

    def __init__(self) -> None:
        # neither an Event, whose lock would deadlock a signal handler that interrupts a use of it,
        # nor a SimpleQueue: where time runs out while `get` is still at its beginning, or in a
        # signal handler, it waits without end
        #: held until it is rung
        self._silent = threading.Lock()
        self._silent.acquire()
        #: called when it is rung the first time since the last wait
        self.on_ring: Callable[[], object] | None = None

    def ring(self) -> None:
        """Wake who waits, or is the next to wait."""
        try:
            self._silent.release()
        except RuntimeError:
            # it was rung before
            return
        if self.on_ring is not None:
            self.on_ring()

    @property
    def rung(self) -> bool:
        """Whether it was rung since the last wait."""
        return not self._silent.locked()

    def wait(self, seconds: float) -> bool:
        """Return when it is rung, after ``seconds`` in any case; whether it was rung."""
        return self._silent.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))

    def silence(self) -> None:
        """Forget that it was rung."""
        self._silent.acquire(blocking=False)
