"""`ReadableStore`: the reads of a store, whether it is open for writing or read only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Unpack

from rmqcore.config import to_broker_conf
from rmqcore.store.column_reads import ColumnReads
from rmqcore.store.parts.reading import MAX_BYTES, Reading
from rmqcore.store.words import in_the_words_of

if TYPE_CHECKING:
    from pathlib import Path

    from rmqcore.config import StoreConfig
    from rmqcore.native.format._message_ext import MessageExt
    from rmqcore.native.read._get_result import GetMessageResult
    from rmqcore.native.read._key_query import QueryMessageResult
    from rmqcore.status import BoundaryName, BoundaryType
    from rmqcore.store.parts.iteration import OnDamage
    from rmqcore.store.parts.reading import GetBounds


@in_the_words_of(Reading)
class ReadableStore(ColumnReads):
    """Forwards reads to the part that answers them; each sees what had been put when it began.

    Args:
        reading: answers.
    """

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

    def get_cached(
        self, topic: str, queue_id: int, queue_offset: int, max_messages: int, max_bytes: int
    ) -> GetMessageResult | None:
        """See `Reading.get_cached`."""
        return self._reading.get_cached(topic, queue_id, queue_offset, max_messages, max_bytes)

    def is_cached(
        self, topic: str, queue_id: int, queue_offset: int, **bounds: Unpack[GetBounds]
    ) -> bool:
        """See `Reading.is_cached`."""
        return self._reading.is_cached(topic, queue_id, queue_offset, **bounds)

    def fetch(
        self, topic: str, queue_id: int, queue_offset: int, **bounds: Unpack[GetBounds]
    ) -> None:
        """See `Reading.fetch`."""
        self._reading.fetch(topic, queue_id, queue_offset, **bounds)

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """See `Reading.queue_bounds`."""
        return self._reading.queue_bounds(topic, queue_id)

    def queues(self) -> list[tuple[str, int]]:
        """See `Reading.queues`."""
        return self._reading.queues()

    def min_queue_offset(self, topic: str, queue_id: int) -> int:
        """See `Reading.min_queue_offset`."""
        return self._reading.min_queue_offset(topic, queue_id)

    def max_queue_offset(self, topic: str, queue_id: int) -> int:
        """See `Reading.max_queue_offset`."""
        return self._reading.max_queue_offset(topic, queue_id)

    def read_units(self, topic: str, queue_id: int, queue_offset: int, count: int) -> bytes:
        """See `Reading.read_units`."""
        return self._reading.read_units(topic, queue_id, queue_offset, count)

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

    def query_many(
        self,
        topic: str,
        keys: Iterable[str],
        *,
        max_messages: int = 64,
        begin_ms: int = 0,
        end_ms: int | None = None,
    ) -> list[QueryMessageResult]:
        """See `Reading.query_many`."""
        return self._reading.query_many(
            topic, keys, max_messages=max_messages, begin_ms=begin_ms, end_ms=end_ms
        )

    def queue_offset_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        *,
        boundary: BoundaryType | BoundaryName = "lower",
    ) -> int:
        """See `Reading.queue_offset_by_time`."""
        return self._reading.queue_offset_by_time(topic, queue_id, timestamp_ms, boundary=boundary)

    def message_at(self, phy_offset: int) -> MessageExt | None:
        """See `Reading.message_at`."""
        return self._reading.message_at(phy_offset)

    def message_by_id(self, message_id: str) -> MessageExt | None:
        """See `Reading.message_by_id`."""
        return self._reading.message_by_id(message_id)

    @property
    def min_phy_offset(self) -> int:
        """Physical offset of the first byte of the log."""
        return self._reading.min_phy_offset

    @property
    def max_phy_offset(self) -> int:
        """Physical offset behind the last byte of the log."""
        return self._reading.max_phy_offset

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
