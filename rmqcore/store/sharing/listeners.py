"""Arrivals in a client: a thread asks the owner which queues have new messages, and tells."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from rmqcore.errors import RmqCoreError, StoreClosedError, StoreNotFoundError
from rmqcore.services.arrival import ArrivalListener
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.sharing.calls import ARRIVALS, request_of, result_of
from rmqcore.store.sharing.channel import ChannelLostError, OwnerChannel
from rmqcore.world import World

_log = logging.getLogger("rmqcore")

#: A thread of a handle that found no owner looks again after this pause.
LOOK_AGAIN_S: Final = 0.5


class SharedHandle(Protocol):
    """What is asked of a handle on a shared store."""

    path: Path
    world: World

    def reach_owner(self) -> DefaultMessageStore | OwnerChannel:
        """The store, when this process owns it; else a channel to the owner."""
        ...

    def queues(self) -> list[tuple[str, int]]:
        """(topic, queue id) of every queue."""
        ...


class Listeners:
    """The listeners of one handle; the thread begins with the first that comes to a client.

    It does not keep the handle: one that is dropped is closed, and that ends it.

    Threads: any.
    """

    def __init__(self, handle: SharedHandle) -> None:
        self._handle = weakref.ref(handle)
        self._world = handle.world
        self._lock = threading.Lock()
        self._listeners: tuple[ArrivalListener, ...] = ()
        self._running = False

    def add(self, listener: ArrivalListener) -> Callable[[], None]:
        """Tell a function of arrivals from now on; returns what ends it."""
        found = self._reach_owner()
        if not isinstance(found, OwnerChannel):
            return found.on_arrival(listener)
        with self._lock:
            self._listeners = (*self._listeners, listener)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="TellArrivals", daemon=True).start()

        def forget() -> None:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not listener)

        return forget

    def _reach_owner(self) -> DefaultMessageStore | OwnerChannel:
        """See `SharedHandle.reach_owner`.

        Raises:
            StoreClosedError: also when the handle was dropped.
        """
        handle = self._handle()
        if handle is None:
            raise StoreClosedError("the store has been closed")
        return handle.reach_owner()

    def _run(self) -> None:
        told, missed = "", False
        while True:
            try:
                found = self._reach_owner()
                if not isinstance(found, OwnerChannel):
                    found.on_arrival(self._notify)
                    self._notify_all()
                    return
                if missed:
                    self._notify_all()
                    missed = False
                # over a new connection, as with a new owner, the first ones are all there are
                self._notify(result_of(found.call(request_of(ARRIVALS, (), {}))))
            except ChannelLostError:
                continue
            except (StoreClosedError, StoreNotFoundError):
                return
            except (RmqCoreError, OSError) as error:
                if told != str(error):
                    told = str(error)
                    _log.warning("no arrivals, which is tried again: %s", told)
                # nobody has been told of an answer that was given up
                missed = True
                self._world.sleep(LOOK_AGAIN_S)

    def _notify_all(self) -> None:
        handle = self._handle()
        if handle is not None:
            self._notify(handle.queues())

    def _notify(self, queues: Sequence[tuple[str, int]]) -> None:
        for listener in self._listeners:
            try:
                listener(queues)
            except Exception:  # noqa: BLE001 - logged; the listeners are not ours
                _log.exception("a listener for arrivals failed")
