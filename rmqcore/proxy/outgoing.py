"""A stored message as a client gets it.

Source: RocketMQ proxy/grpc/v2/common/GrpcConverter.java, buildMessage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

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
#: Bodies that are decompressed for one answer have at most so many bytes together.
UNPACKED_MAX: Final = 16 * 1024 * 1024
_INT32_MAX: Final = 2**31 - 1


def outgoing(
    stored: MessageExt,
    topic: V2Message,
    *,
    handle: str | None = None,
    invisible_ms: int = 0,
    tries: int | None = None,
    body: Body | None = None,
) -> V2Message:
    """What a client gets of a message.

    Args:
        stored: the message.
        topic: the topic as the client has named it.
        handle: by which it is acknowledged; None for one that was pulled.
        invisible_ms: for how long nobody else gets it.
        tries: how often it came before; None: as its record says.
        body: as `body_of` makes it; None makes it here.
    """
    properties = stored.properties
    body = body or body_of(stored)
    system: dict[str, Any] = {
        "message_id": stored.unique_key or stored.message_id,
        "keys": stored.keys,
        "body_digest": {"type": DigestType.MD5, "checksum": body.md5},
        "body_encoding": body.encoding,
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
        body=body.data,
    )


class Body(NamedTuple):
    """A body as a client gets it.

    Attributes:
        data: its bytes.
        encoding: how they are encoded.
        md5: their digest, in hex.
    """

    data: bytes
    encoding: Encoding
    md5: str


def is_packed(stored: MessageExt) -> bool:
    """Tell whether a body is compressed as only remoting clients do, so that it is decompressed."""
    return bool(stored.sys_flag & _COMPRESSED) and not stored.body.startswith(_GZIP)


def body_of(stored: MessageExt) -> Body:
    """A message's body; one that would unpack to too much is handed out as it is stored."""
    try:
        return _body(stored, _BODY_SIZE_MAX)
    except RmqCoreError:
        return _made(stored.body, Encoding.GZIP)


def bodies_of(messages: Sequence[MessageExt]) -> list[Body]:
    """The bodies of the first messages that may stand in one answer, one at least; in any thread.

    Few bytes unpack to very many: `UNPACKED_MAX` of them all together.

    Args:
        messages: of one answer.
    """
    found, left = list[Body](), UNPACKED_MAX
    for message in messages:
        packed = is_packed(message)
        if not packed or left >= _BODY_SIZE_MAX or not found:
            body = body_of(message)
        else:
            try:
                body = _body(message, left)
            except RmqCoreError:
                # it is damaged, or has no room
                break
        found.append(body)
        left -= len(body.data) if packed else 0
    return found


def _body(stored: MessageExt, size_max: int) -> Body:
    """A body, decompressed where only remoting clients have compressed it.

    Raises:
        RmqCoreError: it does not decompress, or to more than ``size_max`` bytes.
    """
    if is_packed(stored):
        return _made(stored.decompressed_body(max_size=max(0, size_max)), Encoding.IDENTITY)
    compressed = bool(stored.sys_flag & _COMPRESSED)
    return _made(stored.body, Encoding.GZIP if compressed else Encoding.IDENTITY)


def _made(data: bytes, encoding: Encoding) -> Body:
    digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
    return Body(data, encoding, digest.upper())


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
