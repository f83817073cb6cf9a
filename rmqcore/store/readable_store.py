"""`ReadableStore`: the reads of a store, whether it is open for writing or read only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rmqcore.config import to_broker_conf
from rmqcore.store.column_reads import ColumnReads
from rmqcore.store.forwarding import forwards, in_the_words_of
from rmqcore.store.parts.reading import MAX_BYTES, Reading

if TYPE_CHECKING:
    from pathlib import Path

    from rmqcore.config import StoreConfig
    from rmqcore.native.format._message_ext import MessageExt
    from rmqcore.native.read._get_result import GetMessageResult
    from rmqcore.native.read._key_query import QueryMessageResult
    from rmqcore.store.parts.iteration import OnDamage


class ReadableStore(ColumnReads):
    """Forwards reads to the part that answers them; each sees what had been put when it began.

    Args:
        reading: answers.
    """

    @in_the_words_of(Reading.get_message)
    def get_message(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int = MAX_BYTES,
        tags: str | None = None,
        max_scanned: int | None = None,
    ) -> GetMessageResult:
        """See `Reading.get_message`."""
        return self._reading.get_message(
            topic, queue_id, queue_offset, max_messages, max_bytes, tags, max_scanned
        )

    @in_the_words_of(Reading.get_cached)
    def get_cached(
        self, topic: str, queue_id: int, queue_offset: int, max_messages: int, max_bytes: int
    ) -> GetMessageResult | None:
        """See `Reading.get_cached`."""
        return self._reading.get_cached(topic, queue_id, queue_offset, max_messages, max_bytes)

    is_cached = forwards("_reading", Reading.is_cached)
    fetch = forwards("_reading", Reading.fetch)
    queue_bounds = forwards("_reading", Reading.queue_bounds)
    queues = forwards("_reading", Reading.queues)
    min_queue_offset = forwards("_reading", Reading.min_queue_offset)
    max_queue_offset = forwards("_reading", Reading.max_queue_offset)
    read_units = forwards("_reading", Reading.read_units)

    @in_the_words_of(Reading.query_message)
    def query_message(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = 64,
        begin_ms: int = 0,
        end_ms: int | None = None,
        page: int | None = None,
        explain: bool = False,
    ) -> QueryMessageResult:
        """See `Reading.query_message`."""
        return self._reading.query_message(
            topic, key, max_messages, begin_ms, end_ms, page, explain
        )

    query_many = forwards("_reading", Reading.query_many)
    queue_offset_by_time = forwards("_reading", Reading.queue_offset_by_time)
    message_at = forwards("_reading", Reading.message_at)
    message_by_id = forwards("_reading", Reading.message_by_id)

    @property
    def min_phy_offset(self) -> int:
        """Physical offset of the first byte of the log."""
        return self._reading.min_phy_offset

    @property
    def max_phy_offset(self) -> int:
        """Physical offset behind the last byte of the log."""
        return self._reading.max_phy_offset

    @in_the_words_of(Reading.messages)
    def messages(
        self,
        topic: str | None = None,
        queue_id: int | None = None,
        *,
        start: int | None = None,
        stop: int | None = None,
        on_damage: OnDamage | None = None,
    ) -> Iterator[MessageExt]:
        """See `Reading.messages`."""
        messages = self._reading.messages(
            topic, queue_id, start=start, stop=stop, on_damage=on_damage
        )
        return _keeping(self, messages)


def _keeping(_store: object, messages: Iterator[MessageExt]) -> Iterator[MessageExt]:
    """An iteration that keeps its store, which would be closed when nobody else has it."""
    yield from messages


def broker_conf(config: StoreConfig, path: Path) -> str:
    """The ``broker.conf`` lines with which RocketMQ opens a store.

    Args:
        config: of the store.
        path: of its directory; it is written absolute.
    """
    return to_broker_conf(config, path=path.resolve())
