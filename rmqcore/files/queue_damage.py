"""What a get of a message has met: is its record damaged, or only what leads to it?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from rmqcore.errors import CorruptConsumeQueueError, CorruptRecordError, CorruptStoreError

if TYPE_CHECKING:
    from rmqcore.files.batch_consume_queue import StoredQueue
    from rmqcore.files.commit_log import CommitLog
    from rmqcore.native.format._message_ext import MessageExt

#: A unit that agrees with the log is looked for among this many in front of one that does not.
_LOOKED_AT: Final = 64


class MessagesOfLog(Protocol):
    """A store, as this sees it."""

    def message_at(self, phy_offset: int) -> MessageExt | None:
        """The message at a physical offset; None on a miss."""


def log_has_it(store: MessagesOfLog, error: CorruptStoreError) -> bool:
    """True where a queue's file does not lead to a message which the log has, as far as is known.

    An opening derives the file again from the log.

    Args:
        store: of the queue.
        error: what a get of its first message has raised.
    """
    if not isinstance(error, CorruptConsumeQueueError):
        # the file is shorter than it was
        return not isinstance(error, CorruptRecordError)
    try:
        return error.phy_offset < 0 or store.message_at(error.phy_offset) is not None
    except CorruptRecordError:
        return False


def agrees_from(log: CommitLog, queue: StoredQueue, offset: int) -> int:
    """Physical offset of a message of a queue in front of one that its files do not lead to.

    That of the log's beginning, where none of a few units leads to such a message.

    Args:
        log: the log.
        queue: of the message.
        offset: its queue offset.
    """
    for number in range(offset - 1, max(queue.min_offset, offset - _LOOKED_AT) - 1, -1):
        unit = queue.unit_at(number)
        try:
            message = None if unit is None else log.message_at(unit[0])
        except CorruptRecordError:
            continue
        if message is not None:
            named = message.topic, message.queue_id, message.queue_offset
            if named == (queue.topic, queue.queue_id, number):
                return message.phy_offset
    return log.min_offset
