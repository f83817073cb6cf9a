"""`Handle`: whether a store may be used at this moment."""

from __future__ import annotations

import threading
from pathlib import Path

from rmqcore.errors import StoreClosedError, StoreForkedError
from rmqcore.native.base._lock import locks_held


class Handle:
    """Whether a store is open, and for whom.

    Args:
        path: the store's directory.

    Attributes:
        path: as given.
        closed: True before the store is open, and when it is closed.
        forked: True in a forked child, of its parent's store.
        closer: the thread that closes the store, 0 for none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.closed = True
        self.forked = False
        self.closer = 0

    @property
    def usable(self) -> bool:
        """Whether calls are answered."""
        return not (self.closed or self.forked)

    def check_open(self) -> None:
        """Refuse a call that comes too late.

        Raises:
            StoreForkedError: this is a forked child.
            StoreClosedError: the store is closed.
        """
        if self.forked:
            raise StoreForkedError(
                f"{self.path}: this handle belongs to the parent process; open the store again"
            )
        if self.closed:
            raise StoreClosedError(f"{self.path}: the store has been closed")

    def interrupted(self) -> bool:
        """True in a signal handler or a finalizer inside one of this thread's own calls.

        It must not wait for a lock: its holder may be waiting for one that this thread holds.
        """
        return locks_held() > (self.closer == threading.get_ident())
