"""Stores that a process has open for adapters: one handle a path, however many use it."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from rmqcore.arguments import directory_path
from rmqcore.errors import ConfigError, StoreError, StoreNotFoundError
from rmqcore.store.consume.holders import Holder
from rmqcore.store.consume.undoing import hands_out_nothing, undone_if_interrupted
from rmqcore.store.consumer import keep_room_for_leases
from rmqcore.store.sharing import open_shared

if TYPE_CHECKING:
    from rmqcore.message import Lease, ReceivedMessage
    from rmqcore.store.protocol import MessageStore

_log = logging.getLogger("rmqcore")

#: Log files that nobody needs are deleted this often, where a program does not say.
DELETE_CONSUMED_EVERY_S: Final = 60.0


class OpenedStore:
    """One use of a store; the store is closed with its last use.

    Attributes:
        store: shared with other processes, and with other uses in this one.
        before_drop: called before a use ends that was dropped without `close`, in a thread of its
            own. They refer to nothing that refers to the use.
    """

    def __init__(self, path: str | os.PathLike[str], settings: Mapping[str, Any]) -> None:
        """Open the store of a directory, or use the handle that this process has.

        A handle whose directory has been removed is closed: the path is another store's.

        Args:
            path: the store's directory.
            settings: of `rmqcore.open_shared`; none for those that this process has opened it
                with, before its directory was removed, too.

        Raises:
            ConfigError: this process has it open with other settings.
            StoreError, OSError: it cannot be opened.
        """
        self._key = os.path.realpath(directory_path("path", path))
        self._closed = False
        with _opening:
            known = _stores.get(self._key)
            if known is not None and not known.is_there():
                known.abandon()
                # they count for others whose turn it is later, and who named them
                settings = settings or known.settings
                known = None
            if known is None:
                known = _stores[self._key] = _Handle(self._key, settings)
            elif settings and dict(settings) != known.settings:
                rule = f"the settings that this process has opened it with: {known.settings!r}"
                raise ConfigError("store", dict(settings), rule)
            known.uses += 1
        self._handle = known
        self.store = known.store
        self.before_drop: set[Callable[[], object]] = set()
        self._holder = Holder()
        self._pid = os.getpid()
        self._deletes_at = 0.0
        #: what the store has refused for want of room, and is to have when there is some
        self._owed: list[Callable[[], object]] = []
        #: bytes that were handed out since log files were last deleted, and the size of such a
        #: file
        self._handed_out_size = 0
        self._file_size = self.store.config.mapped_file_size_commit_log

    def is_there(self) -> bool:
        """Whether it is still the store of its directory, which may be removed and made anew."""
        return _stores.get(self._key) is self._handle and self._handle.is_there()

    @property
    def holder(self) -> str:
        """Who holds what this use leases: in a forked child another than in its parent."""
        return self._holder.name

    @undone_if_interrupted
    def lease(
        self, group: str, subscriptions: Mapping[str, str], **terms: Any
    ) -> list[ReceivedMessage]:
        """Lease messages for this use; see `MessageStore.lease`.

        Args:
            group: see `MessageStore.lease`.
            subscriptions: see `MessageStore.lease`.
            terms: the other arguments of `MessageStore.lease`, without ``holder``.
        """
        self._pay_what_is_owed()
        leased = self.store.lease(group, subscriptions, holder=self.holder, **terms)
        self._handed_out_size += sum(message.stored.store_size for message in leased)
        return leased

    def settle(self, settling: Callable[[], object]) -> None:
        """Acknowledge leases, or give them back; when the store refuses, again with the next lease.

        A full disk would else keep messages from everybody for as long as they were leased.

        Args:
            settling: makes the call.

        Raises:
            StoreError, OSError: the store has refused.
        """
        try:
            settling()
        except (StoreError, OSError):
            self._owed.append(settling)
            # else who leases it in between would lose it to that
            hands_out_nothing()
            raise

    def _pay_what_is_owed(self) -> None:
        for settling in list(self._owed):
            try:
                settling()
            except (StoreError, OSError) as error:
                _log.warning("%s: leases are not settled yet: %s", self._key, error)
                return
            # another thread may have made it meanwhile: twice is as once
            with suppress(ValueError):
                self._owed.remove(settling)

    def delete_consumed(
        self, every_s: float | None, expire: Callable[[], object] = lambda: None
    ) -> None:
        """Give back log files that nobody needs, if it is time to.

        It is time when as many bytes were handed out as a file has, and some seconds have passed.
        What the store refuses is logged: it is tried again.

        Args:
            every_s: the seconds; None for never.
            expire: called before, drops what is of no use any more.
        """
        now = self.store.world.monotonic_s()
        due = now >= self._deletes_at or self._handed_out_size >= self._file_size
        if every_s is None or not due:
            return
        self._deletes_at, self._handed_out_size = now + every_s, 0
        try:
            expire()
            deleted = self.store.delete_consumed_files()
            if deleted:
                _log.info(
                    "%s: %d log files given back, %d bytes held",
                    self._key,
                    deleted,
                    self.held_size(),
                )
        except (StoreError, OSError) as error:
            _log.warning("%s: no log files are given back now: %s", self._key, error)

    def held_size(self) -> int:
        """Bytes of the log files that the store has."""
        return held_size(self.store, self._file_size)

    def __del__(self) -> None:
        """End a use that was dropped; what it held comes again."""
        dropped = not getattr(self, "_closed", True) and hasattr(self, "_handle")
        if dropped and not sys.is_finalizing():
            # in another thread: a finalizer may run in the middle of any other call
            threading.Thread(target=self._drop, name="CloseStore").start()

    def _drop(self) -> None:
        with suppress(StoreError, OSError):
            if self._pid == os.getpid():
                for work in self.before_drop:
                    work()
                self.store.release_leases(self.holder)
        with suppress(StoreError, OSError):
            self.close()

    def close(self) -> None:
        """End this use; idempotent. What the store has refused to settle comes again."""
        if not self._closed and self._pid == os.getpid():
            self._pay_what_is_owed()
            if self._owed:
                # other uses may keep the store, and so these leases
                with suppress(StoreError, OSError):
                    self.store.release_leases(self.holder)
        with _opening:
            if self._closed:
                return
            self._closed = True
            known = self._handle
            known.uses -= 1
            if not known.uses and _stores.get(self._key) is known:
                del _stores[self._key]
                known.store.close()


class _Handle:
    def __init__(self, path: str, settings: Mapping[str, Any]) -> None:
        self.settings = dict(settings)
        self.store: MessageStore = open_shared(path, **settings)
        keep_room_for_leases(self.store)
        self.uses = 0
        self._path = Path(path)
        self._directory = self._path.stat()

    def is_there(self) -> bool:
        """Whether the directory that was opened is still the one at the path."""
        try:
            return os.path.samestat(self._path.stat(), self._directory)
        except FileNotFoundError:
            return False

    def abandon(self) -> None:
        """Close the store of a directory that has been removed."""
        _log.warning("%s has been removed while it was open", self._path)
        with suppress(StoreNotFoundError):
            self.store.close()


def opened_again(
    opened: OpenedStore | None, path: str | os.PathLike[str], settings: Mapping[str, Any]
) -> OpenedStore:
    """A use of the store of a directory: one that there is, unless its directory was removed.

    Args:
        opened: the use that there is; closed when it is of no use any more.
        path: as `OpenedStore` takes it.
        settings: as `OpenedStore` takes them.
    """
    if opened is not None and opened.is_there():
        return opened
    again = OpenedStore(path, settings)
    if opened is not None:
        opened.close()
    return again


def held_size(store: MessageStore, file_size: int) -> int:
    """Bytes of the log files of a store whose files have this many.

    Args:
        store: an open one.
        file_size: bytes of a log file.
    """
    least = store.min_phy_offset // file_size
    most = -(-store.max_phy_offset // file_size)
    return max(1, most - least) * file_size


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
