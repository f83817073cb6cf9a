"""Runs of queue offsets: where they begin again with 0, the topic was deleted and made again.

A topic is deleted as a whole. So where the numbers of one of its queues begin again, the others
were emptied, too, also those that have no message yet.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from rmqcore.native.format._numbers import UNIT_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from rmqcore.native.derive._dispatch import QueueStretch

QueueKey = tuple[str, int]


def begins_anew(stretch: QueueStretch, *, more_follow: bool) -> bool:
    """True when a stretch with number 0 is the beginning of a run, and no number that has rotted.

    Args:
        stretch: units of a queue that has others before them.
        more_follow: the same batch has another stretch of the queue behind it. That one has not
            number 1, or it would be in the same stretch: then a record that is alone is out of
            order.
    """
    return not is_alone(stretch) or not more_follow


def is_alone(stretch: QueueStretch) -> bool:
    """True for a single unit. What the next batch has may be what tells of it, see `misjudged`."""
    return len(stretch.units) == UNIT_SIZE


def with_more_follow(stretches: Iterable[QueueStretch]) -> Iterator[tuple[QueueStretch, bool]]:
    """Each stretch of a batch, and whether another one of the same queue is behind it."""
    listed = list(stretches)
    left = Counter((stretch.topic, stretch.queue_id) for stretch in listed)
    for stretch in listed:
        key = stretch.topic, stretch.queue_id
        left[key] -= 1
        yield stretch, left[key] > 0


class RecordRun(NamedTuple):
    """Records of one queue whose queue offsets follow each other.

    Attributes:
        first, stop: queue offsets; `stop` is -1 behind records that hold several messages.
        start, last: physical offsets of the first and of the last record.
    """

    first: int
    stop: int
    start: int
    last: int

    @property
    def is_alone(self) -> bool:
        """True for a single record: it proves nothing, its number or its queue may have rotted."""
        return self.start == self.last


class TopicRuns:
    """The runs of each queue in log order, and which queues they say that a deletion has emptied.

    One queue tells when its topic was deleted: between the last record in front of its present run
    and the first one of that. A queue of the topic whose own run began before, and ended before,
    has nothing since. Where a queue of the topic goes on with its numbers behind that time, it was
    no deletion.
    """

    def __init__(self) -> None:
        self._runs: dict[str, dict[int, list[RecordRun]]] = {}

    def add(self, stretch: QueueStretch) -> None:
        """Note the next stretch of a queue."""
        units = stretch.units
        count = len(units) // UNIT_SIZE
        first = stretch.first_queue_offset
        stop = -1 if stretch.inner_batch else first + count
        run = RecordRun(first, stop, _offset(units), _offset(units[-UNIT_SIZE:]))
        _add(self._of(stretch.topic, stretch.queue_id), run)

    def jumped(self, topic: str, queue_id: int) -> RecordRun | None:
        """The single record in front of a queue's last run whose number cannot be true.

        Numbers rise along the log. Where the run in front of that record and the one behind it
        follow each other, or lack its number alone, its own has rotted.

        Args:
            topic: of the queue.
            queue_id: of the queue.
        """
        before, record, last = [None, None, *self._of(topic, queue_id)][-3:]
        if record is None or not record.is_alone or last is None or last.first >= record.first:
            return None
        follows = before is not None and last.first == before.stop
        lacks_one = not last.is_alone and (before is None or last.first == before.stop + 1)
        return record if follows or lacks_one else None

    def misjudged(self, begins: Mapping[int, QueueKey]) -> set[int]:
        """Which of some single records with number 0 begin no run, by what is behind them.

        Their queue goes on behind with the numbers that it had in front. Or it has none behind, and
        another queue of the topic goes on with its own, so that the topic was not deleted.

        Args:
            begins: the queue of each record, by physical offset.
        """
        return {at for at, key in begins.items() if self._is_misjudged(at, *key)}

    def _is_misjudged(self, phy_offset: int, topic: str, queue_id: int) -> bool:
        runs = self._of(topic, queue_id)
        number = bisect_left(runs, phy_offset, key=lambda run: run.start)
        if not 0 < number < len(runs) or runs[number].start != phy_offset:
            return False
        before, record, behind = [*runs[number - 1 : number + 2], None][:3]
        if before is None or record is None or not record.is_alone:
            return False
        if behind is not None:
            # one that is alone may have rotted, too, or be another queue's
            next_to_it = not behind.is_alone or behind.first == before.stop + 1
            return _rises(before, behind) and (next_to_it or before.stop < 0)
        others = (it for it in self._runs[topic].values() if it is not runs)
        return any(_spans(it, before.last, phy_offset) for it in others)

    def extend(self, later: TopicRuns) -> None:
        """Note what the next part of the log has."""
        for topic, queues in later._runs.items():
            for queue_id, runs in queues.items():
                known = self._of(topic, queue_id)
                for run in runs:
                    _add(known, run)

    def _of(self, topic: str, queue_id: int) -> list[RecordRun]:
        return self._runs.setdefault(topic, {}).setdefault(queue_id, [])

    def emptied(
        self, lacks_files: Callable[[QueueKey], bool], first_records: Mapping[QueueKey, int]
    ) -> set[QueueKey]:
        """The queues that a deletion of their topic has emptied, and that have no message since.

        Args:
            lacks_files: whether a queue has no files; one that has is never emptied.
            first_records: of each queue whose files count: the physical offset of the record with
                number 0 that files and log agree upon, 0 for none. Of other queues the log tells.
        """
        found = set()
        for topic, queues in self._runs.items():
            deletions = [
                deletion
                for queue_id, runs in queues.items()
                if (deletion := _deletion(runs, first_records.get((topic, queue_id))))
                and not any(_goes_on(it, *deletion) for it in queues.values() if it is not runs)
            ]
            for queue_id, runs in queues.items() if deletions else ():
                began = max((run.start for run in runs if run.first == 0), default=runs[0].start)
                ended = runs[-1].last
                within = any(began <= before and ended < after for before, after in deletions)
                if within and lacks_files((topic, queue_id)):
                    found.add((topic, queue_id))
        return found


def _offset(unit: memoryview) -> int:
    return int.from_bytes(unit[:8], "big", signed=True)


def _add(runs: list[RecordRun], run: RecordRun) -> None:
    if runs and runs[-1].stop == run.first:
        runs[-1] = RecordRun(runs[-1].first, run.stop, runs[-1].start, run.last)
    else:
        runs.append(run)


def _deletion(runs: list[RecordRun], first_record: int | None) -> tuple[int, int] | None:
    """(last record before, first one after) the deletion that a queue knows of; None for none."""
    after = first_record
    if after is None:
        again = (run.start for run in runs if run.first == 0 and not run.is_alone)
        after = max(again, default=0)
    before = max((run.last for run in runs if run.last < after and not run.is_alone), default=-1)
    return None if before < 0 else (before, after)


def _rises(before: RecordRun, behind: RecordRun) -> bool:
    """True where the numbers of a run go on from those of one in front of it."""
    return behind.first >= max(before.stop, before.first + 1)


def _spans(runs: list[RecordRun], before: int, after: int) -> bool:
    """True for a queue with runs on both sides of a time whose numbers go on over it."""
    proven = [run for run in runs if not run.is_alone]
    ahead = [run for run in proven if run.start <= before][-1:]
    behind = [run for run in proven if run.last >= after][:1]
    if not (ahead and behind):
        return False
    return ahead == behind or _rises(ahead[0], behind[0])


def _goes_on(runs: list[RecordRun], before: int, after: int) -> bool:
    """True for a queue with a run that began before a deletion, and goes on behind it."""
    began = -1
    for run in runs:
        if run.first == 0:
            if run.is_alone:
                continue
            began = run.start
        if began <= before and run.last >= after:
            return True
    return False
