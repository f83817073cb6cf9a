"""`DaemonThreads`: threads for an event loop that goes on after the main thread has ended."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

_THREADS_MAX: Final = 8

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(ThreadPoolExecutor):
    """An executor; that of the standard library takes nothing once the main thread has ended.

    Threads: any.
    """

    def __init__(self) -> None:
        super().__init__(_THREADS_MAX)
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._started: list[threading.Thread] = []
        self._lock = threading.Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function in one of the threads.

        Args:
            fn: what to call.
            *args: its arguments by place.
            **kwargs: those by name.

        Returns:
            what comes of it, its exception too; one that is cancelled before its turn is not
                called.
        """
        future: Future[T] = Future()
        with self._lock:
            if len(self._started) < _THREADS_MAX:
                thread = threading.Thread(target=self._run, name="ShareStoreCall", daemon=True)
                thread.start()
                self._started.append(thread)
            self._calls.put(partial(_run_into, future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads when they have done all that was submitted.

        Args:
            wait: return when they have ended, not before.
            cancel_futures: without effect; what was submitted is done.
        """
        with self._lock:
            started, self._started = self._started, []
        for _ in started:
            self._calls.put(None)
        for thread in started if wait else ():
            thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _run_into(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - it is the caller's to see
        future.set_exception(error)
