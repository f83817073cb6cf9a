"""Leases: the messages of a queue shared by the consumers of a group, each for a time.

What a group has open of its queues is in memory, see `LeaseQueue`; each change is one write to
`LeaseJournal` before it counts, so that a kill forgets nothing. ``consumerOffset.json`` has each
group's oldest message that is not acknowledged, as RocketMQ reads it.

Source: RocketMQ broker/processor/PopMessageProcessor.java, AckMessageProcessor.java,
    ChangeInvisibleTimeProcessor.java, AbstractSendMessageProcessor.java (consumerSendMsgBack).
Differs: a lease that ends lets the message itself come again, in its place in the queue, where POP
    copies it to a retry topic; and after too many tries it becomes a dead letter.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from rmqcore.arguments import text, whole_number
from rmqcore.errors import MessageIllegalError, PutMessageError, StoreClosedError, StoreError
from rmqcore.files.config_tables import TopicConfig
from rmqcore.files.lease_journal import Done, Entry, Leased
from rmqcore.files.store_dir import StoreDir
from rmqcore.message import DEAD_LETTER_PREFIX, RETRY_PREFIX, Lease, Message, QueueLag
from rmqcore.status import Durability
from rmqcore.store.consume.arrivals import Arrivals
from rmqcore.store.consume.holders import Holder, is_mine
from rmqcore.store.consume.interrupt_safe_lock import InterruptSafeLock
from rmqcore.store.consume.lease_queue import TIMES_MAX, LeaseQueue, runs_of
from rmqcore.store.consume.lease_reads import LeaseReads, is_stored_batch
from rmqcore.store.consume.lease_request import (
    LEASE_MS_MAX,
    Damaged,
    LeasedItem,
    LeasedOf,
    LeaseRequest,
    LeaseResult,
)
from rmqcore.store.consume.lease_table import LeasedStore, LeaseTable
from rmqcore.store.consume.retry import damaged_letter, first_retry_level, retry_ms, sent_again
from rmqcore.store.consume.undoing import Undoing

_log = logging.getLogger("rmqcore")

#: A message that is being put into another topic is kept from others for this long.
_MOVING_MS: Final = 60_000

#: what is leased, the message that it is, and what is put elsewhere in its place
Move: TypeAlias = tuple[LeaseQueue, Lease, LeasedItem, Message]


class Leases:
    """All leases of a store.

    - A lease, an acknowledgement or a change costs one write to the page cache, and no sync.
    - After a kill of the process everything holds that a call has returned for. A power cut may
      let messages come again that were acknowledged; it loses none.
    - Memory is taken by what is open, about 130 bytes a message, whatever its size.

    Args:
        store: whose messages are leased.
        directory: of the store.
        clock_ms: Unix time in milliseconds.
        monotonic_s: seconds of a clock that never steps back.
        arrivals: who waits for messages.
        catch_up_all: lets `arrivals` know of all that has been put.

    Threads: any.
    """

    request = staticmethod(LeaseRequest.of)
    taking = LeaseResult

    def __init__(
        self,
        store: LeasedStore,
        directory: StoreDir,
        clock_ms: Callable[[], int],
        monotonic_s: Callable[[], float],
        arrivals: Arrivals,
        catch_up_all: Callable[[], None],
    ) -> None:
        self._store = store
        self._arrivals = arrivals
        self._lock = InterruptSafeLock()
        self._closed = False
        self._kept: frozenset[str] = frozenset()
        self.interrupted = Undoing(self._undo)
        #: holds the messages that are being put into another topic
        self._mover = Holder()
        #: has what is leased for nobody by name: it comes again when this process ends
        self._nameless = Holder()
        self._table = LeaseTable(store, directory, clock_ms, monotonic_s, catch_up_all)
        self._reads = LeaseReads(store)
        #: numbers of leases that gave something, by which queues take turns
        self._gave = itertools.count(1)
        with self._lock.within():
            self._lock.refuse_interrupt()
            self._table.load()
        arrivals.listen_first(self._table.arrived)

    def stop(self) -> None:
        """Lease and take back nothing more; what this process holds may come again at once."""
        with self._lock.within():
            self._lock.refuse_interrupt()
            self._closed = True
            # a store is closed on a disk that refuses this, too: its leases end with the process
            with suppress(OSError):
                for holder in list(self._table.holders):
                    if is_mine(holder) and holder not in self._kept:
                        self._table.release(holder)
                # an interrupt may have left an offset older than the journal, which it overrides
                for queue in self._table.queues.values():
                    self._table.commit_oldest(queue)

    def close(self) -> None:
        """Write all down, behind ``consumerOffset.json``; after `stop`.

        Raises:
            OSError: it could not be written; the journal has it all the same.
        """
        with self._lock.within():
            self._lock.refuse_interrupt()
            self._table.close()

    def abandon(self) -> None:
        """Let the file go."""
        self._table.abandon()

    def _check_open(self) -> None:
        """Refuse a call inside another one of the same thread, and one of a closed store."""
        self._lock.refuse_interrupt()
        if self._closed:
            raise StoreClosedError("the store has been closed")

    def hand_out(self, taken: LeaseResult) -> None:
        """Hand out what there is now; see `MessageStore.lease`.

        Args:
            taken: gets what was found. Dead letters are for `bury`, which waits for the disk; where
                there is more to be looked at, this is to be called again.

        Raises:
            StoreError: the journal takes nothing, or the store is closed; nothing is handed out.
        """
        with self._lock.within():
            self._check_open()
            self.interrupted.undo_all()
            request, now_ms = taken.request, self._table.now_ms()
            taken.now_ms, taken.due_ms = now_ms, now_ms + request.lease_ms
            self._table.free_due(now_ms)
            holder = self._table.holder_number(request.holder or self._nameless.name)
            if request.call:
                self._table.undo_lease(request.call, holder)
            for queue in self._table.in_turn(request.group, request.topics, request.by_priority):
                self._lease_from(queue, taken, holder)
                if taken.left <= 0 or taken.looks <= 0:
                    break
            self._table.compact()

    def undo_interrupted(self) -> None:
        """Let count as never handed out what interrupted calls have leased."""
        with self._lock.within():
            self._check_open()
            self.interrupted.undo_all()

    def _undo(self, leased: list[LeasedOf]) -> None:
        for queue, due_ms, messages in leased:
            while messages:
                offset, times = messages[-1]
                if offset >= queue.position:
                    # the journal has nothing of it
                    queue.done(offset)
                elif self._is_known(queue) and queue.is_leased(offset, times, due_ms):
                    self._table.set(queue, offset, 0, 0, undone=True)
                # once: who is given it in the same millisecond has a lease that looks alike
                messages.pop()
            self._arrivals.wake((queue.topic,))

    def bury(self, taken: LeaseResult) -> bool:
        """Put the dead letters that were found; what cannot be put now is tried again later.

        Returns:
            False when some could not be put.
        """
        group = taken.request.group
        moves: list[Move] = []
        try:
            with self._lock.within():
                self._lock.refuse_interrupt()
                for queue, item, lease in taken.dead:
                    if self._is_known(queue) and self._is_held(queue, lease):
                        letter = self._dead_letter(group, item, lease)
                        moves.append((queue, lease, item, letter))
                        self._begin_move(queue, lease)
            self._move(group, moves)
        except BaseException as error:
            self._come_again(moves, taken.due_ms)
            if not isinstance(error, StoreError | OSError | MessageIllegalError):
                raise
            _log.error("dead letters of %s are tried again later: %s", group, error)
            return False
        return True

    def next_due_ms(self) -> int | None:
        """When to look again for what comes again, Unix ms; None: nothing does."""
        with self._lock.within():
            self._lock.refuse_interrupt()
            return self._table.due.next_ms()

    def _lease_from(self, queue: LeaseQueue, taken: LeaseResult, holder: int) -> None:
        """Lease what a queue has: first what comes again, then what is new."""
        self._table.follow_reset(queue)
        items: list[tuple[int, int, LeasedItem]] = []
        entries: list[Entry] = []
        due_ms, position = taken.due_ms, queue.position
        leased = taken.leased_of(queue)
        following = position
        try:
            while (
                len(items) < taken.left
                and taken.looks > 0
                and (offset := queue.next_free()) is not None
            ):
                times = min(queue.times(offset) + 1, TIMES_MAX)
                item = self._reads.one(queue, offset)
                if item is None or taken.is_expired(item):
                    taken.looks -= 1
                    queue.done(offset)
                    entries.append(Done(queue.number, offset, 1))
                    continue
                # before it counts as leased: an interrupt leaves no lease that nobody has
                leased.append((offset, times))
                items.append((offset, times, item))
                self._table.due.add(due_ms, queue.number, offset)
                queue.lease(offset, 1, due_ms, holder, times)
                entries.append(Leased(queue.number, offset, 1, due_ms, holder, times))
            if len(items) < taken.left:
                fresh = self._reads.fresh(queue, taken, taken.left - len(items))
                following = fresh.following
                leased.extend((offset, 1) for offset, _ in fresh.items)
                for offset, _ in fresh.items:
                    self._table.due.add(due_ms, queue.number, offset)
                for offset, count, _ in runs_of((each, 0) for each, _ in fresh.items):
                    queue.lease(offset, count, due_ms, holder, 1)
                    entries.append(Leased(queue.number, offset, count, due_ms, holder, 1))
                entries.extend(Done(queue.number, *inside) for inside in fresh.insides)
                items.extend((offset, 1, item) for offset, item in fresh.items)
            self._table.hand_out(entries, taken.request.call)
        except BaseException:
            # a lease that the journal lacks is nobody's, and what was never handed out still was
            # not: for the journal, all in front of what it has next is done with
            self.interrupted.add(taken.leased)
            queue.take_back(position)
            for offset, times, _ in items:
                if queue.is_open(offset):
                    queue.lease(offset, 1, 0, 0, times - 1)
            raise
        queue.pass_over(following)
        if items:
            queue.gave_at = next(self._gave)
        for offset, times, item in items:
            place = queue.topic, queue.queue_id, offset, times - 1, due_ms, item.phy_offset
            taken.add(queue, item, Lease(*place))
        self._table.commit_oldest(queue)

    def acknowledge(self, group: str, leases: Iterable[Lease]) -> int:
        """Be done with messages; see `MessageStore.acknowledge`."""
        with self._lock.within():
            self._check_open()
            queues: dict[LeaseQueue, set[int]] = {}
            for lease in map(Lease._make, leases):
                queue = self._queue_of(group, lease)
                if queue is not None and queue.is_open(lease.queue_offset):
                    queues.setdefault(queue, set()).add(lease.queue_offset)
            self._table.finish(queues)
            return sum(map(len, queues.values()))

    def _queue_of(self, group: str, lease: Lease) -> LeaseQueue | None:
        """The queue of a lease; None when its topic was deleted since, and perhaps made anew."""
        if 0 <= lease.phy_offset < self._store.deleted_below(lease.topic):
            return None
        return self._table.queues.get((group, lease.topic, lease.queue_id))

    def _still_held(self, group: str, leases: Iterable[Lease]) -> list[tuple[LeaseQueue, Lease]]:
        """Those of some leases that somebody still has, each once."""
        found = {}
        for lease in map(Lease._make, leases):
            queue = self._queue_of(group, lease)
            if queue is not None and self._is_held(queue, lease):
                found[queue, lease.queue_offset] = queue, lease
        return list(found.values())

    def _is_held(self, queue: LeaseQueue, lease: Lease) -> bool:
        """Whether somebody has a message under a lease, and it is not on its way elsewhere."""
        mover = self._table.holders.get(self._mover.name)
        offset = lease.queue_offset
        return queue.is_held(offset, lease.attempt) and queue.holder(offset) != mover

    def _begin_move(self, queue: LeaseQueue, lease: Lease) -> None:
        """Let nobody have a message, give it back or release it, while it is put elsewhere."""
        mover = self._table.holder_number(self._mover.name)
        self._table.set(queue, lease.queue_offset, self._table.now_ms() + _MOVING_MS, mover)

    def change(self, group: str, leases: Iterable[Lease], lease_ms: int) -> int:
        """Let leases end at another time; see `MessageStore.change_lease`."""
        whole_number("lease_ms", lease_ms, 1, LEASE_MS_MAX)
        with self._lock.within():
            self._check_open()
            held = self._still_held(group, leases)
            due_ms = self._table.now_ms() + lease_ms
            for queue, lease in held:
                self._table.set(queue, lease.queue_offset, due_ms, queue.holder(lease.queue_offset))
            self._table.compact()
        self._arrivals.wake(lease.topic for _, lease in held)
        return len(held)

    def give_back(
        self,
        group: str,
        leases: Iterable[Lease],
        delay_ms: int | None,
        max_reconsume_times: int,
    ) -> int:
        """Let messages come again later; see `MessageStore.give_back`."""
        if delay_ms is not None:
            whole_number("delay_ms", delay_ms, 0, LEASE_MS_MAX)
        moves: list[Move] = []
        try:
            held = self._give_back(group, leases, delay_ms, max_reconsume_times, moves)
            self._move(group, moves)
        except BaseException:
            self._come_again(moves)
            raise
        self._arrivals.wake(lease.topic for _, lease in held)
        return len(held)

    def _give_back(
        self,
        group: str,
        leases: Iterable[Lease],
        delay_ms: int | None,
        max_reconsume_times: int,
        moves: list[Move],
    ) -> list[tuple[LeaseQueue, Lease]]:
        """Put off what is still held; what has to be put elsewhere comes to ``moves``."""
        with self._lock.within():
            self._check_open()
            held = self._still_held(group, leases)
            now_ms = self._table.now_ms()
            for queue, lease in held:
                item = self._reads.one(queue, lease.queue_offset)
                if item is None:
                    self._table.finish({queue: (lease.queue_offset,)})
                    continue
                message = self._copy(group, item, lease, delay_ms, max_reconsume_times)
                if message is None:
                    levels_ms = self._store.config.delay_levels_ms
                    wait_ms = retry_ms(item, lease, levels_ms) if delay_ms is None else delay_ms
                    due_ms = now_ms + wait_ms if wait_ms else 0
                    self._table.set(queue, lease.queue_offset, due_ms, 0)
                else:
                    moves.append((queue, lease, item, message))
                    self._begin_move(queue, lease)
            self._table.compact()
            return held

    def _come_again(self, moves: list[Move], due_ms: int = 0) -> None:
        """Let be handed out what could not be put elsewhere; in `_MOVING_MS` on a full disk."""
        with suppress(OSError), self._lock.within():
            if self._lock.interrupts_itself or self._closed:
                return
            for queue, lease, _, _ in moves:
                if self._is_known(queue) and queue.is_held(lease.queue_offset, lease.attempt):
                    self._table.set(queue, lease.queue_offset, due_ms, 0)

    def _copy(
        self, group: str, item: LeasedItem, lease: Lease, delay_ms: int | None, times_max: int
    ) -> Message | None:
        """What is put for a message that was given back; None when it stays where it is."""
        if isinstance(item, Damaged):
            return self._dead_letter(group, item, lease)
        if item.reconsume_times + lease.attempt >= times_max:
            return self._dead_letter(group, item, lease)
        if delay_ms is not None or not self._store.config.deliver_delayed or is_stored_batch(item):
            # a retry topic lists single messages
            return None
        return sent_again(
            item,
            self._group_topic(RETRY_PREFIX + group),
            queue_id=0,
            delay_level=first_retry_level(item.reconsume_times + lease.attempt),
            reconsume_times=item.reconsume_times + lease.attempt + 1,
            wait=True,
        )

    def _dead_letter(self, group: str, item: LeasedItem, lease: Lease) -> Message:
        topic = self._group_topic(DEAD_LETTER_PREFIX + group)
        if isinstance(item, Damaged):
            return damaged_letter(topic, item, lease, self._store.config)
        return sent_again(
            item,
            topic,
            queue_id=0,
            delay_level=0,
            reconsume_times=item.reconsume_times + lease.attempt,
            wait=True,
        )

    def _group_topic(self, name: str) -> str:
        """A retry or dead-letter topic, created when it is missing."""
        if self._store.topics.get(name) is None:
            self._store.topics.put(
                TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1)
            )
        return name

    def _move(self, group: str, moves: Sequence[Move]) -> None:
        """Put messages elsewhere, and be done with them here; waits for the disk once.

        Raises:
            StoreError, MessageIllegalError: some were not put; their leases end in their time.
        """
        put: list[tuple[LeaseQueue, Lease]] = []
        refused: Exception | None = None
        for left, (queue, lease, item, message) in enumerate(moves, 1 - len(moves)):
            # the last one goes to the disk, and all before it, before their places are given up: a
            # power cut may take only the last puts
            durability = Durability.PAGE_CACHE if left else Durability.DISK
            try:
                self._put(group, lease, item, message, durability)
            except MessageIllegalError as error:
                refused = error
            except StoreError as error:
                refused = error
                break
            else:
                put.append((queue, lease))
        if put and refused is not None:
            self._store.flush()
        self._finish_moved(put)
        if refused is not None:
            raise refused

    def _put(
        self, group: str, lease: Lease, item: LeasedItem, message: Message, durability: Durability
    ) -> None:
        """Put a message elsewhere; as a dead letter where it has no room for a retry's properties.

        Raises:
            StoreError, MessageIllegalError: it was not put.
        """
        try:
            receipt = self._store.put_message(message, durability=durability)
        except MessageIllegalError:
            if message.topic.startswith(DEAD_LETTER_PREFIX):
                raise
            letter = self._dead_letter(group, item, lease)
            receipt = self._store.put_message(letter, durability=durability)
        if not receipt.ok:
            raise PutMessageError(receipt.status, receipt.reason)

    def _finish_moved(self, moved: Iterable[tuple[LeaseQueue, Lease]]) -> None:
        with self._lock.within():
            self._lock.refuse_interrupt()
            if self._closed:
                return
            queues: dict[LeaseQueue, set[int]] = {}
            for queue, lease in moved:
                if self._is_known(queue) and queue.is_open(lease.queue_offset):
                    queues.setdefault(queue, set()).add(lease.queue_offset)
            self._table.finish(queues)

    def _is_known(self, queue: LeaseQueue) -> bool:
        """False when its topic was deleted meanwhile."""
        return self._table.queues.get((queue.group, queue.topic, queue.queue_id)) is queue

    def release(self, holder: str) -> int:
        """Let come again at once what somebody has; see `MessageStore.release_leases`."""
        with self._lock.within():
            self._check_open()
            topics = self._table.release(holder or self._nameless.name)
        self._arrivals.end_waits(holder)
        self._arrivals.wake(topics)
        return len(topics)

    def undo_lease(self, call: str, holder: str) -> None:
        """Let count as never handed out what a call was given; see `Consuming.undo_lease`."""
        with self._lock.within():
            self._check_open()
            topics = self._table.undo_lease(call, self._table.holders.get(holder, 0))
        self._arrivals.wake(topics)

    def keep(self, holders: Iterable[str]) -> None:
        """Let holders of this process go on holding; see `keep_leases`."""
        self._kept = frozenset(holders)

    def release_ended(self, known: Iterable[str], has_ended: Callable[[str], bool]) -> int:
        """Free what processes hold that have ended; see `Consuming.release_ended`."""
        with self._lock.within():
            self._check_open()
            held = self._table.held_by_others(known)
        ended = [holder for holder in held if has_ended(holder)]
        for holder in ended:
            self.release(holder)
        return len(held) - len(ended)

    def lag(self, group: str, topics: Iterable[str]) -> list[QueueLag]:
        """What a group has before it; see `MessageStore.lag`."""
        with self._lock.within():
            self._check_open()
            self._table.free_due(self._table.now_ms())
            return [self._lag_of(group, *key) for key in self._table.keys_of(group, topics)]

    def _lag_of(self, group: str, topic: str, queue_id: int) -> QueueLag:
        begin, end = self._fresh(group, topic, queue_id)
        queue = self._table.queues.get((group, topic, queue_id))
        if queue is None:
            return QueueLag(topic, queue_id, begin, end - begin, 0)
        free = queue.free
        return QueueLag(topic, queue_id, queue.oldest, end - begin + free, len(queue) - free)

    def _fresh(self, group: str, topic: str, queue_id: int) -> tuple[int, int]:
        """Offset of the first message that was never handed out, and that behind the last one."""
        least = self._store.min_queue_offset(topic, queue_id)
        end = self._store.max_queue_offset(topic, queue_id)
        queue = self._table.queues.get((group, topic, queue_id))
        if queue is None:
            stored = self._store.consumer_offsets.get(topic, group, queue_id)
            return max(least, min(stored or 0, end)), end
        self._table.follow_reset(queue)
        begin = max(queue.position, least)
        return begin, max(begin, end)

    def ready(self, group: str, topic: str) -> list[tuple[int, int, int]]:
        """Which messages can be handed out now; see `MessageStore.ready`."""
        with self._lock.within():
            self._check_open()
            self._table.free_due(self._table.now_ms())
            return [
                (queue_id, first, end)
                for name, queue_id in self._table.keys_of(group, (topic,))
                if name == topic
                for first, end in self._ready_of(group, topic, queue_id)
            ]

    def _ready_of(self, group: str, topic: str, queue_id: int) -> list[tuple[int, int]]:
        begin, end = self._fresh(group, topic, queue_id)
        queue = self._table.queues.get((group, topic, queue_id))
        free = [] if queue is None else queue.free_offsets()
        again = [(first, first + count) for first, count, _ in runs_of((n, 0) for n in free)]
        return [*again, (begin, end)] if begin < end else again

    def purge(self, group: str, topic: str) -> int:
        """Be done with all that is ready; see `MessageStore.purge`."""
        topic = text("topic", topic)
        with self._lock.within():
            self._check_open()
            self._table.free_due(self._table.now_ms())
            count = 0
            for queue in self._table.in_turn(group, (topic,), True):
                if queue.topic != topic:
                    continue
                self._table.follow_reset(queue)
                least, most = self._table.bounds(queue)
                count += max(0, most - max(queue.position, least)) + queue.free
                free: list[int] = []
                while (offset := queue.next_free()) is not None:
                    free.append(offset)
                    queue.done(offset)
                passed = most - queue.position
                self._table.write([Done(queue.number, offset, 1) for offset in free])
                if passed > 0:
                    self._table.write((Done(queue.number, queue.position, passed),))
                    queue.pass_over(most)
                self._table.commit_oldest(queue)
            self._table.compact()
            return count

    def follow_set(self, topic: str | None, group: str | None, queue_id: int | None) -> None:
        """Begin anew where somebody has set or removed offsets; see `LeaseTable.follow_set`.

        At once, and on the disk: whatever becomes of ``consumerOffset.json``, it does not stand
        against the journal.
        """
        with self._lock.within():
            if self._lock.interrupts_itself or self._closed:
                # the next lease begins at the new offset; what is written at close counts
                return
            self._table.follow_set(topic, group, queue_id)

    def forget_topic(self, topic: str) -> None:
        """Know nothing of a topic any more: it is deleted."""
        with self._lock.within():
            self._check_open()
            self._table.forget(topic)
