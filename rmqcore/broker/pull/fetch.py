"""Fetching: a range of a queue that a consumer wants next, and what of it is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

from rmqcore.broker.pull.matching import SCANNED_MAX, Matched, get_matching
from rmqcore.broker.state.subscription import Subscription
from rmqcore.errors import CorruptStoreError
from rmqcore.message import GetMessageResult
from rmqcore.remoting import ResponseCode
from rmqcore.status import GetMessageStatus
from rmqcore.store.protocol import MessageStore

_T = TypeVar("_T")
#: Messages that were found by tags, or by a condition.
Found: TypeAlias = GetMessageResult | Matched


class PullRange(NamedTuple):
    """Messages of a queue that a consumer wants next.

    Attributes:
        topic, queue_id: the queue.
        queue_offset: of the first message that is looked at.
        message_count: how many at most.
        subscription: which of them.
    """

    topic: str
    queue_id: int
    queue_offset: int
    message_count: int
    subscription: Subscription


class FetchResult(NamedTuple):
    """What a pull has found, of which its answer is made.

    Attributes:
        code: of the answer.
        status: what became of the look into the queue.
        next_queue_offset: where the next pull goes on.
        min_queue_offset, max_queue_offset: where the queue begins and ends.
        found: the messages; None when there are none.
    """

    code: ResponseCode
    status: GetMessageStatus
    next_queue_offset: int
    min_queue_offset: int
    max_queue_offset: int
    found: Found | None = None

    @property
    def is_at_end(self) -> bool:
        """Tell whether all was looked at up to the end of the queue, and nothing matched."""
        return (
            self.status is GetMessageStatus.NO_MATCHED_MESSAGE
            and self.next_queue_offset == self.max_queue_offset
        )


def in_front_of_damage(look: Callable[[PullRange], _T], wanted: PullRange) -> _T:
    """What is there of a range, up to a damaged record.

    Args:
        look: says it of a range, or raises `CorruptStoreError` where a record in it is damaged.
        wanted: the range.

    Raises:
        CorruptStoreError: the first message that is looked at, or wanted, is damaged.
    """
    while True:
        try:
            return look(wanted)
        except CorruptStoreError:
            if wanted.message_count <= 1:
                raise
        wanted = wanted._replace(message_count=wanted.message_count // 2)


def fetch(store: MessageStore, wanted: PullRange, max_bytes: int) -> Found:
    """What there is of a range.

    Args:
        store: where it is.
        wanted: the range.
        max_bytes: at most so many bytes of records; the first message always comes.

    Raises:
        CorruptStoreError: a record is damaged.
    """
    topic, queue_id, queue_offset, count, subscription = wanted
    if not subscription.by_tags:
        return get_matching(
            store,
            topic,
            queue_id,
            queue_offset,
            subscription.condition,
            max_messages=count,
            max_bytes=max_bytes,
        )
    return store.get_message(
        topic,
        queue_id,
        queue_offset,
        max_messages=count,
        max_bytes=max_bytes,
        tags=subscription.tags,
        max_scanned=max(SCANNED_MAX, count),
    )
