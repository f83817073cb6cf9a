"""A lock that refuses a signal handler which interrupts its own thread inside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rmqcore.errors import StoreNotWritableError
from rmqcore.native.base._lock import Attempt, ReentrantLock


class InterruptSafeLock:
    """One thread at a time: ``with lock.within()``, and `refuse_interrupt` first inside.

    An interrupt, wherever it comes, leaves the lock released.
    """

    def __init__(self, what: str = "leases") -> None:
        """Make the lock of the calls about something."""
        self._what = what
        self._lock = ReentrantLock(counted=False)
        #: 1 while the thread that has the lock is in `around`, within which it makes calls
        self._around = 0

    def within(self) -> Attempt:
        """Wait for the others, and keep them out during a block."""
        return self._lock.within()

    @contextmanager
    def around(self) -> Iterator[bool]:
        """Keep the others out, as far as that needs no waiting, of the calls in a block.

        Yields whether they are kept out.
        """
        with self._lock.within(0.0) as mine:
            if not mine or self._lock.depth > 1:
                yield False
                return
            self._around = 1
            try:
                yield True
            finally:
                self._around = 0

    def refuse_interrupt(self) -> None:
        """Refuse a signal handler that interrupts its own thread in such a block.

        Raises:
            StoreNotWritableError: this is one.
        """
        if self.interrupts_itself:
            raise StoreNotWritableError(
                f"a signal handler or a finalizer inside a call about {self._what} cannot make "
                "another"
            )

    @property
    def interrupts_itself(self) -> bool:
        """Whether the thread that holds it is in such a block within another one."""
        return self._lock.depth > 1 + self._around
