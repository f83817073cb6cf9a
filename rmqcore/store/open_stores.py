"""The stores open for writing: those that nobody closes are closed; disabled in a forked child."""

from __future__ import annotations

import atexit
import logging
import os
import warnings
import weakref
from typing import Any, Final

_log = logging.getLogger("rmqcore")


#: every store that is open for writing in this process
OPEN_STORES: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def close_forgotten(store: Any) -> None:
    """Warn of a store that nobody has closed, and close it."""
    try:
        try:
            # a thread that no exit waits for may be closing it
            if not store.parts.handle.closed:
                warnings.warn(f"{store!r} was not closed", ResourceWarning, stacklevel=1)
        finally:
            store.close()
    except OSError:
        _log.exception("%s: could not be closed in order", store.path)


def _close_open_stores() -> None:
    for store in list(OPEN_STORES):
        close_forgotten(store)


def _forget_parents_stores() -> None:
    for store in list(OPEN_STORES):
        store.after_fork_in_child()


atexit.register(_close_open_stores)
os.register_at_fork(after_in_child=_forget_parents_stores)
