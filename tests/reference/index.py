"""Index files: put, walk, and the files that a log gives. From docs/format/index-file.md."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from .records import TRANSACTION_ROLLBACK, Record
from .values import index_hash, int32

HEADER_SIZE = 40
SLOT_SIZE = 4
ENTRY_SIZE = 20
TAG_TYPE = "T"


class IndexRule(Enum):
    """Which keys a record gets: RocketMQ began to index tags after 5.3."""

    KEYS = "keys"
    KEYS_AND_TAGS = "keys and tags"


class Header(NamedTuple):
    """The first 40 bytes."""

    begin_timestamp: int
    end_timestamp: int
    begin_phy_offset: int
    end_phy_offset: int
    hash_slot_count: int
    index_count: int


class Entry(NamedTuple):
    """One key of one record."""

    key_hash: int
    phy_offset: int
    time_diff_s: int
    previous: int


def record_keys(record: Record, rule: IndexRule) -> list[str]:
    """List the index keys of a record in the order in which they go into the file."""
    if record.transaction == TRANSACTION_ROLLBACK:
        return []
    words = ([record.unique_key] if record.unique_key else []) + record.keys
    keys = [f"{record.topic}#{word}" for word in words]
    if rule is IndexRule.KEYS_AND_TAGS and record.tags:
        keys.append(f"{record.topic}#{TAG_TYPE}#{record.tags}")
    return keys


class IndexFile:
    """One index file in memory.

    Args:
        slot_num: length of the hash table.
        entry_num: entries the file has room for; number 0 is never used.
        data: the file's bytes, or None for a new file.
    """

    def __init__(self, slot_num: int, entry_num: int, data: bytes | None = None) -> None:
        self.slot_num = slot_num
        self.entry_num = entry_num
        size = HEADER_SIZE + slot_num * SLOT_SIZE + entry_num * ENTRY_SIZE
        self.data = bytearray(size if data is None else data)
        if len(self.data) != size:
            raise ValueError(f"{len(self.data)} bytes, {size} expected")

    @property
    def header(self) -> Header:
        """The header; a count below 1 counts as 1."""
        header = Header(*struct.unpack_from(">qqqqii", self.data))
        return header._replace(index_count=max(1, header.index_count))

    @header.setter
    def header(self, header: Header) -> None:
        struct.pack_into(">qqqqii", self.data, 0, *header)

    @property
    def is_full(self) -> bool:
        """Tell whether the next key needs another file."""
        return self.header.index_count >= self.entry_num

    def slot(self, number: int) -> int:
        """Give the newest entry of a slot, 0 when the slot is empty or points past the end."""
        value: int = struct.unpack_from(">i", self.data, HEADER_SIZE + number * SLOT_SIZE)[0]
        return value if 0 < value <= self.header.index_count else 0

    def entry_at(self, number: int) -> int:
        """Give the position of an entry's first byte."""
        return HEADER_SIZE + self.slot_num * SLOT_SIZE + number * ENTRY_SIZE

    def entry(self, number: int) -> Entry:
        """Read one entry."""
        return Entry(*struct.unpack_from(">iqii", self.data, self.entry_at(number)))

    def entries(self) -> list[Entry]:
        """Read all entries in the order in which they came."""
        return [self.entry(number) for number in range(1, self.header.index_count)]

    def follow(self, previous: IndexFile) -> None:
        """Begin where a full file ended: its last position and time are this file's first."""
        end_time, end_offset = previous.header.end_timestamp, previous.header.end_phy_offset
        self.header = Header(end_time, end_time, end_offset, end_offset, 0, 0)

    def put_key(self, key: str, phy_offset: int, store_timestamp_ms: int) -> bool:
        """Insert a key at the head of its slot's chain; False when the file is full."""
        if self.is_full:
            return False
        header = self.header
        key_hash = index_hash(key)
        slot = key_hash % self.slot_num
        previous = self.slot(slot)
        if previous == header.index_count:
            previous = self.abandoned_link()
        time_diff_s = 0
        if header.begin_timestamp > 0:
            elapsed_s = max(0, store_timestamp_ms - header.begin_timestamp) // 1000
            time_diff_s = min(elapsed_s, 2**31 - 1)
        entry = Entry(key_hash, phy_offset, time_diff_s, previous)
        struct.pack_into(">iqii", self.data, self.entry_at(header.index_count), *entry)
        slot_at = HEADER_SIZE + slot * SLOT_SIZE
        struct.pack_into(">i", self.data, slot_at, header.index_count)
        is_first = header.index_count == 1
        self.header = Header(
            store_timestamp_ms if is_first else header.begin_timestamp,
            store_timestamp_ms,
            phy_offset if is_first else header.begin_phy_offset,
            phy_offset,
            int32(header.hash_slot_count + (previous == 0)),
            header.index_count + 1,
        )
        return True

    def abandoned_link(self) -> int:
        """Give the link of the entry that a crash left behind before it was counted."""
        number = self.header.index_count
        previous = self.entry(number).previous
        return previous if 0 < previous < number else 0

    def walk(self, key: str, begin_ms: int = 0, end_ms: int = 2**63 - 1) -> Iterator[int]:
        """Give the log positions filed under a key's hash whose time may fit, newest first.

        A chain runs from newer to older entries: a link that does not lead to an older one ends
        the walk, so no damage can make it endless.
        """
        count = self.header.index_count
        if count > self.entry_num:
            return
        key_hash = index_hash(key)
        number = self.slot(key_hash % self.slot_num)
        while 0 < number <= min(count, self.entry_num - 1):
            entry = self.entry(number)
            if entry.key_hash == key_hash and self.may_lie_within(number, begin_ms, end_ms):
                yield entry.phy_offset
            if entry.previous >= number:
                return
            number = entry.previous

    def may_lie_within(self, number: int, begin_ms: int, end_ms: int) -> bool:
        """Tell whether an entry's record may have been stored within a time range.

        Times are whole seconds, so the range is widened by one. The first entry's difference
        counts from another beginning, and 0 and 2147483647 are limits, not times.
        """
        time_diff_s = self.entry(number).time_diff_s
        if number == 1 or time_diff_s <= 0 or time_diff_s == 2**31 - 1:
            return True
        time_ms = self.header.begin_timestamp + time_diff_s * 1000
        return begin_ms - 999 <= time_ms <= end_ms


def build_index(
    records: Iterable[Record], slot_num: int, entry_num: int, rule: IndexRule
) -> list[IndexFile]:
    """Index records in log order; a full file is followed by the next one.

    The next file is begun when any record arrives at a full file, with keys or without.
    """
    files: list[IndexFile] = []

    def open_file() -> IndexFile:
        if not files or files[-1].is_full:
            new = IndexFile(slot_num, entry_num)
            if files:
                new.follow(files[-1])
            files.append(new)
        return files[-1]

    for record in records:
        open_file()
        for key in record_keys(record, rule):
            while not open_file().put_key(key, record.phy_offset, record.store_timestamp_ms):
                pass
    return files
