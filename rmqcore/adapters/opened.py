"""Stores that a process has open for adapters: one handle a path, however many use it."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from rmqcore.errors import ConfigError
from rmqcore.store.consume.holders import new_holder
from rmqcore.store.sharing import open_shared

if TYPE_CHECKING:
    from rmqcore.message import Lease, ReceivedMessage
    from rmqcore.store.protocol import MessageStore


class OpenedStore:
    """One use of a store; the store is closed with its last use.

    Attributes:
        store: shared with other processes, and with other uses in this one.
    """

    def __init__(self, path: str | os.PathLike[str], settings: Mapping[str, Any]) -> None:
        """Open the store of a directory, or use the handle that this process has.

        Args:
            path: the store's directory.
            settings: of `rmqcore.open_shared`.

        Raises:
            ConfigError: this process has it open with other settings.
            StoreError, OSError: it cannot be opened.
        """
        self._key = os.path.realpath(path)
        self._closed = False
        with _opening:
            known = _stores.get(self._key)
            if known is None:
                known = _stores[self._key] = _Handle(self._key, settings)
            elif settings and dict(settings) != known.settings:
                rule = f"the settings that this process has opened it with: {known.settings!r}"
                raise ConfigError("store", dict(settings), rule)
            known.uses += 1
        self.store = known.store
        self._holder = (0, "")
        self._deletes_at = 0.0

    @property
    def holder(self) -> str:
        """Who holds what this use leases: in a forked child another than in its parent."""
        pid, holder = self._holder
        if pid != os.getpid():
            holder = new_holder()
            self._holder = os.getpid(), holder
        return holder

    def delete_consumed(self, every_s: float | None) -> None:
        """Give back log files that nobody needs, if that was not done for so long; None: never."""
        now = monotonic()
        if every_s is not None and now >= self._deletes_at:
            self._deletes_at = now + every_s
            self.store.delete_consumed_files()

    def close(self) -> None:
        """End this use; idempotent."""
        with _opening:
            if self._closed:
                return
            self._closed = True
            known = _stores[self._key]
            known.uses -= 1
            if not known.uses:
                del _stores[self._key]
                known.store.close()


class _Handle:
    def __init__(self, path: str, settings: Mapping[str, Any]) -> None:
        self.settings = dict(settings)
        self.store: MessageStore = open_shared(path, **settings)
        self.uses = 0


def lease_of(message: ReceivedMessage) -> Lease:
    """The lease of a message that `MessageStore.lease` gave."""
    return cast("Lease", message.place)


_opening = threading.RLock()
_stores: dict[str, _Handle] = {}


def _after_fork_in_child() -> None:
    """A thread of the parent may have held the lock; handles work in a child."""
    global _opening  # noqa: PLW0603 - the one lock of this module
    _opening = threading.RLock()


os.register_at_fork(after_in_child=_after_fork_in_child)
