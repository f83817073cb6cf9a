"""Which messages are handed out by POP and not acknowledged; they survive a restart.

Each pop of a queue is one record in ``rmq_sys_REVIVE_LOG_<cluster>``, each acknowledgement another;
what is open is in memory. How far the records are done with is the consumer offset of
``CID_RMQ_SYS_REVIVE_GROUP``, the offset of the last one that is. Groups' offsets are written every
5 seconds; what was handed out since moves them on when the records are read back, so that a kill
brings nothing again that was acknowledged. A broker that has come into another cluster goes on with
what is open in the topics of those before: it stores that anew in the topic of this one.

Source: RocketMQ broker/processor/PopMessageProcessor.java, PopReviveService.java.
Differs: there the records pass the timer first, and are looked at when they are due.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

from rmqcore.broker.pop.changes import Changes
from rmqcore.broker.pop.receipts import (
    AHEAD_MS_MAX,
    REVIVE_QUEUES,
    Checkpoint,
    CheckpointKey,
    ack_body,
    done_body,
    read_ack,
)
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.broker.state.budgets import CHECKPOINTS_MAX, RESERVED_CHECKPOINTS
from rmqcore.broker.state.passed_over import REVIVE
from rmqcore.broker.state.queued import number_in
from rmqcore.errors import PutMessageError, StoreError
from rmqcore.files.service_topics import REVIVE_GROUP, REVIVE_PREFIX
from rmqcore.message import Message, MessageExt
from rmqcore.remoting import RequestRefusedError, ResponseCode
from rmqcore.store.protocol import MessageStore

logger = logging.getLogger(__name__)

_CHECKPOINT: Final = "ck"
_ACKS: Final = ("ack", "bAck")
_BATCH: Final = 256
#: A message whose checkpoint was read back comes again no sooner than this: its acknowledgement may
#: be on the way.
_GRACE_MS: Final = 3000


class Checkpoints:
    """The open checkpoints, by key and by due time.

    Args:
        state: the broker's.
        topic: of their records; None for that of the broker's cluster.
        successor: has taken over what was open in this topic before; None for none.
    """

    def __init__(
        self,
        state: BrokerState,
        topic: str | None = None,
        successor: Checkpoints | None = None,
    ) -> None:
        self._state, self._successor = state, successor
        self._store: MessageStore = state.store
        self._deleted_below = state.store.followed_log.deleted_below
        self._config, self._passed_over = state.config, state.passed_over
        self._clock_ms = state.world.clock_ms
        self.topic: Final = topic or f"{REVIVE_PREFIX}{state.config().broker_cluster_name}"
        self._open: dict[CheckpointKey, Checkpoint] = {}
        #: how many of them each group has
        self._of_group: Counter[str] = Counter()
        self._heap: list[tuple[int, CheckpointKey]] = []
        #: when the last of those in the heap was popped, Unix time
        self._popped_ms = 0
        #: when topics were forgotten, Unix time: a pop of one that has the name again is later
        self._forgotten_ms: dict[str, int] = {}
        #: by revive queue, the places of open checkpoints, in order
        self._places: list[dict[int, None]] = [{} for _ in range(REVIVE_QUEUES)]
        self._read_offsets = [0] * REVIVE_QUEUES
        #: by revive queue, behind the last record that was put or read
        self._ends = [0] * REVIVE_QUEUES
        #: by revive queue, the first record of which groups' offsets may not know yet
        self._unknown_from: list[int] | None = None
        self._changes = Changes()
        #: by topic, group and queue id, the offsets that are believed whatever the records say
        self._believed: frozenset[tuple[str, str, int]] = frozenset()

    def __len__(self) -> int:
        return len(self._open)

    def load(self) -> None:
        """Read the records that are not done with, and move groups on behind what they got.

        Raises:
            StoreError: they cannot be read, or stored anew in the topic of another cluster.
            OSError: how far they are done with cannot be written then.
        """
        offsets = self._store.consumer_offsets
        known, is_slave = offsets.read_revive_ends, self._config().is_slave
        if not is_slave:
            self._unknown_from = known
            if known is None or len(known) != REVIVE_QUEUES:
                # nobody says it: then the offsets that there are know of all, others of nothing
                self._unknown_from = [0] * REVIVE_QUEUES
                self._believed = offsets.keys()
        self._read_all()
        taken_over = not is_slave and self._take_over()
        self._unknown_from, self._believed = None, frozenset()
        if not is_slave:
            offsets.revive_ends_of = self._ends.copy
            offsets.follow_revive_queues()
        if taken_over:
            # what is acknowledged from now on does not come again from there
            offsets.persist()

    def _take_over(self) -> bool:
        """Store anew what is open in the topics of other clusters; whether there was a record."""
        topics = {topic for topic, _ in self._store.queues() if topic.startswith(REVIVE_PREFIX)}
        taken_over = False
        for topic in sorted(topics - {self.topic}):
            former = Checkpoints(self._state, topic, self)
            former._unknown_from, former._believed = self._unknown_from, self._believed
            former._read_all()
            for key, each in former._open.items():
                if key not in self._open:
                    body = each.to_java(self._config().broker_name)
                    each.place = self._put(each.revive_queue, _CHECKPOINT, body)
                    self._remember(each, max(each.due_ms, self._clock_ms() + _GRACE_MS))
            taken_over |= former._end_all()
        return taken_over

    def _end_all(self) -> bool:
        """Say in the consumer offsets that all records are done with; whether that is new."""
        for places in self._places:
            places.clear()
        before = self._done()
        self.commit()
        return before != self._done()

    def _done(self) -> list[int | None]:
        offsets = self._store.consumer_offsets
        return [offsets.get(self.topic, REVIVE_GROUP, each) for each in range(REVIVE_QUEUES)]

    def _read_all(self) -> None:
        offsets = self._store.consumer_offsets
        for queue_id in range(REVIVE_QUEUES):
            done = offsets.get(self.topic, REVIVE_GROUP, queue_id)
            end = self._store.max_queue_offset(self.topic, queue_id)
            if done is not None and done >= end:
                # a queue that has lost its end: the next record is not done with before it is there
                done = end - 1 if end else None
                if done is None:
                    offsets.forget_queue(self.topic, queue_id)
                else:
                    offsets.advance(self.topic, REVIVE_GROUP, queue_id, done)
            self._read_offsets[queue_id] = 0 if done is None else done + 1
            self.read_back(queue_id)
        self._finish_changes()

    def _finish_changes(self) -> None:
        """Let messages be in one checkpoint of which a time was changed when a kill came."""
        kept = {key[:4]: each for key, each in self._open.items() if each.kept}
        for key, each in list(self._open.items()) if kept else ():
            for offset in list(each.open_offsets):
                changed = kept.get((*key[:3], offset), each)
                if changed.revive_queue == each.revive_queue and changed.place > each.place:
                    self._move(key, offset, changed.key)

    def _move(self, key: CheckpointKey, offset: int, to: CheckpointKey) -> None:
        """Take a message out of a checkpoint that is in another one; no record says it yet."""
        self._changes.add(key, offset, to, self._open[key].place)
        self._close(key, [offset])

    def arrived(self, topic: str, queue_id: int) -> None:
        """Take in what the timer has delivered, as a broker of RocketMQ has left it there.

        Args:
            topic: into which, of any cluster's records or none.
            queue_id: into which of its queues.

        Raises:
            StoreError: it cannot be read, or stored anew in the topic of another cluster.
        """
        if topic == self.topic:
            self.read_back(queue_id)
        elif topic.startswith(REVIVE_PREFIX):
            self._take_over()

    def read_back(self, queue_id: int) -> None:
        """Take in the records of a queue that were not read: at the start, or of the timer."""
        if not 0 <= queue_id < REVIVE_QUEUES:
            return
        least = self._store.min_queue_offset(self.topic, queue_id)
        offset, before = max(least, self._read_offsets[queue_id]), -1
        while offset > before:
            before = offset
            records, offset = self._passed_over.read(REVIVE, self.topic, queue_id, offset, _BATCH)
            for record in records:
                self._replay(record, queue_id)
        self._read_offsets[queue_id] = offset
        self._ends[queue_id] = max(self._ends[queue_id], offset)

    def _replay(self, record: MessageExt, queue_id: int) -> None:
        place = f"offset {record.queue_offset} of revive queue {queue_id}"
        with self._passed_over.guard(REVIVE, place):
            if record.tags == _CHECKPOINT:
                found = Checkpoint.from_java(bytes(record.body), queue_id, record.queue_offset)
                if record.phy_offset < self._deleted_below(found.topic):
                    return
                if found.open_offsets and found.key not in self._open:
                    self._remember(found, max(found.due_ms, self._clock_ms() + _GRACE_MS))
                if self._unknown_from and record.queue_offset >= self._unknown_from[queue_id]:
                    self._move_on(found, record.phy_offset)
            elif record.tags in _ACKS:
                key, offsets = read_ack(bytes(record.body))
                if key in self._open or self._successor is None:
                    self._close(key, offsets)
                else:
                    self._successor.acknowledge(key, offsets)

    def _move_on(self, checkpoint: Checkpoint, phy_offset: int) -> None:
        """Let a group go on behind what it was handed out, unless that was of a former topic.

        Args:
            checkpoint: what it was handed out.
            phy_offset: the place of its record, behind which no message of it can lie.
        """
        topic, group, queue_id, *_ = checkpoint.key
        if (topic, group, queue_id) in self._believed:
            return
        offsets, end = self._store.consumer_offsets, checkpoint.end
        former = offsets.get(topic, group, queue_id) or 0
        if former < end <= self._store.max_queue_offset(topic, queue_id):
            queue = topic, queue_id
            found = self._store.get_message(*queue, end - 1, max_messages=1).messages
            is_last = found and number_in(queue, found[0]) == end - 1
            if is_last and found[0].phy_offset < phy_offset:
                offsets.commit(topic, group, queue_id, end)

    def _remember(self, checkpoint: Checkpoint, due_ms: int) -> None:
        self._open[checkpoint.key] = checkpoint
        self._of_group[checkpoint.group] += 1
        heapq.heappush(self._heap, (due_ms, checkpoint.key))
        self._popped_ms = max(self._popped_ms, checkpoint.pop_time_ms)
        self._places[checkpoint.revive_queue][checkpoint.place] = None

    def _close(self, key: CheckpointKey, offsets: Sequence[int]) -> list[int]:
        """Take offsets out of a checkpoint; those that were open."""
        checkpoint = self._open.get(key)
        if checkpoint is None:
            return []
        closed = [offset for offset in offsets if offset in checkpoint.open_offsets]
        for offset in closed:
            checkpoint.open_offsets.remove(offset)
        if not checkpoint.open_offsets:
            del self._open[key]
            self._of_group[checkpoint.group] -= 1
            if not self._of_group[checkpoint.group]:
                del self._of_group[checkpoint.group]
            places = self._places[checkpoint.revive_queue]
            if not self._changes.is_former(key):
                places.pop(checkpoint.place, None)
            for former, place in self._changes.end(key, closed[-1]).items() if closed else ():
                if former not in self._open:
                    places.pop(place, None)
            if len(self._heap) > 2 * len(self._open) + _BATCH:
                # the most of it is done with, and would stay until it were due
                self._heap = [each for each in self._heap if each[1] in self._open]
                heapq.heapify(self._heap)
        return closed

    # ---- what pops and acknowledgements do

    def expect_room(self, group: str) -> None:
        """Refuse one more checkpoint of a group where there are too many.

        Raises:
            RequestRefusedError: it is so; answers with code 209.

        Differs: RocketMQ holds popCkMaxBufferSize of them in memory, others on the disk.
        """
        if len(self._open) >= CHECKPOINTS_MAX and self._of_group[group] >= RESERVED_CHECKPOINTS:
            remark = f"too many pops that are not acknowledged: {CHECKPOINTS_MAX} at most"
            raise RequestRefusedError(ResponseCode.POLLING_FULL, remark)

    def add(self, checkpoint: Checkpoint) -> Checkpoint:
        """Store a checkpoint; its pop time is moved on when it would be another's.

        Raises:
            StoreError: it cannot be stored.
        """
        while checkpoint.key in self._open or self._changes.is_former(checkpoint.key):
            checkpoint.pop_time_ms += 1
        body = checkpoint.to_java(self._config().broker_name)
        checkpoint.place = self._put(checkpoint.revive_queue, _CHECKPOINT, body)
        self._remember(checkpoint, checkpoint.due_ms)
        return checkpoint

    def change(self, key: CheckpointKey, changed: Checkpoint) -> Checkpoint:
        """Store that a message comes again at another time, as a checkpoint of its own.

        Where the record cannot be stored that closes the one before, it follows with the
        acknowledgement; until then the message is known by both.

        Args:
            key: of the checkpoint that it is in.
            changed: of this message alone; see `add`.

        Raises:
            StoreError: it cannot be stored; nothing has changed.
        """
        changed = self.add(changed)
        (offset,) = changed.open_offsets
        try:
            self.acknowledge(key, [offset])
        except StoreError as error:
            logger.warning("a changed time is closed later: %s", error)
            self._move(key, offset, changed.key)
        return changed

    def note_order(self, key: tuple[str, str, int], offset: int, pop_time_ms: int) -> None:
        """Store that a group goes on behind a message that it was handed out in order.

        It is a checkpoint of which nothing is open, which RocketMQ passes over.

        Args:
            key: the queue, and whose.
            offset: the message's.
            pop_time_ms: when it was handed out, Unix time.

        Raises:
            StoreError: it cannot be stored.
        """
        body = done_body(*key, offset, pop_time_ms, self._config().broker_name)
        self._put(key[2] % REVIVE_QUEUES, _CHECKPOINT, body)

    def acknowledge(self, key: CheckpointKey, offsets: Sequence[int]) -> bool:
        """Store that messages are done with; False when none of them was open.

        Args:
            key: (topic, group, queue id, start offset, time of the pop) of the checkpoint.
            offsets: queue offsets; those that are not open in it are passed over.

        Raises:
            StoreError: it cannot be stored; they are as open as before.
        """
        found = [(self._changes.find(key, offset), offset) for offset in offsets]
        done = [self.acknowledge(at, [offset]) for at, offset in found if at != key]
        checkpoint = self._open.get(key)
        if checkpoint is None:
            return any(done)
        known = [offset for offset in offsets if offset in checkpoint.open_offsets]
        if not known:
            return any(done)
        for former in self._changes.not_noted(key):
            self._put_ack(checkpoint.revive_queue, former, known)
            self._changes.note(key, former)
        self._put_ack(checkpoint.revive_queue, key, known)
        self._close(key, known)
        return True

    def _put_ack(self, queue_id: int, key: CheckpointKey, offsets: Sequence[int]) -> None:
        body = ack_body(key, offsets, self._config().broker_name)
        self._put(queue_id, _ACKS[len(offsets) > 1], body)

    def forget_topic(self, topic: str) -> None:
        """Store that all messages of a topic are done with, which was deleted.

        Their offsets will be those of other messages when the topic is made again.
        """
        self._forgotten_ms[topic] = self._clock_ms()
        for key in [key for key in self._open if key[0] == topic]:
            offsets = list(self._open[key].open_offsets)
            try:
                self.acknowledge(key, offsets)
            except StoreError as error:
                # nothing of before the deletion is read back
                logger.warning("messages of %s are done with: %s", topic, error)
                self._close(key, offsets)

    def pop_time_ms(self, *topics: str) -> int:
        """The time of a pop of topics, Unix time: that of no pop of topics that had their names."""
        forgotten = (self._forgotten_ms.get(topic, -1) for topic in topics)
        return max(self._clock_ms(), *(ms + 1 for ms in forgotten))

    def find(self, key: CheckpointKey, offset: int) -> Checkpoint | None:
        """The checkpoint that a message is in; None when it is in none any more.

        Args:
            key: as the message's receipt names one.
            offset: of the message in its queue.
        """
        found = self._open.get(self._changes.find(key, offset))
        return found if found is not None and offset in found.open_offsets else None

    def _put(self, queue_id: int, tag: str, body: bytes) -> int:
        message = Message(self.topic, body, queue_id=queue_id, tags=tag, wait_store_msg_ok=False)
        receipt = self._store.put_message(message)
        if not receipt.ok:
            raise PutMessageError(receipt.status, receipt.reason)
        place = int(receipt.queue_offset)
        self._ends[queue_id] = max(self._ends[queue_id], place + 1)
        return place

    # ---- time

    def open_of(self, group: str) -> list[Checkpoint]:
        """What is handed out to a group and not acknowledged; may be called on any thread."""
        return [each for each in list(self._open.values()) if each.group == group]

    def next_due_ms(self) -> int | None:
        """When the next checkpoint is due, Unix time; None when none is open."""
        while self._heap and self._heap[0][1] not in self._open:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Checkpoint | None:
        """A checkpoint whose time is over, None when there is none.

        When the clock is put back, nothing is kept from others for longer than was agreed.
        """
        if self._popped_ms > now_ms + AHEAD_MS_MAX:
            self._popped_ms = now_ms
            self._heap = [
                (min(due_ms, now_ms + self._open[key].invisible_ms), key)
                for due_ms, key in self._heap
                if key in self._open
            ]
            heapq.heapify(self._heap)
        due_ms = self.next_due_ms()
        return self._open[self._heap[0][1]] if due_ms is not None and due_ms <= now_ms else None

    def set_aside(self) -> None:
        """Leave what `due` has told open until it is acknowledged, or read back at a start."""
        heapq.heappop(self._heap)

    def commit(self) -> None:
        """Say in the consumer offsets up to where the records are done with.

        A slave knows that from its master only: it has not read the records that come to it.
        """
        if self._config().is_slave:
            return
        for queue_id, places in enumerate(self._places):
            if self._passed_over.holds(self.topic, queue_id):
                continue
            most = self._store.max_queue_offset(self.topic, queue_id)
            done = next(iter(places), most) - 1
            former = self._store.consumer_offsets.get(self.topic, REVIVE_GROUP, queue_id)
            if done >= 0 and done != former:
                self._store.consumer_offsets.commit(self.topic, REVIVE_GROUP, queue_id, done)
        self._store.consumer_offsets.follow_revive_queues()
