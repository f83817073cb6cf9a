"""How many fields a message has, before it is made: each costs many times its bytes then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from google.protobuf.descriptor import Descriptor

#: A message of no more bytes is not looked into.
SIZE_ALWAYS: Final = 64 * 1024
#: A larger one has at most this many fields, those of messages in it too: 64 of each of 1,024
#: messages that are sent in one request.
FIELDS_MAX: Final = 65_536
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_VARINT_SIZE_MAX: Final = 10

#: By number, the fields that are messages themselves.
Shape: TypeAlias = Mapping[int, "Shape"]


def shape_of(kind: Descriptor) -> Shape:
    """Which fields of a kind of message are messages; none of them may hold its own kind.

    Args:
        kind: the kind; an entry of a map counts as one field.
    """
    return {
        each.number: shape_of(each.message_type)
        for each in kind.fields
        if each.message_type is not None and not each.message_type.GetOptions().map_entry
    }


def has_too_many_fields(data: bytes, shape: Shape) -> bool:
    """Tell whether a message has more fields than are taken.

    What is no message has not: whoever parses it finds that.

    Args:
        data: its bytes.
        shape: of its kind.
    """
    if len(data) <= SIZE_ALWAYS:
        return False
    left, open_ = FIELDS_MAX, [(0, len(data), shape)]
    try:
        while open_:
            at, end, fields = open_.pop()
            while at < end:
                left -= 1
                if left < 0:
                    return True
                tag, at = _varint(data, at)
                kind = tag & 7
                if kind == _BYTES:
                    size, at = _varint(data, at)
                    if size > end - at:
                        return False
                    inner = fields.get(tag >> 3)
                    if inner is not None:
                        open_.append((at, at + size, inner))
                    at += size
                elif kind == _VARINT:
                    _, at = _varint(data, at)
                elif kind in (_EIGHT, _FOUR):
                    at += 8 if kind == _EIGHT else 4
    except IndexError:
        pass
    return False


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of any size, and where the next byte is."""
    value = data[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for count in range(1, _VARINT_SIZE_MAX):
        byte = data[at + count]
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, at + count + 1
    raise IndexError(at)
