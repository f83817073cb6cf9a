"""What a get of a message has met: is its record damaged, or only what leads to it?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rmqcore.errors import CorruptConsumeQueueError, CorruptRecordError, CorruptStoreError

if TYPE_CHECKING:
    from rmqcore.native.format._message_ext import MessageExt


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
