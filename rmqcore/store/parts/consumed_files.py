"""`ConsumedFiles`: deletes the log files in which every message is done with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rmqcore.arguments import texts_of
from rmqcore.errors import NO_ROOM, CorruptStoreError, PutMessageError, StoreNotWritableError
from rmqcore.files.consume_queue import SCHEDULE_TOPIC
from rmqcore.store.parts.key_values import TOPIC_PREFIX

if TYPE_CHECKING:
    from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
    from rmqcore.services.reput import ReputMessageService
    from rmqcore.services.retention import RetentionService
    from rmqcore.store.parts.flushing import Flushing
    from rmqcore.store.parts.handle import Handle
    from rmqcore.store.parts.key_values import KeyValues
    from rmqcore.store.parts.level import Level
    from rmqcore.store.parts.reading import Reading
    from rmqcore.store.parts.settings import Settings

_log = logging.getLogger("rmqcore")


class ConsumedFiles:
    """Tells what is still needed of the log, and deletes what is not.

    Args:
        handle, settings: of the store.
        reading: finds the oldest message that is needed.
        consumer_offsets: what groups have consumed.
        level: catches up with what has been put.
        reput: what is not dispatched is needed.
        oldest_parked: physical offset of the oldest message that has still to be delivered, or
            None.
        key_values: tables hold log files back, and can be put anew.
        flushing: writes the store through, before anything goes.
        retention: deletes.
    """

    def __init__(
        self,
        handle: Handle,
        settings: Settings,
        reading: Reading,
        consumer_offsets: ConsumerOffsetTable,
        level: Level,
        reput: ReputMessageService,
        oldest_parked: Callable[[], int | None],
        key_values: KeyValues,
        flushing: Flushing,
        retention: RetentionService,
    ) -> None:
        self._handle = handle
        self._settings = settings
        self._reading = reading
        self._consumer_offsets = consumer_offsets
        self._level = level
        self._reput = reput
        self._oldest_parked = oldest_parked
        self._key_values = key_values
        self._flushing = flushing
        self._retention = retention

    def delete_consumed_files(self, disposable: Iterable[str] = ()) -> int:
        """Delete the oldest log files, as far as every message in them is done with.

        A message is done with when all groups that have consumed its topic have acknowledged it.
        A topic that no group has consumed keeps its messages. The last file stays.

        Args:
            disposable: topics whose messages nobody needs, such as dead letters; a str is one.

        Returns:
            files deleted.

        Raises:
            OSError: the disk refused to flush before, or a file cannot be deleted.
        """
        disposed = frozenset(texts_of("disposable", disposable))

        def delete() -> int:
            needed = self._needed_from(disposed)
            if needed - self._reading.min_phy_offset < self._bytes_to_next_file():
                return 0
            try:
                self._flushing.flush()
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                # only the tables' offsets are not on the disk: a reader who finds one before the
                # log's begin reads from its begin
                _log.warning(
                    "%s: the full disk has no room for the tables: %s", self._handle.path, error
                )
            return self._retention.delete_before(needed)

        deleted = delete()
        needed = self._needed_from(disposed, tables=False)
        try:
            return deleted + self._key_values.free_of_tables(needed, delete)
        except (OSError, StoreNotWritableError, PutMessageError) as error:
            _log.warning("%s: tables hold log files back: %s", self._handle.path, error)
            return deleted

    def _bytes_to_next_file(self) -> int:
        """How far the log's second file is from its begin."""
        size = self._settings.config.mapped_file_size_commit_log
        return size - self._reading.min_phy_offset % size

    def _needed_from(self, disposable: frozenset[str], *, tables: bool = True) -> int:
        """Physical offset of the oldest message that somebody has still to consume.

        Args:
            disposable: topics that nobody needs.
            tables: whether what tables of keys and values begin with counts.
        """
        groups: dict[str, list[str]] = {}
        for topic, group in self._consumer_offsets.pairs():
            groups.setdefault(topic, []).append(group)
        self._level.catch_up_all()
        # which queues get what is not dispatched yet, because it waits for the disk or for room,
        # nobody knows
        needed = self._reput.offset
        parked = self._oldest_parked()
        if parked is not None:
            needed = min(needed, parked)
        delivers = self._settings.config.deliver_delayed
        for topic, queue_id in self._reading.queues():
            if topic in disposable or (delivers and topic == SCHEDULE_TOPIC):
                continue
            if not tables and topic.startswith(TOPIC_PREFIX):
                continue
            least = self._reading.min_queue_offset(topic, queue_id)
            wanted = [
                self._consumer_offsets.get(topic, group, queue_id) or 0
                for group in groups.get(topic, ())
            ]
            offset = max(least, min(wanted, default=least))
            try:
                found = self._reading.get_message(topic, queue_id, offset, max_messages=1).messages
            except CorruptStoreError:
                return self._reading.min_phy_offset
            needed = min(needed, found[0].phy_offset if found else needed)
        return needed
