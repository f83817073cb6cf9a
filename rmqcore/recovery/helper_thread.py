"""A second thread for recovery: runs one piece of work at a time beside the caller."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress


class HelperThread:
    """Runs one function while its caller goes on; worth it for kernels that release the GIL.

    One thread runs them all, one after the other: to start a thread for each would stop the caller
    until the new one has had the GIL.

    Threads: one caller.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        # no SimpleQueue: gevent replaces it also where it leaves threads alone, and its own ends
        # the thread
        self._given: deque[_Piece | None] = deque()
        self._ready = threading.Semaphore(0)
        self._last: _Piece | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Begin a piece of work; what was begun before is waited for."""
        self.wait()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rmqcore-beside", daemon=True)
            self._thread.start()
        piece = _Piece(work)
        self._give(piece)
        self._last = piece

    def wait(self) -> None:
        """Return when the work is done; raises what it raised."""
        if self._last is None:
            return
        self._last.done.wait()
        error, self._last = self._last.error, None
        if error is not None:
            raise error

    def end(self) -> None:
        """Wait, and end the thread; an exception that `wait` has not raised yet is dropped."""
        self._last = None
        if self._thread is not None:
            self._give(None)
            # one that an interrupt has kept from its begin was given no work
            with suppress(RuntimeError):
                self._thread.join()
            self._thread = None

    def _give(self, piece: _Piece | None) -> None:
        self._given.append(piece)
        self._ready.release()

    def _take(self) -> _Piece | None:
        self._ready.acquire()
        return self._given.popleft()

    def _run(self) -> None:
        while (piece := self._take()) is not None:
            try:
                piece.work()
            except BaseException as error:  # noqa: BLE001 - `wait` raises it
                piece.error = error
            piece.done.set()


class _Piece:
    """One piece of work, and what came of it."""

    __slots__ = ("done", "error", "work")

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.done = threading.Event()
        self.error: BaseException | None = None
