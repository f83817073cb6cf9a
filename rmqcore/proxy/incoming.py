"""A message that a client sends: what it may be, and what a broker gets of it.

Source: RocketMQ proxy/grpc/v2/producer/SendMessageActivity.java; GrpcValidator.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rmqcore.proxy.codes import Code, RefusedError
from rmqcore.proxy.messages import Encoding, MessageType, V2Message
from rmqcore.proxy.properties import (
    BORN_HOST,
    DELIVER_MS,
    IMMUNITY_S,
    KEYS,
    LITE_TOPIC,
    MESSAGE_GROUP,
    PRIORITY,
    PRODUCER_GROUP,
    RESERVED,
    TAGS,
    TRACE_CONTEXT,
    TRANSACTION,
    UNIQUE_KEY,
)
from rmqcore.remoting.send_header import under_letters

BODY_SIZE_MAX: Final = 4 * 1024 * 1024
PROPERTIES_MAX: Final = 128
PROPERTIES_SIZE_MAX: Final = 16 * 1024
_GROUP_SIZE_MAX: Final = 64
_ID_SIZE_MAX: Final = 255
_COMPRESSED: Final = 1
_PREPARED: Final = 4
#: A longer delay is refused: RocketMQ's timerMaxDelaySec.
DELAY_MS_MAX: Final = 3 * 24 * 3600 * 1000
#: Characters that a property may not have: those that would end its name or value, and other
#: control characters.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message as a broker gets it.

    Attributes:
        kind: of the message.
        message_id: as the client has made it.
        properties: as the header of a send holds them.
        sys_flag: RocketMQ's system flag.
        born_ms: Unix time at the client.
        sharding_key: messages that have the same go to the same queue; None: any.
        body: as sent.
    """

    kind: MessageType
    message_id: str
    properties: str
    sys_flag: int
    born_ms: int
    sharding_key: str | None
    body: bytes

    def fields(self, topic: str, queue_id: int) -> dict[str, str]:
        """The header of 310 under its letters. Source: SendMessageRequestHeaderV2.

        Args:
            topic: where it goes.
            queue_id: where it goes.
        """
        fields = {
            "producerGroup": topic,
            "topic": topic,
            "defaultTopic": "",
            "defaultTopicQueueNums": "0",
            "queueId": str(queue_id),
            "sysFlag": str(self.sys_flag),
            "bornTimestamp": str(self.born_ms),
            "flag": "0",
            "properties": self.properties,
            "reconsumeTimes": "0",
            "unitMode": "false",
            "batch": "false",
        }
        return under_letters(fields)


def incoming(message: V2Message, topic: str, clock_ms: Callable[[], int]) -> Incoming:
    """What a broker gets of a message.

    Args:
        message: as the client sends it: RocketMQ's ``Message``.
        topic: its topic, without the namespace's resource.
        clock_ms: Unix time in milliseconds.

    Raises:
        RefusedError: it is not as the definition says.
    """
    system = message.system_properties
    body = message.body
    message_id = system.message_id
    if not message_id or len(message_id) > _ID_SIZE_MAX or _CONTROL.search(message_id):
        raise RefusedError(Code.ILLEGAL_MESSAGE_ID, "the message has no id, or none of a line")
    if not body:
        raise RefusedError(Code.MESSAGE_BODY_EMPTY, "the message has no body")
    if len(body) > BODY_SIZE_MAX:
        reason = f"a body of {len(body)} bytes, {BODY_SIZE_MAX} at most"
        raise RefusedError(Code.MESSAGE_BODY_TOO_LARGE, reason)
    found = _user_properties(message)
    found[UNIQUE_KEY] = message_id
    _add_texts(found, system)
    kind = _kind(system)
    sys_flag = _COMPRESSED if system.body_encoding == Encoding.GZIP else 0
    if kind is MessageType.DELAY:
        found[DELIVER_MS] = str(_delivery_ms(system, clock_ms))
    elif kind is MessageType.PRIORITY:
        found[PRIORITY] = str(system.priority)
    elif kind is MessageType.TRANSACTION:
        sys_flag |= _PREPARED
        found[TRANSACTION] = "true"
        immunity_s = system.orphaned_transaction_recovery_duration.seconds
        if immunity_s > 0:
            found[IMMUNITY_S] = str(immunity_s)
    found[PRODUCER_GROUP] = topic
    born_ms = system.born_timestamp.seconds * 1000 + system.born_timestamp.nanos // 1_000_000
    return Incoming(
        kind,
        message_id,
        "".join([f"{name}\x01{value}\x02" for name, value in found.items()]),
        sys_flag,
        born_ms if born_ms > 0 else clock_ms(),
        system.message_group or None,
        body,
    )


def _user_properties(message: V2Message) -> dict[str, str]:
    """The user's own properties.

    Raises:
        RefusedError: there are too many, or one cannot be.
    """
    found = dict(message.user_properties)
    if not found:
        return found
    size = sum(map(len, found)) + sum(map(len, found.values()))
    if len(found) > PROPERTIES_MAX or size > PROPERTIES_SIZE_MAX:
        reason = f"{len(found)} properties of {size} characters: {PROPERTIES_MAX} of "
        raise RefusedError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE, f"{reason}{PROPERTIES_SIZE_MAX} at most"
        )
    for name in found:
        if not name.strip() or name in RESERVED:
            reason = f"the property {name[:_ID_SIZE_MAX]!r} is RocketMQ's own, or has no name"
            raise RefusedError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, reason)
    if _CONTROL.search("".join(found)) or _CONTROL.search("".join(found.values())):
        reason = "a property has control characters"
        raise RefusedError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, reason)
    return found


def _add_texts(found: dict[str, str], system: V2Message) -> None:
    """Add the properties that are texts of the user's.

    Raises:
        RefusedError: one cannot be.
    """
    if system.HasField("tag"):
        tag = system.tag
        if not tag.strip() or "|" in tag or _CONTROL.search(tag):
            raise RefusedError(Code.ILLEGAL_MESSAGE_TAG, "a tag is a line of text without |")
        found[TAGS] = tag
    if system.keys:
        if any(not key.strip() or _CONTROL.search(key) for key in system.keys):
            raise RefusedError(Code.ILLEGAL_MESSAGE_KEY, "a key is a line of text")
        found[KEYS] = " ".join(system.keys)
    if system.HasField("message_group"):
        group = system.message_group
        if not group.strip() or len(group.encode()) >= _GROUP_SIZE_MAX or _CONTROL.search(group):
            reason = f"a message group is a line of text below {_GROUP_SIZE_MAX} bytes"
            raise RefusedError(Code.ILLEGAL_MESSAGE_GROUP, reason)
        found[MESSAGE_GROUP] = group
    if system.HasField("lite_topic"):
        reason = "messages of lite topics are not taken"
        raise RefusedError(Code.UNSUPPORTED, f"{LITE_TOPIC}: {reason}")
    told = {TRACE_CONTEXT: system.trace_context, BORN_HOST: system.born_host}
    found |= {
        name: text
        for name, text in told.items()
        if text and len(text) <= PROPERTIES_SIZE_MAX and not _CONTROL.search(text)
    }


def _kind(system: V2Message) -> MessageType:
    """The type of a message, as its properties and itself say.

    Raises:
        RefusedError: they contradict each other.
    """
    signs = {
        MessageType.FIFO: system.HasField("message_group"),
        MessageType.DELAY: system.HasField("delivery_timestamp"),
        MessageType.PRIORITY: system.HasField("priority"),
    }
    meant = [kind for kind, is_set in signs.items() if is_set]
    said = system.message_type
    if said == MessageType.TRANSACTION:
        if not meant:
            return MessageType.TRANSACTION
    elif not meant and said in (MessageType.NORMAL, MessageType.MESSAGE_TYPE_UNSPECIFIED):
        return MessageType.NORMAL
    elif len(meant) == 1 and said in (meant[0], MessageType.MESSAGE_TYPE_UNSPECIFIED):
        if meant[0] is MessageType.PRIORITY and system.priority < 0:
            reason = "a priority is 0 or more"
            raise RefusedError(Code.BAD_REQUEST, reason)
        return meant[0]
    names = [kind.name for kind in meant] or ["nothing"]
    reason = f"message type {said} with properties of {' and '.join(names)}"
    raise RefusedError(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, reason)


def _delivery_ms(system: V2Message, clock_ms: Callable[[], int]) -> int:
    stamp = system.delivery_timestamp
    due_ms = int(stamp.seconds * 1000 + stamp.nanos // 1_000_000)
    if due_ms <= 0 or due_ms - clock_ms() > DELAY_MS_MAX:
        reason = f"the delivery time is no time, or more than {DELAY_MS_MAX // 1000} s away"
        raise RefusedError(Code.ILLEGAL_DELIVERY_TIME, reason)
    return due_ms
