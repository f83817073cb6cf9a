"""Batches of producers: which may be sent, and what of their messages is not theirs to say."""

from __future__ import annotations

import struct
from typing import Final

from rmqcore.files.config_tables import TOPIC_NAME_MAX
from rmqcore.message import RETRY_PREFIX
from rmqcore.remoting import RequestRefusedError, ResponseCode

#: size, magic code, CRC and flag of a message, size of its body
_HEAD: Final = struct.Struct(">5i")
_PROPERTIES_SIZE: Final = struct.Struct(">h")
#: A receipt of a pop, which consumers believe.
RECEIPT: Final = b"POP_CK\x01"
_END: Final = b"\x02"


def check_batch(topic: str) -> None:
    """Refuse a topic that batches cannot go to.

    Raises:
        RequestRefusedError: a retry topic, or a name that is too long; answers with code 13.
    """
    if len(topic) > TOPIC_NAME_MAX or topic.startswith(RETRY_PREFIX):
        remark = "batch request does not support retry groups and names above 127 characters"
        raise RequestRefusedError(ResponseCode.MESSAGE_ILLEGAL, remark)


def without_receipts(body: bytes) -> bytes:
    """A batch without the receipts of pops that its messages name, as of single messages.

    A consumer acknowledges by the receipt that it finds in a message, so whoever may send would
    acknowledge what others have been handed.

    Args:
        body: of the request; what is no batch is left for the store to refuse.
    """
    if RECEIPT not in body:
        return body
    parts, at = [], 0
    while at < len(body):
        try:
            size, magic, crc, flag, body_size = _HEAD.unpack_from(body, at)
            properties_at = at + _HEAD.size + body_size
            (properties_size,) = _PROPERTIES_SIZE.unpack_from(body, properties_at)
        except struct.error:
            return body
        begin = properties_at + _PROPERTIES_SIZE.size
        end = begin + properties_size
        if min(body_size, properties_size) < 0 or end != at + size or end > len(body):
            return body
        given = body[begin:end].split(_END)
        kept = _END.join(each for each in given if not each.startswith(RECEIPT))
        less = properties_size - len(kept)
        parts += [
            _HEAD.pack(size - less, magic, crc, flag, body_size),
            body[at + _HEAD.size : properties_at],
            _PROPERTIES_SIZE.pack(len(kept)),
            kept,
        ]
        at = end
    return b"".join(parts)
