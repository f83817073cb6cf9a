"""An index file is told from one that differs anywhere, and made right behind what agrees."""

import random
import struct

import numpy as np
import pytest

from rmqcore._index import index_file_size, put_keys, read_header
from rmqcore.errors import CorruptIndexError
from rmqcore.native.derive._entry_check import EntryCheck

pytestmark = pytest.mark.logic

SLOTS, ENTRIES = 7, 40
SIZE = index_file_size(SLOTS, ENTRIES)
FIRST_ENTRY = 40 + 4 * SLOTS + 20


def keys(count, seed=1):
    """(hashes, offsets, times) of so many keys, three a record."""
    rng = random.Random(seed)
    hashes = np.array([rng.randrange(30) for _ in range(count)], np.int32)
    offsets = np.array([1000 * (number // 3) for number in range(count)], np.int64)
    times = np.array([1_700_000_000_000 + 700 * (n // 3) for n in range(count)], np.int64)
    return hashes, offsets, times


def made(columns, count, before_ms=0):
    """The file that so many of the keys make."""
    data = bytearray(SIZE)
    if before_ms:
        data[:16] = struct.pack(">qq", before_ms, before_ms)
    assert put_keys(data, SLOTS, ENTRIES, *columns, 0, count) == count
    return data


def states_of_an_insertion(before, after):
    """Every file that a kill while one key is inserted can leave: its stores one by one."""
    count = read_header(before)[5]
    entry = FIRST_ENTRY + 20 * (count - 1)
    slots = range(40, 40 + 4 * SLOTS, 4)
    slot = next(at for at in slots if before[at : at + 4] != after[at : at + 4])
    stores = [(entry, 4), (entry + 4, 8), (entry + 12, 4), (entry + 16, 4), (slot, 4)]
    stores += [(16, 8), (0, 8)] if count == 1 else []
    stores += [(32, 4), (24, 8), (8, 8)]
    data = bytearray(before)
    yield bytes(data)
    for at, size in stores:
        data[at : at + size] = after[at : at + size]
        yield bytes(data)


def taken_over(data, columns, count, before_ms=0):
    """(entries that agreed, the file afterwards): checked, mended, and the rest inserted."""
    data = bytearray(data)
    check = EntryCheck(data, SLOTS, ENTRIES, by_header=False, before_ms=before_ms)
    agreed = check.compare(*columns, 0, count)
    check.mend()
    put_keys(data, SLOTS, ENTRIES, *columns, agreed, count)
    return agreed, data


@pytest.mark.parametrize("before_ms", [0, 1_699_999_990_000, 1_800_000_000_000])
@pytest.mark.parametrize("count", [1, 2, 3, 20, ENTRIES - 1])
def test_what_the_keys_make_agrees_and_stays(count, before_ms):
    columns = keys(count)
    data = made(columns, count, before_ms)
    assert taken_over(data, columns, count, before_ms) == (count, data)


@pytest.mark.parametrize("count", range(6))
def test_a_kill_at_each_store_of_an_insertion_is_completed(count):
    columns = keys(12)
    before, after = made(columns, count), made(columns, count + 1)
    wanted = made(columns, 12)
    for data in states_of_an_insertion(before, after):
        agreed, found = taken_over(data, columns, 12)
        assert agreed in (count, count + 1)
        assert found == wanted


@pytest.mark.parametrize("count", range(6))
def test_a_kill_is_undone_where_the_log_has_other_keys(count):
    """The log may have lost the record whose key was being inserted, and got another one."""
    columns, others = keys(12), keys(12, seed=2)
    for column, other in zip(columns, others, strict=True):
        other[:count] = column[:count]
    before, after = made(columns, count), made(columns, count + 1)
    wanted = made(others, 12)
    for data in states_of_an_insertion(before, after):
        assert taken_over(data, others, 12)[1] == wanted


def test_any_damage_is_found_and_what_is_behind_it_made_anew():
    columns = keys(20)
    wanted = made(columns, 20)
    for at in range(FIRST_ENTRY + 20 * 19):
        data = bytearray(wanted)
        data[at] ^= 1 + at % 255
        check = EntryCheck(bytearray(data), SLOTS, ENTRIES, by_header=True)
        told = check.compare(*columns, 0, 20) < 20 or not check.fits()
        # the number of used slots, and the time of the first entry
        assert told != (32 <= at < 36 or FIRST_ENTRY + 12 <= at < FIRST_ENTRY + 16)
        agreed, found = taken_over(data, columns, 20)
        assert agreed == (20 if at < FIRST_ENTRY else (at - FIRST_ENTRY) // 20)
        assert found == wanted


def test_entries_without_their_keys_are_held_against_each_other():
    columns = keys(20)
    data = made(columns, 20)
    check = EntryCheck(data, SLOTS, ENTRIES, by_header=True)
    assert check.pass_over(3000)
    assert (check.next_entry, check.limit) == (10, 21)
    assert check.compare(*columns, 9, 20) == 11
    assert check.fits()
    for position in (0, 4, 16):
        torn = bytearray(data)
        torn[FIRST_ENTRY + 20 * 8 + position] ^= 0x80
        assert not EntryCheck(torn, SLOTS, ENTRIES, by_header=True).pass_over(3000)


def test_the_file_ends_before_the_keys_do():
    columns = keys(ENTRIES + 5)
    data = made(columns, ENTRIES - 1)
    check = EntryCheck(data, SLOTS, ENTRIES, by_header=False)
    assert check.compare(*columns, 0, ENTRIES + 5) == ENTRIES - 1
    assert check.next_entry == check.limit


def test_bad_arguments():
    columns = keys(3)
    with pytest.raises(CorruptIndexError):
        EntryCheck(bytearray(SIZE - 1), SLOTS, ENTRIES, by_header=False)
    with pytest.raises(CorruptIndexError):
        EntryCheck(bytearray(40), 0, 0, by_header=False)
    with pytest.raises(ValueError, match="writable"):
        EntryCheck(bytes(SIZE), SLOTS, ENTRIES, by_header=False)
    check = EntryCheck(bytearray(SIZE), SLOTS, ENTRIES, by_header=False)
    for start, stop in ((-1, 2), (2, 1), (0, 4)):
        with pytest.raises(IndexError):
            check.compare(*columns, start, stop)
