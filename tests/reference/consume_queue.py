"""Consume-queue files: units, fillers, what a log gives. From docs/format/consume-queue.md."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from .records import INNER_BATCH, Record
from .values import SCHEDULE_TOPIC, decimal

UNIT_SIZE = 20
BATCH_UNIT_SIZE = 46
EXT_UNIT_HEAD = 20
EXT_ADDRESS_BASE = -(2**63)
EXT_LAST_ADDRESS = -(2**31) - 1
LIGHT_QUEUE_PREFIX = "%LMQ%"

QueueKey = tuple[str, int]


class Unit(NamedTuple):
    """Where a queue's message lies in the log."""

    phy_offset: int
    size: int
    tags_code: int

    def encode(self) -> bytes:
        """Give the 20 bytes."""
        return struct.pack(">qiq", *self)

    @classmethod
    def decode(cls, data: bytes) -> Unit:
        """Read 20 bytes."""
        return cls(*struct.unpack(">qiq", data))

    @property
    def is_valid(self) -> bool:
        """Tell a unit from a slot that was never written."""
        return self.phy_offset >= 0 and self.size > 0


FILLER = Unit(0, 0x7FFFFFFF, 0)


class BatchUnit(NamedTuple):
    """Where a batch of consecutive queue offsets lies in the log; 46 bytes."""

    phy_offset: int
    size: int
    tags_code: int
    store_timestamp_ms: int
    base_offset: int
    batch_size: int
    compacted_offset: int = -1
    reserved: int = 0

    def encode(self) -> bytes:
        """Give the 46 bytes."""
        return struct.pack(">qiqqqhii", *self)

    @classmethod
    def decode(cls, data: bytes) -> BatchUnit:
        """Read 46 bytes."""
        return cls(*struct.unpack(">qiqqqhii", data))


class ExtUnit(NamedTuple):
    """What a filter may want to know of a message beyond its tags code."""

    tags_code: int
    store_timestamp_ms: int
    bit_map: bytes = b""

    def encode(self) -> bytes:
        """Give the 20 bytes of the head and the bit map."""
        size = EXT_UNIT_HEAD + len(self.bit_map)
        head = struct.pack(
            ">hqqh", size, self.tags_code, self.store_timestamp_ms, len(self.bit_map)
        )
        return head + self.bit_map


def is_ext_address(tags_code: int) -> bool:
    """Tell an extension file's address from a tags code."""
    return tags_code <= EXT_LAST_ADDRESS


def ext_files(units: Iterable[ExtUnit], file_size: int) -> tuple[list[int], dict[int, bytes]]:
    """Lay extension units out: the address of each, and the files by where they begin."""
    addresses: list[int] = []
    files: dict[int, bytes] = {}
    start, written = 0, b""
    for unit in units:
        data = unit.encode()
        if len(data) > file_size - len(written) - 4:
            files[start] = (written + b"\xff\xff").ljust(file_size, b"\0")
            start, written = start + file_size, b""
        addresses.append(EXT_ADDRESS_BASE + start + len(written))
        written += data
    if written:
        files[start] = written.ljust(file_size, b"\0")
    return addresses, files


#: a unit has 20 bytes, and its position in the queue fits into an int64
QUEUE_OFFSET_MAX = 2**58 - 1


class Place(NamedTuple):
    """A record's place in one queue: the offset of its first message, and how many it holds."""

    queue: QueueKey
    offset: int
    message_count: int = 1


def own_place(record: Record) -> Place:
    """Give a record's place in its own queue; an inner batch says in its properties where it is."""
    queue = (record.topic, record.queue_id)
    properties = record.properties
    if record.sys_flag & INNER_BATCH and {"INNER_NUM", "INNER_BASE"} <= properties.keys():
        count = decimal(properties["INNER_NUM"]) or 1
        return Place(queue, decimal(properties["INNER_BASE"]) or 0, count if count < 2**15 else 1)
    return Place(queue, record.queue_offset)


def dispatches_to_light_queues(topic: str) -> bool:
    """Tell whether a topic's records may name light queues: copies that wait or retry do not."""
    return not (topic.startswith(("%RETRY%", "rmq_sys_")) or topic == SCHEDULE_TOPIC)


def queue_places(record: Record) -> list[Place]:
    """List the queues in which a record appears.

    Prepared and rolled-back records appear in none. The queues that INNER_MULTI_DISPATCH names
    follow the record's own, each with its offset in INNER_MULTI_QUEUE_OFFSET; a name without an
    offset, or of another queue than a light one, is passed over. A light queue is number 0.
    """
    if not record.is_queued:
        return []
    places = [own_place(record)]
    if dispatches_to_light_queues(record.topic):
        names = record.properties.get("INNER_MULTI_DISPATCH", "").split(",")
        offsets = record.properties.get("INNER_MULTI_QUEUE_OFFSET", "").split(",")
        for name, digits in zip(names, offsets, strict=False):
            offset = decimal(digits)
            if offset is not None and name.startswith(LIGHT_QUEUE_PREFIX):
                places.append(Place((name, 0), offset))
    return [place for place in places if is_addressable(place)]


def is_addressable(place: Place) -> bool:
    """Tell whether a queue of this name can have a directory, and the offset a place in it."""
    topic, queue_id = place.queue
    name = topic.encode("utf-8", "replace")
    is_name = 0 < len(name) <= 255 and not {0, ord("/")} & set(name) and topic not in (".", "..")
    return is_name and queue_id >= 0 and 0 <= place.offset <= QUEUE_OFFSET_MAX


def queues_of(records: Iterable[Record]) -> dict[QueueKey, dict[int, Record]]:
    """Sort records into queues, by queue offset. The first record of an offset keeps its place."""
    queues: dict[QueueKey, dict[int, Record]] = defaultdict(dict)
    for record in records:
        for place in queue_places(record):
            queues[place.queue].setdefault(place.offset, record)
    return dict(queues)


def unit_of(record: Record) -> Unit:
    """Give the consume-queue unit of a record."""
    return Unit(record.phy_offset, record.store_size, record.tags_code)


def queue_files(units: dict[int, Unit], file_size: int) -> dict[int, bytes]:
    """Lay a queue out as files of one length, by the position of each file's first byte.

    A filler stands in every slot without a message before the last unit; behind it all is zero.
    """
    if not units:
        return {}
    first, last = min(units), max(units)
    per_file = file_size // UNIT_SIZE
    files: dict[int, bytes] = {}
    for number in range(first // per_file, last // per_file + 1):
        slots = range(number * per_file, (number + 1) * per_file)
        data = b"".join(slot_bytes(units, slot, last) for slot in slots)
        files[number * file_size] = data
    return files


def slot_bytes(units: dict[int, Unit], slot: int, last: int) -> bytes:
    """Give the 20 bytes of one slot."""
    if slot in units:
        return units[slot].encode()
    return FILLER.encode() if slot < last else bytes(UNIT_SIZE)
