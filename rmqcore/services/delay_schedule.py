"""Delayed messages: how they are parked by level, and delivered when they are due.

A message with a delay level is stored in ``SCHEDULE_TOPIC_XXXX``, queue ``level - 1``; its
consume-queue unit carries the delivery time in place of the tags code. `ScheduleMessageService`
copies it to its real topic when that time has come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from rmqcore.errors import CorruptStoreError, MessageIllegalError, StoreError
from rmqcore.files.consume_queue import SCHEDULE_TOPIC, UNIT
from rmqcore.files.delay_offset_table import DelayOffsetTable
from rmqcore.files.queue_damage import log_has_it
from rmqcore.files.service_topics import HALF_TOPIC
from rmqcore.files.store_dir import QUEUE_ID_MAX
from rmqcore.message import (
    GetMessageResult,
    Message,
    MessageExt,
    PutMessageResult,
    copy_to,
    without_light_queues,
)
from rmqcore.native.format._numbers import SysFlag
from rmqcore.services.service import Service
from rmqcore.status import PutMessageStatus

if TYPE_CHECKING:
    from rmqcore.config import StoreConfig
    from rmqcore.files.config_tables import TopicConfig, TopicConfigTable

_log = logging.getLogger("rmqcore")

_DELAY: Final = "DELAY"
_REAL_TOPIC: Final = "REAL_TOPIC"
_REAL_QUEUE_ID: Final = "REAL_QID"
_TIMER_REQUESTS: Final = ("TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")
#: properties by which a message asks to be delivered later
DELAY_REQUESTS: Final = (_DELAY, *_TIMER_REQUESTS)
_UNKNOWN_LEVEL_DELAY_MS: Final = 1000
_UNITS_AT_ONCE: Final = 256
#: The offsets are written this soon for the first time, so that a second crash does not deliver
#: the same messages again.
_FIRST_WRITE_MS: Final = 1000
_NEVER: Final = (PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED)

#: (a topic's configuration or None, the queue that a message asks for) -> the queue that it gets
QueueAtDelivery: TypeAlias = "Callable[[TopicConfig | None, int], int]"


def as_asked(_: TopicConfig | None, queue_id: int) -> int:
    """The queue that a message asks for, whatever its topic says: a `QueueAtDelivery`."""
    return queue_id


def queue_id_of_level(level: int) -> int:
    """Queue of ``SCHEDULE_TOPIC_XXXX`` that holds a level's messages."""
    return level - 1


def delay_level_deadline(levels_ms: Sequence[int], level: int, store_timestamp_ms: int) -> int:
    """When a parked message is due.

    Args:
        levels_ms: delay of each level, level 1 first, milliseconds.
        level: 1-based; one that is not configured counts as one second.
        store_timestamp_ms: when the message was parked, Unix time.

    Returns:
        Unix time in milliseconds.

    Source: RocketMQ broker/schedule/ScheduleMessageService.java, computeDeliverTimestamp.
    """
    known = 1 <= level <= len(levels_ms)
    return store_timestamp_ms + (levels_ms[level - 1] if known else _UNKNOWN_LEVEL_DELAY_MS)


def requested_delay_level(message: Message) -> int:
    """The delay level that a message asks for; 0 for none, and for half or rolled-back messages.

    Raises:
        MessageIllegalError: its DELAY property, as a client sends it, is no number.
    """
    if message.sys_flag & SysFlag.TRANSACTION_MASK not in (0, SysFlag.TRANSACTION_COMMIT):
        return 0
    if message.delay_level > 0:
        return int(message.delay_level)
    text = (message.properties or {}).get(_DELAY, "0")
    try:
        return max(0, int(text))
    except ValueError:
        raise MessageIllegalError(f"property DELAY={text!r} is no delay level") from None


def as_put(message: Message, config: StoreConfig) -> Message:
    """What a store with some settings stores for a message: itself, or what waits for its delivery.

    Args:
        message: what was put; it is left as it is.
        config: of the store: whether it delivers delayed messages, and its levels.

    Raises:
        MessageIllegalError: that store would never deliver it.
    """
    level = requested_delay_level(message)
    if level <= 0:
        return message
    if not config.deliver_delayed:
        raise MessageIllegalError(
            f"delay level {level}: this store was opened without deliver_delayed=True, so the "
            "message would never be delivered"
        )
    return park(message, level, config.delay_levels_ms)


def park(message: Message, level: int, levels_ms: Sequence[int]) -> Message:
    """Rewrite a message so that it waits for its delivery.

    Args:
        message: what was put; it is left as it is.
        level: 1 or more; a level above the last configured one becomes that.
        levels_ms: delay of each level, milliseconds.

    Returns:
        The message to store: in ``SCHEDULE_TOPIC_XXXX``, with DELAY, REAL_TOPIC and REAL_QID.

    Source: RocketMQ broker/util/HookUtils.java, transformDelayLevelMessage.
    """
    level = min(level, len(levels_ms))
    properties = {
        name: value
        for name, value in (message.properties or {}).items()
        if name not in _TIMER_REQUESTS
    }
    properties[_DELAY] = str(level)
    properties[_REAL_TOPIC] = message.topic
    properties[_REAL_QUEUE_ID] = str(message.queue_id)
    return copy_to(
        SCHEDULE_TOPIC,
        queue_id_of_level(level),
        message,
        properties,
        tags=message.tags,
        keys=message.keys,
        store_host=message.store_host,
        prepared_transaction_offset=message.prepared_transaction_offset,
        wait_store_msg_ok=message.wait_store_msg_ok,
    )


def unpark(parked: MessageExt) -> Message:
    """Rebuild the message that a parked one stands for.

    Raises:
        MessageIllegalError: its real topic or queue is missing or cannot be one.

    Source: RocketMQ broker/schedule/ScheduleMessageService.java, messageTimeUp.
    Differs: RocketMQ takes DELAY out of the message but leaves it in the stored bytes, so that a
        copy of a delivered message would be delayed again; here it is out of both. REAL_TOPIC and
        REAL_QID stay, as there.
    """
    properties = dict(parked.properties)
    for name in DELAY_REQUESTS:
        properties.pop(name, None)
    topic = properties.get(_REAL_TOPIC)
    queue_id = properties.get(_REAL_QUEUE_ID, "")
    known = queue_id.isdecimal() and len(queue_id) < 11 and int(queue_id) <= QUEUE_ID_MAX
    if not topic or topic in (HALF_TOPIC, SCHEDULE_TOPIC) or not known:
        raise MessageIllegalError(f"REAL_TOPIC={topic!r}, REAL_QID={queue_id!r}: no place to go")
    return copy_to(
        topic,
        int(queue_id),
        parked,
        properties,
        store_host=parked.store_host,
        wait_store_msg_ok=False,
    )


def put_due(put: Callable[[Message], PutMessageResult], message: Message) -> PutMessageResult:
    """Put a message that has waited, into its topic at least.

    Args:
        put: of the store.
        message: may name light queues that the store has not.

    Raises:
        MessageIllegalError: it can never be put.
        StoreError: as of ``put``.
    """
    try:
        return put(message)
    except MessageIllegalError as error:
        return put(without_light_queues(message, error))


class DelayStore(Protocol):
    """The store as delayed delivery sees it."""

    topics: TopicConfigTable

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Where a queue begins and ends; see `Reading.queue_bounds`."""

    def read_units(self, topic: str, queue_id: int, queue_offset: int, count: int) -> bytes:
        """Whole 20-byte units of a queue from an offset on; see `MessageStore.read_units`."""

    def get_message(
        self, topic: str, queue_id: int, queue_offset: int, *, max_messages: int
    ) -> GetMessageResult:
        """Messages of a queue from an offset on; see `MessageStore.get_message`."""

    def message_at(self, phy_offset: int) -> MessageExt | None:
        """The message at a physical offset; None on a miss."""

    def put_message(self, message: Message) -> PutMessageResult:
        """Store a message; failures that are not the message's are statuses."""

    def flush(self) -> object:
        """Wait until all that was put is on disk."""


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """What one round delivered."""

    #: messages put into their real topics.
    delivered_count: int
    #: parked messages that are gone from the log, or can never be put; logged one by one.
    skipped_count: int
    #: Unix time of the next delivery that is known of, milliseconds; None when nothing waits.
    next_due_ms: int | None
    #: why a level had to stop before its due messages were delivered; None when none had to.
    held_up: str | None = None


class ScheduleMessageService:
    """Delivers parked messages in the order of each level, at least once.

    - A level's offset moves on only after its message was put.
    - Offsets reach the disk only after the messages that they say are delivered.
    - A put that fails stops its level until the next round; nothing is left out.
    - Levels that the configuration no longer names are delivered too.
    - A message that only its queue's file does not lead to keeps no other waiting: its level's
      offset stays at it, so that the next start, which derives the file, comes to it.

    Threads: one.
    Durability: a crash repeats what was delivered since ``delayOffset.json`` was last written.
    Source: RocketMQ broker/schedule/ScheduleMessageService.java.
    Differs: RocketMQ writes ``delayOffset.json`` without waiting for the delivered messages, and a
        power cut can lose them; it retries a message that can never be put for ever, here it is
        skipped and logged.
    """

    def __init__(
        self,
        store: DelayStore,
        offsets: DelayOffsetTable,
        levels_ms: Sequence[int],
        *,
        flush_interval_ms: int = 10_000,
        parked_queue_ids: Iterable[int] = (),
        queue_at_delivery: QueueAtDelivery = as_asked,
    ) -> None:
        """Prepare the levels; nothing is delivered before ``run_once``.

        Args:
            store: where messages are read and put; its consume queues are recovered.
            offsets: ``delayOffset.json``.
            levels_ms: delay of each level, milliseconds.
            flush_interval_ms: time between two writes of the offsets.
            parked_queue_ids: queues of ``SCHEDULE_TOPIC_XXXX`` that the store has; those beyond
                the configured levels are remembered.
            queue_at_delivery: says which queue of its topic a message goes to.
        """
        self._queue_at_delivery = queue_at_delivery
        self._store = store
        self._offsets = offsets
        self._levels_ms = tuple(levels_ms)
        #: what a message waits at least, milliseconds
        self.shortest_delay_ms = min(_UNKNOWN_LEVEL_DELAY_MS, *levels_ms)
        self._flush_interval_ms = flush_interval_ms
        self._persisted_at_ms: int | None = None
        #: parked messages since the start that are gone from the log, or could not be put
        self.skipped_count = 0
        #: parked messages since the start that their queues' files do not lead to
        self.held_count = 0
        #: by level whose offset stays behind, where it goes on
        self._ahead: dict[int, int] = {}
        levels = {queue_id + 1 for queue_id in parked_queue_ids}
        self._levels = sorted(levels.union(range(1, len(self._levels_ms) + 1)))
        self._set_back()

    def run_once(self, now_ms: int) -> DeliveryReport:
        """Deliver all that is due, and write the offsets when their interval has passed.

        Args:
            now_ms: Unix time.

        Raises:
            OSError: the offsets could not be written; delivery goes on in the next round.
        """
        reports = [self._deliver_level(level, now_ms) for level in self._levels]
        if self._persisted_at_ms is None:
            self._persisted_at_ms = now_ms - max(0, self._flush_interval_ms - _FIRST_WRITE_MS)
        elif abs(now_ms - self._persisted_at_ms) >= self._flush_interval_ms:
            self._persisted_at_ms = now_ms
            self.persist()
        due = [report.next_due_ms for report in reports if report.next_due_ms is not None]
        return DeliveryReport(
            sum(report.delivered_count for report in reports),
            sum(report.skipped_count for report in reports),
            min(due, default=None),
            next((report.held_up for report in reports if report.held_up), None),
        )

    def _set_back(self) -> None:
        """Let no offset lie behind the end that its queue has now; before anything is put there.

        What is put would count as delivered, behind a kill, too: so the file is written.
        """
        known = self._offsets.levels()
        offsets = {level: self._next_offset(level)[0] for level in self._levels}
        if any(offset < known.get(level, 0) for level, offset in offsets.items()):
            try:
                self._offsets.persist()
            except OSError as error:
                _log.warning("offsets of delayed delivery are written later: %s", error)

    def persist(self) -> None:
        """Write ``delayOffset.json``, after what it says is delivered is on disk.

        Raises:
            OSError: the log or the file could not be written; the former file is still in place.
        """
        if self._offsets.changed:
            self._store.flush()
            self._offsets.persist()

    def pending_from(self) -> int | None:
        """Physical offset of the oldest parked message that is not delivered; None without one.

        Retention keeps the log from there on.
        """
        starts: list[int] = []
        for level in self._levels:
            units = self._store.read_units(
                SCHEDULE_TOPIC, queue_id_of_level(level), self._clamped_offset(level)[0], 1
            )
            starts.extend(phy_offset for phy_offset, _, _ in UNIT.iter_unpack(units))
        return min(starts, default=None)

    def offsets(self) -> dict[int, int]:
        """By level, the next queue offset that is delivered."""
        return self._offsets.levels()

    def runtime_info(self) -> dict[str, str]:
        """``scheduleMessageOffset_<level>``: the next offset to deliver and the level's maximum."""
        return {
            f"scheduleMessageOffset_{level}": (
                f"{offset},{self._store.queue_bounds(SCHEDULE_TOPIC, queue_id_of_level(level))[1]}"
            )
            for level, offset in sorted(self._offsets.levels().items())
        }

    def _clamped_offset(self, level: int) -> tuple[int, int, int]:
        """The level's next offset inside what its queue has, and the queue's two ends."""
        least, most = self._store.queue_bounds(SCHEDULE_TOPIC, queue_id_of_level(level))
        return min(max(self._offsets.get(level) or 0, least), most), least, most

    def _next_offset(self, level: int) -> tuple[int, int]:
        """The level's next offset, and where its queue ends.

        An offset outside the queue is reported and put right.
        """
        offset, least, most = self._clamped_offset(level)
        committed = self._offsets.get(level)
        if committed is not None and offset != committed:
            _log.warning(
                "delay level %d: offset %d is outside %d to %d, going on at %d",
                level,
                committed,
                least,
                most,
                offset,
            )
            self._offsets.commit(level, offset)
        return max(offset, self._ahead.get(level, 0)), most

    def _deliver_level(self, level: int, now_ms: int) -> DeliveryReport:
        """Deliver a level's due messages, in the order of its queue."""
        delivered = skipped = 0
        offset, most = self._next_offset(level)
        if offset >= most:
            return DeliveryReport(0, 0, None)
        while units := self._store.read_units(
            SCHEDULE_TOPIC, queue_id_of_level(level), offset, _UNITS_AT_ONCE
        ):
            for phy_offset, _, tags_code in UNIT.iter_unpack(units):
                deliver_at_ms = self._deliver_at(level, phy_offset, tags_code, now_ms)
                if deliver_at_ms > now_ms:
                    return DeliveryReport(delivered, skipped, deliver_at_ms)
                try:
                    held_up = self._deliver(level, offset, phy_offset)
                    delivered += held_up is None
                except CorruptStoreError as error:
                    if level not in self._ahead:
                        _log.error("delay level %d stays at %d: %s", level, offset, error)
                    self._ahead[level], held_up = offset, None
                    self.held_count += 1
                except (StoreError, OSError, MemoryError):
                    raise
                except Exception as error:  # noqa: BLE001 - of one message, for which none waits
                    text = "parked message at %d skipped: %s"
                    trace = None if isinstance(error, MessageIllegalError) else error
                    _log.warning(text, phy_offset, error, exc_info=trace)
                    skipped += 1
                    self.skipped_count += 1
                    held_up = None
                if held_up is not None:
                    return DeliveryReport(delivered, skipped, now_ms, held_up)
                offset += 1
                if level in self._ahead:
                    self._ahead[level] = offset
                else:
                    self._offsets.commit(level, offset)
        return DeliveryReport(delivered, skipped, None)

    def _deliver_at(self, level: int, phy_offset: int, tags_code: int, now_ms: int) -> int:
        """When a parked message is due.

        The tags code says it, unless the queue keeps extension units: then it is their address,
        below zero. A time farther away than the level's delay means that the clock was put back.
        """
        deliver_at_ms = tags_code
        if tags_code < 0:
            try:
                parked = self._store.message_at(phy_offset)
            except CorruptStoreError:
                return now_ms
            stored_ms = now_ms if parked is None else parked.store_timestamp_ms
            deliver_at_ms = delay_level_deadline(self._levels_ms, level, stored_ms)
        known = level <= len(self._levels_ms)
        if known and deliver_at_ms > now_ms + self._levels_ms[level - 1]:
            return now_ms
        return deliver_at_ms

    def _parked(self, level: int, offset: int, phy_offset: int) -> MessageExt:
        """A parked message.

        Raises:
            MessageIllegalError: it is gone, or damaged.
            CorruptStoreError: the log has it, and its queue's file does not lead to it.
        """
        with suppress(CorruptStoreError):
            parked = self._store.message_at(phy_offset)
            if parked is not None and parked.topic == SCHEDULE_TOPIC:
                return parked
        try:
            # says what is wrong
            _ = self._store.get_message(
                SCHEDULE_TOPIC, queue_id_of_level(level), offset, max_messages=1
            ).messages
        except CorruptStoreError as error:
            if log_has_it(self._store, error):
                raise
            raise MessageIllegalError(f"it is damaged: {error}") from error
        raise MessageIllegalError("it is gone from the log")

    def _deliver(self, level: int, offset: int, phy_offset: int) -> str | None:
        """Copy one parked message to its real topic.

        Returns:
            None when it is there; otherwise why it has to wait.

        Raises:
            MessageIllegalError: it can never be put.
            CorruptStoreError: the log has it, and its queue's file does not lead to it.
        """
        parked = self._parked(level, offset, phy_offset)
        try:
            message = unpark(parked)
            config = self._store.topics.get(message.topic)
            message.queue_id = self._queue_at_delivery(config, message.queue_id)
        except CorruptStoreError as error:
            raise MessageIllegalError(f"it is damaged: {error}") from error
        try:
            result = put_due(self._store.put_message, message)
        except StoreError as error:
            return str(error)
        if result.status in _NEVER:
            raise MessageIllegalError(f"{result.status.name}: {result.reason}")
        return None if result.ok else f"{result.status.name}: {result.reason}"


class DeliverDelayedMessageService(Service):
    """Runs a `ScheduleMessageService`, and writes its offsets when it is stopped."""

    tries_again = True

    def __init__(
        self,
        schedule: ScheduleMessageService,
        *,
        clock: Callable[[], int],
        interval_s: float = 0.1,
    ) -> None:
        """Prepare the rounds; see `Service`.

        Args:
            schedule: what delivers.
            clock: Unix time in milliseconds.
            interval_s: seconds, at least, between two rounds; what a delivery may be late.
        """
        super().__init__("DeliverDelayedMessageService")
        self.schedule = schedule
        self._clock = clock
        self._interval_s = interval_s

    def run(self, now: float) -> float:
        """One round of all levels; the next is when something may be due, see `_rest_s`."""
        now_ms = self._clock()
        return self._rest_s(self.schedule.run_once(now_ms), now_ms)

    def _rest_s(self, report: DeliveryReport, now_ms: int) -> float:
        """Seconds until what waits is due, or what is parked from now on."""
        rest_s = self.schedule.shortest_delay_ms / 1000 - self._interval_s
        if report.next_due_ms is not None:
            rest_s = min(rest_s, (report.next_due_ms - now_ms) / 1000)
        return max(self._interval_s, rest_s)

    def last(self, *, ended: bool) -> None:
        """Write the offsets when the last round has ended; see `Service.last`.

        Offsets that cannot be written are logged: what they do not tell is delivered again.
        """
        if ended:
            try:
                self.schedule.persist()
            except (OSError, StoreError) as error:
                _log.warning("offsets of delayed delivery were not written: %s", error)
