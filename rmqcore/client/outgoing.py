"""`Outgoing`: a message, a batch or a reply as it goes out, with its header."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rmqcore._codec import encode_batch, encode_properties
from rmqcore.client.instance import AUTO_CREATE_TOPIC
from rmqcore.client.results import SendResult, TransactionState
from rmqcore.client.unique_id import UniqueIds
from rmqcore.clock import wall_clock_ms
from rmqcore.errors import MessageIllegalError
from rmqcore.message import Message, ReceivedMessage
from rmqcore.native.format._numbers import SysFlag
from rmqcore.remoting import RequestCode

BODY_SIZE_MAX = 4 * 1024 * 1024
_ZLIB_LEVEL = 5
_NEW_TOPIC_QUEUES = "4"
#: properties that belong to RocketMQ; a caller gives them by the argument of their own
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

    def fields(self, group: str, queue_id: int) -> dict[str, str]:
        """The header under its short names. Source: SendMessageRequestHeaderV2."""
        return {
            "a": group,
            "b": self.topic,
            "c": AUTO_CREATE_TOPIC,
            "d": _NEW_TOPIC_QUEUES,
            "e": str(queue_id),
            "f": str(self.sys_flag),
            "g": str(wall_clock_ms()),
            "h": "0",
            "i": encode_properties(self.properties).decode(),
            "j": "0",
            "k": "false",
            "m": "true" if self.code == RequestCode.SEND_BATCH_MESSAGE else "false",
        }

    def prepare_transaction(self, group: str) -> None:
        """Let the broker keep the message until the transaction has ended."""
        self.properties |= {"TRAN_MSG": "true", "PGROUP": group}
        self.sys_flag |= SysFlag.TRANSACTION_PREPARED

    def ask_for_reply(self, client_id: str, timeout_ms: float) -> str:
        """Let a consumer reply; returns what the reply will be known by."""
        correlation_id = str(uuid.uuid4())
        self.properties |= {
            "CORRELATION_ID": correlation_id,
            "REPLY_TO_CLIENT": client_id,
            "TTL": str(round(timeout_ms)),
        }
        return correlation_id

    @staticmethod
    def result_of(result: SendResult, state: TransactionState) -> SendResult:
        """The result of a transaction that has ended."""
        return replace(result, transaction_id=result.message_id, transaction_state=state)


def outgoing(
    topic: str,
    body: bytes,
    *,
    tags: str | None,
    keys: str | Iterable[str],
    properties: Mapping[str, str] | None,
    delay_level: int,
    deliver_at_ms: int | None,
    unique_id: str,
    compress_above: int | None,
) -> Outgoing:
    """One message.

    Raises:
        MessageIllegalError: it breaks a limit.
    """
    _check_topic(topic)
    own = {"UNIQ_KEY": unique_id, "WAIT": "true"}
    if tags:
        own["TAGS"] = tags
    words = [keys] if isinstance(keys, str) else list(keys)
    if words:
        own["KEYS"] = " ".join(words)
    if delay_level:
        own["DELAY"] = str(delay_level)
    if deliver_at_ms is not None:
        own["TIMER_DELIVER_MS"] = str(deliver_at_ms)
    for name in properties or {}:
        if name in _OWN:
            raise MessageIllegalError(f"property {name} is RocketMQ's own: {_OWN[name]}")
    plain, sys_flag = _checked(body), 0
    if compress_above is not None and len(plain) >= compress_above:
        plain = zlib.compress(plain, _ZLIB_LEVEL)
        sys_flag = SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB
    return Outgoing(topic, plain, {**(properties or {}), **own}, unique_id, sys_flag=sys_flag)


def batch_of(topic: str, messages: Iterable[bytes | Message], ids: UniqueIds) -> Outgoing:
    """Several messages of one topic, as one request.

    Raises:
        MessageIllegalError: they cannot be sent together, or one breaks a limit.
    """
    _check_topic(topic)
    parts, names = [], []
    for each in messages:
        message = each if isinstance(each, Message) else Message(topic, _checked(each))
        if message.topic != topic:
            raise MessageIllegalError(f"a batch has one topic: {topic}, not {message.topic}")
        if message.delay_level:
            raise MessageIllegalError("a delayed message cannot be part of a batch")
        name = ids.make()
        own = {"UNIQ_KEY": name, "WAIT": "true"}
        settings = message.to_dict() | {"properties": {**(message.properties or {}), **own}}
        parts.append(Message(**settings))
        names.append(name)
    if not parts:
        raise MessageIllegalError("a batch has at least one message")
    body = _checked(encode_batch(parts))
    # brokers of 4.9 give each message the properties of the batch: it has no id of its own
    return Outgoing(topic, body, {"WAIT": "true"}, ",".join(names), RequestCode.SEND_BATCH_MESSAGE)


def reply_to(message: ReceivedMessage, body: bytes, ids: UniqueIds) -> Outgoing:
    """The answer to a message that asks for one. Source: MessageUtil, createReplyMessage.

    Raises:
        MessageIllegalError: it does not, or the body is too large.
    """
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


def _check_topic(topic: str) -> None:
    if not topic:
        raise MessageIllegalError("topic: a name is needed")


def _checked(body: bytes) -> bytes:
    if not isinstance(body, bytes | bytearray | memoryview):
        raise MessageIllegalError(f"body: bytes are needed, not {type(body).__name__}")
    if len(body) > BODY_SIZE_MAX:
        raise MessageIllegalError(f"body of {len(body)} bytes: {BODY_SIZE_MAX} at most")
    return bytes(body)
