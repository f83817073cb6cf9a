"""The records of an answer, decoded."""

from __future__ import annotations

from rmqcore._codec import decode_record
from rmqcore.errors import CorruptRecordError
from rmqcore.message import MessageExt


def decode_messages(body: bytes, *, check_crc: bool = False) -> list[MessageExt]:
    """The messages of the records in a body, one behind the other.

    Args:
        body: of an answer.
        check_crc: compare checksums.

    Raises:
        CorruptRecordError: there is something else in it.
    """
    found, at = [], 0
    while at < len(body):
        message = decode_record(body, at, check_crc=check_crc)
        if message.store_size <= 0:
            raise CorruptRecordError("", at, "a record without a size")
        found.append(message)
        at += message.store_size
    return found
