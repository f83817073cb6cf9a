"""A lock that refuses a signal handler which interrupts its own thread inside."""

from __future__ import annotations

import threading
from types import TracebackType

from rmqcore.errors import StoreNotWritableError


class Alone:
    """One thread at a time; a signal handler that interrupts its own thread there is refused."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._inside = False

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._inside:
            self._lock.release()
            raise StoreNotWritableError(
                "a signal handler or a finalizer inside a call about leases cannot make another"
            )
        self._inside = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inside = False
        self._lock.release()
