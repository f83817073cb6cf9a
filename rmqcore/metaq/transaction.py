"""Where the messages of a committed transaction lie: the journal entry, and its replay."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rmqcore.errors import CorruptStoreError
from rmqcore.metaq._message_set import checksum, encode_many
from rmqcore.metaq._segment_tail import Location
from rmqcore.metaq.manager import MessageStoreManager
from rmqcore.metaq.message_store import Row

_HEAD = struct.Struct(">qiii")
_MAX_DESCRIPTION = 4096


@dataclass(frozen=True, slots=True)
class AddMsgLocation:
    """Messages that one partition got from a transaction.

    Attributes:
        offset: byte position in the partition.
        length: bytes, headers included.
        checksum: CRC of all those bytes.
        description: ``<topic>-<partition>``.

    Layout: docs/metaq.md, "Transaction journal entry".
    Source: MetaQ JournalTransactionStore.java, AddMsgLocation.
    """

    offset: int
    length: int
    checksum: int
    description: str

    @classmethod
    def of(cls, location: Location, rows: Iterable[Row], description: str) -> AddMsgLocation:
        """Describe an append of rows.

        Args:
            location: where the rows were appended.
            rows: ``(message_id, data, flag)`` of each message.
            description: topic and partition, ``TOPIC-PARTITION``.
        """
        return cls(location.offset, location.length, checksum(encode_many(rows)), description)

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.description.rpartition("-")[0]

    @property
    def partition(self) -> int:
        """The partition's number."""
        return int(self.description.rpartition("-")[2])


def encode_locations(locations: Iterable[AddMsgLocation]) -> bytes:
    """Write the entries behind each other, as the transaction journal attaches them."""
    parts = []
    for entry in locations:
        name = entry.description.encode()
        parts.append(_HEAD.pack(entry.offset, entry.length, entry.checksum, len(name)) + name)
    return b"".join(parts)


def decode_locations(buffer: bytes, path: str = "") -> list[AddMsgLocation]:
    """Read entries up to the end of a buffer.

    Args:
        buffer: entries, one behind the other.
        path: file that they are from, for errors.

    Raises:
        CorruptStoreError: a number or a name is not possible, or the buffer ends inside an entry.
    """
    entries = []
    at = 0
    while at < len(buffer):
        if len(buffer) - at < _HEAD.size:
            raise CorruptStoreError(path, at, f"{len(buffer) - at} bytes are no entry")
        offset, length, crc, size = _HEAD.unpack_from(buffer, at)
        begin = at + _HEAD.size
        if offset < 0 or length < 0 or not 0 < size <= min(_MAX_DESCRIPTION, len(buffer) - begin):
            reason = f"offset {offset}, length {length}, a name of {size} bytes"
            raise CorruptStoreError(path, at, reason)
        try:
            name = buffer[begin : begin + size].decode()
        except UnicodeDecodeError:
            raise CorruptStoreError(path, at, "the name is no UTF-8") from None
        topic, _, partition = name.rpartition("-")
        if not topic or not (partition.isascii() and partition.isdigit()):
            raise CorruptStoreError(path, at, f"{name!r} names no partition")
        entries.append(AddMsgLocation(offset, length, crc, name))
        at = begin + size
    return entries


def replay_transaction(
    manager: MessageStoreManager,
    locations: Iterable[AddMsgLocation],
    messages: Mapping[str, Iterable[Row]],
) -> list[AddMsgLocation]:
    """Store again what a committed transaction's entries name and the partitions lost.

    Args:
        manager: the broker's partitions.
        locations: the commit's entries.
        messages: description -> the ``(message_id, data, flag)`` rows of the transaction.

    Returns:
        The entries as they are true now; those stored anew have new offsets.
    """
    result = []
    for entry in locations:
        rows = list(messages[entry.description])
        store = manager.get_or_create(entry.topic, entry.partition)
        moved = store.replay_append(entry.offset, entry.length, entry.checksum, rows)
        stored = entry if moved is None else AddMsgLocation.of(moved, rows, entry.description)
        result.append(stored)
    return result
