"""Writes the store's mark: after each large piece of log, and when the store is closed."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from rmqcore.errors import CorruptRecordError, CorruptStoreError, StoreClosedError
from rmqcore.files.batch_consume_queue import BatchConsumeQueue

if TYPE_CHECKING:
    from rmqcore.config import StoreConfig
    from rmqcore.derived.consume_queue_store import ConsumeQueueStore
    from rmqcore.files.commit_log_writer import CommitLogWriter
    from rmqcore.files.store_mark import QueueKey, StoreMark

_log = logging.getLogger("rmqcore")
#: An end of the log that none reaches.
_NEVER: Final = 2**63


class StoreMarker:
    """Notes where the log and each queue end, once both are on the disk.

    Args:
        mark: what is written.
        writer: of the log.
        queues: what it speaks of.
        config: tells how much of the log is checked at opening; the mark is renewed with each half
            of that.

    Threads: one caller at a time, as `FlushConsumeQueueService` is.
    """

    def __init__(
        self,
        mark: StoreMark,
        writer: CommitLogWriter,
        queues: ConsumeQueueStore,
        config: StoreConfig,
    ) -> None:
        self._mark = mark
        self._writer = writer
        self._log = writer.log
        self._queues = queues
        self._every_bytes = max(config.open_check_bytes // 2, config.mapped_file_size_commit_log)
        self._due_at = 0
        #: (end of the log, ends of queues) that were seen, and are not surely on the disk yet
        self._seen: tuple[int, dict[QueueKey, int]] | None = None

    def queues_flushed(self) -> None:
        """The queues were flushed: write what was seen before that, or look when it is time."""
        if self._seen is not None and self._writer.flushed_offset >= self._seen[0]:
            self._write(*self._seen)
            self._seen = None
        if self._seen is None and self._log.max_offset >= self._due_at:
            self._seen = self._look()
            self._due_at = self._seen[0] + self._every_bytes

    def closing(self) -> None:
        """All is derived, and nothing is put any more: what the next flush finds is `closed`'s."""
        self._seen, self._due_at = None, _NEVER

    def closed(self) -> None:
        """Everything is on the disk, and nothing is put any more."""
        self._write(*self._look())

    def _look(self) -> tuple[int, dict[QueueKey, int]]:
        ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in self._queues}
        # read last: the queues may end before this offset, never behind it
        return self._log.max_offset, ends

    def _write(self, log_end: int, ends: dict[QueueKey, int]) -> None:
        mark, first = self._mark, self._log.min_offset
        try:
            message = self._log.message_at(first)
            first_units = self._first_units(first)
            batch_queues = {
                key for key in ends if isinstance(self._queues.find(*key), BatchConsumeQueue)
            }
            # a get that finds a queue damaged notes that in between
            with mark.changing():
                mark.first_offset = first
                mark.first_timestamp_ms = 0 if message is None else message.store_timestamp_ms
                mark.log_end, mark.ends = log_end, ends
                mark.first_units, mark.batch_queues = first_units, batch_queues
                mark.store()
        except (OSError, CorruptRecordError) as error:
            # the former mark is still true
            _log.warning("the store's mark stays as it is: %s", error)

    def _first_units(self, min_phy_offset: int) -> dict[QueueKey, int]:
        found = {}
        for queue in self._queues:
            # retention may remove the file just now; one that is gone otherwise is not vouched for
            with suppress(OSError, CorruptStoreError, StoreClosedError):
                if queue.may_lack_first_file(min_phy_offset):
                    found[queue.topic, queue.queue_id] = queue.first_unit
        return found
