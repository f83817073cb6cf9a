"""What a full disk keeps a recovery from deriving, and a dispatch derives when there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqcore.files.batch_consume_queue import BatchConsumeQueue
from rmqcore.files.unit_file import UNIT_HEAD
from rmqcore.native.format._numbers import UNIT_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rmqcore.derived.consume_queue_store import ConsumeQueueStore
    from rmqcore.files.deleted_topics import DeletedTopics
    from rmqcore.native.derive._dispatch import DispatchBatch


def can_be_dispatched(
    batches: Iterable[DispatchBatch], queues: ConsumeQueueStore, deleted: DeletedTopics
) -> bool:
    """Tell whether the rest of a log goes on with its queues, as what a store puts does.

    A dispatch judges nothing: that a topic was made again, say, is for a recovery to see.

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
            if isinstance(queue, BatchConsumeQueue):
                return False
            for first, units in () if stretch is None else stretch.plain():
                end = ends.get(key, queue.max_offset if queue else 0)
                unit = queue.unit_at(first) if queue else None
                is_other = unit is not None and unit[0] != UNIT_HEAD.unpack_from(units)[0]
                if first > end or is_other:
                    return False
                ends[key] = max(end, first + len(units) // UNIT_SIZE)
    return True
