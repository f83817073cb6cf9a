"""Which queues have a message, and whether what lies at a place that a client names is one."""

from __future__ import annotations

from collections.abc import Iterator

from rmqcore.files.consume_queue import LIGHT_QUEUE_PREFIX
from rmqcore.message import MessageExt, light_numbers
from rmqcore.store.protocol import MessageStore


def is_queued(store: MessageStore, found: MessageExt) -> bool:
    """Tell whether a message's queue has it; a body may hold what looks like the record of another.

    Args:
        store: that has it.
        found: what begins at the physical offset that it says itself.

    Raises:
        CorruptStoreError: what the queue has instead is damaged.
    """
    read = store.get_message(found.topic, found.queue_id, found.queue_offset, max_messages=1)
    return [each.phy_offset for each in read.messages] == [found.phy_offset]


def number_in(queue: tuple[str, int], message: MessageExt) -> int:
    """The number of a message in the queue that it was read from, which may be a light one.

    Args:
        queue: topic and queue id.
        message: that was read there.
    """
    if not queue[0].startswith(LIGHT_QUEUE_PREFIX):
        return message.queue_offset
    numbers = (number for place, number in places_of(message) if place == queue)
    return next(numbers, message.queue_offset)


def places_of(message: MessageExt) -> Iterator[tuple[tuple[str, int], int]]:
    """The queues that have a message, by topic and queue id, and its numbers there."""
    yield (message.topic, message.queue_id), message.queue_offset
    for name, number in light_numbers(message):
        yield (name, 0), number
