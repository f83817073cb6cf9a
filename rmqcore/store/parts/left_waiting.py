"""What waits in a store for the broker that it is of: retention keeps it while none serves it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rmqcore.files.consume_queue import SCHEDULE_TOPIC, UNIT
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.files.service_topics import HALF_TOPIC, TRANSACTION_GROUP
from rmqcore.files.timer_check import TIMER_TOPIC, TimerCheck, TimerProgress
from rmqcore.services.timer_due import due_of

if TYPE_CHECKING:
    from rmqcore.message import MessageExt
    from rmqcore.store.parts.iteration import OnDamage


class ReadQueues(Protocol):
    """The queues of a store."""

    def queues(self) -> list[tuple[str, int]]:
        """All of them, by topic and queue id."""

    def min_queue_offset(self, topic: str, queue_id: int) -> int:
        """The offset of a queue's first message.

        Args:
            topic: of the queue.
            queue_id: of the queue.
        """

    def read_units(self, topic: str, queue_id: int, queue_offset: int, count: int) -> bytes:
        """Whole 20-byte units of a queue from an offset on.

        Args:
            topic: of the queue.
            queue_id: of the queue.
            queue_offset: of the first unit.
            count: so many at most.
        """


class TimedMessages(Protocol):
    """A store whose messages are read."""

    def messages(
        self, topic: str, queue_id: int, *, start: int, stop: int, on_damage: OnDamage
    ) -> Iterator[MessageExt]:
        """Those of a queue.

        Args:
            topic: of the queue.
            queue_id: of the queue.
            start: queue offset of the first.
            stop: queue offset behind the last.
            on_damage: called for each damaged place.
        """


class FirstTimed:
    """The first timer message that is not delivered: a file of RocketMQ's does not say which.

    Each is looked at once while the file stays as it is.

    Args:
        store: that has them.
    """

    def __init__(self, store: TimedMessages) -> None:
        self._store = store
        self._found: tuple[TimerProgress | None, int] = None, 0

    def __call__(self, known: TimerProgress | None) -> int:
        """Its queue offset, or where those end that were read for the wheel.

        Args:
            known: what the file says.
        """
        if known is None:
            return 0
        before, first = self._found
        if known != before:
            first = known.first_pending
        stop = known.read_offset
        waiting = (
            message.queue_offset
            for message in self._store.messages(
                TIMER_TOPIC, 0, start=first, stop=stop, on_damage=lambda _: None
            )
            if not known.has_delivered(due_of(message), message.queue_offset)
        )
        first = next(waiting, max(first, stop))
        self._found = known, first
        return first


def first_place(store: ReadQueues, waiting: Iterable[tuple[str, int, int]]) -> int | None:
    """Physical offset of the oldest message that waits; None without one.

    Args:
        store: whose messages they are.
        waiting: topic, queue id, and queue offset of the first that waits there, if there is one.
    """
    places = list[int]()
    for topic, queue_id, offset in waiting:
        first = max(offset, store.min_queue_offset(topic, queue_id))
        units = store.read_units(topic, queue_id, first, 1)
        places.extend(phy_offset for phy_offset, _, _ in UNIT.iter_unpack(units))
    return min(places, default=None)


def left_waiting(
    store: ReadQueues,
    offsets: ConsumerOffsetTable,
    folder: Path,
    delivered: Mapping[int, int] | None,
    first_timed: FirstTimed,
) -> list[tuple[str, int, int]]:
    """What a broker had still to deliver, or to ask for, as its files say: see `first_place`.

    Args:
        store: that the broker served.
        offsets: of its groups.
        folder: its ``config`` folder.
        delivered: by delay level, the queue offset of the first message that is not; None leaves
            delay levels out.
        first_timed: of the store.

    Raises:
        OSError, CorruptConfigFileError: a file cannot be read.
    """
    found = [(HALF_TOPIC, 0, offsets.get(HALF_TOPIC, TRANSACTION_GROUP, 0) or 0)]
    found.append((TIMER_TOPIC, 0, first_timed(TimerCheck(folder).load())))
    if delivered is not None:
        found += [
            (topic, queue_id, delivered.get(queue_id + 1, 0))
            for topic, queue_id in store.queues()
            if topic == SCHEDULE_TOPIC
        ]
    return found
