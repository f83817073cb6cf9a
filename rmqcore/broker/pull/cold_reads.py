"""`ColdReads`: has the disk read in another thread, so that the event loop serves the others."""

from __future__ import annotations

import asyncio
from typing import Final

from rmqcore.broker.pull.fetch import PullRange
from rmqcore.broker.pull.matching import BYTES_SCANNED_MAX, READ_AT_ONCE, SCANNED_MAX
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.broker.state.subscription import Subscription
from rmqcore.message import GetMessageResult
from rmqcore.remoting import Connection
from rmqcore.store.parts.reading import GetBounds
from rmqcore.store.readable_store import ReadableStore

#: Reads from the disk occupy this many of the event loop's five or more threads; further ones wait.
_AT_ONCE: Final = 3


class ColdReads:
    """What is read for consumers that are far behind.

    Args:
        state: the broker's.
    """

    def __init__(self, state: BrokerState) -> None:
        self._store: ReadableStore = state.store
        self._config = state.config
        self._turns = asyncio.Semaphore(_AT_ONCE)

    def get_cached(self, wanted: PullRange) -> GetMessageResult | None:
        """Messages by their tags; None where the disk has to be read.

        Raises:
            StoreError: they cannot be read.
        """
        topic, queue_id, offset, count, subscription = wanted
        if subscription.tags is None:
            most = self._config().max_transfer_bytes_on_message_in_memory
            result = self._store.get_cached(topic, queue_id, offset, count, most)
            if result is not None:
                return result
        if not self.is_cached(wanted):
            return None
        bounds = self._bounds(count, subscription, READ_AT_ONCE)
        return self._store.get_message(topic, queue_id, offset, **bounds)

    def is_cached(self, wanted: PullRange) -> bool:
        """Tell whether messages can be read now without waiting for the disk."""
        topic, queue_id, offset, count, subscription = wanted
        bounds = self._bounds(count, subscription, READ_AT_ONCE)
        return self._store.is_cached(topic, queue_id, offset, **bounds)

    async def fetch(self, connection: Connection, wanted: PullRange) -> None:
        """Wait until they can; a condition's messages are fetched ahead.

        Args:
            connection: who waits; one that has closed meanwhile reads nothing.
            wanted: topic, queue id, queue offset, number of messages and subscription.

        Raises:
            StoreClosedError: the store is closed.
        """
        topic, queue_id, offset, count, subscription = wanted
        bounds = self._bounds(count, subscription, SCANNED_MAX)
        async with self._turns:
            if not connection.closed:
                await asyncio.to_thread(self._store.fetch, topic, queue_id, offset, **bounds)

    def _bounds(self, count: int, subscription: Subscription, looked_at: int) -> GetBounds:
        """How much a get reads: by tags what it hands out, by a condition what that looks at."""
        if subscription.by_tags:
            return {
                "max_messages": count,
                "max_bytes": self._config().max_transfer_bytes_on_message_in_memory,
                "tags": subscription.tags,
                "max_scanned": max(SCANNED_MAX, count),
            }
        return {
            "max_messages": looked_at,
            "max_bytes": BYTES_SCANNED_MAX,
            "tags": None,
            "max_scanned": looked_at,
        }
