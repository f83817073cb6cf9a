"""When a message of a queue was stored, as requests and metrics tell it."""

from __future__ import annotations

from rmqcore.errors import CorruptStoreError
from rmqcore.store.message_store import DefaultMessageStore


def stored_ms(
    store: DefaultMessageStore, topic: str, queue_id: int, offset: int, otherwise: int
) -> int:
    """When a message was stored; what is damaged keeps nobody from what is told beside it.

    Args:
        store: that has it.
        topic: of the queue; an unknown one has no message.
        queue_id: of the queue; an unknown one has no message.
        offset: queue offset; below 0 there is none.
        otherwise: what to return where no message is, or where it cannot be read.

    Returns:
        Unix milliseconds.
    """
    if offset < 0:
        return otherwise
    try:
        found = store.get_message(topic, queue_id, offset, max_messages=1).messages
    except CorruptStoreError:
        return otherwise
    return found[0].store_timestamp_ms if found else otherwise
