"""Deleting a topic: its queues go, its records stay in the log until they expire."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from rmqcore.errors import MessageIllegalError
from rmqcore.files.config_tables import check_topic_name
from rmqcore.files.consume_queue import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from rmqcore.derived.consume_queue_store import ConsumeQueueStore
    from rmqcore.files.config_tables import ConsumerOffsetTable, TopicConfigTable
    from rmqcore.files.deleted_topics import DeletedTopics
    from rmqcore.files.store_dir import StoreDir
    from rmqcore.files.store_mark import StoreMark
    from rmqcore.native.log._tail import LogTail
    from rmqcore.services.flush import LogFlusher
    from rmqcore.services.reput import ReputMessageService


class TopicDeletion:
    """`delete_topic` of a store that is open for writing; a part of `DefaultMessageStore`."""

    consume_queues: ConsumeQueueStore
    topics: TopicConfigTable
    consumer_offsets: ConsumerOffsetTable
    _deleted: DeletedTopics
    _directory: StoreDir
    _flusher: LogFlusher
    _mark: StoreMark
    _reput: ReputMessageService
    _tail: LogTail

    def _check_open(self) -> None:
        raise NotImplementedError

    def _see_new(self) -> None:
        raise NotImplementedError

    def delete_topic(self, topic: str) -> bool:
        """Delete a topic: its queues, its configuration, and what groups have consumed of it.

        Its records stay in the log until they expire; no opening and no rebuild brings them back
        into a queue, but `message_at`, `query_message` and scans of the log still find them. A
        message that is put to the topic afterwards makes it anew, with queue offset 0.

        Args:
            topic: its name.

        Returns:
            False when there was no such topic.

        Raises:
            MessageIllegalError: the name is none, or that of RocketMQ's own topic of delayed
                messages.
            OSError: the deletion could not be written down.

        Durability: disk when it returns.
        Source: RocketMQ store/DefaultMessageStore.java, deleteTopics; broker/processor/
            AdminBrokerProcessor.java, deleteTopic.
        Differs: what was deleted stays deleted when queues are derived from the log again.
        """
        self._check_open()
        check_topic_name(topic)
        if topic == SCHEDULE_TOPIC:
            raise MessageIllegalError(f"{topic} holds delayed messages of all topics; it stays")
        had_queues = self._delete_queues(topic)
        import shutil  # noqa: PLC0415 - heavy, and for a deletion only

        shutil.rmtree(self._directory.consume_queue_ext / topic, ignore_errors=True)
        known = self.topics.remove(topic)
        self.consumer_offsets.remove(topic=topic)
        self.topics.persist()
        self.consumer_offsets.persist()
        return had_queues or known

    def _delete_queues(self, topic: str) -> bool:
        """Let the topic's numbers begin anew, and drop its queues; False when it had none."""
        self._see_new()
        if not self._queues_of(topic):
            return False
        # what has no room for this has changed nothing yet
        self._deleted.delete(topic, self._tail.max_offset)
        with self._reput.stopped_at(lambda: self._begin_anew(topic)):
            keys = self._queues_of(topic)
            self._mark.ends = {k: end for k, end in self._mark.ends.items() if k[0] != topic}
            for key in keys:
                self.consume_queues.drop(*key)
            for root in (self._directory.consume_queue, self._directory.batch_consume_queue):
                with suppress(OSError):
                    (root / topic).rmdir()
        return bool(keys)

    def _queues_of(self, topic: str) -> list[tuple[str, int]]:
        return [
            (queue.topic, queue.queue_id) for queue in self.consume_queues if queue.topic == topic
        ]

    def _begin_anew(self, topic: str) -> int:
        """Write down where the topic begins anew; all before it is on the disk then."""
        end = self._tail.begin_topic_anew(topic)
        self._flusher.flush()
        self._deleted.delete(topic, end)
        return end
