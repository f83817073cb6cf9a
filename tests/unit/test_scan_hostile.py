"""The kernels of scans and of the doctor, right before memory that may not be touched."""

import struct

import pytest
from fuzz.guard import GuardedMemory

from reference.records import Record, encode_record
from reference.values import encode_properties
from rmqcore.native.columns._columns import COLUMNS, ColumnDecoder
from rmqcore.native.derive._chains import ChainCheck
from rmqcore.native.format._next_record import ScanStatus, find_head

pytestmark = pytest.mark.logic

MEMORY = GuardedMemory(1 << 16)
MAGICS = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")


def sample(count=4):
    data = b""
    for number in range(count):
        properties = encode_properties({"KEYS": "a b", "TAGS": "t", "x": "\u8ba2" * number})
        data += encode_record(
            Record(
                topic="T" * (1 + 60 * number),
                body=bytes(number * 7),
                queue_offset=number,
                phy_offset=len(data),
                properties_data=properties,
            )
        )
    return data


def test_the_column_decoder_stays_inside_its_bytes(rng):
    whole = sample()
    decoder = ColumnDecoder(COLUMNS, row_max=8, delays_ms=(1000,))
    for _ in range(4000):
        data = bytearray(whole[: rng.randrange(len(whole) + 1)])
        for _ in range(rng.randrange(4)):
            if data:
                at = rng.randrange(len(data))
                data[at : at + 4] = rng.choice((b"\xff" * 4, b"\x7f\xff\xff\xff", rng.randbytes(4)))
                del data[len(whole) :]
        at, code = decoder.decode(MEMORY.place(bytes(data)), 0, len(data), base_offset=0)
        assert 0 <= at <= len(data)
        assert (code == ScanStatus.OK) == (at == len(data))
        decoder.take()


def heads(data, base_offset):
    """Where `find_head` has to stop, byte by byte."""
    for at in range(len(data) - 35):
        own = int.from_bytes(data[at + 28 : at + 36], "big", signed=True)
        if data[at + 4 : at + 8] in MAGICS and own == base_offset + at:
            yield at


def test_heads_are_found_where_they_are_and_nowhere_else(rng):
    whole = sample()
    for _ in range(300):
        cut = rng.randrange(200)
        data = bytearray(whole[cut : rng.randrange(cut, len(whole) + 1)])
        for _ in range(rng.randrange(30)):
            if len(data) > 8:
                at = rng.randrange(len(data) - 8)
                data[at : at + 4] = rng.choice((*MAGICS, b"\xda\xda\xa3\x20"))
        view, found, at = MEMORY.place(bytes(data)), [], -1
        while (at := find_head(view, at + 1, len(data), base_offset=cut)) >= 0:
            found.append(at)
        assert found == list(heads(bytes(data), cut))
    with pytest.raises(IndexError):
        find_head(b"abc", 0, 4, base_offset=0)


def entry(key_hash, previous):
    return struct.pack(">iqii", key_hash, 0, 0, previous)


def test_chains_are_right_only_when_every_link_is():
    hashes = [3, 13, 4, 3, 23, 14]
    newest, entries = {}, []
    for number, key_hash in enumerate(hashes, 1):
        entries.append(entry(key_hash, newest.get(key_hash % 10, 0)))
        newest[key_hash % 10] = number
    slots = b"".join(struct.pack(">i", newest.get(slot, 0)) for slot in range(10))

    def check(entries, slots):
        chains = ChainCheck(10)
        data = b"".join(entries)
        chains.entries(MEMORY.place(data[:60]), 1)
        chains.entries(MEMORY.place(data[60:]), 4)
        chains.slots(MEMORY.place(slots), 0)
        return chains

    good = check(entries, slots)
    assert (good.wrong_count, good.used_slots) == (0, 2)
    for number in range(6):
        for key_hash, previous in ((-1, 0), (hashes[number], 99), (hashes[number] + 1, 0)):
            broken = [*entries]
            broken[number] = entry(key_hash, previous)
            assert check(broken, slots).wrong_count
    for slot in range(10):
        broken = bytearray(slots)
        broken[4 * slot + 3] ^= 1
        assert check(entries, bytes(broken)).wrong_slots == [slot]
    with pytest.raises(IndexError):
        ChainCheck(2).slots(bytes(12), 0)
    with pytest.raises(ValueError, match="slots"):
        ChainCheck(0)
