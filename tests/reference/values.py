"""Values that Java computes its own way: string hash, hosts, message ids, properties, tags code."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
MILLISECONDS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def int32(value: int) -> int:
    """Wrap a number as Java's `int` does."""
    return (value + 2**31) % 2**32 - 2**31


def java_text(data: bytes) -> str:
    """Decode UTF-8 as Java does: U+FFFD for each malformed part, one for an encoded surrogate."""
    without_surrogates = re.sub(rb"\xed[\xa0-\xbf][\x80-\xbf]?", "\ufffd".encode(), data)
    return without_surrogates.decode("utf-8", "replace")


@lru_cache(1 << 14)
def java_string_hash(text: str) -> int:
    """Hash as String.hashCode: ``h = 31 * h + unit`` over UTF-16 units, wrapping at 32 bits."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", units):
        value = int32(31 * value + unit)
    return value


def index_hash(key: str) -> int:
    """Hash an index key: the magnitude of the string hash; 0 where that does not fit 31 bits."""
    magnitude = abs(java_string_hash(key))
    return 0 if magnitude == 2**31 else magnitude


class Host(NamedTuple):
    """An address as a record stores it: 4 or 16 bytes in network order, then the port as i32."""

    address: bytes
    port: int

    @classmethod
    def parse(cls, text: str) -> Host:
        """Read ``10.1.2.3:10911`` or ``[2001:db8::1]:10911``."""
        address, _, port = text.rpartition(":")
        family = socket.AF_INET6 if address.startswith("[") else socket.AF_INET
        return cls(socket.inet_pton(family, address.strip("[]")), int(port))

    @classmethod
    def decode(cls, data: bytes) -> Host:
        """Read the 8 or 20 bytes of a record."""
        return cls(data[:-4], struct.unpack(">i", data[-4:])[0])

    def encode(self) -> bytes:
        """Give the 8 or 20 bytes that a record holds."""
        return self.address + struct.pack(">i", self.port)

    @property
    def is_ipv6(self) -> bool:
        """Tell whether the record's sysFlag has to mark this host as IPv6."""
        return len(self.address) == 16

    def __str__(self) -> str:
        if self.is_ipv6:
            return f"[{socket.inet_ntop(socket.AF_INET6, self.address)}]:{self.port}"
        return f"{socket.inet_ntop(socket.AF_INET, self.address)}:{self.port}"


def encode_message_id(store_host: Host, phy_offset: int) -> str:
    """Give the offset message id: upper-case hex of host and log position, 32 or 56 digits."""
    return (store_host.encode() + struct.pack(">q", phy_offset)).hex().upper()


def decode_message_id(message_id: str) -> tuple[Host, int]:
    """Read an offset message id.

    Raises:
        ValueError: not 32 or 56 hexadecimal digits.
    """
    if len(message_id) not in (32, 56):
        raise ValueError(f"{len(message_id)} digits")
    data = bytes.fromhex(message_id)
    if 2 * len(data) != len(message_id):
        raise ValueError("a space among the digits")
    return Host.decode(data[:-8]), struct.unpack(">q", data[-8:])[0]


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Join pairs as ``name 01 value 02``, also after the last one, in the mapping's order."""
    pairs = (
        name + NAME_VALUE_SEPARATOR + value + PROPERTY_SEPARATOR
        for name, value in properties.items()
    )
    return "".join(pairs).encode("utf-8")


def decode_properties(data: bytes) -> dict[str, str]:
    """Split a properties string as MessageDecoder.string2messageProperties does.

    A chunk without a name, without a value or without a separator vanishes; the last pair may lack
    its terminator; the separator is the chunk's first; of equal names the last wins.
    """
    properties: dict[str, str] = {}
    for chunk in java_text(data).split(PROPERTY_SEPARATOR):
        name, separator, value = chunk.partition(NAME_VALUE_SEPARATOR)
        if separator and name and value:
            properties[name] = value
    return properties


def decimal(digits: str) -> int | None:
    """Read a property's number: digits only, 18 at most; None when it is none."""
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= 18
    return int(digits) if is_number else None


def delay_ms(level: int, levels: str = DELAY_LEVELS) -> int:
    """Give the delay of a level, 1 being the first; a level beyond the last counts as the last."""
    words = levels.split()
    word = words[min(level, len(words)) - 1]
    return int(word[:-1]) * MILLISECONDS[word[-1]]


def tags_code(topic: str, properties: Mapping[str, str], store_timestamp_ms: int) -> int:
    """Give the consume-queue unit's tags code: delivery time of a parked message, or tags hash."""
    level = decimal(properties.get("DELAY", "")) if topic == SCHEDULE_TOPIC else None
    if level:
        return store_timestamp_ms + delay_ms(level)
    return java_string_hash(properties.get("TAGS", ""))
