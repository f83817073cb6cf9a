"""Sending: single messages and batches, and what comes back from consumers.

Source: RocketMQ broker/processor/SendMessageProcessor.java, AbstractSendMessageProcessor.java.
"""

from __future__ import annotations

import inspect
import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from rmqcore._codec import decode_properties
from rmqcore.broker.send._direct_sends import DirectSends
from rmqcore.broker.send._send_request import SendRequest
from rmqcore.broker.send.batches import check_batch, without_receipts
from rmqcore.broker.send.given_back import check_origin, is_kept
from rmqcore.broker.send.light_queues import LightQueues
from rmqcore.broker.send.priority import PRIORITY_PROPERTY, queue_by_priority
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.broker.state.masters_only import masters_only
from rmqcore.broker.state.settings import BrokerConfig
from rmqcore.broker.state.traffic import DELAY, FIFO, NORMAL, PRIORITY, TRANSACTION
from rmqcore.broker.timer.timer import TimerMessages
from rmqcore.chance import token_hex
from rmqcore.errors import CorruptStoreError, MessageIllegalError, StoreError
from rmqcore.files.config_tables import TopicConfig
from rmqcore.files.service_topics import HALF_TOPIC
from rmqcore.files.timer_check import TIMER_TOPIC
from rmqcore.message import DEAD_LETTER_PREFIX, RETRY_PREFIX, Message, MessageExt, PutMessageResult
from rmqcore.native.format._numbers import SysFlag
from rmqcore.native.format._wire_message import WireMessage
from rmqcore.remoting import (
    Connection,
    FrameDecoder,
    RemotingCommand,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
    encode_command,
    failure,
    needs,
    success,
)
from rmqcore.remoting.codec import ANSWER_LIMITS, DirectAnswers
from rmqcore.remoting.codes import PERM_WRITE, VERSION
from rmqcore.remoting.serves import serves
from rmqcore.remoting.turns import OnlyWaits
from rmqcore.status import PutMessageStatus
from rmqcore.store.consume.retry import first_retry_level, sent_again

logger = logging.getLogger(__name__)

_ANSWER_ENDS: Final = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION
_KNOWS_RECONSUME_MAX: Final = 121
#: Topic, queue id, unique key and kind of a message, of which the answer to a send tells.
_Place: TypeAlias = tuple[str, int, str | None, str]

_CODES: Final = {
    PutMessageStatus.PUT_OK: (ResponseCode.SUCCESS, None),
    PutMessageStatus.FLUSH_DISK_TIMEOUT: (ResponseCode.FLUSH_DISK_TIMEOUT, None),
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: (ResponseCode.FLUSH_SLAVE_TIMEOUT, None),
    PutMessageStatus.SLAVE_NOT_AVAILABLE: (ResponseCode.SLAVE_NOT_AVAILABLE, None),
    PutMessageStatus.SERVICE_NOT_AVAILABLE: (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "service not available now: the broker is a slave, its disk is full, or it shuts down",
    ),
    PutMessageStatus.CREATE_MAPPED_FILE_FAILED: (
        ResponseCode.SYSTEM_ERROR,
        "create mapped file failed, the server is busy or its disk is full",
    ),
    PutMessageStatus.MESSAGE_ILLEGAL: (
        ResponseCode.MESSAGE_ILLEGAL,
        "the message is illegal, maybe msg body or properties length not matched",
    ),
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: (
        ResponseCode.MESSAGE_ILLEGAL,
        "the message is illegal, its properties are larger than 32767 bytes",
    ),
    PutMessageStatus.OS_PAGE_CACHE_BUSY: (
        ResponseCode.SYSTEM_BUSY,
        "[PC_SYNCHRONIZED]broker busy, start flow control for a while",
    ),
    PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: (
        ResponseCode.SYSTEM_ERROR,
        "in-sync replicas not enough",
    ),
}


class SendMessages:
    """Stores what producers send, and what consumers give back.

    Args:
        state: the broker's.
        half_message: turns a transaction's message into the half message that is stored until it
            is decided; None refuses it.
        timer: makes of a message with a time of delivery what is stored until then; None stores
            it as it is.
    """

    def __init__(
        self,
        state: BrokerState,
        half_message: Callable[[Message], Message] | None = None,
        timer: TimerMessages | None = None,
    ) -> None:
        self._store, self._config = state.store, state.config
        self._topics, self._groups, self._locks = state.topics, state.groups, state.locks
        self._traffic, self._arrived = state.traffic, state.arrived
        self._config_in_use = self._config()
        self._own, self._answer_begins = self._made_of(self._config_in_use)
        self._light_queues = LightQueues(state.store, state.config, state.world)
        self._half_message = half_message
        self._monotonic_s, self._timer = state.world.monotonic_s, timer
        #: since when sends wait for the log, in the order in which they came
        self._waiting: dict[int, float] = {}
        self._numbers = itertools.count()

    def direct_answers(self) -> DirectAnswers:
        """What answers plain sends without a processor, see `RemotingServer.direct`."""
        return DirectSends(
            self._store, self._direct_facts, self._stored_directly, self._confirmed
        ).answer

    # ---- requests 10, 310, 320: a message, with long or short names of fields; a batch

    @serves(
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        needs=needs.publish,
    )
    @masters_only(ResponseCode.SERVICE_NOT_AVAILABLE)
    def send(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Store a message, or a batch of one queue, under long or short names of fields.

        Args:
            connection: of the producer; says the born host.
            request: header of 10, 310 or 320; its body is a message's, or a batch of messages.

        Raises:
            RequestRefusedError: the broker is too busy, or message or topic is refused.
        """
        self._check_not_busy()
        wanted = SendRequest(request)
        check_body(request)
        topic = self._topic_for(wanted)
        if self._topics.file.is_saved(wanted.topic):
            return self._send(connection, request, wanted, topic)
        return self._send_when_saved(connection, request, wanted)

    def _topic_for(self, wanted: SendRequest) -> TopicConfig:
        """The topic that a message is sent to, which may be made now."""
        self._check_writable(wanted.topic)
        topic = self._topics.for_send(
            wanted.topic, wanted.default_topic, wanted.default_queue_count
        )
        self._topics.check_sendable(wanted.topic)
        return topic

    async def _send_when_saved(
        self, connection: Connection, request: RemotingCommand, wanted: SendRequest
    ) -> RemotingCommand:
        """Store what is sent when a crash does not take its topic any more.

        Where the topic cannot be written, each try would store one more, and be refused.
        """
        await self._topics.file.expect_saved(wanted.topic)
        answer = self._send(connection, request, wanted, self._topic_for(wanted))
        return await answer if inspect.isawaitable(answer) else answer

    def _send(
        self,
        connection: Connection,
        request: RemotingCommand,
        wanted: SendRequest,
        topic: TopicConfig,
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        queue_id = self._topics.queue_for_send(topic, wanted.queue_id)
        if wanted.batch or wanted.plain:
            return self._send_as_it_is(connection, request, wanted, topic, queue_id)
        message = self._message(connection, request, wanted, topic, queue_id)
        self._light_queues.expect_room(message)
        if PRIORITY_PROPERTY in (message.properties or {}):
            queue_id = message.queue_id
        if message.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_PREPARED:
            message = self._half(message)
        elif self._timer is not None and not _asks_for_level(message.properties or {}):
            message = self._timer.timed(message)
        return self._put(message, queue_id)

    def _direct_facts(self, topic: str) -> tuple[int, int, bytes, bytes, bytes] | None:
        """What the plain sends to a topic have in common, see `DirectSends`; None: look at each."""
        found, config = self._topics.get(topic), self._config()
        if self._waiting or found is None or not self._topics.file.is_saved(topic):
            return None
        if topic.startswith(RETRY_PREFIX) or not config.broker_permission & PERM_WRITE:
            return None
        try:
            self._topics.check_sendable(topic)
        except RequestRefusedError:
            return None
        return (
            max(found.write_queue_nums, found.read_queue_nums),
            _topic_flags(found),
            self._own_properties(),
            self._answer_begins,
            _ANSWER_ENDS,
        )

    def _stored_directly(
        self, topic: str, queue_id: int, receipt: PutMessageResult, ordered: bool
    ) -> None:
        kind = FIFO if ordered else NORMAL
        try:
            self._traffic.add_stored(topic, kind, receipt.message_count, receipt.store_size)
            if not self._store.waits:
                # else it may not be readable yet, and dispatch tells of it
                self._arrived(topic, queue_id)
        except Exception:  # the message is stored, and its sender is told so
            logger.exception("%s, queue %d: who waits is not told", topic, queue_id)

    async def _confirmed(self, last: PutMessageResult, answers: bytes) -> bytes:
        """The answers to plain sends, ``last`` the last of them, when disk and slaves have them."""
        try:
            receipt = await self._store.confirmed(last)
        except Exception:
            logger.exception("sends up to %d: nobody knows whether they are safe", last.phy_offset)
            remark = "the send failed; the log of the server says why"
            return _with_code(answers, ResponseCode.SYSTEM_ERROR, remark)
        return answers if receipt.ok else _with_code(answers, *_code_of(receipt.status))

    def _send_as_it_is(
        self,
        connection: Connection,
        request: RemotingCommand,
        wanted: SendRequest,
        topic: TopicConfig,
        queue_id: int,
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Store what came as it came, properties and all; on the event loop, but for the disk."""
        unique_key, body = wanted.unique_key, request.body
        properties: bytes | None = None
        if wanted.batch:
            check_batch(wanted.topic)
            body = without_receipts(body)
        else:
            unique_key = unique_key or token_hex(16).upper()
            properties = wanted.stored_properties(self._own_properties(), unique_key)
        try:
            message = WireMessage(
                wanted.topic,
                queue_id,
                body,
                properties,
                wanted.flag,
                _flags(wanted, topic),
                wanted.born_timestamp_ms,
                connection.remote_address,
                wanted.reconsume_times,
            )
            receipt = self._store.append_now(message)
        except MessageIllegalError as error:
            raise _refusal(error) from error
        except OverflowError as error:
            remark = "flag, sysFlag or reconsumeTimes is no number of 32 bits"
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark) from error
        waits = self._store.waits and wanted.waits
        place = wanted.topic, queue_id, unique_key, _kind(wanted)
        if receipt is None:
            return self._finish(message, waits, place)
        if waits:
            # of the message nothing is kept meanwhile
            return OnlyWaits(self._confirm(receipt, place))
        if self._store.waits:
            self._store.not_waited_for(receipt)
        return self._answer(receipt, *place)

    async def _finish(self, message: WireMessage, waits: bool, place: _Place) -> RemotingCommand:
        """What of a send takes its time: the next log file, the disk, the slaves."""
        try:
            receipt = await self._append_later(message)
        except (MessageIllegalError, StoreError) as error:
            raise _refusal(error) from error
        return await self._confirm(receipt, place) if waits else self._answer(receipt, *place)

    async def _confirm(self, receipt: PutMessageResult, place: _Place) -> RemotingCommand:
        if receipt.ok:
            receipt = await self._store.confirmed(receipt)
        return self._answer(receipt, *place)

    async def _append_later(self, message: WireMessage) -> PutMessageResult:
        """Append with whatever that takes, and note since when it waits."""
        number = next(self._numbers)
        self._waiting[number] = self._monotonic_s()
        try:
            return await self._store.append_later(message)
        finally:
            del self._waiting[number]

    def _check_not_busy(self) -> None:
        """Refuse a send while another one waits for the log for too long.

        Raises:
            RequestRefusedError: it is so; answers with code 2, after which clients try again.

        Source: BrokerFastFailure, cleanExpiredRequest.
        """
        if not self._waiting:
            return
        waited_ms = (self._monotonic_s() - next(iter(self._waiting.values()))) * 1000
        if waited_ms > self._config().os_page_cache_busy_time_out_mills:
            remark = (
                "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, "
                f"period in queue: {waited_ms:.0f}ms, size of queue: {len(self._waiting)}"
            )
            raise RequestRefusedError(ResponseCode.SYSTEM_BUSY, remark)

    def _own_properties(self) -> bytes:
        """The properties that every message gets from the broker."""
        config = self._config()
        if config is not self._config_in_use:
            self._config_in_use = config
            self._own, self._answer_begins = self._made_of(config)
        return self._own

    @staticmethod
    def _made_of(config: BrokerConfig) -> tuple[bytes, bytes]:
        """The broker's own properties, and how the answer to a plain send begins."""
        own = (
            f"MSG_REGION\x01{config.region_id}\x02TRACE_ON\x01true\x02"
            f"CLUSTER\x01{config.broker_cluster_name}\x02"
        )
        region = json.dumps(config.region_id, ensure_ascii=False)
        answer = f'{{"code":0,"extFields":{{"MSG_REGION":{region},"TRACE_ON":"true","msgId":"'
        return own.encode("utf-8", "replace"), answer.encode("utf-8", "replace")

    def _check_writable(self, topic: str) -> None:
        found, config = self._topics.get(topic), self._config()
        if not config.broker_permission & PERM_WRITE and found is not None and found.order:
            remark = f"the broker[{config.broker_ip1}] sending message is forbidden"
            raise RequestRefusedError(ResponseCode.NO_PERMISSION, remark)

    def _message(
        self,
        connection: Connection,
        request: RemotingCommand,
        wanted: SendRequest,
        topic: TopicConfig,
        queue_id: int,
    ) -> Message:
        text = wanted.properties_text.encode() + b"\x02" + self._own_properties()
        properties, name = decode_properties(text), wanted.topic
        properties.pop("POP_CK", None)
        properties.setdefault("UNIQ_KEY", token_hex(16).upper())
        own_queue = queue_by_priority(properties, self._topics.queues_for_send(topic))
        if own_queue is None:
            properties.pop(PRIORITY_PROPERTY, None)
        else:
            queue_id = own_queue
        if name.startswith(RETRY_PREFIX) and self._is_dead(request, wanted):
            name, queue_id = DEAD_LETTER_PREFIX + name.removeprefix(RETRY_PREFIX), 0
            self._topics.for_given_back(name)
            properties["DELAY"] = "-1"
        flags = _flags(wanted, topic)
        waits_again = wanted.reconsume_times > 0 and _asks_for_level(properties)
        if properties.get("TRAN_MSG", "false").lower() == "true" and not waits_again:
            flags |= SysFlag.TRANSACTION_PREPARED
        return Message(
            name,
            request.body,
            queue_id=queue_id,
            properties=properties,
            flag=wanted.flag,
            sys_flag=flags,
            born_timestamp_ms=wanted.born_timestamp_ms,
            born_host=connection.remote_address,
            reconsume_times=wanted.reconsume_times,
            wait_store_msg_ok=properties.get("WAIT", "true").lower() != "false",
        )

    def _is_dead(self, request: RemotingCommand, wanted: SendRequest) -> bool:
        """Tell whether a message that a consumer sends again has been tried often enough."""
        name = wanted.topic.removeprefix(RETRY_PREFIX)
        group = self._groups.expect_for_client(name)
        most = int(group.get("retryMaxTimes", 16))
        if request.version >= _KNOWS_RECONSUME_MAX and wanted.max_reconsume_times is not None:
            most = wanted.max_reconsume_times
        return wanted.reconsume_times > most or self._locks.holds_any(name)

    def _half(self, message: Message) -> Message:
        if self._config().reject_transaction_message or self._half_message is None:
            remark = (
                f"the broker[{self._config().broker_ip1}] sending transaction message is forbidden"
            )
            raise RequestRefusedError(ResponseCode.NO_PERMISSION, remark)
        return self._half_message(message)

    # ---- putting

    def _put(self, message: Message, queue_id: int) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Store a message that the broker has changed; ``queue_id`` is the one it was sent to."""
        if self._store.waits and message.wait_store_msg_ok:
            return self._put_and_wait(message, queue_id)
        try:
            receipt = self._store.put_message(message)
        except (MessageIllegalError, StoreError) as error:
            raise _refusal(error) from error
        return self._answer_put(receipt, message, queue_id)

    async def _put_and_wait(self, message: Message, queue_id: int) -> RemotingCommand:
        return self._answer_put(await self._put_async(message), message, queue_id)

    def _answer_put(
        self, receipt: PutMessageResult, message: Message, queue_id: int
    ) -> RemotingCommand:
        kind = TRANSACTION if message.topic == HALF_TOPIC else NORMAL
        if message.topic == TIMER_TOPIC or (message.properties or {}).get("DELAY", "0") != "0":
            kind = DELAY
        elif PRIORITY_PROPERTY in (message.properties or {}):
            kind = PRIORITY
        answer = self._answer(receipt, message.topic, queue_id, _unique_key(message), kind)
        handle = self._timer.recall_handle(message) if self._timer is not None else None
        if receipt.ok and handle is not None:
            answer.ext_fields["recallHandle"] = handle
        return answer

    def _answer(
        self,
        receipt: PutMessageResult,
        topic: str,
        queue_id: int,
        unique_key: str | None,
        kind: str,
    ) -> RemotingCommand:
        """The answer to a send; without a stored message only the region is told."""
        code, remark = _code_of(receipt.status)
        fields = {"MSG_REGION": self._config().region_id, "TRACE_ON": "true"}
        answer = RemotingCommand(code, fields, b"", remark)
        message_id = receipt.message_id
        if message_id is not None:
            fields["msgId"] = message_id
            fields["queueId"] = str(queue_id)
            fields["queueOffset"] = str(receipt.queue_offset)
            if unique_key:
                fields["transactionId"] = unique_key
            self._note_stored(topic, queue_id, receipt, kind)
        return answer

    def _note_stored(self, topic: str, queue_id: int, receipt: PutMessageResult, kind: str) -> None:
        self._traffic.add_stored(topic, kind, receipt.message_count, receipt.store_size)
        self._arrived(topic, queue_id)

    # ---- request 36: a message that a consumer gives back

    @serves(RequestCode.CONSUMER_SEND_MSG_BACK, needs=needs.send_back)
    @masters_only(ResponseCode.SYSTEM_ERROR)
    async def send_back(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Store a message for its group once more, later, or as a dead letter."""
        group_name = request.text("group")
        group = self._groups.expect_for_client(group_name)
        if not self._config().broker_permission & PERM_WRITE:
            remark = f"the broker[{self._config().broker_ip1}] sending message is forbidden"
            return failure(ResponseCode.NO_PERMISSION, remark)
        retry_queues = int(group.get("retryQueueNums", 1))
        if retry_queues <= 0:
            return success()
        stored = self._stored_at(request.number("offset"))
        check_origin(stored, request.text("originMsgId", ""))
        most = int(group.get("retryMaxTimes", 16))
        if request.version >= _KNOWS_RECONSUME_MAX:
            most = request.number("maxReconsumeTimes", most)
        level = request.number("delayLevel")
        message = self._retry_or_dead_letter(stored, group_name, retry_queues, level, most)
        if message.topic.startswith(RETRY_PREFIX):
            # till its time comes there is no queue by which the next start would know the topic
            await self._topics.file.expect_saved(message.topic)
        try:
            receipt = await self._store.put_message_async(message)
        except MessageIllegalError:
            # no room for a retry's properties, which a dead letter can do without
            message = self._retry_or_dead_letter(stored, group_name, retry_queues, -1, most)
            receipt = await self._put_async(message)
        except StoreError as error:
            raise _refusal(error) from error
        if not is_kept(receipt.status):
            return failure(ResponseCode.SYSTEM_ERROR, receipt.status.name)
        self._arrived(message.topic, message.queue_id)
        return success()

    def _stored_at(self, phy_offset: int) -> MessageExt:
        try:
            found = self._store.message_at(phy_offset)
        except CorruptStoreError:
            found = None
        if found is None or self._topics.is_own(found.topic):
            remark = f"look message by offset failed, {phy_offset}"
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
        return found

    def _retry_or_dead_letter(
        self, stored: MessageExt, group: str, retry_queues: int, level: int, most: int
    ) -> Message:
        """What is stored for a message that its consumer could not handle."""
        if stored.reconsume_times >= most or level < 0:
            topic = self._topics.for_given_back(DEAD_LETTER_PREFIX + group)
            queue_id, level = 0, 0
        else:
            topic = self._topics.for_given_back(RETRY_PREFIX + group, retry_queues)
            queue_id = self._topics.queue_for_send(topic, -1) % retry_queues
            level = level or first_retry_level(stored.reconsume_times)
        message = sent_again(
            stored,
            topic.topic_name,
            queue_id=queue_id,
            delay_level=level,
            reconsume_times=stored.reconsume_times + 1,
            wait=False,
        )
        named = (message.properties or {}).get("RETRY_TOPIC", "")
        if topic.topic_name.startswith(DEAD_LETTER_PREFIX):
            self._traffic.add_dead(named if self._topics.get(named) else stored.topic, group)
        # the record says what RocketMQ's does; who has the answer knows the message no more
        message.wait_store_msg_ok = True
        return message

    async def _put_async(self, message: Message) -> PutMessageResult:
        try:
            return await self._store.put_message_async(message)
        except (MessageIllegalError, StoreError) as error:
            raise _refusal(error) from error


def _code_of(status: PutMessageStatus) -> tuple[int, str | None]:
    """Code and remark of the answer to a put."""
    return _CODES.get(status, (ResponseCode.SYSTEM_ERROR, f"UNKNOWN_ERROR {status.name}"))


def _with_code(answers: bytes, code: int, remark: str | None) -> bytes:
    """The frames of answers, with another code and remark."""
    decoder, frames = FrameDecoder(ANSWER_LIMITS), bytearray()
    decoder.feed(answers)
    while (answer := decoder.next()) is not None:
        answer.code, answer.remark = code, remark
        frames += b"".join(encode_command(answer, limits=ANSWER_LIMITS)[0])
    return bytes(frames)


def _flags(wanted: SendRequest, topic: TopicConfig) -> int:
    """The system flag of what is stored."""
    return wanted.sys_flag & ~SysFlag.HOSTS_V6 & ~SysFlag.TRANSACTION_MASK | _topic_flags(topic)


def _topic_flags(topic: TopicConfig) -> int:
    """What a topic adds to the system flag of its messages."""
    return SysFlag.MULTI_TAGS if topic.topic_filter_type == "MULTI_TAG" else 0


def _kind(wanted: SendRequest) -> str:
    """The type of a message that is stored as it came."""
    return FIFO if wanted.ordered else NORMAL


def check_body(request: RemotingCommand) -> None:
    """Refuse a message, a batch or a reply without a body.

    Raises:
        RequestRefusedError: it has none; answers with code 1.

    Source: RocketMQ AbstractSendMessageProcessor.java, buildMsgContext.
    """
    if not request.body:
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, "the message body is empty")


def _unique_key(message: Message) -> str | None:
    return (message.properties or {}).get("UNIQ_KEY")


def _asks_for_level(properties: Mapping[str, str]) -> bool:
    """Tell whether a message asks for a delay level, beside which no time counts."""
    try:
        # as the store reads it: `+1` is a level, too
        return int(properties.get("DELAY", "0")) > 0
    except ValueError:
        return False


def _refusal(error: MessageIllegalError | StoreError) -> RequestRefusedError:
    if isinstance(error, MessageIllegalError):
        return RequestRefusedError(ResponseCode.MESSAGE_ILLEGAL, str(error))
    return RequestRefusedError(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "service not available now: the broker takes no messages",
    )
