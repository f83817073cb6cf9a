"""The one thread of a partition that flushes and rolls.

No KeyboardInterrupt reaches it, so that no roll is ever left half done. Who waits for it waits in
one system call, so that an interrupt there leaves nothing half done either.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from rmqcore.errors import StoreClosedError

T = TypeVar("T")


class _Ticket:
    """A future for one thread that waits; unlike `Future` it may be interrupted anywhere."""

    __slots__ = ("_error", "_gate")

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._gate = threading.Lock()
        self._gate.acquire()

    def set_result(self, _: None) -> None:
        self._gate.release()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._gate.release()

    def wait(self) -> None:
        self._gate.acquire()
        if self._error is not None:
            raise self._error


def _nothing() -> None:
    """Flush nothing: everybody who asked has been answered."""


class CommitThread:
    """Runs one flush for everything that waits for one; sleeps while nothing does.

    Invariants:
        - Who asked gets an answer after a flush that began after the asking.
        - Everybody gets one, whatever the flush raises.

    Source: MetaQ MessageStore.java, run.
    """

    def __init__(self, name: str, flush: Callable[[], object]) -> None:
        """Start.

        Args:
            name: of the thread.
            flush: makes durable what has been written; what it raises, everybody waiting gets.
        """
        self._flush = flush
        self._lock = threading.Lock()
        # no SimpleQueue: gevent replaces it also where it leaves threads alone, and its own ends
        # the thread
        self._asked: deque[tuple[Any, Any] | None] = deque()
        #: held until somebody has asked
        self._silent = threading.Lock()
        self._silent.acquire()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(self, answer: T) -> Future[T]:
        """Ask for a flush; the future then holds the answer. It cannot be cancelled.

        Raises:
            StoreClosedError: the thread was stopped.
        """
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        self._put(future, answer)
        return future

    def wait(self) -> None:
        """Ask for a flush and wait for it; raises what it raised, and as `ask`."""
        ticket = _Ticket()
        self._put(ticket, None)
        ticket.wait()

    def stop(self) -> None:
        """Serve who has asked, and end."""
        with self._lock:
            self._stopped = True
            self._give(None)
        self._thread.join()
        # as a rule a method of who has this object: its files would wait for the garbage collector
        self._flush = _nothing

    def _put(self, waiter: Any, answer: object) -> None:
        with self._lock:
            if self._stopped:
                raise StoreClosedError("the store is closed")
            self._give((waiter, answer))

    def _give(self, entry: tuple[Any, Any] | None) -> None:
        self._asked.append(entry)
        # it is not held where the thread has not yet seen what was given before
        with suppress(RuntimeError):
            self._silent.release()

    def _run(self) -> None:
        stopped = False
        while not stopped:
            self._silent.acquire()
            batch = []
            while self._asked:
                batch.append(self._asked.popleft())
            waiting = [entry for entry in batch if entry is not None]
            stopped = len(waiting) < len(batch)
            if waiting:
                self._serve(waiting)

    def _serve(self, waiting: list[tuple[Any, Any]]) -> None:
        try:
            self._flush()
        except BaseException as error:  # noqa: BLE001 - it belongs to those who wait
            for waiter, _ in waiting:
                waiter.set_exception(error)
            return
        for waiter, answer in waiting:
            waiter.set_result(answer)
