"""POP's acknowledgements: popped messages are acknowledged, kept longer, or handed out again.

Source: RocketMQ broker/processor/AckMessageProcessor.java, ChangeInvisibleTimeProcessor.java,
PopReviveService.java.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import itertools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from rmqcore.broker.pop.checkpoints import Checkpoints
from rmqcore.broker.pop.order import OrderKey, PopOrder
from rmqcore.broker.pop.receipts import (
    COUNT_MAX,
    NORMAL,
    ORDERED,
    Checkpoint,
    CheckpointKey,
    Receipt,
    retry_topic_of,
)
from rmqcore.broker.pop.request import invisible_time_of
from rmqcore.broker.pop.waiting import ANY_QUEUE, WaitingPops
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.broker.state.masters_only import masters_only
from rmqcore.broker.state.passed_over import REVIVE
from rmqcore.broker.state.queued import number_in
from rmqcore.errors import MessageIllegalError, PutMessageError, StoreError
from rmqcore.files.config_tables import QUEUE_ID_MAX, TopicConfig
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
from rmqcore.remoting.json_body import ACKS_MAX, objects_in, read_object
from rmqcore.remoting.serves import serves
from rmqcore.remoting.turns import Turns

logger = logging.getLogger(__name__)

_REVIVED_AT_ONCE: Final = 64
_PAUSE_S: Final = 0.5
_LONG_NAMES: Final = {
    "c": "consumerGroup",
    "t": "topic",
    "r": "retry",
    "so": "startOffset",
    "q": "queueId",
    "rq": "reviveQueueId",
    "pt": "popTime",
    "it": "invisibleTime",
    "b": "bitSet",
}
#: Bits of a batch's entry beyond these bytes are not read: a pop looks at 800 messages of a queue.
_BITS_MAX: Final = 8192
#: A message that comes again is stored without these properties, which were of its last delivery.
_DROPPED: Final = ("DELAY", "POP_CK")


class PopAcks:
    """Acknowledgements of popped messages, and messages that come again.

    Args:
        state: the broker's.
        waiting: where POPs wait.
        checkpoints, order: what is handed out, in no order and in order.
    """

    def __init__(
        self, state: BrokerState, waiting: WaitingPops, checkpoints: Checkpoints, order: PopOrder
    ) -> None:
        self._store, self._config = state.store, state.config
        self._topics, self._offsets = state.topics, state.offsets
        self._arrived, self._passed_over = state.arrived, state.passed_over
        self._standing = state.standing
        self._waiting = waiting
        self._clock_ms = state.world.clock_ms
        self._checkpoints = checkpoints
        self._order = order
        self._sooner = asyncio.Event()
        #: what was handed out again, and no record says it yet
        self._revived: tuple[CheckpointKey, int] | None = None

    # ---- requests 200051, 200151: acknowledgements, one and several

    @serves(RequestCode.ACK_MESSAGE, needs=needs.settle)
    @masters_only(ResponseCode.NO_PERMISSION)
    def acknowledge(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """A message is done with; a receipt that says nothing any more changes nothing."""
        receipt = Receipt.parse(request.text("extraInfo"))
        topic, queue_id, offset = self._place(request)
        if offset > self._store.max_queue_offset(topic, queue_id):
            return failure(ResponseCode.NO_MESSAGE, f"queue {queue_id} has no offset {offset}")
        key = (topic, request.text("consumerGroup"), queue_id)
        if receipt.revive_queue == ORDERED:
            return self._acknowledge_in_order(key, offset, receipt.pop_time_ms)
        self._close((*key, receipt.start_offset, receipt.pop_time_ms), [offset])
        return success()

    def _acknowledge_in_order(
        self, key: OrderKey, offset: int, pop_time_ms: int
    ) -> RemotingCommand:
        """Move the group's offset on; the queue's next messages go when it is their turn.

        Source: AckMessageProcessor, ackOrderly.
        """
        topic, group, queue_id = key
        if offset < (self._store.consumer_offsets.get(topic, group, queue_id) or 0):
            return success()
        try:
            following = self._order.acknowledge(key, offset, pop_time_ms)
        except KeyError:
            remark = f"offset {offset} of queue {queue_id} was not handed out"
            return failure(ResponseCode.MESSAGE_ILLEGAL, remark)
        resets = self._offsets.resets
        if following is not None and resets.get((group, topic, queue_id)) is None:
            most = self._store.max_queue_offset(topic, queue_id)
            following = min(following, most)
            if following > (self._store.consumer_offsets.get(topic, group, queue_id) or 0):
                self._stored(self._checkpoints.note_order, key, following - 1, pop_time_ms)
            self._offsets.commit(group, topic, queue_id, following)
            if following < most and self._order.due_ms(key, None, most) <= self._clock_ms():
                self._wake_in_order(key)
        return success()

    def _wake_in_order(self, key: OrderKey) -> None:
        """Have a POP that waits for a queue look at it again: it goes on, or will sooner."""
        topic, group, queue_id = key
        for waits_for in (ANY_QUEUE, queue_id):
            self._waiting.wake_one((topic, group, waits_for))

    def _place(self, request: RemotingCommand) -> tuple[str, int, int]:
        topic = self._topics.expect(request.text("topic"))
        queue_id, offset = request.number("queueId", bits=32), request.number("offset")
        if not 0 <= queue_id < max(topic.read_queue_nums, topic.write_queue_nums):
            remark = f"queueId[{queue_id}] is illegal, topic:[{topic.topic_name}]"
            raise RequestRefusedError(ResponseCode.MESSAGE_ILLEGAL, remark)
        if offset < self._store.min_queue_offset(topic.topic_name, queue_id):
            remark = f"offset {offset} of queue {queue_id} is gone"
            raise RequestRefusedError(ResponseCode.NO_MESSAGE, remark)
        return topic.topic_name, queue_id, offset

    def _close(self, key: CheckpointKey, offsets: list[int]) -> None:
        self._stored(self._checkpoints.acknowledge, key, offsets)

    @staticmethod
    def _stored(store: Callable[..., object], *what: object) -> None:
        """Store an acknowledgement.

        Raises:
            RequestRefusedError: the store does not take it now.
        """
        try:
            store(*what)
        except StoreError as error:
            logger.warning("an acknowledgement cannot be stored: %s", error)
            raise RequestRefusedError(
                ResponseCode.SYSTEM_ERROR, "the acknowledgement cannot be stored now"
            ) from error

    @serves(RequestCode.BATCH_ACK_MESSAGE, needs=needs.acknowledge_several)
    @masters_only(ResponseCode.NO_PERMISSION)
    async def acknowledge_many(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Several messages are done with, of several checkpoints."""
        entries = objects_in(read_object(request), "acks", ACKS_MAX)
        if not entries:
            return failure(ResponseCode.NO_MESSAGE, "no acks are named")
        answer, turns = success(), Turns()
        for entry in entries:
            await turns.next_entry()
            fields = {_LONG_NAMES.get(name, name): value for name, value in entry.items()}
            try:
                key, offsets, revive_queue = _batch_entry(fields)
            except (ValueError, TypeError, KeyError, OverflowError):
                continue
            if revive_queue != ORDERED:
                self._close(key, offsets)
            elif (refused := self._acknowledge_all_in_order(key, offsets)) is not None:
                answer = refused
        return answer

    def _acknowledge_all_in_order(
        self, key: CheckpointKey, offsets: list[int]
    ) -> RemotingCommand | None:
        """Be done with messages of an ordered pop; the last refusal, None without one."""
        topic, group, queue_id, _, pop_time_ms = key
        least = self._store.min_queue_offset(topic, queue_id)
        most = self._store.max_queue_offset(topic, queue_id)
        done = [
            self._acknowledge_in_order((topic, group, queue_id), offset, pop_time_ms)
            for offset in offsets
            if least <= offset <= most
        ]
        refused = [answer for answer in done if answer.code != ResponseCode.SUCCESS]
        return refused[-1] if refused else None

    # ---- request 200053: another time to come again

    @serves(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, needs=needs.settle)
    @masters_only(ResponseCode.NO_PERMISSION)
    def change_invisible_time(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Hand a message out again at another time than was agreed.

        Raises:
            RequestRefusedError: a field or the receipt is none, or the new time cannot be stored.
        """
        receipt = Receipt.parse(request.text("extraInfo"))
        topic, queue_id, offset = self._place(request)
        if offset >= self._store.max_queue_offset(topic, queue_id):
            return failure(ResponseCode.NO_MESSAGE, f"queue {queue_id} has no offset {offset}")
        group = request.text("consumerGroup")
        invisible_ms = invisible_time_of(request)
        key = (topic, group, queue_id, receipt.start_offset, receipt.pop_time_ms)
        pop_time_ms = self._checkpoints.pop_time_ms(topic)
        known = self._checkpoints.find(key, offset)
        if receipt.revive_queue == ORDERED:
            visible_ms, pop_time_ms = pop_time_ms + invisible_ms, receipt.pop_time_ms
            order_key = (topic, group, queue_id)
            going_on = self._store.consumer_offsets.get(*order_key) or 0
            if offset >= going_on and self._order.keep_until(
                order_key, offset, pop_time_ms, visible_ms
            ):
                self._wake_in_order(order_key)
            invisible_ms = visible_ms - pop_time_ms
        elif known is not None:
            if len(known.open_offsets) > 1:
                # there is one checkpoint more then
                self._checkpoints.expect_room(group)
            again = Checkpoint(
                topic,
                group,
                queue_id,
                offset,
                pop_time_ms,
                invisible_ms,
                [offset],
                known.revive_queue,
                request.boolean("suspend"),
                kept=True,
            )
            try:
                pop_time_ms = self._checkpoints.change(known.key, again).pop_time_ms
            except StoreError as error:
                remark = "the new time cannot be stored now"
                raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark) from error
            self.wake()
        fields = {
            "popTime": str(pop_time_ms),
            "invisibleTime": str(invisible_ms),
            "reviveQid": str(receipt.revive_queue),
        }
        return success(fields)

    # ---- what comes again

    async def run(self) -> None:
        """Hand out again what was not acknowledged in time, until cancelled."""
        while True:
            self._sooner.clear()
            try:
                left = self.revive_due()
                self._standing.end("what POP hands out again")
            except (StoreError, OSError) as error:
                self._standing.note("what POP hands out again", error)
                await asyncio.sleep(_PAUSE_S)
                continue
            if left:
                await asyncio.sleep(0)
                continue
            due_ms = self._checkpoints.next_due_ms()
            wait_s = 1.0 if due_ms is None else (due_ms - self._clock_ms()) / 1000
            try:
                async with asyncio.timeout(min(1.0, max(0.0, wait_s))):
                    await self._sooner.wait()
            except TimeoutError:
                continue

    def wake(self) -> None:
        """Look at once for what is due."""
        self._sooner.set()

    def revive_due(self) -> bool:
        """Hand a bounded number out again; tells whether more are due.

        Raises:
            StoreError, OSError: the store does not take them now; what was handed out is.
        """
        now_ms = self._clock_ms()
        for _ in range(_REVIVED_AT_ONCE):
            checkpoint = self._checkpoints.due(now_ms)
            if checkpoint is None:
                return False
            topic, queue_id = checkpoint.topic, checkpoint.queue_id
            held = functools.partial(self._passed_over.holds, topic, queue_id)
            offset = next(itertools.filterfalse(held, checkpoint.open_offsets), None)
            if offset is None:
                self._checkpoints.set_aside()
                continue
            guard = self._passed_over.guard(
                REVIVE, f"offset {offset} of {topic}", (topic, queue_id, offset)
            )
            if self._revived != (checkpoint.key, offset):
                with guard:
                    self._revive(checkpoint, offset)
                if guard.held:
                    continue
                self._revived = checkpoint.key, offset
            self._checkpoints.acknowledge(checkpoint.key, [offset])
            self._revived = None
        return True

    def _revive(self, checkpoint: Checkpoint, offset: int) -> None:
        """Put one message into the retry topic."""
        found = self._store.get_message(
            checkpoint.topic, checkpoint.queue_id, offset, max_messages=1
        ).messages
        queue = checkpoint.topic, checkpoint.queue_id
        if not found or number_in(queue, found[0]) != offset:
            raise MessageIllegalError("it is gone from the log")
        message = self._retry_message(found[0], checkpoint)
        receipt = self._store.put_message(message)
        if not receipt.ok:
            raise PutMessageError(receipt.status, receipt.reason)
        self._arrived(message.topic, message.queue_id)

    def _retry_message(self, stored: MessageExt, checkpoint: Checkpoint) -> Message:
        """What is stored for a message that nobody acknowledged."""
        group = checkpoint.group
        topic = self._retry_topic(group, checkpoint.topic)
        separate = self._config().use_separate_retry_queue
        own = separate and stored.queue_id < self._topics.queues_for_send(topic)
        properties = {k: v for k, v in stored.properties.items() if k not in _DROPPED}
        properties["ORIGIN_GROUP"] = group
        properties.setdefault("1ST_POP_TIME", str(checkpoint.pop_time_ms))
        copy = functools.partial(
            copy_to,
            topic.topic_name,
            stored.queue_id if own else 0,
            stored,
            born_host=self._config().address,
            reconsume_times=stored.reconsume_times + (not checkpoint.suspended),
            wait_store_msg_ok=False,
        )
        message = copy(properties)
        if "ORIGIN_GROUP" not in (message.properties or {}):
            # without it the other one says whose it is, and may name any topic: see `retried`
            properties.pop("RETRY_TOPIC", None)
            message = copy(properties)
        return message

    def _retry_topic(self, group: str, of: str) -> TopicConfig:
        """Where the messages of a topic come again, with a queue, or one for each of the topic's.

        Source: PopReviveService, createRetryTopicIfNeeded.
        """
        name, source = retry_topic_of(group, of), self._topics.get(of)
        count = 1
        if self._config().use_separate_retry_queue and source is not None:
            count = max(1, source.write_queue_nums)
        former = self._topics.get(name)
        had = former.write_queue_nums if former is not None else 0
        topic = self._topics.for_copy(name, count)
        if 0 < had < count:
            topic = replace(topic, read_queue_nums=count, write_queue_nums=count)
            self._topics.put(topic)
        for queue_id in range(had, count):
            self._store.consumer_offsets.commit(name, group, queue_id, 0)
        return topic


def _batch_entry(fields: dict[str, Any]) -> tuple[CheckpointKey, list[int], int]:
    """One entry of a batch of acknowledgements: its checkpoint, its offsets, its revive queue.

    Raises:
        ValueError, TypeError, KeyError, OverflowError: it is none.
    """
    group, topic = str(fields["consumerGroup"]), str(fields["topic"])
    if str(fields.get("retry", NORMAL)) != str(NORMAL):
        topic = retry_topic_of(group, topic)
    start, queue_id = int(fields["startOffset"]), int(fields["queueId"])
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise ValueError(f"no queue has the id {queue_id}")
    key = (topic, group, queue_id, start, int(fields["popTime"]))
    try:
        bits = base64.b64decode(fields["bitSet"], validate=True)[:_BITS_MAX]
    except binascii.Error as error:
        raise ValueError("no base64") from error
    named = [
        8 * at + bit for at, byte in enumerate(bits) if byte for bit in range(8) if byte >> bit & 1
    ]
    if len(named) > COUNT_MAX:
        raise ValueError(f"{len(named)} messages, and a pop hands out {COUNT_MAX} at most")
    return key, [start + distance for distance in named], int(fields.get("reviveQueueId", 0))
