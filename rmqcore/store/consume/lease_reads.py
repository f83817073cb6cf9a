"""What a queue has that can be leased: at one offset, and of what was never handed out.

A record that holds a batch, of a topic with a batch consume queue, is leased as one, under the
first of its offsets that the group has not done with.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from rmqcore.errors import CorruptStoreError
from rmqcore.files.consume_queue import LIGHT_QUEUE_PREFIX
from rmqcore.files.queue_damage import log_has_it
from rmqcore.native.format._numbers import SysFlag
from rmqcore.status import GetMessageStatus
from rmqcore.store.consume.lease_queue import LeaseQueue
from rmqcore.store.consume.lease_request import ALL, Damaged, LeasedItem, LeaseResult
from rmqcore.store.consume.lease_table import LeasedStore

_BYTES_MAX: Final = 8 << 20
#: Where tags decide which messages are wanted, one get looks at this many units.
_SCANNED_MAX: Final = 1 << 16


class Fresh(NamedTuple):
    """What was found behind what has been handed out.

    Attributes:
        items: queue offset and message, of each that is wanted.
        insides: (first, count) of the offsets that a batch has behind the one that it is leased
            under.
        following: where to go on.
    """

    items: list[tuple[int, LeasedItem]]
    insides: list[tuple[int, int]]
    following: int


def is_stored_batch(item: LeasedItem) -> bool:
    """Tell whether a record holds a batch of messages."""
    return not isinstance(item, Damaged) and bool(item.sys_flag & SysFlag.INNER_BATCH)


class LeaseReads:
    """Reads messages for leases.

    Args:
        store: whose messages are leased.
    """

    def __init__(self, store: LeasedStore) -> None:
        self._store = store

    def one(self, queue: LeaseQueue, offset: int) -> LeasedItem | None:
        """The message at an offset of a queue; None when the queue no longer has it.

        Args:
            queue: where it lies.
            offset: queue offset; of a batch that of any of its messages.

        Raises:
            CorruptStoreError: the log has it, and the queue's file does not lead to it.
        """
        raw: list[memoryview] = []
        try:
            result = self._store.get_message(
                queue.topic, queue.queue_id, offset, max_messages=1, max_bytes=1
            )
            if result.status is not GetMessageStatus.FOUND:
                return None
            raw = result.slices()
            message = result.messages[0]
        except CorruptStoreError as error:
            if log_has_it(self._store, error):
                raise
            return Damaged(bytes(raw[0]) if raw else b"", str(error))
        last = result.next_queue_offset - 1
        # a light queue lists a batch as one
        several = is_stored_batch(message) and not queue.topic.startswith(LIGHT_QUEUE_PREFIX)
        first = message.queue_offset if several else last
        return message if first <= offset <= last else None

    def fresh(self, queue: LeaseQueue, taken: LeaseResult, count: int) -> Fresh:
        """Messages that were never handed out and are wanted.

        Args:
            queue: where they lie.
            taken: says what is wanted, and how many may still be looked at.
            count: messages at most.

        Raises:
            CorruptStoreError: as of `one`, of the first one.
        """
        found = Fresh([], [], 0)
        wanted = taken.request.wanted.get(queue.topic, ALL)
        at = queue.position
        while len(found.items) < count and taken.looks > 0:
            try:
                items, following = self._from(queue, taken, at, count - len(found.items))
            except CorruptStoreError as error:
                if found.items and log_has_it(self._store, error):
                    # the next lease says it
                    break
                one = self.one(queue, at)
                items, following = [] if one is None else [(at, one)], at + 1
            if following <= at:
                break
            taken.looks -= 1
            ends = [*(offset for offset, _ in items[1:]), following]
            for (offset, item), end in zip(items, ends, strict=False):
                if len(found.items) == count:
                    return found._replace(following=offset)
                if wanted.is_for(item) and not taken.is_expired(item):
                    found.items.append((offset, item))
                    if is_stored_batch(item) and offset + 1 < end:
                        found.insides.append((offset + 1, end - offset - 1))
                else:
                    taken.looks -= 1
            at = following
        return found._replace(following=at)

    def _from(
        self, queue: LeaseQueue, taken: LeaseResult, at: int, count: int
    ) -> tuple[list[tuple[int, LeasedItem]], int]:
        """Offset and message of those that a queue has from an offset on, and where to go on."""
        wanted = taken.request.wanted.get(queue.topic, ALL)
        # a light queue's message has in its record the offset that it has in its own queue
        light = queue.topic.startswith(LIGHT_QUEUE_PREFIX)
        result = self._store.get_message(
            queue.topic,
            queue.queue_id,
            at,
            max_messages=1 if light else wanted.looks_at(count),
            max_bytes=_BYTES_MAX,
            tags=wanted.tags,
            max_scanned=_SCANNED_MAX,
        )
        following = result.next_queue_offset
        if light:
            return [(following - 1, each) for each in result.messages], following
        # the group may have done with the first messages of a batch
        return [(max(at, each.queue_offset), each) for each in result.messages], following
