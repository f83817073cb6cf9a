"""What is leased, as it lies in its queue."""

from __future__ import annotations

from rmqcore.errors import CorruptStoreError
from rmqcore.files.queue_damage import log_has_it
from rmqcore.status import GetMessageStatus
from rmqcore.store.consume.lease_queue import LeaseQueue
from rmqcore.store.consume.lease_request import Damaged, LeasedItem
from rmqcore.store.consume.lease_table import LeasedStore


def read_item(store: LeasedStore, queue: LeaseQueue, offset: int) -> LeasedItem | None:
    """One message of a queue; None when the queue no longer has it.

    Args:
        store: where it is.
        queue: whose it is.
        offset: in the queue.

    Raises:
        CorruptStoreError: the log has it, and the queue's file does not lead to it.
    """
    raw: list[memoryview] = []
    try:
        result = store.get_message(queue.topic, queue.queue_id, offset, max_messages=1, max_bytes=1)
        if result.status is not GetMessageStatus.FOUND:
            return None
        raw = result.slices()
        message = result.messages[0]
    except CorruptStoreError as error:
        if log_has_it(store, error):
            raise
        return Damaged(bytes(raw[0]) if raw else b"", str(error))
    return message if result.next_queue_offset == offset + 1 else None
