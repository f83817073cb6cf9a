"""Commit-log records: encode, decode, refuse. Written from docs/format/commit-log.md."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from .values import (
    Host,
    decode_properties,
    encode_message_id,
    java_text,
    tags_code,
)

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
BLANK_MAGIC = 0xCBD43194
BLANK_SIZE = 8
CRC_NAME = "__CRC32#"
CRC_RESERVED = len(CRC_NAME) + 1 + 10 + 1

COMPRESSED = 0x1
TRANSACTION_MASK = 0xC
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
INNER_BATCH = 0x80


class RecordRejected(Exception):
    """These bytes are not a record.

    Attributes:
        at: where in the buffer the refused record begins.
        reason: what is wrong with it.
    """

    def __init__(self, at: int, reason: str) -> None:
        self.at = at
        self.reason = reason
        super().__init__(f"at {at}: {reason}")


LOOPBACK = b"\x7f\0\0\x01"
DEFAULT_BORN_HOST = Host(LOOPBACK, 0)
DEFAULT_STORE_HOST = Host(LOOPBACK, 10911)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One message as the log holds it; `properties_data` is the properties string's bytes."""

    topic: str
    body: bytes = b""
    properties_data: bytes = b""
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    phy_offset: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: Host = DEFAULT_BORN_HOST
    store_timestamp_ms: int = 0
    store_host: Host = DEFAULT_STORE_HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int = 0
    magic: int = MAGIC_V1
    store_size: int = 0

    @property
    def properties(self) -> dict[str, str]:
        """The properties by name."""
        return decode_properties(self.properties_data)

    @property
    def keys(self) -> list[str]:
        """The words of KEYS."""
        return [word for word in self.properties.get("KEYS", "").split(" ") if word]

    @property
    def unique_key(self) -> str | None:
        """The client's unique id."""
        return self.properties.get("UNIQ_KEY")

    @property
    def tags(self) -> str | None:
        """The tags string as a whole."""
        return self.properties.get("TAGS")

    @property
    def tags_code(self) -> int:
        """What the consume queue holds beside position and size."""
        return tags_code(self.topic, self.properties, self.store_timestamp_ms)

    @property
    def message_id(self) -> str:
        """The offset message id."""
        return encode_message_id(self.store_host, self.phy_offset)

    @property
    def transaction(self) -> int:
        """The transaction bits of sysFlag."""
        return self.sys_flag & TRANSACTION_MASK

    @property
    def is_queued(self) -> bool:
        """Tell whether the record has a place in a consume queue."""
        return self.transaction not in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)

    @property
    def end(self) -> int:
        """Log position just behind the record."""
        return self.phy_offset + self.store_size


def masked_crc(data: bytes) -> int:
    """CRC-32 without its top bit."""
    return zlib.crc32(data) & 0x7FFFFFFF


def crc_property(crc: int) -> bytes:
    """Write a record CRC as its property: ten decimal digits, the lowest first."""
    return f"{CRC_NAME}\x01{f'{crc:010d}'[::-1]}\x02".encode()


def encode_record(record: Record, *, append_crc: bool = False) -> bytes:
    """Lay out one record; magic, CRC, size and the IPv6 bits of sysFlag are computed here.

    Args:
        record: what to store; its `magic`, `body_crc` and `store_size` are not looked at.
        append_crc: end the properties with the CRC of the whole record.
    """
    topic = record.topic.encode("utf-8")
    magic = MAGIC_V2 if len(topic) > 127 else MAGIC_V1
    properties = record.properties_data
    if append_crc and properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    sys_flag = (
        record.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6)
        | (BORN_HOST_V6 if record.born_host.is_ipv6 else 0)
        | (STORE_HOST_V6 if record.store_host.is_ipv6 else 0)
    )
    reserved = CRC_RESERVED if append_crc else 0
    behind_size = (
        struct.pack(">I", magic)
        + struct.pack(">i", masked_crc(record.body))
        + struct.pack(">i", record.queue_id)
        + struct.pack(">i", record.flag)
        + struct.pack(">q", record.queue_offset)
        + struct.pack(">q", record.phy_offset)
        + struct.pack(">i", sys_flag)
        + struct.pack(">q", record.born_timestamp_ms)
        + record.born_host.encode()
        + struct.pack(">q", record.store_timestamp_ms)
        + record.store_host.encode()
        + struct.pack(">i", record.reconsume_times)
        + struct.pack(">q", record.prepared_transaction_offset)
        + struct.pack(">i", len(record.body))
        + record.body
        + struct.pack(">h" if magic == MAGIC_V2 else ">B", len(topic))
        + topic
        + struct.pack(">h", len(properties) + reserved)
        + properties
    )
    data = struct.pack(">i", 4 + len(behind_size) + reserved) + behind_size
    return data + crc_property(masked_crc(data)) if append_crc else data


class Reader:
    """Takes fields off the front of one record; running out of bytes is a refusal."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at
        self.position = 0

    def take(self, size: int, what: str) -> bytes:
        """Give the next bytes."""
        if size < 0:
            raise RecordRejected(self.at, f"{what} has a negative length")
        if self.position + size > len(self.data):
            raise RecordRejected(self.at, f"{what} passes the record's end")
        self.position += size
        return self.data[self.position - size : self.position]

    def number(self, form: str, what: str) -> int:
        """Give the next big-endian number."""
        value: int = struct.unpack(">" + form, self.take(struct.calcsize(">" + form), what))[0]
        return value


def record_bytes(buffer: bytes, at: int) -> bytes:
    """Cut the record at a position out of a buffer, by its size field."""
    if at < 0 or len(buffer) - at < 8:
        raise RecordRejected(at, "fewer than 8 bytes")
    size, magic = struct.unpack_from(">iI", buffer, at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RecordRejected(at, f"magic {magic:#x}")
    if not 0 <= size <= len(buffer) - at:
        raise RecordRejected(at, f"size {size}")
    return bytes(buffer[at : at + size])


def decode_record(
    buffer: bytes, at: int = 0, *, verify_body: bool = True, verify_record: bool = False
) -> Record:
    """Read the record at a position.

    Args:
        buffer: bytes that hold it.
        at: position of its first byte.
        verify_body: compare the body with its CRC (an empty body has none).
        verify_record: compare the whole record with its CRC property, which must be there.

    Raises:
        RecordRejected: these bytes are not a record.
    """
    data = record_bytes(buffer, at)
    reader = Reader(data, at)
    size = reader.number("i", "size")
    magic = reader.number("I", "magic")
    body_crc = reader.number("i", "body CRC")
    queue_id = reader.number("i", "queue id")
    flag = reader.number("i", "flag")
    queue_offset = reader.number("q", "queue offset")
    phy_offset = reader.number("q", "log position")
    sys_flag = reader.number("i", "sysFlag")
    born_timestamp_ms = reader.number("q", "born time")
    born_host = reader.take(20 if sys_flag & BORN_HOST_V6 else 8, "born host")
    store_timestamp_ms = reader.number("q", "store time")
    store_host = reader.take(20 if sys_flag & STORE_HOST_V6 else 8, "store host")
    reconsume_times = reader.number("i", "reconsume times")
    prepared_transaction_offset = reader.number("q", "prepared offset")
    body = reader.take(reader.number("i", "body length"), "body")
    topic = reader.take(reader.number("h" if magic == MAGIC_V2 else "B", "topic length"), "topic")
    properties_data = reader.take(reader.number("h", "properties length"), "properties")
    if reader.position != size:
        raise RecordRejected(at, f"fields end at {reader.position}, the size says {size}")
    if verify_body and body and masked_crc(body) != body_crc:
        raise RecordRejected(at, "the body does not match its CRC")
    if verify_record and not record_crc_matches(data, properties_data):
        raise RecordRejected(at, "the record does not match its CRC property")
    return Record(
        topic=java_text(topic),
        body=body,
        properties_data=properties_data,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        phy_offset=phy_offset,
        sys_flag=sys_flag,
        born_timestamp_ms=born_timestamp_ms,
        born_host=Host.decode(born_host),
        store_timestamp_ms=store_timestamp_ms,
        store_host=Host.decode(store_host),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        body_crc=body_crc,
        magic=magic,
        store_size=size,
    )


def record_crc_matches(record: bytes, properties_data: bytes) -> bool:
    """Tell whether the CRC property ends the record and agrees with the bytes before it."""
    covered, tail = record[:-CRC_RESERVED], record[-CRC_RESERVED:]
    return len(properties_data) >= CRC_RESERVED and tail == crc_property(masked_crc(covered))


def encode_blank(remaining: int) -> bytes:
    """Mark the rest of a log file as empty: its length and the blank magic, 8 bytes in all."""
    return struct.pack(">iI", remaining, BLANK_MAGIC)


def is_blank(buffer: bytes, at: int, stop: int) -> bool:
    """Tell whether a blank marker lies here, whose remainder is inside the region."""
    if stop - at < BLANK_SIZE:
        return False
    (size,) = struct.unpack_from(">i", buffer, at)
    magic = buffer[at + 4 : at + 8]
    return magic == encode_blank(0)[4:] and BLANK_SIZE <= int(size) <= stop - at


def fits(size: int, remaining: int) -> bool:
    """Tell whether a record may still go into a file: 8 bytes stay free for the blank marker."""
    return size + BLANK_SIZE <= remaining


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchElement:
    """One message of a batch body as it travels."""

    body: bytes
    flag: int = 0
    properties_data: bytes = b""

    @property
    def properties(self) -> dict[str, str]:
        """The properties by name."""
        return decode_properties(self.properties_data)


def encode_batch(elements: Iterable[BatchElement]) -> bytes:
    """Lay messages out as the body of a batch: size, two unused words, flag, body, properties."""
    encoded = []
    for element in elements:
        rest = (
            struct.pack(">iii", 0, 0, element.flag)
            + struct.pack(">i", len(element.body))
            + element.body
            + struct.pack(">h", len(element.properties_data))
            + element.properties_data
        )
        encoded.append(struct.pack(">i", 4 + len(rest)) + rest)
    return b"".join(encoded)


def decode_batch(data: bytes) -> Iterator[BatchElement]:
    """Read the messages of a batch body; each element's size must agree with its fields.

    Raises:
        RecordRejected: an element is cut short or contradicts itself; `at` is where it begins.
    """
    at = 0
    while at < len(data):
        reader = Reader(data[at:], at)
        size = reader.number("i", "size")
        reader.take(8, "unused words")
        flag = reader.number("i", "flag")
        body = reader.take(reader.number("i", "body length"), "body")
        properties_data = reader.take(reader.number("h", "properties length"), "properties")
        if reader.position != size:
            raise RecordRejected(at, f"fields end at {reader.position}, the size says {size}")
        yield BatchElement(body=body, flag=flag, properties_data=properties_data)
        at += size


def explode_batch(envelope: Record, data: bytes) -> list[Record]:
    """Turn a batch into its records: the envelope's topic, queue, times and hosts, each own body.

    The envelope's queue and log positions are those of the first record.
    """
    records: list[Record] = []
    phy_offset = envelope.phy_offset
    for number, element in enumerate(decode_batch(data)):
        record = replace(
            envelope,
            body=element.body,
            flag=element.flag,
            properties_data=element.properties_data,
            queue_offset=envelope.queue_offset + number,
            phy_offset=phy_offset,
            prepared_transaction_offset=0,
        )
        records.append(record)
        phy_offset += len(encode_record(record))
    return records
