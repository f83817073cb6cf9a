"""Where each queue ends, from the store's mark: what the walked part of the log cannot tell.

A queue that was idle for long has no record in the part of the log that an opening walks. When its
files are lost or cut short, it looks like a shorter queue, or like none; a put would then get an
offset that another message has. The mark names its end.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from rmqcore.errors import CorruptRecordError, CorruptStoreError

if TYPE_CHECKING:
    from collections.abc import Collection

    from rmqcore.derived.consume_queue_store import ConsumeQueueStore
    from rmqcore.files.batch_consume_queue import StoredQueue
    from rmqcore.files.commit_log import CommitLog
    from rmqcore.files.deleted_topics import DeletedTopics
    from rmqcore.files.store_mark import QueueKey, StoreMark


class MarkedQueueEnds:
    """Compares the queues with the ends that the mark names.

    Args:
        mark: of the store; one of another log, or of a log that was longer, says nothing.
        deleted: topics that were deleted; their queues have no end any more.
        log: the log; a machine that lost its power may have shortened it.
        queues: the consume queues, loaded.
        clean_shutdown: the store was closed.
        lost_counts: a mark is of this log, too, where no record stands in place of the first one
            of then: it may be lost.
    """

    def __init__(
        self,
        mark: StoreMark,
        deleted: DeletedTopics,
        log: CommitLog,
        queues: ConsumeQueueStore,
        *,
        clean_shutdown: bool,
        lost_counts: bool = False,
    ) -> None:
        self._clean_shutdown = clean_shutdown
        self._mark = mark
        self._deleted = deleted
        self._log = log
        self._queues = queues
        self.of_this_log = self._is_of_this_log(lost_counts=lost_counts)

    def _is_of_this_log(self, *, lost_counts: bool) -> bool:
        """False when the first record of then is another one now."""
        mark, log = self._mark, self._log
        if not log.queue.files or mark.first_offset < log.min_offset:
            return lost_counts or bool(log.queue.files)
        try:
            message = log.message_at(mark.first_offset)
        except CorruptRecordError:
            return lost_counts
        if message is None:
            # a log that begins before has another first record
            return lost_counts and mark.first_offset == log.min_offset
        return bool(message.store_timestamp_ms == mark.first_timestamp_ms)

    def closed_at(self, log_end: int) -> bool:
        """True when the log ended here when the store was closed: it has lost nothing since."""
        return self._clean_shutdown and self.of_this_log and log_end == self._mark.log_end

    def lacking(self) -> dict[QueueKey, int]:
        """The end of each queue that has fewer units than it had."""
        if not self.of_this_log:
            return {}
        return {key: end for key, end in self._mark.ends.items() if self._lacks(key, end)}

    def _lacks(self, key: QueueKey, end: int) -> bool:
        topic, _ = key
        if self._deleted.since(topic) >= self._mark.log_end > 0 or self._deleted.is_gone(topic):
            return False
        try:
            queue = self._queues.find(*key)
        except CorruptStoreError:
            # one that cannot be read is told of elsewhere
            return False
        return queue is None or (queue.max_offset < end and not self._begun_anew(queue))

    def _begun_anew(self, queue: StoredQueue) -> bool:
        """True when RocketMQ has deleted the topic since, and made it again."""
        unit = queue.unit_at(queue.min_offset)
        return unit is not None and unit[0] >= self._mark.log_end

    def lacking_first_files(self) -> dict[QueueKey, StoredQueue]:
        """The queues in front of whose first file one may be missing.

        Not those that began with it when the mark was written; of others only the log tells.
        """
        known = (self._mark.first_units or {}) if self.of_this_log else {}
        found = {}
        for queue in self._queues:
            key = queue.topic, queue.queue_id
            # one whose files cannot be read is told of elsewhere
            with suppress(CorruptStoreError):
                may_lack = queue.may_lack_first_file(self._log.min_offset)
                if may_lack and known.get(key) != queue.first_unit:
                    found[key] = queue
        return found

    def needed_from(self, lacking: dict[QueueKey, int]) -> int:
        """Physical offset from which the log may have units that queues lack, its end for none."""
        found = (self._queues.find(*key) for key in lacking)
        ends = (0 if queue is None else queue.end_phy_offset for queue in found)
        return min(ends, default=self._log.max_offset)

    def restore(self, log_end: int, emptied: Collection[QueueKey]) -> list[QueueKey]:
        """After the walk: end queues where they ended, whose messages the log no longer has.

        Args:
            log_end: where the log ends; a shorter one than then has lost records, and so the
                numbers of the mark are of messages that are gone.
            emptied: queues of topics that were deleted since; they have no end any more.

        Returns:
            the queues that were brought to their ends.
        """
        if log_end < self._mark.log_end:
            return []
        lacking = {
            key: end
            for key, end in self.lacking().items()
            if key not in emptied and not self._queues.is_made_up(*key, end)
        }
        for (topic, queue_id), end in lacking.items():
            if (queue := self._queues.find(topic, queue_id)) is not None:
                queue.correct_min_offset(self._log.min_offset)
            batches = (topic, queue_id) in self._mark.batch_queues
            self._queues.end_at(topic, queue_id, end, batches=batches)
        return sorted(lacking)
