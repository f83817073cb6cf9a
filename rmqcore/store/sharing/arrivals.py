"""Arrivals for other processes: the owner keeps, for each connection, the queues not yet told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from rmqcore.store.message_store import DefaultMessageStore

Queue = tuple[str, int]


class PendingArrivals:
    """Queues that have new messages, collected until a client takes them.

    The first that are taken are all there are: what came while the client was about to ask, or
    asked the owner before, is not known.

    Threads: an event loop's; the store may tell from any.
    """

    def __init__(self, store: DefaultMessageStore, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queues: set[Queue] = set()
        self._some = asyncio.Event()
        self.forget = store.on_arrival(self._heard)
        self._add(store.queues())

    async def collect(self) -> list[Queue]:
        """Wait until there are some, and take them."""
        await self._some.wait()
        self._some.clear()
        taken, self._queues = self._queues, set()
        return list(taken)

    def _heard(self, queues: Sequence[Queue]) -> None:
        # the loop may have ended
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._add, tuple(queues))

    def _add(self, queues: Sequence[Queue]) -> None:
        if queues:
            self._queues.update(queues)
            self._some.set()
