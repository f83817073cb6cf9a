"""What a full disk keeps a recovery from deriving, and a dispatch derives when there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqcore.files.batch_consume_queue import BatchConsumeQueue
from rmqcore.native.format._numbers import UNIT_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rmqcore.derived.consume_queue_store import ConsumeQueueStore
    from rmqcore.files.consume_queue import ConsumeQueue
    from rmqcore.files.deleted_topics import DeletedTopics
    from rmqcore.native.derive._dispatch import DispatchBatch


def can_be_dispatched(
    batches: Iterable[DispatchBatch], queues: ConsumeQueueStore, deleted: DeletedTopics
) -> bool:
    """Tell whether the rest of a log goes on with its queues, as what a store puts does.

    A dispatch judges nothing: that a topic was made again, or that units which are there are wrong,
    is for a recovery to see. Units that are there are flushed with what follows.

    Args:
        batches: the rest.
        queues: are told below which offset the rest is of a topic that was deleted.
        deleted: topics that were deleted.
    """
    ends: dict[tuple[str, int], int] = {}
    for batch in batches:
        for whole in batch.stretches():
            key = whole.topic, whole.queue_id
            if (since := deleted.counts_from(whole.topic)) > 0:
                queues.begun_at[whole.topic] = since
            stretch, queue = whole.since(since), queues.find(*key)
            if whole.inner_batch or isinstance(queue, BatchConsumeQueue):
                return False
            for first, units in () if stretch is None else stretch.plain():
                if not _goes_on(queue, first, units, ends.get(key, 0)):
                    return False
                ends[key] = first + len(units) // UNIT_SIZE
    known = ((queues.find(*key), end) for key, end in ends.items())
    return all(queue is None or queue.max_offset <= end for queue, end in known)


def _goes_on(queue: ConsumeQueue | None, first: int, units: memoryview, end: int) -> bool:
    """Whether a queue has the units that it has of a stretch, and the others are its next ones.

    Args:
        queue: None for one that is not there.
        first: queue offset of the first unit.
        units: of the stretch.
        end: queue offset behind the stretch before; 0 without one.
    """
    known = 0 if queue is None else queue.max_offset
    there = min(max(0, known - first), len(units) // UNIT_SIZE)
    if queue is not None and there:
        same = queue.read_units(first, there) == bytes(units[: there * UNIT_SIZE])
        if first < queue.min_offset or not same:
            return False
        queue.mark_unsynced(first, there)
    return there * UNIT_SIZE == len(units) or first + there == max(known, end)
