"""One piece of work at a time in a second thread, beside its caller's own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class BesideThread:
    """Runs one function while its caller goes on; worth it for kernels that release the GIL.

    Threads: one caller.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._running: Future[None] | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Begin a piece of work; what was begun before is waited for."""
        self.wait()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "rmqcore-beside")
        self._running = self._pool.submit(work)

    def wait(self) -> None:
        """Return when the work is done; raises what it raised."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def end(self) -> None:
        """Wait, and let the thread go; what the work raised and nobody waited for is dropped."""
        self._running = None
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
