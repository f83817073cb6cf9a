"""Columns of properties against the oracle, where records look nearly like the one before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.records import Record, encode_record
from reference.values import decode_properties
from rmqcore.native.columns._columns import ColumnDecoder
from rmqcore.native.derive._dispatch import DispatchBatch

pytestmark = pytest.mark.logic

NAMES = ["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "TAGT", "K", "WAIT"]
PAIRS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.text("ab\1", min_size=0, max_size=9)), max_size=5
)


@st.composite
def neighbours(draw):
    """Properties strings of one size: the same one, with some bytes replaced each time."""
    text = "\2".join(f"{name}\1{value}" for name, value in draw(PAIRS)).encode()
    text = text * draw(st.sampled_from([1, 1, 1, 6])) + draw(st.sampled_from([b"", b"\2"]))
    found = []
    for _ in range(draw(st.integers(2, 9))):
        changed = bytearray(text)
        for _ in range(draw(st.integers(0, 2)) if text else 0):
            at = draw(st.integers(0, len(text) - 1))
            changed[at] = draw(st.sampled_from(b"ab\1\2TKS"))
        found.append(bytes(changed))
        if draw(st.booleans()):
            text = bytes(changed)
    return found


def stretch(texts):
    data = b""
    for text in texts:
        data += encode_record(Record(topic="T", properties_data=text, phy_offset=len(data)))
    return data


def agree(texts, row_max):
    """Columns of records with these properties strings say what the oracle says."""
    pairs = [decode_properties(text) for text in texts]
    data = stretch(texts)
    decoder = ColumnDecoder(["tags", "keys", "unique_key", "properties"], row_max=row_max)
    at, rows = 0, []
    while at < len(data):
        at, _ = decoder.decode(data, at, len(data), base_offset=0)
        rows += decoder.take().to_arrow().to_pylist()
    assert [row["tags"] for row in rows] == [pair.get("TAGS") for pair in pairs]
    assert [row["keys"] for row in rows] == [pair.get("KEYS") for pair in pairs]
    assert [row["unique_key"] for row in rows] == [pair.get("UNIQ_KEY") for pair in pairs]
    assert [dict(row["properties"]) for row in rows] == pairs


@given(neighbours(), st.integers(1, 40))
def test_columns_of_properties_are_what_the_oracle_reads(texts, row_max):
    agree(texts, row_max)


def test_one_byte_makes_another_layout():
    known = b"KEYS\1K1 K2\2TAGS\1a\1b\2UNIQ_KEY\0017F00\2DELAY\0013\2x\1y"
    for size in (16, 17, 31, 32, 33, len(known)):
        texts = []
        for at in range(size):
            for byte in b"\1\2Tx":
                changed = known[:at] + bytes([byte]) + known[at + 1 :]
                texts += [known[:size], known[:size], changed[:size]]
        agree(texts, 4096)


@given(neighbours())
def test_a_stretch_dispatches_as_its_records_do_one_by_one(texts):
    data = stretch(texts)
    together, hashes, at = DispatchBatch(), [], 0
    together.scan(data, 0, len(data), base_offset=0)
    while at < len(data):
        alone, size = DispatchBatch(), int.from_bytes(data[at : at + 4], "big")
        alone.scan(data, at, at + size, base_offset=0)
        hashes += alone.key_hashes[: alone.key_count].tolist()
        at += size
    assert together.key_hashes[: together.key_count].tolist() == hashes
