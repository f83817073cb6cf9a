"""Finding records in a log by what they are, where the chain of sizes is broken.

A record counts as found when it is whole, names its own physical offset and has a right CRC:
nothing else looks like that by chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rmqcore._codec import MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2
from rmqcore.errors import CorruptRecordError
from rmqcore.files.mapped_file import MappedFile
from rmqcore.native.format._message import message_from

_MAGICS = tuple(
    magic.to_bytes(4, "big", signed=True) for magic in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2)
)
_MAGIC_AT = 4
_HEAD_SIZE = 36
_LOOK = 1 << 20
#: one look, and what a record's head that begins in it may need of the next
_WINDOW = _LOOK + _MAGIC_AT + 3
_ZEROS = bytes(_WINDOW)


class GoodRecord(NamedTuple):
    """Where a record was found, and when it was stored."""

    phy_offset: int
    end_offset: int
    store_timestamp_ms: int


def good_record_at(file: MappedFile, at: int) -> GoodRecord | None:
    """The record at byte ``at`` of a log file, or None."""
    if at > file.size - _HEAD_SIZE:
        return None
    head = file.read(at, _HEAD_SIZE)
    size = int.from_bytes(head[:4], "big", signed=True)
    offset = int.from_bytes(head[28:36], "big", signed=True)
    if offset != file.file_from_offset + at or not 0 < size <= file.size - at:
        return None
    try:
        message = message_from(file.read(at, size))
    except CorruptRecordError:
        return None
    return GoodRecord(offset, offset + message.store_size, message.store_timestamp_ms)


def first_record(file: MappedFile) -> GoodRecord | None:
    """The record that a log file begins with, or None."""
    return good_record_at(file, 0)


def find_good_record(files: Sequence[MappedFile], at: int = 0) -> GoodRecord | None:
    """The first good record from byte ``at`` of the first file on."""
    for file in files:
        for position in _candidates(file, at):
            record = good_record_at(file, position)
            if record is not None:
                return record
        at = 0
    return None


def _candidates(file: MappedFile, at: int) -> Iterator[int]:
    """Positions where a record's magic code stands where it should, in order.

    Stretches of zeros, which is what most of a log's last file is, cost a copy and a comparison.
    """
    for start, stop in file.data_stretches(at):
        for first in range(max(at, start - _MAGIC_AT), stop, _LOOK):
            data = bytearray(min(_WINDOW, stop - first))
            file.read_into(first, data)
            if data == _ZEROS[: len(data)]:
                continue
            found = sorted(
                position - _MAGIC_AT
                for magic in _MAGICS
                for position in _positions(data, magic)
                if position >= _MAGIC_AT
            )
            yield from (first + position for position in found if position < _LOOK)


def _positions(data: bytearray, magic: bytes) -> Iterator[int]:
    position = data.find(magic)
    while position >= 0:
        yield position
        position = data.find(magic, position + 1)
