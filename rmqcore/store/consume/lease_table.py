"""Who has leased what: every group's queues in memory, and the journal that tells it again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Final, Protocol, TypeAlias

from rmqcore.config import StoreConfig
from rmqcore.files.config_tables import TopicConfigTable
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.files.lease_journal import (
    Begun,
    Closed,
    Done,
    Entry,
    Handed,
    HolderNamed,
    Leased,
    LeaseJournal,
    QueueNamed,
    to_bytes,
)
from rmqcore.files.store_dir import StoreDir
from rmqcore.message import (
    RETRY_PREFIX,
    GetMessageResult,
    Message,
    MessageExt,
    PutMessageResult,
)
from rmqcore.status import Durability
from rmqcore.store.consume.due_times import DueTimes
from rmqcore.store.consume.holders import has_process, is_gone, is_mine
from rmqcore.store.consume.lease_queue import HOLDER_MAX, LeaseQueue, runs_of

_log = logging.getLogger("rmqcore")

#: group, topic, queue id
QueueKey: TypeAlias = tuple[str, str, int]

#: The journal is written anew when it has this many bytes, and again when it has four times that.
_COMPACT_AT_LEAST: Final = 4 << 20
#: A clock that goes back by more than this, beside the time that has passed, was put back.
_STEP_MS: Final = 1000
#: What so many last calls of other processes were given is known: an answer may be lost.
_CALLS_KNOWN: Final = 1024
#: In `LeaseQueue.committed`: somebody else has set the offset, which may not be saved yet.
_SET: Final = -1


class LeasedStore(Protocol):
    """The store as leases see it."""

    topics: TopicConfigTable
    consumer_offsets: ConsumerOffsetTable

    @property
    def config(self) -> StoreConfig:
        """Its settings, as they are now."""

    def get_message(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int = 128 << 20,
        tags: str | None = None,
        max_scanned: int | None = None,
    ) -> GetMessageResult:
        """Messages of one queue from an offset on; see `MessageStore.get_message`."""

    def message_at(self, phy_offset: int) -> MessageExt | None:
        """The message at a physical offset; None on a miss."""

    def flush(self) -> int:
        """Write everything put so far to the disk."""

    def put_message(
        self, message: Message, *, durability: Durability | None = None
    ) -> PutMessageResult:
        """Store a message; see `MessageStore.put_message`."""

    def min_queue_offset(self, topic: str, queue_id: int) -> int:
        """Smallest offset of a queue; 0 when it is unknown. See `MessageStore.min_queue_offset`."""

    def deleted_below(self, topic: str) -> int:
        """Physical offset below which no record of a topic counts: deleted, or not there."""

    def max_queue_offset(self, topic: str, queue_id: int) -> int:
        """Offset behind a queue's last message; see `MessageStore.max_queue_offset`."""

    def queues(self) -> list[tuple[str, int]]:
        """(topic, queue id) of every queue."""


class LeaseTable:
    """The state of all groups; what `Leases` does is made of these steps.

    - A change is written to the journal before it counts.
    - Beside another's change of ``consumerOffset.json`` the other's counts.

    Args:
        store: whose messages are leased.
        directory: of the store.
        clock_ms: Unix time in milliseconds.
        monotonic_s: seconds of a clock that never steps back.
        catch_up_all: catches up with what has been put, so that `arrived` has heard of it.

    Threads: one at a time, but for `arrived`.

    Attributes:
        queues: by group, topic and queue id.
        holders: numbers by name.
        due: when something comes again.
        new_queues: whether there may be queues that are not known yet.
    """

    def __init__(
        self,
        store: LeasedStore,
        directory: StoreDir,
        clock_ms: Callable[[], int],
        monotonic_s: Callable[[], float],
        catch_up_all: Callable[[], None],
    ) -> None:
        self.queues: dict[QueueKey, LeaseQueue] = {}
        self.holders: dict[str, int] = {}
        self.due = DueTimes()
        self.new_queues = True
        self._store = store
        self._clock_ms = clock_ms
        self._monotonic_s = monotonic_s
        #: what the time of day was last ahead of the time that passes
        self._ahead_ms = clock_ms() - self._passed_ms()
        self._catch_up_all = catch_up_all
        self._journal = LeaseJournal(directory.consumer_leases, directory.check_there)
        self._compact_at = _COMPACT_AT_LEAST
        self._numbered: dict[int, LeaseQueue] = {}
        self._next_number = 1
        self._known: set[tuple[str, int]] = set()
        #: by (group, topics, by priority): lists of queues that take turns, the list of the
        #: highest priority first
        self._routes: dict[tuple[str, tuple[str, ...], bool], list[list[LeaseQueue]]] = {}
        #: what each call of another process was given, the oldest call first
        self._handed: dict[str, list[Handed]] = {}

    def load(self) -> None:
        """Take in the journal; what others have done to the store meanwhile counts."""
        names: dict[int, str] = {}
        closed = False
        for entry in self._journal.entries():
            closed = isinstance(entry, Closed)
            self._replay(entry, names)
        self._keep_damaged()
        self._next_number = max(self._numbered, default=0) + 1
        self.holders = {names.get(number, ""): number for number in self._held()}
        for queue in list(self.queues.values()):
            self._fit(queue, closed=closed)
        self._journal.replace(self._entries())
        for holder in list(self.holders):
            # who holds what of a store does not hold it of a copy
            if self._journal.is_copy or is_gone(holder):
                self.release(holder)
        for queue in self.queues.values():
            for offset, due_ms in queue.timed():
                self.due.add(due_ms, queue.number, offset)

    def _keep_damaged(self) -> None:
        """Keep a journal that is damaged in front of records which do not count, and say so."""
        journal = self._journal
        if journal.damaged_at < 0:
            return
        try:
            kept = f"it is kept as {journal.keep_damaged().name}"
        except OSError as error:
            kept = f"it could not be kept: {error}"
        _log.warning(
            "%s is damaged at %d: what groups acknowledged after that comes again; %s",
            journal.path,
            journal.damaged_at,
            kept,
        )

    def _replay(self, entry: Entry, names: dict[int, str]) -> None:
        match entry:
            case QueueNamed(number, group, topic, queue_id):
                queue = LeaseQueue(number, group, topic, queue_id)
                self.queues[group, topic, queue_id] = self._numbered[number] = queue
            case HolderNamed(number, holder):
                names[number] = holder
            case Closed():
                pass
            case _ if entry[0] not in self._numbered:
                # the number is another queue's from now on
                pass
            case Handed():
                self._keep_handed(entry)
            case Begun(number, offset):
                self._numbered[number].begin(offset)
            case Leased(number, offset, count, due_ms, holder, times):
                self._numbered[number].lease(offset, count, due_ms, holder, times)
            case Done(number, offset, count):
                self._numbered[number].done_with(offset, count)

    def _fit(self, queue: LeaseQueue, *, closed: bool) -> None:
        """Agree with ``consumerOffset.json`` and with what the queue has."""
        stored = self._store.consumer_offsets.get(queue.topic, queue.group, queue.queue_id)
        if stored is None and (closed or queue.is_untouched):
            self.drop(queue)
            return
        if stored is not None and stored != queue.oldest:
            if closed:
                queue.begin(stored)
            else:
                # ``consumerOffset.json`` was saved later than the last journal entry that a power
                # cut has left
                queue.done_before(stored)
        least, most = self.bounds(queue)
        queue.committed = queue.committing = stored
        queue.fit(least, most)
        self.commit_oldest(queue)

    def close(self) -> None:
        """Write all down, behind ``consumerOffset.json``, which agrees with it.

        Raises:
            OSError: it could not be written; the journal has it all the same.
        """
        self.now_ms()
        self._journal.replace([*self._entries(), Closed()])

    def abandon(self) -> None:
        """Let the file go."""
        self._journal.close()

    def _entries(self) -> Iterator[Entry]:
        """All that holds, and all names: one is there before its holder has anything."""
        for name, number in self.holders.items():
            yield HolderNamed(number, name)
        for queue in self.queues.values():
            yield from queue.entries()
        for handed in self._handed.values():
            yield from handed

    def write(self, entries: Iterable[Entry]) -> None:
        """Append to the journal; nothing counts before that.

        Raises:
            OSError: it cannot be written.
        """
        records = b"".join(map(to_bytes, entries))
        if records:
            self._journal.write(records, self._entries)

    def hand_out(self, entries: Sequence[Entry], call: str) -> None:
        """Write down what is leased, and which call of another process gets it, if one does.

        Args:
            entries: of the journal: a `Leased` for each run of messages, others as they come.
            call: name of the other process's call; empty when it is this process's own.

        Raises:
            OSError: it cannot be written.
        """
        handed = [
            Handed(*each[:3], each.times, call)
            for each in entries
            if call and isinstance(each, Leased)
        ]
        self.write([*entries, *handed])
        for each in handed:
            self._keep_handed(each)

    def _keep_handed(self, handed: Handed) -> None:
        self._handed.setdefault(handed.call, []).append(handed)
        while len(self._handed) > _CALLS_KNOWN:
            del self._handed[next(iter(self._handed))]

    def undo_lease(self, call: str, holder: int) -> list[str]:
        """Free what a call was given whose answer was lost: it counts as not handed out.

        Args:
            call: name of the call; one that is not known frees nothing.
            holder: number of who was given it; what has another holder by now stays leased.

        Returns:
            the topic of each message.

        Raises:
            OSError: it cannot be written.
        """
        freed = []
        for number, first, count, times, _ in self._handed.get(call, ()):
            queue = self._numbered.get(number)
            if queue is None:
                continue
            for offset in range(first, first + count):
                if queue.is_held(offset, times - 1) and queue.holder(offset) == holder:
                    self.set(queue, offset, 0, 0, undone=True)
                    freed.append(queue.topic)
        self._handed.pop(call, None)
        return freed

    def held_by_others(self, known: Iterable[str]) -> list[str]:
        """Holders that a process other than this has named, but for some."""
        held, skip = self._held(), frozenset(known)
        return [
            name
            for name, number in self.holders.items()
            if number in held and name not in skip and has_process(name) and not is_mine(name)
        ]

    def forget(self, topic: str) -> None:
        """Know nothing of a topic any more, also after a power cut.

        Raises:
            OSError: it cannot be written.
        """
        # before the queues go: an interrupt leaves no route to a queue that is not known
        self.new_queues = True
        for queue in [queue for queue in self.queues.values() if queue.topic == topic]:
            self.drop(queue)
        self._write_anew()

    def _held(self) -> set[int]:
        return set().union(*(queue.holders() for queue in self._numbered.values()))

    def _write_anew(self) -> None:
        held = self._held()
        self.holders = {name: number for name, number in self.holders.items() if number in held}
        self._journal.replace(self._entries())

    def compact(self) -> None:
        """Write the journal anew when later entries have overtaken most of it."""
        if self._journal.size < self._compact_at:
            return
        try:
            self._write_anew()
        except OSError:
            _log.exception("%s could not be written anew, and grows", self._journal.path)
        self._compact_at = max(_COMPACT_AT_LEAST, 4 * self._journal.size)

    def bounds(self, queue: LeaseQueue) -> tuple[int, int]:
        """The smallest offset of a queue, and the one behind its last message."""
        return (
            self._store.min_queue_offset(queue.topic, queue.queue_id),
            self._store.max_queue_offset(queue.topic, queue.queue_id),
        )

    def commit_oldest(self, queue: LeaseQueue) -> None:
        """Say in the consumer offsets up to where a queue is done with, unless somebody sets it."""
        oldest = queue.oldest
        if oldest == queue.committed:
            return
        table, place = self._store.consumer_offsets, (queue.topic, queue.group, queue.queue_id)
        before = table.get(*place)
        if before not in (queue.committed, queue.committing):
            # set by another thread, whose call of `follow_set` is about to come
            return
        queue.committing = oldest
        if not table.move(*place, before, oldest):
            return
        queue.committed = oldest
        if before is not None and oldest < before:
            # a power cut has cut the queue's end off: messages that get these offsets again are
            # new, see `_fit`
            table.persist()

    def _queue(self, group: str, topic: str, queue_id: int) -> LeaseQueue:
        """The state of a group's queue; one that is new to the group begins where it stands."""
        key = group, topic, queue_id
        queue = self.queues.get(key)
        if queue is None:
            queue = LeaseQueue(self._next_number, *key)
            # before the entry is written: an interrupt then gives the number to no other queue
            self._next_number += 1
            stored = self._store.consumer_offsets.get(topic, group, queue_id)
            least, most = self.bounds(queue)
            queue.begin(least if stored is None else max(least, min(stored, most)))
            queue.committed = queue.committing = stored
            self.commit_oldest(queue)
            self.write((QueueNamed(queue.number, *key), Begun(queue.number, queue.position)))
            self.queues[key] = self._numbered[queue.number] = queue
        return queue

    def drop(self, queue: LeaseQueue) -> None:
        """Know nothing of a group's queue any more."""
        del self.queues[queue.group, queue.topic, queue.queue_id]
        del self._numbered[queue.number]

    def follow_reset(self, queue: LeaseQueue) -> None:
        """Begin anew where somebody has set the group's offset."""
        stored = self._store.consumer_offsets.get(queue.topic, queue.group, queue.queue_id)
        if stored == queue.committed:
            return
        if stored in (queue.oldest, queue.committing) and queue.committed != _SET:
            # nobody has set it: an interrupt came between the two steps of `commit_oldest`
            queue.committed = stored
            return
        least, most = self.bounds(queue)
        position = least if stored is None else max(least, min(stored, most))
        self.write((Begun(queue.number, position),))
        # saved now: the file may still have the group's former offset, which the next opening
        # would take for the group's progress, see `_fit`
        self._store.consumer_offsets.persist()
        queue.begin(position)
        queue.committed = queue.committing = stored
        self.commit_oldest(queue)

    def follow_set(self, topic: str | None, group: str | None, queue_id: int | None) -> None:
        """Begin anew, in the journal and on the disk, where offsets have been set.

        Args:
            topic: whose offsets were set; None for every one.
            group: which group's; None for every one.
            queue_id: which queue's; None for all of them.

        Raises:
            OSError: it cannot be written.
        """
        if topic is None or group is None or queue_id is None:
            wanted = [
                queue
                for queue in self.queues.values()
                if topic in (None, queue.topic) and group in (None, queue.group)
            ]
        else:
            known = self.queues.get((group, topic, queue_id))
            wanted = [] if known is None else [known]
        followed = []
        for queue in wanted:
            stored = self._store.consumer_offsets.get(queue.topic, queue.group, queue.queue_id)
            if stored not in (queue.committed, queue.oldest):
                least, most = self.bounds(queue)
                position = least if stored is None else max(least, min(stored, most))
                followed.append((queue, position))
        if not followed:
            return
        self.write(Begun(queue.number, position) for queue, position in followed)
        self._journal.sync()
        for queue, position in followed:
            queue.begin(position)
            queue.committed = _SET

    def holder_number(self, holder: str) -> int:
        """The number of a holder, written down when it is new."""
        number = self.holders.get(holder)
        if number is None:
            used = set(self.holders.values())
            number = max(used, default=0) + 1
            if number > HOLDER_MAX:
                number = next(n for n in range(1, HOLDER_MAX) if n not in used)
            self.write((HolderNamed(number, holder),))
            self.holders[holder] = number
        return number

    def arrived(self, queues: Sequence[tuple[str, int]]) -> None:
        """Look for queues anew when there are messages of an unknown one; from any thread."""
        if not self._known.issuperset(queues):
            self.new_queues = True

    def in_turn(
        self, group: str, topics: tuple[str, ...], by_priority: bool
    ) -> Sequence[LeaseQueue]:
        """The queues of a group, in the order in which they are asked now.

        Args:
            group: who asks.
            topics: by name, each once; the group's retry topic comes with them.
            by_priority: queues with higher ids first, always; else all take turns, as those of
                one id do: first the one that gave something longest ago.
        """
        self._find_new_queues()
        route = self._routes.get((group, topics, by_priority))
        if route is None:
            alike: dict[int, list[LeaseQueue]] = {}
            for topic, queue_id in self.keys_of(group, topics):
                queue = self._queue(group, topic, queue_id)
                alike.setdefault(queue_id if by_priority else 0, []).append(queue)
            route = [alike[priority] for priority in sorted(alike, reverse=True)]
            self._routes[group, topics, by_priority] = route
        for queues in route:
            queues.sort(key=attrgetter("gave_at"))
        return list(chain.from_iterable(route))

    def keys_of(self, group: str, topics: Iterable[str]) -> list[tuple[str, int]]:
        """(topic, queue id) of each queue of a group's topics and of its retry topic, sorted.

        Args:
            group: whose retry topic belongs to it.
            topics: by name; one without queues adds none.
        """
        self._find_new_queues()
        wanted = {RETRY_PREFIX + group, *topics}
        return sorted(key for key in self._known if key[0] in wanted)

    def _find_new_queues(self) -> None:
        self._catch_up_all()
        if self.new_queues:
            # reset before looking, so that a queue which comes meanwhile is looked for again
            self.new_queues = False
            try:
                self._known = set(self._store.queues())
                self._routes.clear()
            except BaseException:
                self.new_queues = True
                raise

    def now_ms(self) -> int:
        """Unix time; when the clock was put back, nothing is leased or put off for longer by that.

        Raises:
            OSError: that cannot be written.
        """
        now_ms = self._clock_ms()
        ahead_ms = now_ms - self._passed_ms()
        if ahead_ms < self._ahead_ms - _STEP_MS:
            self._put_back(self._ahead_ms - ahead_ms)
        self._ahead_ms = ahead_ms
        return now_ms

    def _passed_ms(self) -> int:
        return int(1000 * self._monotonic_s())

    def _put_back(self, by_ms: int) -> None:
        sooner = [
            (queue, Leased(queue.number, offset, 1, max(1, due_ms - by_ms), *queue.who(offset)))
            for queue in self.queues.values()
            for offset, due_ms in queue.timed()
        ]
        self.write(lease for _, lease in sooner)
        for queue, lease in sooner:
            # before it counts, so that an interrupt leaves no lease that never ends
            self.due.add(lease.due_ms, queue.number, lease.queue_offset)
            queue.lease(*lease[1:])

    def free_due(self, now_ms: int) -> None:
        """Let come again what was leased or put off until now."""
        for number, offset in self.due.until(now_ms):
            queue = self._numbered.get(number)
            if queue is not None and 0 < queue.due_ms(offset) <= now_ms:
                queue.give_free(offset)

    def set(
        self, queue: LeaseQueue, offset: int, due_ms: int, holder: int, *, undone: bool = False
    ) -> None:
        """Let an open message come again at another time; 0 is at once.

        Args:
            queue: of the message.
            offset: queue offset of one that is open.
            due_ms: Unix milliseconds at which it comes again.
            holder: number of who has it until then; 0 for nobody.
            undone: count it as not handed out the last time.

        Raises:
            KeyError: the message is not open.
            OSError: it cannot be written.
        """
        times = queue.times(offset) - undone
        self.write((Leased(queue.number, offset, 1, due_ms, holder, times),))
        if due_ms:
            # before the lease counts, so that an interrupt leaves no lease that never ends
            self.due.add(due_ms, queue.number, offset)
        queue.lease(offset, 1, due_ms, holder, times)

    def finish(self, queues: Mapping[LeaseQueue, Iterable[int]]) -> None:
        """Be done with messages that are open, by queue."""
        self.write(
            Done(queue.number, offset, count)
            for queue, offsets in queues.items()
            for offset, count, _ in runs_of((each, 0) for each in sorted(offsets))
        )
        for queue, offsets in queues.items():
            for offset in offsets:
                queue.done(offset)
            self.commit_oldest(queue)
        self.compact()

    def release(self, holder: str) -> list[str]:
        """Free what somebody holds; the topic of each message."""
        number = self.holders.get(holder)
        if number is None:
            return []
        freed = []
        for queue in self._numbered.values():
            held = queue.held_by(number)
            self.write(
                Leased(queue.number, offset, count, 0, 0, times)
                for offset, count, times in runs_of((each, queue.times(each)) for each in held)
            )
            for offset in held:
                queue.give_free(offset)
            freed += [queue.topic] * len(held)
        return freed
