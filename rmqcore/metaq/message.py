"""A MetaQ message: the object, its attribute block, the walk over stored bytes, message ids.

Owns what lies inside a record's data and how bytes become messages. Never opens a file.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from rmqcore.errors import CorruptRecordError, MessageIllegalError
from rmqcore.metaq._message_set import LAYOUT, VERDICTS, scan
from rmqcore.world import REAL, World

HEADER_SIZE = LAYOUT["HEADER_SIZE"]
HAS_ATTRIBUTE = 1
#: MetaQ's own clients accept this many bytes of data in one answer
#: (``notify.remoting.max_read_buffer_size``).
MAX_READ_BUFFER_SIZE = 2_097_152

_LENGTH = struct.Struct(">i")
_ID_EPOCH_MS = 1_303_895_660_503
_MAX_BROKER_ID = 1023
_SEQUENCE_BITS = 12
_LAST_SEQUENCE = (1 << _SEQUENCE_BITS) - 1
_TIME_SHIFT = 22


class Verdict(IntEnum):
    """Why a walk over records ended."""

    END = VERDICTS["END"]
    TORN_HEADER = VERDICTS["TORN_HEADER"]
    TORN_DATA = VERDICTS["TORN_DATA"]
    NEGATIVE_LENGTH = VERDICTS["NEGATIVE_LENGTH"]
    WRONG_CHECKSUM = VERDICTS["WRONG_CHECKSUM"]
    ZEROS = VERDICTS["ZEROS"]
    READ_FAILED = VERDICTS["READ_FAILED"]

    @property
    def sentence(self) -> str:
        """What was found, for error messages."""
        return _SENTENCES[self]


_SENTENCES = {
    Verdict.END: "the records end where the bytes end",
    Verdict.TORN_HEADER: "fewer bytes than a record header",
    Verdict.TORN_DATA: "a record is longer than the bytes that follow it",
    Verdict.NEGATIVE_LENGTH: "a record has a negative length",
    Verdict.WRONG_CHECKSUM: "a record's checksum differs from that of its data",
    Verdict.ZEROS: "zeros where a record should begin",
    Verdict.READ_FAILED: "the file became shorter while it was read",
}


@dataclass(frozen=True, slots=True)
class Message:
    """One stored message; equality is that of the original: topic, data, attribute and id.

    Attributes:
        topic: name of the topic.
        data: the payload.
        attribute: the producer's attribute; None is not the empty string.
        message_id: 64 bits, given by the broker.
        flag: the record's flag; bit 0 says that an attribute is there.
        partition: number of the partition, -1 when unknown.
        offset: byte position of the record in the partition, -1 when unknown.
        stored_size: bytes of the record, header included; 0 when unknown.

    Source: MetaQ Message.java.
    """

    topic: str
    data: bytes
    attribute: str | None = None
    message_id: int = 0
    flag: int = field(default=0, compare=False)
    partition: int = field(default=-1, compare=False)
    offset: int = field(default=-1, compare=False)
    stored_size: int = field(default=0, compare=False)

    @property
    def malformed(self) -> bool:
        """True when the flag promises an attribute that the data does not hold; ``data`` is all."""
        return bool(self.flag & HAS_ATTRIBUTE) and self.attribute is None

    def row(self) -> tuple[int, bytes, int]:
        """``(message_id, data, flag)`` as `MessageStore.append_many` takes it."""
        if self.malformed:
            return self.message_id, self.data, self.flag
        data, flag = encode_data(self.data, self.attribute)
        return self.message_id, data, flag


def encode_data(payload: bytes, attribute: str | None = None) -> tuple[bytes, int]:
    """Pack payload and attribute into a record's data.

    Args:
        payload: the message's bytes.
        attribute: text in front of it; None for none.

    Returns:
        ``(data, flag)``: without an attribute the payload itself and flag 0.

    Source: MetaQ MessageUtils.java, encodePayload.
    """
    if attribute is None:
        return payload, 0
    encoded = attribute.encode("utf-8", "surrogateescape")
    return _LENGTH.pack(len(encoded)) + encoded + payload, HAS_ATTRIBUTE


def split_data(data: bytes | memoryview, flag: int) -> tuple[bytes | None, bytes]:
    """Split a record's data into the attribute's bytes (None without one) and the payload.

    Args:
        data: a record's data.
        flag: the record's; its lowest bit says whether there is an attribute.

    Raises:
        ValueError: the flag promises an attribute that the data does not hold.
    """
    if not flag & HAS_ATTRIBUTE:
        return None, bytes(data)
    if len(data) < _LENGTH.size:
        raise ValueError(f"{len(data)} bytes hold no attribute length")
    (size,) = _LENGTH.unpack_from(data)
    if not 0 <= size <= len(data) - _LENGTH.size:
        raise ValueError(f"an attribute of {size} bytes in {len(data)} bytes of data")
    at = _LENGTH.size + size
    return bytes(data[_LENGTH.size : at]), bytes(data[at:])


def decode_messages(
    topic: str,
    buffer: bytes | memoryview,
    *,
    partition: int = -1,
    base_offset: int = 0,
    path: str | Path = "",
    max_data_size: int | None = None,
    keep_malformed: bool = False,
) -> Iterator[Message]:
    """Yield the whole messages of a fetched buffer; a partial last one is left for the next fetch.

    Args:
        topic: written into each message.
        buffer: bytes that begin with a record.
        partition: written into each message.
        base_offset: the partition's byte position of the buffer's first byte.
        path: named in errors.
        max_data_size: bytes of data above which a message is refused; None: no limit.
        keep_malformed: yield a message whose attribute block is wrong as `Message.malformed`.

    Raises:
        CorruptRecordError: a checksum, length, limit or attribute block is wrong, or zeros stand
            where a record should begin; every message before it has been yielded.

    Source: MetaQ MessageIterator.java; MessageUtils.java, decodeMessage.
    """
    rows, valid_up_to, code = scan(buffer)
    view = memoryview(buffer)
    for at, length, message_id, flag in rows:
        offset = base_offset + at
        if max_data_size is not None and length > max_data_size:
            reason = f"{length} bytes of data; at most {max_data_size} are accepted"
            raise CorruptRecordError(path, offset, reason)
        data = view[at + HEADER_SIZE : at + HEADER_SIZE + length]
        try:
            attribute, payload = split_data(data, flag)
        except ValueError as error:
            if not keep_malformed:
                raise CorruptRecordError(path, offset, str(error)) from None
            attribute, payload = None, bytes(data)
        text = None if attribute is None else attribute.decode("utf-8", "surrogateescape")
        size = HEADER_SIZE + length
        yield Message(topic, payload, text, message_id, flag, partition, offset, size)
    verdict = Verdict(code)
    if verdict not in {Verdict.END, Verdict.TORN_HEADER, Verdict.TORN_DATA}:
        raise CorruptRecordError(path, base_offset + valid_up_to, verdict.sentence)


class IdWorker:
    """Message ids of one broker: 42 bits of milliseconds, 10 of broker id, 12 of sequence.

    Invariants:
        - ids of one worker rise strictly, also when the clock steps back or a millisecond is full.

    Differs: the original counts from the machine's start (``System.nanoTime``), so that a broker
    on a rebooted machine gives the same ids again; here it is the wall clock.

    Source: MetaQ IdWorker.java.
    """

    def __init__(self, broker_id: int, *, world: World = REAL) -> None:
        if not 0 <= broker_id <= _MAX_BROKER_ID:
            raise MessageIllegalError(f"broker id {broker_id}; from 0 to {_MAX_BROKER_ID}")
        self._broker_bits = broker_id << _SEQUENCE_BITS
        self._clock_ms = world.clock_ms
        self._lock = threading.Lock()
        self._ticks = 0  # milliseconds and sequence as one number

    def next_id(self) -> int:
        """Give the next id."""
        return self.next_ids(1)[0]

    def next_ids(self, count: int) -> list[int]:
        """Give the next ids, rising."""
        with self._lock:
            now = (self._clock_ms() - _ID_EPOCH_MS) << _SEQUENCE_BITS
            first = max(now, self._ticks + 1)
            self._ticks = first + count - 1
        bits = self._broker_bits
        return [
            (tick >> _SEQUENCE_BITS) << _TIME_SHIFT | bits | (tick & _LAST_SEQUENCE)
            for tick in range(first, first + count)
        ]
