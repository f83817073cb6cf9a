"""`ColdReads`: has the disk read in another thread, so that the event loop serves the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from rmqcore.broker.matching import BYTES_SCANNED_MAX, SCANNED_MAX
from rmqcore.broker.settings import BrokerConfig
from rmqcore.broker.subscription import Subscription
from rmqcore.message import GetMessageResult
from rmqcore.store.message_reads import GetBounds, MessageReads

#: the loop has five threads and more, of which others need some
_AT_ONCE: Final = 3


class ColdReads:
    """What is read for consumers that are far behind.

    Args:
        store: what is read.
        config: the broker's settings at this moment.
    """

    def __init__(self, store: MessageReads, config: Callable[[], BrokerConfig]) -> None:
        self._store = store
        self._config = config
        self._turns = asyncio.Semaphore(_AT_ONCE)

    def get_cached(
        self, topic: str, queue_id: int, offset: int, count: int, subscription: Subscription
    ) -> GetMessageResult | None:
        """Messages of a queue by their tags; None where the disk has to be read.

        Raises:
            StoreError: they cannot be read.
        """
        if subscription.tags is None:
            most = self._config().max_transfer_bytes_on_message_in_memory
            result = self._store.get_cached(topic, queue_id, offset, count, most)
            if result is not None:
                return result
        if not self.is_cached(topic, queue_id, offset, count, subscription):
            return None
        bounds = self._bounds(count, subscription)
        return self._store.get_message(topic, queue_id, offset, **bounds)

    def is_cached(
        self, topic: str, queue_id: int, offset: int, count: int, subscription: Subscription
    ) -> bool:
        """Tell whether messages of a queue can be read now without waiting for the disk."""
        bounds = self._bounds(count, subscription)
        return self._store.is_cached(topic, queue_id, offset, **bounds)

    async def fetch(
        self, topic: str, queue_id: int, offset: int, count: int, subscription: Subscription
    ) -> None:
        """Wait until they can.

        Raises:
            StoreClosedError: the store is closed.
        """
        bounds = self._bounds(count, subscription)
        async with self._turns:
            await asyncio.to_thread(self._store.fetch, topic, queue_id, offset, **bounds)

    def _bounds(self, count: int, subscription: Subscription) -> GetBounds:
        if subscription.by_tags:
            return {
                "max_messages": count,
                "max_bytes": self._config().max_transfer_bytes_on_message_in_memory,
                "tags": subscription.tags,
                "max_scanned": max(SCANNED_MAX, count),
            }
        return {
            "max_messages": SCANNED_MAX,
            "max_bytes": BYTES_SCANNED_MAX,
            "tags": None,
            "max_scanned": SCANNED_MAX,
        }
