"""A lock that refuses a signal handler which interrupts its own thread inside."""

from __future__ import annotations

from rmqcore.errors import StoreNotWritableError
from rmqcore.native.base._lock import Attempt, ReentrantLock


class Alone:
    """One thread at a time: ``with alone.within()``, and `check` as the first thing inside.

    An interrupt, wherever it comes, leaves the lock released.
    """

    def __init__(self) -> None:
        self._lock = ReentrantLock(counted=False)

    def within(self) -> Attempt:
        """Wait for the others, and keep them out during a block."""
        return self._lock.within()

    def check(self) -> None:
        """Refuse a signal handler that interrupts its own thread in such a block.

        Raises:
            StoreNotWritableError: this is one.
        """
        if self._lock.depth > 1:
            raise StoreNotWritableError(
                "a signal handler or a finalizer inside a call about leases cannot make another"
            )
