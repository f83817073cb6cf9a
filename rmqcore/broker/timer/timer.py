"""Timer messages: stored in ``rmq_sys_wheel_timer``, and put into their topics when they are due.

What is pending is read from that queue at the start and kept in a heap by due time; only times and
queue offsets are in memory. Which records are delivered is told by ``config/timercheck``.

Source: RocketMQ store/timer/TimerMessageStore.java, broker/util/HookUtils.java.
Differs: a message is delivered at its millisecond, not with its second; there is no limit to the
    messages of one second; a delivery that fails is tried until it succeeds.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import sys
import threading
from collections import defaultdict
from typing import Final, NamedTuple

from rmqcore.broker.state.bodies import java_body
from rmqcore.broker.state.broker_state import Arrived, BrokerState
from rmqcore.broker.state.passed_over import TIMER
from rmqcore.broker.timer.metrics import TimerMetrics
from rmqcore.broker.timer.recall_handle import RecallHandle
from rmqcore.errors import MessageIllegalError, PutMessageError, StoreError
from rmqcore.files.consume_queue import SCHEDULE_TOPIC, UNIT
from rmqcore.files.service_topics import HALF_TOPIC, OP_HALF_TOPIC
from rmqcore.files.timer_check import AHEAD_MAX, TIMER_TOPIC, TimerCheck, TimerProgress
from rmqcore.message import Message, MessageExt, copy_to
from rmqcore.remoting import (
    Connection,
    RemotingCommand,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
    failure,
    needs,
    success,
)
from rmqcore.remoting.serves import serves
from rmqcore.services.delay_schedule import put_due
from rmqcore.services.timer_due import (
    RECALLS,
    REQUESTS,
    SLOT,
    asked_time,
    due_of,
    number_in,
    slot_of,
)
from rmqcore.store.parts.reading import GetBounds

logger = logging.getLogger(__name__)

_SECOND_MS: Final = 1000
#: A message that a marker names is not delivered for this long after it; both are of one second.
_RECALLED_MS: Final = 2000
_READ_AT_ONCE: Final = 128
_DELIVERED_AT_ONCE: Final = 256
_PAUSE_S: Final = 0.5
_ONE_MESSAGE: Final[GetBounds] = {"max_messages": 1, "max_bytes": 0, "tags": None, "max_scanned": 1}
_BLOCK: Final = 1024
#: No message is delivered into these: it would come out without end, or pass for the broker's own.
_NO_PLACES: Final = (TIMER_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC)


class _Waiting(NamedTuple):
    """A record that was read and is not delivered, in the order of delivery."""

    due_ms: int
    queue_offset: int
    topic: str
    #: what it adds to the count of its topic: a marker takes a message off
    step: int


class TimerMessages:
    """Puts messages off, delivers them, and says how far that is.

    Args:
        state: the broker's.
        arrived: called after each delivery with (topic, queue id), on the event loop.
    """

    def __init__(self, state: BrokerState, arrived: Arrived) -> None:
        self._store, self._config, self._topics = state.store, state.config, state.topics
        self._check = TimerCheck(state.folder, state.check_there)
        self._clock_ms = state.world.clock_ms
        #: where the queue ends before anything is put
        self._first_end = self._store.max_queue_offset(TIMER_TOPIC, 0)
        self._arrived = arrived
        self._passed_over, self._standing = state.passed_over, state.standing
        self._new = asyncio.Event()
        self._heap: list[_Waiting] = []
        self._metrics = TimerMetrics(self._clock_ms)
        #: the queue offsets of the heap, in blocks, of which the first is found fast
        self._pending: defaultdict[int, set[int]] = defaultdict(set)
        self._read_offset = 0
        #: the last message that was to be read from the disk before it is delivered
        self._fetched = -1
        #: the latest due time of what was delivered and is not in `_ahead`
        self._delivered_ms = -1
        #: see `TimerProgress`
        self._ahead: list[tuple[int, int, int]] = []
        #: topic and unique key of what a marker has recalled, until its second is over
        self._recalled: dict[tuple[str, str], int] = {}
        self._stored: TimerProgress | None = None
        self._loaded = False
        self._set_back()
        #: held while progress is written: a write that `run` has begun may outlast it
        self._keeping = threading.Lock()

    # ---- putting off

    def timed(self, message: Message) -> Message:
        """What is stored for a message: itself, or the record that waits for its time.

        Raises:
            RequestRefusedError: the time is none, or too far away, code 13; or timer messages are
                off, code 1.

        Source: HookUtils, transformTimerMessage.
        """
        properties = dict(message.properties or {})
        if timer_property_of(message) is None:
            return message
        if message.topic in _NO_PLACES:
            raise _illegal(f"nothing comes to {message.topic} by itself")
        config = self._config()
        if not config.timer_wheel_enable:
            remark = "accurate timer message is not enabled, timerWheelEnable is false"
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
        now_ms = self._clock_ms()
        due_ms = asked_time(properties, now_ms)
        if due_ms is None or due_ms - now_ms > config.timer_max_delay_sec * _SECOND_MS:
            raise _illegal(
                f"its time is no number, or more than {config.timer_max_delay_sec} s off"
            )
        if due_ms <= now_ms:
            if RECALLS in properties:
                raise _illegal("the message that it recalls is delivered")
            # the store takes a record with a slot for one that is not timed any more
            properties[SLOT] = str(slot_of(due_ms))
            return _rewritten(message, message.topic, message.queue_id, properties)
        properties[SLOT] = str(slot_of(due_ms))
        properties["REAL_TOPIC"] = message.topic
        properties["REAL_QID"] = str(message.queue_id)
        return _rewritten(message, TIMER_TOPIC, 0, properties)

    def recall_handle(self, message: Message) -> str | None:
        """By what the sender of a message that waits may name it; None for any other."""
        properties = message.properties or {}
        known = properties.keys() >= {"REAL_TOPIC", "UNIQ_KEY"}
        slot_ms = number_in(properties.get(SLOT, ""))
        if message.topic != TIMER_TOPIC or not known or slot_ms is None:
            return None
        place = properties["REAL_TOPIC"], self._config().broker_name
        return str(RecallHandle(*place, slot_ms + 1, properties["UNIQ_KEY"]))

    def may_wait(self, handle: RecallHandle) -> bool:
        """False for a message that was delivered before the clock was put back behind its time.

        Args:
            handle: names it; its time has not come.
        """
        reached_ms = max(self._delivered_ms, *(due_ms for _, due_ms, _ in self._ahead), -1)
        unread = self._read_offset < self._store.max_queue_offset(TIMER_TOPIC, 0)
        if handle.due_ms > reached_ms or unread or self._passed_over.holds(TIMER_TOPIC, 0):
            return True
        same = range(handle.due_ms, handle.due_ms + _SECOND_MS)
        beside = [one for one in self._heap if one.due_ms in same and one.topic == handle.topic]
        records = (self._record(one.queue_offset) for one in beside if one.step > 0)
        return any(one is None or one.unique_key == handle.unique_key for one in records)

    # ---- what it says of itself

    @serves(RequestCode.GET_TIMER_CHECK_POINT, needs=needs.ADMIN)
    async def check_point(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """How far timer messages are, for slaves."""
        if not self._config().timer_wheel_enable:
            return failure(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
        return success(body=await asyncio.to_thread(self._check.answer_body, self._clock_ms()))

    @serves(RequestCode.GET_TIMER_METRICS, needs=needs.ADMIN)
    def metrics(self, _: Connection, __: RemotingCommand) -> RemotingCommand:
        """How many timer messages wait, by topic; a slave has no timer that counts them."""
        config = self._config()
        if config.is_slave or not config.timer_wheel_enable:
            return failure(ResponseCode.SYSTEM_ERROR, "The timer message store is null")
        return success(body=java_body(self._metrics.to_java()))

    def runtime_info(self) -> dict[str, str]:
        """The timer's names of request 28."""
        late_ms = self._clock_ms() - self._heap[0].due_ms if self._heap else 0
        behind = self._store.max_queue_offset(TIMER_TOPIC, 0) - self._read_offset
        return {
            "timerReadBehind": str(max(0, late_ms) // _SECOND_MS),
            "timerOffsetBehind": str(max(0, behind)),
            "timerCongestNum": str(len(self._heap)),
        }

    def pending_from(self) -> int | None:
        """Physical offset of the oldest record that waits; None without one. Any thread.

        Retention keeps the log from there on.
        """
        stored = self._stored
        first = 0 if stored is None else stored.first_pending
        first = max(first, self._store.min_queue_offset(TIMER_TOPIC, 0))
        for phy_offset, _, _ in UNIT.iter_unpack(self._store.read_units(TIMER_TOPIC, 0, first, 1)):
            return int(phy_offset)
        return None

    # ---- delivering

    def arrived(self, _: str, __: int) -> None:
        """Hear that something has come into its own queue."""
        self.wake()

    def wake(self) -> None:
        """Look at once for what has come into the queue."""
        self._new.set()

    async def run(self) -> None:
        """Deliver what is due, until cancelled; what was reached then is kept by `finish`."""
        persist_at_s = 0.0
        loop = asyncio.get_running_loop()
        while True:
            self._new.clear()
            try:
                if not self._loaded:
                    await asyncio.to_thread(self.load)
                await self._fetch_next()
                idle = self._round()
                if loop.time() >= persist_at_s:
                    persist_at_s = loop.time() + 1
                    await self._persist()
                    self._standing.end("timer messages")
            except (StoreError, OSError) as error:
                self._standing.note("timer messages", error)
                await asyncio.sleep(_PAUSE_S)
                continue
            if not idle:
                await asyncio.sleep(0)
                continue
            try:
                async with asyncio.timeout(self._idle_s()):
                    await self._new.wait()
            except TimeoutError:
                continue

    def _idle_s(self) -> float:
        """How long nothing will be due; at most a second, for clocks that are set."""
        if not self._heap:
            return 1.0
        return min(1.0, max(0.0, (self._heap[0].due_ms - self._clock_ms()) / _SECOND_MS))

    def _set_back(self) -> None:
        """Let nothing count as delivered that the log has lost."""
        try:
            self._check.keep_up_to(self._first_end, self._clock_ms())
        except OSError:
            logger.exception("how far timer messages are delivered cannot be set back")

    def expect_file(self) -> None:
        """Refuse what no pause puts right, before messages wait for it.

        Raises:
            CorruptConfigFileError: something else is in the place of ``config/timercheck``.
        """
        self._check.expect_file()

    def load(self) -> None:
        """Read what is pending; once, before anything else.

        A log whose end was cut off may have less than what was delivered of it.

        Raises:
            OSError, CorruptStoreError: it cannot be read.
        """
        known = self._check.load(self._clock_ms())
        if known is None and self._first_end:
            words = "%s is missing or cannot be right: all timer messages in the log come again"
            logger.warning(words, self._check.path)
        done = (known or TimerProgress(0, 0, 0, 0)).up_to(self._first_end)
        self._heap, self._pending, self._metrics = (
            [],
            defaultdict(set),
            TimerMetrics(self._clock_ms),
        )
        self._delivered_ms, self._ahead = done.due_ms, list(done.ahead)
        self._read_offset = max(done.first_pending, self._store.min_queue_offset(TIMER_TOPIC, 0))
        while self._read(done):
            pass
        self._loaded = True

    async def _fetch_next(self) -> None:
        """Have the next message in memory when it is due; it may have been put days ago."""
        if self._heap and self._heap[0].due_ms <= self._clock_ms():
            offset = self._heap[0].queue_offset
            if not self._is_cached(offset):
                await asyncio.to_thread(self._store.fetch, TIMER_TOPIC, 0, offset, **_ONE_MESSAGE)
                # what could not be fetched is not tried again: the get says why
                self._fetched = offset

    def _is_cached(self, offset: int) -> bool:
        return offset == self._fetched or self._store.is_cached(
            TIMER_TOPIC, 0, offset, **_ONE_MESSAGE
        )

    def _round(self) -> bool:
        """Read and deliver a bounded number; tells whether nothing is left to do now."""
        more = self._read(None)
        now_ms = self._clock_ms()
        for _ in range(_DELIVERED_AT_ONCE):
            if not self._heap or self._heap[0].due_ms > now_ms:
                break
            if not self._is_cached(self._heap[0].queue_offset):
                return False
            self._deliver(self._heap[0].queue_offset, now_ms)
            delivered = heapq.heappop(self._heap)
            self._delivered_ms = max(self._delivered_ms, delivered.due_ms)
            self._forget(delivered)
        else:
            return False
        for key in [k for k, at_ms in self._recalled.items() if at_ms + _RECALLED_MS < now_ms]:
            del self._recalled[key]
        return not more

    def _read(self, done: TimerProgress | None) -> bool:
        """Take in records that have come, but for those that are delivered; whether there were."""
        offset = self._read_offset
        records, self._read_offset = self._passed_over.read(
            TIMER, TIMER_TOPIC, 0, offset, _READ_AT_ONCE
        )
        for record in records:
            with self._passed_over.guard(TIMER, f"message {record.queue_offset}"):
                due_ms, place = due_of(record), record.queue_offset
                if done is None or place >= done.read_offset:
                    self._note_ahead(due_ms, place)
                    self._remember(record, due_ms)
                elif not done.has_delivered(due_ms, place):
                    self._remember(record, due_ms)
                elif RECALLS in record.properties and due_ms + _RECALLED_MS >= done.due_ms:
                    # what it has named may not have come yet
                    self._remember(record, due_ms)
        return self._read_offset > offset

    def _note_ahead(self, due_ms: int, offset: int) -> None:
        """Note what is delivered, before a record comes that was due before some of that.

        Its time was told by a clock that was put back: progress goes back to it.
        """
        if due_ms > self._delivered_ms:
            return
        following = (self._delivered_ms + 1, 0)
        reached = min(self._heap[0][:2], following) if self._heap else following
        self._ahead = [*self._ahead, (offset, *reached)][-AHEAD_MAX:]
        self._delivered_ms = -1

    def _remember(self, record: MessageExt, due_ms: int) -> None:
        offset, properties = record.queue_offset, record.properties
        topic = sys.intern(properties.get("REAL_TOPIC", ""))
        step = (-1 if RECALLS in properties else 1) if topic else 0
        heapq.heappush(self._heap, _Waiting(due_ms, offset, topic, step))
        self._pending[offset // _BLOCK].add(offset)
        self._metrics.add(topic, step)

    def _forget(self, delivered: _Waiting) -> None:
        self._metrics.add(delivered.topic, -delivered.step)
        offset = delivered.queue_offset
        block = self._pending[offset // _BLOCK]
        block.discard(offset)
        if not block:
            del self._pending[offset // _BLOCK]

    def _deliver(self, offset: int, now_ms: int) -> None:
        """Put one message where it belongs; one that can never be put is passed over."""
        with self._passed_over.guard(TIMER, f"message {offset}", (TIMER_TOPIC, 0, offset)):
            record = self._record(offset)
            if record is None:
                raise MessageIllegalError("it is gone from the log")
            topic = record.properties.get("REAL_TOPIC", "")
            if RECALLS in record.properties:
                name = record.properties[RECALLS].removeprefix(f"{topic}+")
                self._recalled[topic, name] = now_ms
                return
            if record.unique_key and (topic, record.unique_key) in self._recalled:
                return
            message = _delivered(record, now_ms)
            config = self._topics.get(message.topic)
            message.queue_id = self._topics.queue_at_delivery(config, message.queue_id)
            receipt = put_due(self._store.put_message, message)
            if not receipt.ok:
                raise PutMessageError(receipt.status, receipt.reason)
            self._arrived(message.topic, message.queue_id)

    def _record(self, offset: int) -> MessageExt | None:
        found = self._store.get_message(TIMER_TOPIC, 0, offset, max_messages=1).messages
        return found[0] if found and found[0].queue_offset == offset else None

    # ---- progress

    def _progress(self) -> TimerProgress:
        due_ms, due_offset = self._heap[0][:2] if self._heap else (self._clock_ms() + 1, 0)
        first = min(self._pending[min(self._pending)]) if self._pending else self._read_offset
        for over in [each for each in self._ahead if each[1:] <= (due_ms, due_offset)]:
            self._ahead.remove(over)
            self._delivered_ms = max(self._delivered_ms, over[1])
        return TimerProgress(first, self._read_offset, due_ms, due_offset, tuple(self._ahead))

    async def _persist(self) -> None:
        """Keep what is reached, after what was delivered is on the disk."""
        if not self._changed():
            return
        progress = self._progress()
        await asyncio.to_thread(self._keep, progress)

    def _changed(self) -> bool:
        if self._passed_over.holds(TIMER_TOPIC, 0):
            # the next start comes to it again, at the price of what was delivered since
            return False
        old, new = self._stored, self._progress()
        if old is None:
            return True
        same_end = (old.first_pending, old.read_offset) == (new.first_pending, new.read_offset)
        same_ahead = old.ahead == new.ahead
        same_due = not self._heap or old.due_offset == new.due_offset
        return not (same_end and same_ahead and same_due)

    def _keep(self, progress: TimerProgress) -> None:
        with self._keeping:
            self._store_progress(progress)

    def _store_progress(self, progress: TimerProgress) -> None:
        self._store.flush()
        self._check.store(progress, self._clock_ms())
        if self._stored is None:
            self._check.forget_wheel(self._store.path)
        self._stored = progress

    def finish(self) -> None:
        """Keep what is reached; after `run` has ended, before the store is closed.

        Raises:
            OSError: it cannot be written: what was delivered since comes once more.
        """
        with self._keeping:
            late = self._heap and self._heap[0].due_ms <= self._clock_ms()
            if self._loaded and self._changed() and not late:
                self._store_progress(self._progress())


def timer_property_of(message: Message) -> str | None:
    """The property by which a message asks to come at a time; None where none counts any more."""
    properties = message.properties or {}
    if SLOT in properties:
        return None
    return next((name for name in REQUESTS if name in properties), None)


def _delivered(record: MessageExt, now_ms: int) -> Message:
    """The message that a record stands for.

    Raises:
        MessageIllegalError: it does not say where it belongs.
    """
    properties = dict(record.properties)
    topic, queue_id = properties.get("REAL_TOPIC", ""), properties.get("REAL_QID", "")
    known = queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 10
    if not topic or topic in _NO_PLACES or not known:
        raise MessageIllegalError(f"REAL_TOPIC={topic!r}, REAL_QID={queue_id!r}: no place to go")
    properties["TIMER_ENQUEUE_MS"] = str(record.store_timestamp_ms // _SECOND_MS * _SECOND_MS)
    properties["TIMER_DEQUEUE_MS"] = str(now_ms)
    return copy_to(topic, int(queue_id), record, properties, wait_store_msg_ok=False)


def _rewritten(message: Message, topic: str, queue_id: int, properties: dict[str, str]) -> Message:
    return copy_to(
        topic,
        queue_id,
        message,
        properties,
        store_host=message.store_host,
        wait_store_msg_ok=message.wait_store_msg_ok,
    )


def _illegal(reason: str) -> RequestRefusedError:
    return RequestRefusedError(ResponseCode.MESSAGE_ILLEGAL, f"timer message illegal, {reason}")
