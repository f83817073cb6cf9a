"""`Outgoing`: a message, a batch or a reply as it goes out, with its header."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from rmqcore._codec import (
    decode_properties,
    decode_record,
    encode_batch,
    encode_properties,
    encode_record,
)
from rmqcore.arguments import body_view, properties_of, text, whole_number
from rmqcore.chance import token_hex
from rmqcore.client.instance import AUTO_CREATE_TOPIC
from rmqcore.client.names import TOPIC_MAX, check_name
from rmqcore.client.results import SendResult, TransactionState
from rmqcore.client.unique_id import UniqueIds
from rmqcore.errors import ArgumentError, MessageIllegalError
from rmqcore.message import Message, ReceivedMessage
from rmqcore.native.format._numbers import PROPERTIES_SIZE_MAX, SysFlag
from rmqcore.remoting import RequestCode
from rmqcore.remoting.send_header import under_letters

BODY_SIZE_MAX = 4 * 1024 * 1024
_ZLIB_LEVEL = 5
_NEW_TOPIC_QUEUES = "4"
#: A message whose properties would leave less room than this goes without a trace context: brokers
#: add properties of their own, when they store it and when it comes again.
_LEFT_TO_BROKERS: Final = 2048
#: Also a batch that would, with this for each of its records, be larger than a body may be.
_RECORD_HEAD_MAX: Final = 256
#: A message of a batch: size, two unused, flag, body_size. Layout: docs/format/batch-body.md.
_ITEM: Final = struct.Struct(">4s4s4s4si")
_SIZE: Final = struct.Struct(">i")
_PROPERTIES_SIZE: Final = struct.Struct(">h")
#: RocketMQ uses these properties itself: a caller sets them by arguments, and gets an error for
#: the property.
_OWN = {
    "KEYS": "use keys",
    "TAGS": "use tags",
    "DELAY": "use delay_level",
    "UNIQ_KEY": "the producer gives it",
    "WAIT": "the producer gives it",
}


@dataclass(slots=True)
class Outgoing:
    """What one send request carries."""

    topic: str
    body: bytes
    properties: dict[str, str]
    unique_id: str
    code: int = RequestCode.SEND_MESSAGE_V2
    sys_flag: int = 0

    def fields(self, group: str, queue_id: int, born_ms: int) -> dict[str, str]:
        """The header under its letters. Source: SendMessageRequestHeaderV2.

        Args:
            group: the producer's.
            queue_id: queue of the topic at the broker that is asked.
            born_ms: Unix time in milliseconds at which it is sent.
        """
        fields = {
            "producerGroup": group,
            "topic": self.topic,
            "defaultTopic": AUTO_CREATE_TOPIC,
            "defaultTopicQueueNums": _NEW_TOPIC_QUEUES,
            "queueId": str(queue_id),
            "sysFlag": str(self.sys_flag),
            "bornTimestamp": str(born_ms),
            "flag": "0",
            "properties": encode_properties(self.properties).decode(),
            "reconsumeTimes": "0",
            "unitMode": "false",
            "batch": "true" if self.is_batch else "false",
        }
        return under_letters(fields)

    @property
    def is_batch(self) -> bool:
        """Tell whether it is several messages."""
        return self.code == RequestCode.SEND_BATCH_MESSAGE

    def carry(self, context: Mapping[str, str]) -> None:
        """Add a trace context to the properties of each message that has none, where it fits.

        Args:
            context: names and values; what a message has of these names stays.
        """
        try:
            size = len(encode_properties(context))
        except MessageIllegalError:
            return
        if not self.is_batch:
            own = len(encode_properties(self.properties))
            self.properties |= _context_for(self.properties, own, context, size)
            return
        body, count = _batch_with(self.body, context, size)
        if len(body) + count * _RECORD_HEAD_MAX <= BODY_SIZE_MAX:
            self.body = body

    def prepare_transaction(self, group: str) -> None:
        """Let the broker keep the message until the transaction has ended."""
        self.properties |= {"TRAN_MSG": "true", "PGROUP": group}
        self.sys_flag |= SysFlag.TRANSACTION_PREPARED

    def ask_for_reply(self, client_id: str, timeout_ms: float) -> str:
        """Let a consumer reply; returns what the reply will be known by.

        Args:
            client_id: of the client that the broker passes the reply to.
            timeout_ms: how long the reply is of use to anybody.
        """
        correlation_id = token_hex(16)
        self.properties |= {
            "CORRELATION_ID": correlation_id,
            "REPLY_TO_CLIENT": client_id,
            "TTL": str(round(timeout_ms)),
        }
        return correlation_id

    @staticmethod
    def result_of(result: SendResult, state: TransactionState) -> SendResult:
        """The result of a transaction that has ended.

        Args:
            result: of the half message's send.
            state: how the transaction has ended.
        """
        return replace(result, transaction_id=result.message_id, transaction_state=state)


def outgoing(
    topic: str,
    body: bytes,
    *,
    tags: str | None,
    keys: str | Iterable[str] | None,
    properties: Mapping[str, str] | Iterable[tuple[str, str]] | None,
    delay_level: int,
    deliver_at_ms: int | None,
    unique_id: str,
    compress_above: int | None,
) -> Outgoing:
    """One message.

    Args:
        topic: where it goes.
        body: as the application gives it.
        tags: filter tag, or None.
        keys: look-up keys; a str is one key.
        properties: the application's own; none that RocketMQ uses itself.
        delay_level: 0 for none, else the broker's level.
        deliver_at_ms: Unix time before which nobody gets it; None for at once.
        unique_id: what the message is known by.
        compress_above: bodies from this many bytes on are compressed with zlib; None for none.

    Raises:
        MessageIllegalError: it breaks a limit.
        ArgumentError: an argument is of another type.
    """
    topic = _topic(topic)
    given = properties_of(properties or {})
    for name in given:
        if name in _OWN:
            raise MessageIllegalError(f"property {name} is RocketMQ's own: {_OWN[name]}")
    level = whole_number("delay_level", delay_level)
    own = {"UNIQ_KEY": unique_id, "WAIT": "true"}
    if level > 0:
        own["DELAY"] = str(level)
    if deliver_at_ms is not None:
        own["TIMER_DELIVER_MS"] = str(whole_number("deliver_at_ms", deliver_at_ms, 0))
    plain, sys_flag = _checked(body), 0
    if compress_above is not None and len(plain) >= compress_above:
        plain = zlib.compress(plain, _ZLIB_LEVEL)
        sys_flag = SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB
    settled = _all_properties(Message(topic, b"x", tags=tags, keys=keys, properties=given | own))
    return Outgoing(topic, plain, settled, unique_id, sys_flag=sys_flag)


def _all_properties(message: Message) -> dict[str, str]:
    """All properties of a message, checked as a store checks them."""
    record = encode_record(message, queue_offset=0, phy_offset=0, store_timestamp_ms=0)
    return decode_record(record).properties


def batch_of(topic: str, messages: Iterable[bytes | Message], ids: UniqueIds) -> Outgoing:
    """Several messages of one topic, as one request.

    Args:
        topic: of all messages.
        messages: a body stands for a message without anything else.
        ids: makes the id of each.

    Raises:
        MessageIllegalError: they cannot be sent together, or one breaks a limit.
    """
    topic = _topic(topic)
    parts, names = [], []
    for each in _elements(messages):
        message = each if isinstance(each, Message) else Message(topic, _checked(each))
        if message.topic != topic:
            raise MessageIllegalError(f"a batch has one topic: {topic}, not {message.topic}")
        if message.delay_level > 0:
            raise MessageIllegalError("a delayed message cannot be part of a batch")
        name = ids.make()
        own = {"UNIQ_KEY": name, "WAIT": "true"}
        taken = {
            "body": _checked(message.body),
            "keys": message.keys,
            "properties": properties_of(message.properties or {}) | own,
        }
        parts.append(Message(**(message.to_dict() | taken)))
        names.append(name)
    if not parts:
        raise MessageIllegalError("a batch has at least one message")
    encoded = _checked(encode_batch(parts))
    # brokers of 4.9 give each message the properties of the batch: it has no id of its own
    named = ",".join(names)
    return Outgoing(topic, encoded, {"WAIT": "true"}, named, RequestCode.SEND_BATCH_MESSAGE)


def _context_for(
    properties: Mapping[str, str], own_size: int, context: Mapping[str, str], size: int
) -> dict[str, str]:
    """What of a trace context, of so many bytes, is added to properties of so many bytes."""
    if "traceparent" in properties or own_size + size > PROPERTIES_SIZE_MAX - _LEFT_TO_BROKERS:
        return {}
    return {name: value for name, value in context.items() if name not in properties}


def _batch_with(body: bytes, context: Mapping[str, str], size: int) -> tuple[bytes, int]:
    """(a batch with a trace context of so many bytes in each message, their number)."""
    parts: list[bytes] = []
    at = count = 0
    while at < len(body):
        item_size = _SIZE.unpack_from(body, at)[0]
        tail_at = at + _ITEM.size + _ITEM.unpack_from(body, at)[4]
        encoded = body[tail_at + _PROPERTIES_SIZE.size : at + item_size]
        added = _context_for(decode_properties(encoded), len(encoded), context, size)
        more = encode_properties(added)
        if more and encoded and encoded[-1:] != b"\x02":
            more = b"\x02" + more
        parts += (
            _SIZE.pack(item_size + len(more)),
            body[at + _SIZE.size : tail_at],
            _PROPERTIES_SIZE.pack(len(encoded) + len(more)),
            encoded,
            more,
        )
        at += item_size
        count += 1
    return b"".join(parts), count


def reply_to(message: ReceivedMessage, body: bytes, ids: UniqueIds) -> Outgoing:
    """The answer to a message that asks for one. Source: MessageUtil, createReplyMessage.

    Args:
        message: that was received, and asks for a reply.
        body: of the reply.
        ids: makes its id.

    Raises:
        ArgumentError: it is no message that was received.
        MessageIllegalError: it does not, or the body is empty or too large.
    """
    if not isinstance(message, ReceivedMessage):
        raise ArgumentError("message", message, "a message that a consumer has handed out")
    asked = message.properties
    wanted = ("CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT")
    missing = [name for name in wanted if name not in asked]
    if missing:
        raise MessageIllegalError(f"the message asks for no reply: no property {missing[0]}")
    unique_id = ids.make()
    properties = {
        "MSG_TYPE": "reply",
        "CORRELATION_ID": asked["CORRELATION_ID"],
        "REPLY_TO_CLIENT": asked["REPLY_TO_CLIENT"],
        "TTL": asked.get("TTL", "3000"),
        "UNIQ_KEY": unique_id,
        "WAIT": "true",
    }
    topic = f"{asked['CLUSTER']}_REPLY_TOPIC"
    code = RequestCode.SEND_REPLY_MESSAGE_V2
    return Outgoing(topic, _checked(body), properties, unique_id, code)


def _elements(messages: object) -> Iterable[bytes | Message]:
    if isinstance(messages, str | bytes | bytearray | memoryview | Message) or not isinstance(
        messages, Iterable
    ):
        raise ArgumentError("messages", messages, "several bodies or messages, in a list")
    return messages


def _topic(topic: object) -> str:
    check_name("topic", topic, TOPIC_MAX)
    return text("topic", topic)


def _checked(body: object) -> bytes:
    """A body as bytes. The sentences are those of a store's put."""
    plain = bytes(body) if isinstance(body, bytes) else body_view(body).tobytes()
    if not plain:
        raise MessageIllegalError("the body is empty; brokers refuse that")
    if len(plain) > BODY_SIZE_MAX:
        raise MessageIllegalError(f"body of {len(plain)} bytes: {BODY_SIZE_MAX} at most")
    return plain
