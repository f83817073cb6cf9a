"""Feeding the consume queues while the log is walked, and holding what is there against it."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from rmqcore.files.batch_consume_queue import BatchConsumeQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from rmqcore.derived.consume_queue_store import ConsumeQueueStore
    from rmqcore.files.batch_consume_queue import StoredQueue
    from rmqcore.files.consume_queue import ConsumeQueue
    from rmqcore.native.derive._dispatch import DispatchBatch, Stretch

_log = logging.getLogger("rmqcore")


class QueueCheck:
    """Dispatches to the consume queues, and compares the units that are there already.

    - A unit that contradicts the log is written anew, and counted.
    - A queue that lacks units before the first one that the walk meets is dropped; the whole log
      has to be walked again for it.

    Args:
        queues: what is fed.
        before_drop: called before a queue is dropped.
        left_by_crash: units that are there are flushed, too: the process that wrote them may not
            have done it.
    """

    def __init__(
        self,
        queues: ConsumeQueueStore,
        before_drop: Callable[[], None],
        *,
        left_by_crash: bool,
    ) -> None:
        self._queues = queues
        self._before_drop = before_drop
        self._left_by_crash = left_by_crash
        self._whole = False
        #: (topic, queue id) of the queues that were dropped because they lack units
        self.holes: set[tuple[str, int]] = set()
        self._mended: Counter[tuple[str, int]] = Counter()

    def from_the_beginning(self) -> None:
        """The walk begins anew with the log's first record, where a hole is retention's."""
        self._whole = True
        self.holes.clear()

    def dispatch(self, batch: DispatchBatch) -> None:
        """Compare and append the units of one stretch of the log.

        Raises:
            CorruptConsumeQueueError: a queue offset jumps too far to be true.
            DiskFullError: no room.
        """
        for stretch in batch.stretches():
            queue = self._queues.find(stretch.topic, stretch.queue_id)
            if not self._whole and self._has_hole(stretch, queue):
                continue
            if queue is not None and not isinstance(queue, BatchConsumeQueue):
                for first, units in stretch.plain():
                    self._compare(queue, first, units)
            self._queues.append(stretch)
        self._queues.dispatched(batch)

    def _compare(self, queue: ConsumeQueue, first: int, units: memoryview) -> None:
        if first < queue.max_offset:
            mended = queue.mend_units(first, units)
            if mended:
                self._mended[queue.topic, queue.queue_id] += mended
            if self._left_by_crash:
                queue.mark_unsynced(first, len(units) // queue.unit_size)

    def _has_hole(self, stretch: Stretch, queue: StoredQueue | None) -> bool:
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
            self._before_drop()
            self._queues.drop(*key)
            self.holes.add(key)
        return hole

    def findings(self) -> list[str]:
        """What was wrong with units that were there, in words."""
        found = []
        for (topic, queue_id), count in sorted(self._mended.items()):
            finding = f"consume queue {topic}/{queue_id} had {count} units that contradict the log"
            _log.warning("%s; they were written anew", finding)
            found.append(f"{finding}; they were written anew")
        return found
