"""Fills the consume queues while recovery walks the log, and compares their units with it."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

from rmqcore.errors import CorruptConsumeQueueError, CorruptRecordError
from rmqcore.files.batch_consume_queue import BatchConsumeQueue
from rmqcore.files.consume_queue import LIGHT_QUEUE_PREFIX
from rmqcore.files.log_walker import good_record_at, walk_good_records
from rmqcore.files.unit_file import UNIT_HEAD
from rmqcore.message import light_numbers
from rmqcore.native.derive._dispatch import DispatchBatch
from rmqcore.native.derive.runs import TopicRuns, begins_anew, is_alone, with_more_follow
from rmqcore.native.format._numbers import UNIT_SIZE
from rmqcore.recovery.batch_check import BatchCheck

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeGuard

    from rmqcore.derived.consume_queue_store import ConsumeQueueStore
    from rmqcore.files.batch_consume_queue import StoredQueue
    from rmqcore.files.commit_log import CommitLog
    from rmqcore.files.consume_queue import ConsumeQueue
    from rmqcore.files.deleted_topics import DeletedTopics
    from rmqcore.native.derive._dispatch import QueueStretch

_log = logging.getLogger("rmqcore")
QueueKey = tuple[str, int]


class QueueCheck:
    """Dispatches to the consume queues, and compares the units that are there already.

    - A unit that contradicts the log is written anew, and counted. Of two records that name one
      place, such as one whose header rotted, the one keeps it that the queue leads to.
    - Numbers rise along the log: units behind a queue's last message that lead in front of it are
      cut off, and a record whose number the ones beside it contradict is in no queue.
    - A queue that lacks units before the first one that the walk meets is dropped; the whole log
      has to be walked again for it.
    - Records of a topic that was deleted are passed over. Of one that was made again only the last
      run of numbers that begins with 0 counts: a queue that is there begins where that does, and
      one that is not is begun anew with it. A queue that was not there and has no message since
      is dropped again after the walk.

    Args:
        queues: what is fed.
        log: where it is looked up whether a queue's units are right.
        deleted: topics that were deleted.
        before_drop: called before a queue is dropped.
        before_filling: called before a queue is filled that was not there.
        begins_anew: called with topic and queue id before a queue is dropped whose topic was made
            again since what its files have: what was consumed of it is of the former topic.
        may_have_filled: whether an opening before this one, which was interrupted, may have filled
            a queue that has files.
        left_by_crash: units that are there are flushed, too: the process that wrote them may not
            have done it.
    """

    def __init__(
        self,
        queues: ConsumeQueueStore,
        log: CommitLog,
        deleted: DeletedTopics,
        before_drop: Callable[[], None],
        before_filling: Callable[[], None],
        begins_anew: Callable[[str, int], object],
        may_have_filled: Callable[[QueueKey], bool],
        *,
        left_by_crash: bool,
    ) -> None:
        self._queues = queues
        self._log = log
        self._deleted = deleted
        self._before_drop = before_drop
        self._before_filling = before_filling
        self._forget_consumed = begins_anew
        self._may_have_filled = may_have_filled
        self._left_by_crash = left_by_crash
        self._whole = False
        #: (topic, queue id) of the queues that were dropped because they lack units
        self.holes: set[QueueKey] = set()
        #: physical offset where the run of queue offsets begins that the queue has now
        self._since: dict[QueueKey, int] = {}
        #: queues of which the walk has met a record that is not of a deleted topic
        self._met: set[QueueKey] = set()
        #: the last message of each queue that the walk has met: number, physical offset
        self._last: dict[QueueKey, tuple[int, int]] = {}
        self._runs = TopicRuns()
        #: queues that were begun anew with a single record, by its physical offset
        self._begun_alone: dict[int, QueueKey] = {}
        #: physical offsets of records whose number 0 begins nothing, and of such as do, alone
        self._no_begins: set[int] = set()
        self._sure_begins: set[int] = set()
        #: queues that wait for what is behind such a record
        self._waiting: set[QueueKey] = set()
        #: for queues whose files are believed: physical offset of the record with queue offset 0,
        #: when the log agrees
        self._first_records: dict[QueueKey, int] = {}
        #: physical offset behind what a queue had when the first record of it was met; None: it was
        #: not there
        self._ended_at: dict[QueueKey, int | None] = {}
        self._mended: Counter[QueueKey] = Counter()
        self._foreign: dict[QueueKey, int] = {}
        #: queues, by the physical offset of a record that does not lie where its number says
        self._jumped: dict[int, QueueKey] = {}
        self._batches = BatchCheck()
        #: see `_number_before`; looked up when it is first asked for
        self._numbers_before: dict[QueueKey, int] | None = None

    def from_the_beginning(self) -> None:
        """The walk begins anew with the log's first record, where a hole is retention's."""
        self._whole = True
        self.holes.clear()
        self._since.clear()
        self._met.clear()
        self._last.clear()
        self._runs = TopicRuns()
        self._begun_alone.clear()
        self._waiting.clear()
        self._first_records.clear()
        self._batches = BatchCheck()

    def judge_begins(self) -> bool:
        """After a walk: judge the single records with number 0 by what is behind them.

        Queues that were begun anew with one whose number has rotted are dropped. They, and those
        that wait for this, are `holes` now, and the next walk knows these records.

        Returns:
            whether there are any.
        """
        found = self._runs.misjudged(self._begun_alone)
        self._no_begins |= found
        self._sure_begins |= self._begun_alone.keys() - found
        dropped = {self._begun_alone[at] for at in found} - self._waiting
        for key in dropped:
            self._drop(key)
        self.holes |= dropped | self._waiting
        return bool(dropped or self._waiting)

    def drop_emptied(self) -> set[QueueKey]:
        """After a walk: drop what it has filled that the deletion of a topic had emptied.

        Returns:
            the queues that have no message since.
        """
        emptied = self._runs.emptied(self._lacked_files, self._first_records)
        for key in sorted(emptied):
            if self._queues.find(*key) is not None:
                self._drop(key)
        self.holes -= emptied
        return emptied

    def _lacked_files(self, key: QueueKey) -> bool:
        return self._may_have_filled(key) or self._ended_at[key] is None

    def dispatch(self, batch: DispatchBatch) -> None:
        """Compare and append the units of one stretch of the log.

        Raises:
            CorruptConsumeQueueError: a queue offset jumps too far to be true, or a record's is not
                the one under which its queue has it.
            DiskFullError: no room.
        """
        for stretch, more_follow in with_more_follow(batch.stretches()):
            left = stretch.since(self._deleted.gone_below(stretch.topic))
            if left is not None:
                self._check_stretch(left, more_follow=more_follow)
        self._queues.dispatched(batch)

    def _check_stretch(self, whole: QueueStretch, *, more_follow: bool) -> None:
        key = whole.topic, whole.queue_id
        queue = self._queues.find(*key)
        stretch = self._counting(whole, queue, key)
        if stretch is None or key in self._waiting:
            return
        zero = stretch.first_queue_offset == 0
        if zero and self._begins_anew(stretch, queue, key, more_follow=more_follow):
            if queue is not None and self._is_of_former(stretch, queue, key):
                phy_offset, _ = UNIT_HEAD.unpack_from(stretch.units)
                if phy_offset in self._begun_alone and phy_offset not in self._sure_begins:
                    # what is forgotten does not come back
                    self._waiting.add(key)
                    return
                self._forget_consumed(*key)
            _log.warning("consume queue %s/%d begins anew in the log", *key)
            self._drop(key)
            queue = None
        self._met.add(key)
        self._note_last(stretch, key)
        if self._is_there(queue, stretch):
            if self._left_by_crash:
                first, count = stretch.first_queue_offset, len(stretch.units) // UNIT_SIZE
                queue.mark_unsynced(first, count)
                self._queues.append(stretch)
            return
        if queue is not None and not isinstance(queue, BatchConsumeQueue):
            self._cut_jumped(queue, stretch)
            self._check_numbers(queue, stretch)
            if self._leads_back(queue, stretch):
                return
        if not self._whole and self._has_hole(stretch, queue):
            return
        if isinstance(queue, BatchConsumeQueue):
            if not self._compare_batches(queue, stretch):
                return
        elif queue is not None:
            for first, units in stretch.plain():
                self._compare(queue, first, units)
        if self._ended_at[key] is None:
            self._before_filling()
        self._queues.append(stretch)

    # ---- topics that were deleted

    def _counting(
        self, whole: QueueStretch, queue: StoredQueue | None, key: QueueKey
    ) -> QueueStretch | None:
        """The part of a stretch in the run of numbers that is the queue's; None for nothing."""
        deleted_here = self._deleted.since(whole.topic)
        if key not in self._since:
            self._since[key] = deleted_here
            known_end = None if queue is None else queue.end_phy_offset
            ended_at = self._ended_at.setdefault(key, known_end)
            if queue is not None and key not in self._met:
                first_record = self._first_record(queue, whole)
                self._since[key] = max(deleted_here, first_record)
                if ended_at is not None:
                    self._first_records[key] = first_record
        stretch = whole.since(deleted_here)
        if stretch is None:
            return None
        self._runs.add(stretch)
        return stretch.since(self._since[key])

    def _first_record(self, queue: StoredQueue, stretch: QueueStretch) -> int:
        """Physical offset of the record with number 0, when it lies behind one of the queue's.

        Or is the first one that the walk has met, and says another number.

        The queue alone is not believed: its first unit may have rotted. So may the number of that
        record: then the next unit leads behind it, to one that says the next number.

        Raises:
            CorruptConsumeQueueError: there is no next unit, and the record says a number that does
                not go on from the one in front of it in the log.
        """
        unit, (phy_offset, _) = queue.unit_at(0), UNIT_HEAD.unpack_from(stretch.units)
        if unit is None or unit[0] < phy_offset + (stretch.first_queue_offset == 0):
            return 0
        try:
            message = self._log.message_at(unit[0])
        except CorruptRecordError:
            return 0
        if message is None:
            return 0
        if (message.topic, message.queue_id) != (queue.topic, queue.queue_id):
            return 0
        if message.queue_offset == 0:
            return unit[0]
        if isinstance(queue, BatchConsumeQueue):
            return 0
        following = queue.unit_at(1)
        is_alone = queue.max_offset == 1 and message.store_size == unit[1]
        if is_alone and message.queue_offset % (queue.queue.file_size // UNIT_SIZE):
            # no file in the place of another one begins with it
            before = self._number_before(queue)
            if before in (-1, message.queue_offset - 1):
                return 0
            raise _another_number(queue, unit[0], message.queue_offset, 0, "as its only message")
        goes_on = following is not None and following[0] > unit[0] and self._agrees(queue, 1)
        return unit[0] if goes_on else 0

    def _number_before(self, queue: ConsumeQueue) -> int:
        """The last number that the log has of a queue in front of its only message; -1: none."""
        if self._numbers_before is None:
            self._numbers_before = self._before_only_messages()
        return self._numbers_before.get((queue.topic, queue.queue_id), -1)

    def _before_only_messages(self) -> dict[QueueKey, int]:
        """As `_number_before`, of all queues that have a single message: the log is read once."""
        ends = {
            (queue.topic, queue.queue_id): unit[0]
            for queue in self._queues
            if queue.max_offset == 1 and (unit := queue.unit_at(0)) is not None
        }
        found: dict[QueueKey, int] = {}
        batch, end = DispatchBatch(keys=False), max(ends.values())
        for _ in walk_good_records(self._log.queue, batch.scan, self._log.min_offset, end):
            for whole in batch.stretches():
                key = whole.topic, whole.queue_id
                stretch = whole.since(self._deleted.since(key[0])) if key in ends else None
                for first, units in stretch.plain() if stretch is not None else ():
                    places = range(0, len(units), UNIT_SIZE)
                    offsets = [UNIT_HEAD.unpack_from(units, at)[0] for at in places]
                    if count := bisect_left(offsets, ends[key]):
                        found[key] = first + count - 1
            batch.clear()
        return found

    def _begins_anew(
        self, stretch: QueueStretch, queue: StoredQueue | None, key: QueueKey, *, more_follow: bool
    ) -> bool:
        """True when the numbers of a queue begin again with 0: its topic was made again."""
        if queue is None or queue.max_offset == 0:
            return False
        if not begins_anew(stretch, more_follow=more_follow):
            return False
        phy_offset, _ = UNIT_HEAD.unpack_from(stretch.units)
        if phy_offset in self._no_begins:
            return False
        unknown = phy_offset >= queue.end_phy_offset or self._is_stale_behind(queue, phy_offset)
        if unknown and is_alone(stretch):
            if self._another_goes_on(queue, phy_offset):
                return False
            self._begun_alone[phy_offset] = key
        return bool(unknown or (key in self._met and not is_alone(stretch)))

    def _another_goes_on(self, queue: StoredQueue, phy_offset: int) -> bool:
        """Whether another queue of a topic has messages on both sides: it was not deleted."""
        for other in self._queues.of_topic(queue.topic):
            if other.end_phy_offset > phy_offset:
                unit = other.unit_at(other.min_offset)
                if unit is not None and unit[0] < queue.end_phy_offset <= phy_offset:
                    return True
        return False

    def _is_of_former(self, stretch: QueueStretch, queue: StoredQueue, key: QueueKey) -> bool:
        """Whether what groups have consumed may be of the topic before the one that begins here.

        Where the queue had the new one, it is of that; so it is where a master's queue was lost,
        or has the directory of another.
        """
        ended_at = self._ended_at[key]
        if ended_at is None:
            return self._deleted.is_slaves
        if self._owner(queue, queue.max_offset - 1) not in (None, key):
            return False
        return bool(ended_at <= UNIT_HEAD.unpack_from(stretch.units)[0])

    def _is_stale_behind(self, queue: StoredQueue, phy_offset: int) -> bool:
        """Whether a queue goes on, behind what the walk has met, with units of a log that was cut.

        Args:
            queue: which.
            phy_offset: of the record that the walk has come to; where the queue has it at another
                number, that is the queue's word.
        """
        last = self._last.get((queue.topic, queue.queue_id))
        if last is None or isinstance(queue, BatchConsumeQueue):
            return False
        unit = queue.unit_at(last[0] + 1)
        if unit is None or unit[0] == phy_offset:
            return False
        return self._agrees(queue, last[0] + 1) is False

    def _drop(self, key: QueueKey) -> None:
        self._before_drop()
        self._queues.drop(*key)
        self._first_records.pop(key, None)
        self._last.pop(key, None)

    # ---- units of other queues

    def _note_last(self, stretch: QueueStretch, key: QueueKey) -> None:
        first, units = stretch.plain()[-1]
        phy_offset, _ = UNIT_HEAD.unpack_from(units, len(units) - UNIT_SIZE)
        last = first + len(units) // UNIT_SIZE - 1, phy_offset
        self._last[key] = max(last, self._last.get(key, last))

    def cut_foreign(self) -> None:
        """After a walk: cut off units behind the last message of a queue that are not its own.

        A file, or a directory, that another queue had brings such units; they would be the queue's
        end. They lead in front of that message, or to records in places of other queues.
        """
        for key, (number, phy_offset) in self._last.items():
            queue = self._queues.find(*key)
            if queue is None or isinstance(queue, BatchConsumeQueue):
                continue
            behind = queue.unit_at(number + 1)
            if behind is None:
                continue
            if behind[0] < phy_offset or self._goes_on_as_another(queue, number + 1):
                self._foreign[key] = queue.max_offset - number - 1
                self._queues.cut_at(*key, number + 1)

    def _goes_on_as_another(self, queue: ConsumeQueue, first: int) -> bool:
        """Whether a queue has units of another from a number on, where that one has them, too.

        A single one may lead to a record whose header rotted.
        """
        last = queue.max_offset - 1
        if first == last and not self._mended[queue.topic, queue.queue_id]:
            return False
        owners = [self._owner(queue, number) for number in (first, last)]
        if owners[0] in (None, (queue.topic, queue.queue_id)) or owners[0] != owners[1]:
            return False
        other = self._queues.find(*owners[0])
        if other is None or isinstance(other, BatchConsumeQueue):
            return False
        return all(
            other.unit_at(number) == queue.unit_at(number)
            and self._agrees(other, number)
            and (number == 0 or self._agrees(other, number - 1))
            for number in (first, last)
        )

    def _owner(self, queue: StoredQueue, number: int) -> QueueKey | None:
        """The queue that is named by the record that a unit leads to; None where none tells."""
        unit = None if _is_light(queue) else queue.unit_at(number)
        try:
            message = None if unit is None else self._log.message_at(unit[0])
        except CorruptRecordError:
            return None
        return None if message is None else (message.topic, message.queue_id)

    # ---- numbers that rotted

    def _cut_jumped(self, queue: ConsumeQueue, stretch: QueueStretch) -> None:
        """Cut a queue that ends with a record whose number the ones beside it contradict."""
        key = queue.topic, queue.queue_id
        record = self._runs.jumped(*key)
        unit = None if record is None else queue.unit_at(record.first)
        if (
            record is not None
            and unit is not None
            and unit[0] == record.start
            and queue.max_offset == record.stop
        ):
            self._jumped[record.start] = key
            self._queues.cut_at(*key, stretch.first_queue_offset)
            del self._last[key]
            self._note_last(stretch, key)

    def _leads_back(self, queue: ConsumeQueue, stretch: QueueStretch) -> bool:
        """True for a number behind the end of a queue that goes on behind the record in the log."""
        if _is_light(queue):
            return False
        phy_offset, _ = UNIT_HEAD.unpack_from(stretch.units)
        if stretch.first_queue_offset < queue.max_offset or phy_offset >= queue.end_phy_offset:
            return False
        if not self._agrees(queue, queue.max_offset - 1):
            return False
        self._jumped[phy_offset] = queue.topic, queue.queue_id
        return True

    def _check_numbers(self, queue: ConsumeQueue, stretch: QueueStretch) -> None:
        """Raise for a record whose number is another one than its queue and its neighbours say.

        RocketMQ's format protects a record's queue offset by nothing. When it is believed, the
        queue goes on behind a hole that never was. In a light queue a producer may have written it.
        """
        if _is_light(queue):
            return
        for first, units in stretch.plain():
            phy_offset, _ = UNIT_HEAD.unpack_from(units)
            if phy_offset >= queue.end_phy_offset:
                continue
            number = queue.first_at_or_above(phy_offset)
            unit = queue.unit_at(number)
            if unit is None or unit[0] != phy_offset or first == number:
                continue
            beside = [self._agrees(queue, at) for at in (number - 1, number + 1)]
            if True in beside and False not in beside:
                where = "beside records that agree with that"
                raise _another_number(queue, phy_offset, first, number, where)

    def _agrees(self, queue: ConsumeQueue, number: int) -> bool | None:
        """Whether the record that a queue has at a number says that number; None for no unit."""
        unit = queue.unit_at(number)
        if unit is None:
            return None
        try:
            message = self._log.message_at(unit[0])
        except CorruptRecordError:
            return False
        if message is None:
            return False
        if _is_light(queue):
            return (queue.topic, number) in light_numbers(message)
        named = message.topic, message.queue_id, message.queue_offset
        return named == (queue.topic, queue.queue_id, number)

    # ---- units that are there already

    @staticmethod
    def _is_there(queue: StoredQueue | None, stretch: QueueStretch) -> TypeGuard[ConsumeQueue]:
        """True when a queue has all of a stretch at its place, to the byte: nothing is to be done.

        So it is of nearly all of a store's units; one read tells it.
        """
        if queue is None or isinstance(queue, BatchConsumeQueue) or stretch.inner_batch:
            return False
        first, units = stretch.first_queue_offset, bytes(stretch.units)
        within = queue.min_offset <= first <= queue.max_offset - len(units) // UNIT_SIZE
        return within and queue.read_units(first, len(units) // UNIT_SIZE) == units

    def _compare(self, queue: ConsumeQueue, first: int, units: memoryview) -> None:
        if first < queue.max_offset:

            def is_named(number: int) -> bool:
                return bool(self._agrees(queue, number))

            mended = queue.mend_units(first, units, self._is_good, is_named)
            if mended:
                self._mended[queue.topic, queue.queue_id] += mended
            if self._left_by_crash:
                queue.mark_unsynced(first, len(units) // queue.unit_size)

    def _compare_batches(self, queue: BatchConsumeQueue, stretch: QueueStretch) -> bool:
        """Bring a queue of batches in line with the log; False where all of the log is needed.

        Its units tell their places by what lies in front of them, so one that is wrong is written
        anew with all behind it.
        """
        key = stretch.topic, stretch.queue_id
        if self._left_by_crash:
            units = stretch.batch_units
            first = self._batches.next_unit(queue, units)
            queue.mark_unsynced(first, len(units) // queue.unit_size)
        wrong = self._batches.first_wrong(queue, stretch.batch_units)
        if wrong is None:
            return True
        self._mended[key] += 1
        if self._whole and wrong > queue.unit_start:
            self._before_drop()
            queue.cut_at(wrong)
            return True
        self._drop(key)
        self._batches.forget(key)
        if not self._whole:
            self.holes.add(key)
        return self._whole

    def _is_good(self, phy_offset: int) -> bool:
        file = self._log.queue.find(phy_offset)
        return file is not None and bool(good_record_at(file, phy_offset - file.file_from_offset))

    def _has_hole(self, stretch: QueueStretch, queue: StoredQueue | None) -> bool:
        """True when the queue lacks units before the first of a batch; it is dropped then."""
        key = stretch.topic, stretch.queue_id
        if key in self.holes or stretch.behind_gap:
            return key in self.holes
        first = stretch.first_queue_offset
        if queue is None or not queue.queue.files:
            hole = first > 0
        else:
            hole = not queue.first_unit_offset <= first <= queue.max_offset
        if hole:
            _log.warning("consume queue %s/%d has a hole before %d", *key, first)
            self._drop(key)
            self.holes.add(key)
        return hole

    def findings(self) -> list[str]:
        """What was wrong with units that were there, in words."""
        found = []
        for (topic, queue_id), count in sorted(self._mended.items()):
            finding = f"consume queue {topic}/{queue_id} had {count} units that contradict the log"
            _log.warning("%s; they were written anew", finding)
            found.append(f"{finding}; they were written anew")
        for (topic, queue_id), count in sorted(self._foreign.items()):
            finding = (
                f"consume queue {topic}/{queue_id} had {count} units of others behind its last"
            )
            _log.warning("%s; they were cut off", finding)
            found.append(f"{finding}; they were cut off")
        for phy_offset, (topic, queue_id) in sorted(self._jumped.items()):
            finding = (
                f"the record at {phy_offset} is not where its queue offset in {topic}/{queue_id} "
                "says, and is in no queue; rmqcore doctor plan STORE says what a repair does"
            )
            _log.warning("%s", finding)
            found.append(finding)
        return found


def _another_number(
    queue: ConsumeQueue, phy_offset: int, says: int, number: int, where: str
) -> CorruptConsumeQueueError:
    """The error of a record that says another number than its queue has it at."""
    return CorruptConsumeQueueError(
        queue.queue.directory,
        -1,
        f"the record at {phy_offset} says that its queue offset is {says}; the queue has it at "
        f"{number}, {where}; rmqcore doctor plan STORE says what a repair does",
    )


def _is_light(queue: StoredQueue) -> bool:
    return queue.topic.startswith(LIGHT_QUEUE_PREFIX)
