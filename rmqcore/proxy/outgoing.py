"""A stored message as a client gets it.

Source: RocketMQ proxy/grpc/v2/common/GrpcConverter.java, buildMessage.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from rmqcore.errors import RmqCoreError
from rmqcore.message import MessageExt
from rmqcore.proxy.messages import DigestType, Encoding, Message, MessageType, V2Message
from rmqcore.proxy.properties import (
    BORN_HOST,
    DELAYS,
    DELIVER_MS,
    DLQ_MESSAGE_ID,
    DLQ_TOPIC,
    MESSAGE_GROUP,
    PRIORITY,
    RESERVED,
    TAGS,
    TRACE_CONTEXT,
    TRANSACTION,
)

_COMPRESSED: Final = 1
_GZIP: Final = b"\x1f\x8b"
#: A compressed body that would unpack to more bytes is handed out as it is stored.
_BODY_SIZE_MAX: Final = 8 * 1024 * 1024
_INT32_MAX: Final = 2**31 - 1


def outgoing(
    stored: MessageExt,
    topic: V2Message,
    *,
    handle: str | None = None,
    invisible_ms: int = 0,
    tries: int | None = None,
) -> V2Message:
    """What a client gets of a message.

    Args:
        stored: the message.
        topic: the topic as the client has named it.
        handle: by which it is acknowledged; None for one that was pulled.
        invisible_ms: for how long nobody else gets it.
        tries: how often it came before; None: as its record says.
    """
    properties = stored.properties
    body, encoding = _body(stored)
    system: dict[str, Any] = {
        "message_id": stored.unique_key or stored.message_id,
        "keys": stored.keys,
        "body_digest": {"type": DigestType.MD5, "checksum": _md5(body)},
        "body_encoding": encoding,
        "message_type": _kind(properties),
        "born_timestamp": timestamp(stored.born_timestamp_ms),
        "born_host": properties.get(BORN_HOST) or stored.born_host.rpartition(":")[0],
        "store_timestamp": timestamp(stored.store_timestamp_ms),
        "store_host": stored.store_host,
        "queue_id": stored.queue_id,
        "queue_offset": stored.queue_offset,
        "delivery_attempt": (stored.reconsume_times if tries is None else tries) + 1,
    }
    if handle is not None:
        system["receipt_handle"] = handle
        system["invisible_duration"] = duration(invisible_ms)
    for name, field in ((TAGS, "tag"), (MESSAGE_GROUP, "message_group")):
        if name in properties:
            system[field] = properties[name]
    if TRACE_CONTEXT in properties:
        system["trace_context"] = properties[TRACE_CONTEXT]
    due = properties.get(DELIVER_MS, "")
    if due.isascii() and due.isdigit() and len(due) <= 15:
        system["delivery_timestamp"] = timestamp(int(due))
    priority = properties.get(PRIORITY, "")
    if priority.isascii() and priority.isdigit() and len(priority) <= 9:
        system["priority"] = int(priority)
    if DLQ_TOPIC in properties:
        system["dead_letter_queue"] = {
            "topic": properties[DLQ_TOPIC],
            "message_id": properties.get(DLQ_MESSAGE_ID, ""),
        }
    return Message(
        topic=topic,
        user_properties={k: v for k, v in properties.items() if k not in RESERVED},
        system_properties=system,
        body=body,
    )


def _body(stored: MessageExt) -> tuple[bytes, Encoding]:
    """The body and how it is encoded: what only remoting clients compress so is decompressed."""
    body = stored.body
    if not stored.sys_flag & _COMPRESSED:
        return body, Encoding.IDENTITY
    if body.startswith(_GZIP):
        return body, Encoding.GZIP
    try:
        return stored.decompressed_body(max_size=_BODY_SIZE_MAX), Encoding.IDENTITY
    except RmqCoreError:
        return body, Encoding.GZIP


def _md5(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest().upper()


def _kind(properties: dict[str, str]) -> MessageType:
    if properties.get(TRANSACTION, "").lower() == "true":
        return MessageType.TRANSACTION
    if any(name in properties for name in DELAYS):
        return MessageType.DELAY
    if MESSAGE_GROUP in properties:
        return MessageType.FIFO
    return MessageType.PRIORITY if PRIORITY in properties else MessageType.NORMAL


def timestamp(ms: int) -> dict[str, int]:
    """Unix time in milliseconds as a `google.protobuf.Timestamp`."""
    return {"seconds": ms // 1000, "nanos": ms % 1000 * 1_000_000}


def duration(ms: int) -> dict[str, int]:
    """Milliseconds as a `google.protobuf.Duration`."""
    return {"seconds": ms // 1000, "nanos": ms % 1000 * 1_000_000}


def duration_ms(given: V2Message) -> int:
    """A `google.protobuf.Duration` in milliseconds."""
    return int(given.seconds * 1000 + given.nanos // 1_000_000)
