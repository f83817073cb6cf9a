"""Iterations over messages: queue by queue, or along the log, on what single reads answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from rmqcore.arguments import whole_number
from rmqcore.errors import UNREADABLE, CorruptRecordError, CorruptStoreError, is_bad_sector
from rmqcore.status import GetMessageStatus

if TYPE_CHECKING:
    from rmqcore.native.format._message_ext import MessageExt
    from rmqcore.native.read._get_result import GetMessageResult

_BATCH = 256
OnDamage = Callable[[CorruptStoreError], None]


class QueueReads(Protocol):
    """What an iteration over queues asks."""

    def queues(self) -> list[tuple[str, int]]:
        """(topic, queue id) of every queue, sorted."""
        ...

    def min_queue_offset(self, topic: str, queue_id: int) -> int:
        """Number of the oldest message of a queue; see `MessageStore.min_queue_offset`."""
        ...

    def get_message(
        self, topic: str, queue_id: int, queue_offset: int, *, max_messages: int = 32
    ) -> GetMessageResult:
        """Messages of one queue from an offset on; see `MessageStore.get_message`."""
        ...


class LogReads(Protocol):
    """What an iteration along the log asks."""

    @property
    def min_phy_offset(self) -> int:
        """Physical offset of the first byte of the log."""
        ...

    @property
    def max_phy_offset(self) -> int:
        """Physical offset behind the last byte of the log."""
        ...

    def message_in_log(self, offset: int) -> MessageExt | None:
        """The message at an offset below the end that was seen last, None when none is there."""
        ...

    def next_good(self, offset: int, end: int) -> int:
        """Physical offset of the first good record behind a damaged place, or the end.

        Args:
            offset: physical offset of the damaged place.
            end: physical offset behind the log's last byte, returned when nothing good follows.
        """
        ...

    def behind_blank(self, offset: int) -> int | None:
        """Where the log goes on behind an end-of-file record; None when none begins there."""
        ...

    def behind_deleted(self, offset: int) -> int:
        """Where the log begins when retention has come by meanwhile."""
        ...


def checked_bounds(queue_id: object, start: object, stop: object) -> None:
    """Refuse bounds of an iteration that are none.

    Args:
        queue_id: a queue's id, or None.
        start: where to begin, or None.
        stop: where to end, or None.

    Raises:
        ArgumentError: one is not None and no whole number of 0 or more.
    """
    for name, bound in (("queue_id", queue_id), ("start", start), ("stop", stop)):
        if bound is not None:
            whole_number(name, bound)


def topic_messages(
    reads: QueueReads,
    topic: str,
    queue_id: int | None,
    start: int | None,
    stop: int | None,
    on_damage: OnDamage | None,
) -> Iterator[MessageExt]:
    """The messages of a topic, or of one of its queues; see `MessageStore.messages`.

    Args:
        reads: of the store.
        topic: by name; an unknown one has no messages.
        queue_id: None for all queues, one after the other.
        start: queue offset to begin at; None for the oldest.
        stop: queue offset to end before; None for all there are.
        on_damage: called with each damaged place, which is passed over; None raises there.

    Raises:
        CorruptRecordError: a record is damaged and nobody listens.
    """
    for name, number in reads.queues():
        if name == topic and queue_id in (None, number):
            yield from _queue_messages(reads, name, number, start, stop, on_damage)


def _queue_messages(
    reads: QueueReads,
    topic: str,
    queue_id: int,
    start: int | None,
    stop: int | None,
    on_damage: OnDamage | None,
) -> Iterator[MessageExt]:
    first = _first_of_queue(reads, topic, queue_id, on_damage)
    if first is None:
        return
    offset = max(start or 0, first)
    # messages before this offset are read one by one, as one of them is damaged
    singly_before = offset
    while stop is None or offset < stop:
        count = _BATCH if stop is None else min(_BATCH, stop - offset)
        count = 1 if offset < singly_before else count
        try:
            result = reads.get_message(topic, queue_id, offset, max_messages=count)
            found = result.messages
        except (CorruptStoreError, OSError) as error:
            damage = _damage(error, -1)
            if damage is None:
                raise
            if count > 1:
                singly_before = offset + count
            elif on_damage is None:
                raise
            elif _first_of_queue(reads, topic, queue_id, on_damage) is None:
                return
            else:
                on_damage(damage)
                offset += 1
            continue
        yield from found
        offset, before = result.next_queue_offset, offset
        if offset == before or (
            result.status is not GetMessageStatus.FOUND and offset >= result.max_queue_offset
        ):
            return


def _first_of_queue(
    reads: QueueReads, topic: str, queue_id: int, on_damage: OnDamage | None
) -> int | None:
    """Number of a queue's oldest message; None, and told, where the queue cannot be read at all."""
    try:
        return reads.min_queue_offset(topic, queue_id)
    except (CorruptStoreError, OSError) as error:
        damage = _damage(error, -1)
        if on_damage is None or damage is None:
            raise
        on_damage(damage)
        return None


def log_messages(
    reads: LogReads, start: int | None, stop: int | None, on_damage: OnDamage | None
) -> Iterator[MessageExt]:
    """The messages of the whole log, in its order; see `MessageStore.messages`.

    Args:
        reads: of the store.
        start: physical offset of a record; None for the log's begin.
        stop: physical offset to end before; None for all there is.
        on_damage: called with each damaged place, which is passed over; None raises there.

    Raises:
        CorruptRecordError: a record is damaged and nobody listens.
    """
    look = reads.message_in_log
    offset = max(start or 0, reads.min_phy_offset)
    end = 0
    while stop is None or offset < stop:
        if offset >= end:
            end = reads.max_phy_offset
            if offset >= end:
                return
        try:
            message = look(offset)
            if message is None:
                offset = reads.behind_blank(offset) or reads.behind_deleted(offset)
        except (CorruptRecordError, OSError) as error:
            damage = _damage(error, offset)
            if on_damage is None or damage is None:
                raise
            on_damage(damage)
            message, offset = None, reads.next_good(offset, end)
        if message is not None:
            yield message
            offset += message.store_size


def _damage(error: CorruptStoreError | OSError, phy_offset: int) -> CorruptStoreError | None:
    """What an iteration can pass over: damage, and what the disk refuses to give; else None."""
    if isinstance(error, CorruptStoreError):
        return error
    if not is_bad_sector(error):
        return None
    return CorruptStoreError(error.filename, phy_offset, UNREADABLE)
