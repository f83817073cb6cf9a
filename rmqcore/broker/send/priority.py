"""The priority of a message: the queue of its number holds it.

Source: RocketMQ broker/processor/SendMessageProcessor.java, common/attribute/TopicMessageType.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PRIORITY_PROPERTY: Final = "_SYS_MSG_PRIORITY_"
#: A message with one of these properties is of another type, and has no priority.
_OTHER_TYPES: Final = frozenset(
    {
        "TRAN_MSG",
        "DELAY",
        "TIMER_DELIVER_MS",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "__SHARDINGKEY",
    }
)
_DIGITS_MAX: Final = 10


def queue_by_priority(properties: Mapping[str, str], queue_count: int) -> int | None:
    """The queue of a message with a priority, the highest one for those above; None for others.

    Args:
        properties: of the message.
        queue_count: queues of its topic that there are to choose from.
    """
    text = properties.get(PRIORITY_PROPERTY, "")
    known = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
    if not known or not _OTHER_TYPES.isdisjoint(properties):
        return None
    return max(0, min(int(text), queue_count - 1))
