"""Hypothesis strategies: records, and the ways in which bytes go bad."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import strategies as st

from .records import Record, encode_record
from .values import Host, encode_properties

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.integers(0, 2**62)
TIMES = st.integers(0, 2**42)
# what lengths turn into when they go bad
ODD_NUMBERS = st.sampled_from([-(2**31), -1, 0, 1, 2, 4, 8, 127, 128, 32767, 32768, 2**31 - 1])

TOPIC_LETTERS = "abcXYZ0189%|_-"
TOPICS = st.one_of(
    st.text(TOPIC_LETTERS, min_size=1, max_size=20),
    st.text(TOPIC_LETTERS, min_size=126, max_size=129),
    st.text(TOPIC_LETTERS, min_size=255, max_size=255),
)
# everything that UTF-8 can hold but the two separators
LETTERS = st.characters(codec="utf-8", exclude_characters="\x01\x02")
VALUES = st.text(LETTERS, min_size=1, max_size=12)
KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02 "), min_size=1, max_size=8)
NAMES = VALUES.filter(lambda name: name not in ("KEYS", "TAGS", "UNIQ_KEY", "__CRC32#"))
PROPERTIES = st.dictionaries(NAMES, VALUES, max_size=4)
BODIES = st.binary(max_size=200)


def not_mapped(host: Host) -> bool:
    """Tell whether Java leaves an address in the family it came in."""
    return host.address[:12] != bytes(10) + b"\xff\xff"


HOSTS = st.builds(
    Host,
    st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)),
    st.integers(0, 65535),
).filter(not_mapped)


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """Draw what a producer gives, by the names of the engine's Message."""
    return {
        "topic": draw(TOPICS),
        "body": draw(BODIES),
        "queue_id": draw(st.integers(0, 2**31 - 1)),
        "flag": draw(INT32),
        "sys_flag": draw(st.sampled_from([0, 0x1, 0x4, 0x8, 0xC, 0x101, 0x30])),
        "tags": draw(st.none() | VALUES),
        "keys": tuple(draw(st.lists(KEYS, max_size=3))),
        "properties": draw(PROPERTIES),
        "born_timestamp_ms": draw(TIMES),
        "born_host": str(draw(HOSTS)),
        "store_host": str(draw(HOSTS)),
        "reconsume_times": draw(INT32),
        "prepared_transaction_offset": draw(INT64),
    }


def record_of(
    message: dict[str, Any],
    *,
    queue_offset: int = 0,
    phy_offset: int = 0,
    store_timestamp_ms: int = 0,
) -> Record:
    """Give the record that a message becomes: KEYS, TAGS, then the other properties."""
    properties = dict(message["properties"])
    first = {}
    if message["keys"]:
        first["KEYS"] = " ".join(message["keys"])
    if message["tags"] is not None:
        first["TAGS"] = message["tags"]
    return Record(
        topic=message["topic"],
        body=message["body"],
        properties_data=encode_properties(first | properties),
        queue_id=message["queue_id"],
        flag=message["flag"],
        phy_offset=phy_offset,
        sys_flag=message["sys_flag"],
        born_timestamp_ms=message["born_timestamp_ms"],
        born_host=Host.parse(message["born_host"]),
        store_timestamp_ms=store_timestamp_ms,
        store_host=Host.parse(message["store_host"]),
        reconsume_times=message["reconsume_times"],
        prepared_transaction_offset=message["prepared_transaction_offset"],
        queue_offset=queue_offset,
    )


@st.composite
def record_bytes(draw: st.DrawFn, *, append_crc: bool | None = None) -> bytes:
    """Draw one good record."""
    record = record_of(
        draw(messages()),
        queue_offset=draw(OFFSETS),
        phy_offset=draw(OFFSETS),
        store_timestamp_ms=draw(TIMES),
    )
    return encode_record(
        record, append_crc=draw(st.booleans()) if append_crc is None else append_crc
    )


@st.composite
def damaged(draw: st.DrawFn, good: st.SearchStrategy[bytes]) -> bytes:
    """Draw good bytes, and damage them a few times: flip, cut, splice, overwrite, swap lengths."""
    data = bytearray(draw(good))
    for _ in range(draw(st.integers(1, 3))):
        if len(data) < 8:
            break
        at = draw(st.integers(0, len(data) - 4))
        kind = draw(st.sampled_from(["flip", "cut", "end", "splice", "number", "swap"]))
        if kind == "flip":
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 16))]
        elif kind == "end":
            del data[at:]
        elif kind == "splice":
            data[at:at] = draw(st.binary(min_size=1, max_size=8))
        elif kind == "number":
            form = draw(st.sampled_from([">i", ">h"]))
            value = draw(ODD_NUMBERS)
            limit = 2 ** (8 * struct.calcsize(form) - 1)
            struct.pack_into(form, data, at, (value + limit) % (2 * limit) - limit)
        else:
            other = draw(st.integers(0, len(data) - 4))
            data[at : at + 4], data[other : other + 4] = (
                data[other : other + 4],
                data[at : at + 4],
            )
    return bytes(data)
