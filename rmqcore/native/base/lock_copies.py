"""Locks on files that this process holds, of which a forked child would have copies.

A lock that a copy stands for lasts as long as the child. So no fork comes while a lock is taken or
given back, and the child closes its copies.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Final, Protocol


class LockHolder(Protocol):
    """What holds locks on files."""

    def after_fork_in_child(self) -> None:
        """Close the copies that a forked child has; the parent keeps the locks."""
        ...


#: held while locks are taken or given back, so that no fork comes in between
LOCKING: Final = threading.RLock()
#: what holds locks, or has held some
LOCK_HOLDERS: Final[weakref.WeakSet[LockHolder]] = weakref.WeakSet()


def _close_copies() -> None:
    """Close all copies in a child: those of a holder that was taking or giving back, too."""
    try:
        for holder in list(LOCK_HOLDERS):
            holder.after_fork_in_child()
    finally:
        LOCKING.release()


os.register_at_fork(
    before=LOCKING.acquire, after_in_parent=LOCKING.release, after_in_child=_close_copies
)
