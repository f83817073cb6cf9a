"""Messages of a queue that an SQL92 condition matches, a bounded stretch of the queue at a time.

Source: RocketMQ broker/filter/ExpressionMessageFilter.java.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rmqcore.broker.state.queued import number_in
from rmqcore.errors import CorruptStoreError
from rmqcore.message import MessageExt
from rmqcore.status import GetMessageStatus
from rmqcore.store.consume.sql92 import Condition
from rmqcore.store.protocol import MessageStore

#: A call that has looked at this many messages returns where to go on, as in RocketMQ.
SCANNED_MAX: Final = 800
BYTES_SCANNED_MAX: Final = 4 << 20
READ_AT_ONCE: Final = 64
#: A call makes this many comparisons, which takes some 20 ms, and looks at fewer messages where the
#: condition has more than 20 of them.
_COMPARED_MAX: Final = 16_000


@dataclass(slots=True)
class Matched:
    """What was found, as `GetMessageResult` says it.

    Attributes:
        parts: the records that match.
        messages: the same, decoded.
    """

    status: GetMessageStatus
    next_queue_offset: int
    min_queue_offset: int
    max_queue_offset: int
    parts: list[memoryview] = field(default_factory=list)
    messages: list[MessageExt] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.parts)

    def slices(self) -> list[memoryview]:
        """The records' bytes."""
        return self.parts


def get_matching(
    store: MessageStore,
    topic: str,
    queue_id: int,
    queue_offset: int,
    condition: Condition,
    *,
    max_messages: int,
    max_bytes: int,
) -> Matched:
    """Messages of one queue from an offset on that a condition matches.

    Args:
        store: where they are.
        topic: of the queue.
        queue_id: its number.
        queue_offset: number of the first message that is looked at.
        condition: asked with the properties of each message.
        max_messages: at most so many.
        max_bytes: at most so many bytes of records; the first message always comes.

    Returns:
        What matches among at most `SCANNED_MAX` messages, fewer where the condition is long, or
        in front of a damaged record, and where to go on.

    Raises:
        CorruptStoreError: the first message is damaged.
    """
    found = Matched(GetMessageStatus.NO_MATCHED_MESSAGE, queue_offset, 0, 0)
    size = scanned = scanned_bytes = 0
    read_at_once = READ_AT_ONCE
    scanned_max = min(SCANNED_MAX, max(1, _COMPARED_MAX // condition.cost))
    while scanned < scanned_max and scanned_bytes < BYTES_SCANNED_MAX:
        try:
            result = store.get_message(
                topic,
                queue_id,
                found.next_queue_offset,
                max_messages=min(read_at_once, scanned_max - scanned),
                max_bytes=BYTES_SCANNED_MAX - scanned_bytes,
            )
            messages = result.messages
        except CorruptStoreError:
            if read_at_once > 1:
                read_at_once = 1
                continue
            if not scanned:
                raise
            break
        found.min_queue_offset, found.max_queue_offset = (
            result.min_queue_offset,
            result.max_queue_offset,
        )
        if result.status is not GetMessageStatus.FOUND:
            if not scanned:
                found.status, found.next_queue_offset = result.status, result.next_queue_offset
            break
        for message, record in zip(messages, result.slices(), strict=True):
            if condition(message.properties):
                if found.parts and (
                    len(found.parts) == max_messages or size + len(record) > max_bytes
                ):
                    found.next_queue_offset = number_in((topic, queue_id), message)
                    return found
                found.status = GetMessageStatus.FOUND
                found.parts.append(record)
                found.messages.append(message)
                size += len(record)
        scanned += len(result)
        scanned_bytes += result.buffer_total_size
        found.next_queue_offset = result.next_queue_offset
    return found
