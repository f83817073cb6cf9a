"""`Topics`: the part that deletes topics, and follows what a master has deleted.

The queues of a topic that is deleted go, its records stay in the log until they expire.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from rmqcore.arguments import text
from rmqcore.errors import NO_ROOM, DiskFullError, MessageIllegalError
from rmqcore.files.config_tables import check_topic_name
from rmqcore.files.consume_queue import SCHEDULE_TOPIC
from rmqcore.files.deleted_topics import goes_on_across
from rmqcore.files.store_dir import queue_id_of, subdirectories
from rmqcore.store.consume.interrupt_safe_lock import InterruptSafeLock

if TYPE_CHECKING:
    from rmqcore.files.batch_consume_queue import StoredQueue
    from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
    from rmqcore.files.store_trace import Note
    from rmqcore.services.flush import LogFlusher
    from rmqcore.services.reput import ReputMessageService
    from rmqcore.store.parts.files import StoreFiles
    from rmqcore.store.parts.handle import Handle
    from rmqcore.store.parts.key_values import KeyValues
    from rmqcore.store.parts.level import Level


class TopicLeases(Protocol):
    """What groups have leased of a topic."""

    def forget_topic(self, topic: str) -> None:
        """Forget it."""
        ...


class Topics:
    """Topics of a store that is open for writing.

    Threads: any; one deletion at a time.

    Args:
        handle: says whether the store is open.
        files: of the store.
        consumer_offsets: what groups have consumed.
        level: catches up with what has been put.
        reput: dispatches; it is stopped while queues go.
        flusher: flushes the log.
        key_values: some topics are tables.
        leases: what groups have leased.
        note: takes deletions down.
    """

    def __init__(
        self,
        handle: Handle,
        files: StoreFiles,
        consumer_offsets: ConsumerOffsetTable,
        level: Level,
        reput: ReputMessageService,
        flusher: LogFlusher,
        key_values: KeyValues,
        leases: TopicLeases,
        note: Note,
    ) -> None:
        self._handle = handle
        self._files = files
        self._table = files.topics
        self._deleted = files.deleted
        self._consume_queues = files.consume_queues
        self._consumer_offsets = consumer_offsets
        self._level = level
        self._reput = reput
        self._flusher = flusher
        self._key_values = key_values
        self._leases = leases
        self._note = note
        self._alone = InterruptSafeLock("deleted topics")
        #: called with a topic and queue ids when a slave forgets what was consumed of the queues
        self.on_begin_anew: Callable[[str, Collection[int]], None] = lambda *_: None
        #: deleted topics of which some files could not be removed
        self._files_left: set[str] = set()

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
            OSError: the deletion could not be written down, or files not be removed; call again.
            StoreNotWritableError: the call comes from a signal handler or a finalizer that has
                interrupted another one.

        Durability: disk when it returns.
        Source: RocketMQ store/DefaultMessageStore.java, deleteTopics; broker/processor/
            AdminBrokerProcessor.java, deleteTopic.
        Differs: what was deleted stays deleted when queues are derived from the log again.
        """
        return self.delete_together([topic])

    def delete_together(self, topics: Sequence[str]) -> bool:
        """As `delete_topic`, of several topics: a kill or a refusal leaves all of them, or none.

        Args:
            topics: by name.

        Returns:
            False when there was none of them.

        Raises:
            MessageIllegalError, OSError, StoreNotWritableError: as of `delete_topic`.
        """
        self._handle.check_open()
        topics = [text("topic", topic) for topic in topics]
        for topic in topics:
            check_topic_name(topic)
            if topic == SCHEDULE_TOPIC:
                raise MessageIllegalError(f"{topic} holds delayed messages of all topics; it stays")
        with self._alone.within():
            self._alone.refuse_interrupt()
            self._handle.check_open()
            self._files.directory.check_there()
            with self._key_values.forgetting(topics):
                return self._delete(topics)

    def _delete(self, topics: Sequence[str]) -> bool:
        self._level.catch_up_all()
        for topic in topics:
            self._remove_left(topic)
            # A kill or an interrupt behind this repeats messages. Offsets and leases that outlive
            # the queues would pass over new ones.
            self._leases.forget_topic(topic)
        # a disk that is full refuses it before anything else is changed
        with self._consumer_offsets.removing(topics):
            with_queues = self._note_deletion(topics)
        if with_queues:
            self._delete_queues(with_queues)
        known = False
        for topic in topics:
            self._leases.forget_topic(topic)
            known |= self._table.remove(topic)
            self._consumer_offsets.remove(topic=topic)
        self._table.persist()
        self._consumer_offsets.persist()
        return bool(with_queues) or known

    def deleted_below(self, topic: str) -> int:
        """Physical offset below which records are of a topic of this name that was deleted."""
        return self._deleted.since(topic)

    def _note_deletion(self, topics: Sequence[str]) -> list[str]:
        """Write down that topics are deleted; which of them have queues."""
        log_start, with_queues = self._files.log.min_offset, list[str]()
        for topic in topics:
            known_of = max(self._deleted.since(topic), log_start)
            begun_at = self._consume_queues.begun_at.get(topic, 0)
            if self._consume_queues.of_topic(topic) or begun_at > known_of:
                with_queues.append(topic)
        # what waits for its time makes a queue without making the topic
        known = {topic for topic in topics if self._table.get(topic) is not None}
        if noted := known.union(with_queues):
            self._deleted.delete(dict.fromkeys(noted, self._files.tail.max_offset), log_start)
        return with_queues

    def _delete_queues(self, topics: Sequence[str]) -> None:
        """Drop the queues of topics, and let their numbers begin anew.

        Interrupted between any two steps, or refused by the system, it leaves either numbers that
        go on, in queues that are there or begin with them, or queues that begin with 0.
        """
        begun_at = self._consume_queues.begun_at
        with self._reput.stopped():
            dropped: list[StoredQueue] = []
            for topic in topics:
                self._forget_ends(self._consume_queues.of_topic(topic))
                dropped += self._consume_queues.drop_topic(topic)
                self._files.tail.begin_topic_anew(topic, begun_at)
            try:
                self._flusher.flush()
                # all before the new beginning is on the disk
                self._deleted.delete({topic: begun_at[topic] for topic in topics})
            finally:
                self._remove_files(dropped)
                for topic in topics:
                    self._note("topic", 1, f"{topic} was deleted")

    def _forget_ends(self, queues: Sequence[StoredQueue]) -> None:
        gone = {(queue.topic, queue.queue_id) for queue in queues}
        self._files.mark.ends = {
            key: end for key, end in self._files.mark.ends.items() if key not in gone
        }

    def _remove_files(self, queues: Sequence[StoredQueue]) -> None:
        topics = {queue.topic for queue in queues}
        self._files_left |= topics
        self._consume_queues.remove_files(queues)
        for topic in topics:
            self._remove_extensions(topic)
        self._files_left -= topics

    def _remove_extensions(self, topic: str) -> None:
        """Remove the extension files of a topic's queues that are not known any more.

        Raises:
            OSError: some could not be removed.
        """
        import shutil  # noqa: PLC0415 - heavy, and for a deletion only

        root = self._files.directory.consume_queue_ext / topic
        known = {None, *(queue.queue_id for queue in self._consume_queues.of_topic(topic))}
        for name in subdirectories(root):
            if queue_id_of(name) not in known:
                shutil.rmtree(root / name)
        with suppress(OSError):
            root.rmdir()

    def _remove_left(self, topic: str) -> None:
        """Remove files of a topic that was deleted which could not be removed then.

        Raises:
            OSError: they still cannot.
        """
        if topic in self._files_left:
            with self._reput.stopped():
                self._consume_queues.remove_left(topic)
                self._remove_extensions(topic)
            self._files_left.discard(topic)

    def _drop(self, queues: Sequence[StoredQueue]) -> None:
        self._forget_ends(queues)
        self._consume_queues.forget_queues(queues)
        self._remove_files(queues)

    # ---- what a master has deleted

    def has_messages(self, topic: str, behind: int = 0) -> bool:
        """Tell whether a topic has messages that can be read, behind a physical offset.

        Args:
            topic: by name; an unknown one has none.
            behind: physical offset; a topic whose messages all begin before it has none.
        """
        return any(
            queue.min_offset < queue.max_offset and queue.end_phy_offset > behind
            for queue in self._consume_queues.of_topic(topic)
        )

    def deletions(self) -> dict[str, int]:
        """Topics that were deleted: physical offset below which their records are."""
        return self._deleted.topics()

    def follow_deletion(self, topic: str, phy_offset: int) -> bool:
        """Delete of a topic what its master has deleted: its records below an offset.

        Queues that have begun anew behind it stay. What was deleted stays so, as it does after
        `delete_topic`. A deletion across which a queue's numbers go on was lost: whoever was the
        master then had not heard of it, and nothing is deleted.

        Args:
            topic: its name.
            phy_offset: as the master's `deletions` say it; the log has to be the master's.

        Returns:
            False when this log does not reach there yet; nothing was changed.

        Raises:
            OSError: the deletion could not be written down, or files not be removed; call again.
            CorruptStoreError: what was put before cannot be dispatched.
            StoreNotWritableError: the call comes from a signal handler or a finalizer that has
                interrupted a dispatch, or another deletion.

        Durability: disk when it returns.
        """
        self._handle.check_open()
        with self._alone.within():
            self._alone.refuse_interrupt()
            self._files.directory.check_there()
            return self._follow_deletion(topic, phy_offset)

    def _follow_deletion(self, topic: str, phy_offset: int) -> bool:
        self._remove_left(topic)
        if phy_offset <= max(self._deleted.since(topic), self._files.log.min_offset):
            return True
        if phy_offset > self._files.log.max_offset:
            return False
        self._level.catch_up_all()
        queues = self._consume_queues.of_topic(topic)
        if any(goes_on_across(queue, phy_offset, self._files.log) for queue in queues):
            return True
        # as in delete_topic; those of a queue that has begun anew went then
        begun = {queue.queue_id for queue in queues if queue.end_phy_offset > phy_offset}
        read = self._consumer_offsets.forget_queues_but(topic, begun)
        self.on_begin_anew(topic, read | {queue.queue_id for queue in queues} - begun)
        self._consumer_offsets.persist_removal()
        self._leases.forget_topic(topic)
        with self._reput.stopped() as dispatch_below:
            self._flusher.flush()
            dispatch_below(phy_offset)
            self._deleted.delete({topic: phy_offset})
            queues = self._consume_queues.of_topic(topic)
            self._drop([queue for queue in queues if queue.end_phy_offset <= phy_offset])
            self._note("topic", 1, f"{topic} was deleted by the master")
        return True

    def begin_queue_anew(self, queue: StoredQueue) -> None:
        """Drop a queue whose topic the master has deleted and made again, as its numbers tell.

        Raises:
            OSError: what groups have consumed of it could not be forgotten, DiskFullError for want
                of room; the next dispatch tries again.
        """
        # before the queue goes: offsets that outlive it would pass over its new messages
        self._consumer_offsets.forget_queue(queue.topic, queue.queue_id)
        try:
            self.on_begin_anew(queue.topic, {queue.queue_id})
            self._consumer_offsets.persist_removal()
        except OSError as error:
            if error.errno in NO_ROOM:
                raise DiskFullError(self._consumer_offsets.path) from error
            raise
        self._drop([queue])
        self._note("topic", 1, f"{queue.topic}/{queue.queue_id} begins anew")
