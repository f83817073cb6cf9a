"""Records of key-value tables: their bytes. docs/format/key-values.md."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from rmqcore.errors import CorruptRecordError
from rmqcore.message import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmqcore.message import MessageExt

#: The tags of a record.
PUT: Final = "put"
DELETE: Final = "delete"
#: A property: the call of another process for which the record was put.
CALL: Final = "RMQCORE_CALL"
_HEAD: Final = struct.Struct(">qI")


def record_of(topic: str, key: bytes, value: bytes | None, expires_ms: int) -> Message:
    """The record of a change: a value of None deletes.

    Args:
        topic: of the table.
        key: of the entry; its size is checked by the put.
        value: None deletes the key.
        expires_ms: Unix milliseconds from which on the entry is gone; 0 for never.
    """
    head = _HEAD.pack(expires_ms, len(key))
    tags = DELETE if value is None else PUT
    return Message(topic, b"".join((head, key, value or b"")), tags=tags)


def record_of_call(
    topic: str,
    taken: Mapping[bytes, tuple[bytes, int]],
    key: bytes,
    value: bytes | None,
    expires_ms: int,
    call: str,
) -> Message:
    """As `record_of`, for a call that may be made again under its name.

    What it deletes is in it, where the caller gets that: the entry in ``taken``.

    Args:
        topic: of the table.
        key: of the entry.
        value: None deletes the key.
        expires_ms: Unix milliseconds from which on the entry is gone; 0 for never.
        taken: by key, value and time of what the table has now.
        call: name of the call; empty for one that nobody repeats.
    """
    if value is None and call:
        value, _ = taken.get(key, (b"", 0))
        record = record_of(topic, key, value, 0)
        record.tags = DELETE
    else:
        record = record_of(topic, key, value, expires_ms)
    if call:
        record.properties = {CALL: call}
    return record


def parts_of(message: MessageExt) -> tuple[bytes, bytes, int]:
    """Key, value, and when it is gone, of a record of a table's topic.

    Raises:
        CorruptRecordError: it is no record of a table.
    """
    body = bytes(message.body)
    if len(body) >= _HEAD.size:
        expires_ms, key_size = _HEAD.unpack_from(body)
        if key_size <= len(body) - _HEAD.size:
            key, value = body[_HEAD.size :][:key_size], body[_HEAD.size + key_size :]
            return key, value, expires_ms
    raise CorruptRecordError(
        message.topic,
        message.phy_offset,
        "no record of a key-value table; docs/format/key-values.md",
    )
