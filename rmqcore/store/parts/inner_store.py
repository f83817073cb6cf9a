"""`InnerStore`: the store as its own leases and its delivery of delayed messages use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmqcore.config import StoreConfig
    from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
    from rmqcore.store.parts.files import StoreFiles
    from rmqcore.store.parts.flushing import Flushing
    from rmqcore.store.parts.reading import Reading
    from rmqcore.store.parts.settings import Settings
    from rmqcore.store.parts.writing import Writing


class InnerStore:
    """Calls of several parts in one object: a `LeasedStore` and a `DelayStore`."""

    def __init__(
        self,
        settings: Settings,
        files: StoreFiles,
        consumer_offsets: ConsumerOffsetTable,
        reading: Reading,
        writing: Writing,
        flushing: Flushing,
    ) -> None:
        self._settings = settings
        self.topics = files.topics
        self.consumer_offsets = consumer_offsets
        self._files = files
        self.get_message = reading.get_message
        self.messages = reading.messages
        self.queues = reading.queues
        self.min_queue_offset = reading.min_queue_offset
        self.queue_bounds = reading.queue_bounds
        self.max_queue_offset = reading.max_queue_offset
        self.read_units = reading.read_units
        self.message_at = reading.message_at
        self.put_message = writing.put_message
        self.flush = flushing.flush

    @property
    def config(self) -> StoreConfig:
        """The settings, as they are now."""
        return self._settings.config

    def made_anew_at(self, topic: str) -> int:
        """Physical offset at which a topic was deleted last; 0 for never."""
        return self._files.deleted.since(topic)

    def deleted_below(self, topic: str) -> int:
        """Physical offset below which no record of a topic counts: deleted, or not there."""
        return max(self._files.deleted.since(topic), self._files.log.min_offset)
