"""Topics of an open store: of what kind their queues are, where they go on, and their deletion.

The queues of a topic that is deleted go, its records stay in the log until they expire.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from rmqcore.errors import MessageIllegalError
from rmqcore.files.config_tables import check_topic_name
from rmqcore.files.consume_queue import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from rmqcore.config import StoreConfig
    from rmqcore.derived.consume_queue_store import ConsumeQueueStore
    from rmqcore.files.config_tables import ConsumerOffsetTable, TopicConfig, TopicConfigTable
    from rmqcore.files.deleted_topics import DeletedTopics
    from rmqcore.files.store_dir import StoreDir
    from rmqcore.files.store_mark import StoreMark
    from rmqcore.files.store_trace import StoreTrace
    from rmqcore.native.log._tail import LogTail
    from rmqcore.services.flush import LogFlusher
    from rmqcore.services.reput import ReputMessageService


class TopicDeletion:
    """Topics of a store that is open for writing; a part of `DefaultMessageStore`."""

    config: StoreConfig
    consume_queues: ConsumeQueueStore
    topics: TopicConfigTable
    consumer_offsets: ConsumerOffsetTable
    _deleted: DeletedTopics
    _directory: StoreDir
    _flusher: LogFlusher
    _mark: StoreMark
    _reput: ReputMessageService
    _tail: LogTail
    _trace: StoreTrace

    def _check_open(self) -> None:
        raise NotImplementedError

    def _see_new(self) -> None:
        raise NotImplementedError

    def _forget_leases(self, topic: str) -> None:
        raise NotImplementedError

    def _begin_topics(self) -> None:
        """Tell the end of the log where each queue goes on, and which take inner batches."""
        for queue in self.consume_queues:
            # a topic that no put may name needs no next offset; it can still be read
            with suppress(MessageIllegalError):
                self._tail.set_next_queue_offset(queue.topic, queue.queue_id, queue.max_offset)
        for name, kind in self.config.topic_queue_types:
            self._tail.set_batch_queue(name, kind == "BatchCQ")
        for topic in self.topics:
            self._take_queue_type(topic)
        self.topics.on_put = self._take_queue_type

    def _take_queue_type(self, topic: TopicConfig) -> None:
        kind = topic.attributes.get("queue.type", self.config.queue_type(topic.topic_name))
        self._tail.set_batch_queue(topic.topic_name, kind == "BatchCQ")

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
            OSError: the deletion could not be written down; call again.

        Durability: disk when it returns.
        Source: RocketMQ store/DefaultMessageStore.java, deleteTopics; broker/processor/
            AdminBrokerProcessor.java, deleteTopic.
        Differs: what was deleted stays deleted when queues are derived from the log again.
        """
        self._check_open()
        check_topic_name(topic)
        if topic == SCHEDULE_TOPIC:
            raise MessageIllegalError(f"{topic} holds delayed messages of all topics; it stays")
        # a kill behind this repeats messages; offsets that outlive the queues pass over new ones
        self.consumer_offsets.remove(topic=topic)
        self.consumer_offsets.persist()
        had_queues = self._delete_queues(topic)
        import shutil  # noqa: PLC0415 - heavy, and for a deletion only

        shutil.rmtree(self._directory.consume_queue_ext / topic, ignore_errors=True)
        self._forget_leases(topic)
        known = self.topics.remove(topic)
        self.consumer_offsets.remove(topic=topic)
        self.topics.persist()
        self.consumer_offsets.persist()
        return had_queues or known

    def _delete_queues(self, topic: str) -> bool:
        """Let the topic's numbers begin anew, and drop its queues; False when it had none."""
        self._see_new()
        if not any(queue.topic == topic for queue in self.consume_queues):
            return False
        # written first: a disk that is full refuses it before anything is changed
        self._deleted.delete(topic, self._tail.max_offset)
        with self._reput.stopped() as dispatch_below:
            try:
                end = self._tail.begin_topic_anew(topic)
                self._flusher.flush()
                dispatch_below(end)
                # all before it is on the disk
                self._deleted.delete(topic, end)
            finally:
                # its numbers begin anew, also when that could not be written down
                self._mark.ends = {k: end for k, end in self._mark.ends.items() if k[0] != topic}
                self.consume_queues.drop_topic(topic)
                self._trace.note("topic", 1, f"{topic} was deleted")
        return True
