"""The native index kernels against the oracle: the same bytes, the same walks, on any file."""

import itertools
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.index import Header, IndexFile
from reference.values import index_hash
from rmqcore import _index
from rmqcore.errors import CorruptIndexError

pytestmark = pytest.mark.logic

# "Aa" and "BB" have one hash; few slots make the other keys meet in one chain
KEYS = st.sampled_from(["T#Aa", "T#BB", "T#AaAa", "T#BBBB", "polygenelubricants", "", "订"])
TIMES = st.integers(0, 2**42) | st.integers(1_700_000_000_000, 1_700_000_010_000)
OFFSETS = st.integers(0, 2**50)
PUTS = st.lists(st.tuples(KEYS, OFFSETS, TIMES), max_size=14)
SHAPES = st.tuples(st.integers(1, 5), st.integers(2, 12))
END_OF_TIME = 2**63 - 1


def filled(slot_num, entry_num, puts):
    file = IndexFile(slot_num, entry_num)
    for put in puts:
        file.put_key(*put)
    return file


def once(offsets):
    """Of keys of one record that have the same hash one counts."""
    return [offset for offset, _ in itertools.groupby(offsets)]


def walked(file, key, begin_ms=0, end_ms=END_OF_TIME):
    found, steps, _ = _index.walk_chain(
        bytes(file.data),
        file.slot_num,
        file.entry_num,
        index_hash(key),
        begin_ms=begin_ms,
        end_ms=end_ms,
        max_offsets=1000,
    )
    assert steps <= file.entry_num
    return found


@given(SHAPES, PUTS)
def test_keys_are_put_alike(shape, puts):
    reference, native = IndexFile(*shape), bytearray(_index.index_file_size(*shape))
    for put in puts:
        assert _index.put_key(native, *shape, *put) == reference.put_key(*put)
        assert native == reference.data


@given(SHAPES, PUTS, PUTS)
def test_a_following_file_begins_where_the_full_one_ended(shape, puts, more):
    reference = IndexFile(*shape)
    reference.follow(filled(*shape, puts))
    native = bytearray(reference.data)
    for put in more:
        assert _index.put_key(native, *shape, *put) == reference.put_key(*put)
    assert native == reference.data


@given(SHAPES, PUTS, st.integers(0, 4))
def test_many_keys_are_put_alike(shape, puts, start):
    start = min(start, len(puts))
    reference, native = IndexFile(*shape), bytearray(_index.index_file_size(*shape))
    inserted = sum(reference.put_key(*put) for put in puts[start:])
    hashes = np.array([index_hash(key) for key, _, _ in puts], np.int32)
    offsets = np.array([offset for _, offset, _ in puts], np.int64)
    times = np.array([time for _, _, time in puts], np.int64)
    count = _index.put_keys(native, *shape, hashes, offsets, times, start, len(puts))
    assert count == inserted
    assert native == reference.data


@given(SHAPES, PUTS, st.integers(0, 20), st.integers(0, 20))
def test_columns_that_are_too_short_are_refused(shape, puts, start, stop):
    column = np.zeros(len(puts), np.int64)
    hashes = np.zeros(len(puts), np.int32)
    native = bytearray(_index.index_file_size(*shape))
    if start <= stop <= len(puts):
        _index.put_keys(native, *shape, hashes, column, column, start, stop)
    else:
        with pytest.raises(IndexError):
            _index.put_keys(native, *shape, hashes, column, column, start, stop)
        assert not any(native)


@pytest.mark.engine
@given(SHAPES, PUTS, KEYS)
def test_chains_are_walked_alike(shape, puts, key):
    file = filled(*shape, puts)
    found = walked(file, key)
    assert found == once(file.walk(key))
    kept = puts[: file.entry_num - 1]
    wanted = [offset for put, offset, _ in kept if index_hash(put) == index_hash(key)]
    assert found == once(wanted[::-1])


@given(SHAPES, PUTS, KEYS, TIMES, TIMES)
def test_no_record_of_a_time_range_is_missed(shape, puts, key, begin_ms, end_ms):
    file = filled(*shape, puts)
    found = walked(file, key, begin_ms, end_ms)
    assert found == once(file.walk(key, begin_ms, end_ms))
    times = sorted(time for _, _, time in puts)
    if times == [time for _, _, time in puts]:
        within = {
            offset
            for put, offset, time in puts[: file.entry_num - 1]
            if index_hash(put) == index_hash(key) and begin_ms <= time <= end_ms
        }
        assert within <= set(found)


@given(SHAPES, PUTS, KEYS, st.integers(1, 5))
def test_a_walk_ends_after_as_many_as_asked_for(shape, puts, key, limit):
    file = filled(*shape, puts)
    found, _, broken = _index.walk_chain(
        bytes(file.data), *shape, index_hash(key), max_offsets=limit
    )
    assert found == once(file.walk(key))[:limit]
    assert not broken


@st.composite
def damaged_files(draw):
    file = filled(*draw(SHAPES), draw(PUTS))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(2, (len(file.data) - 4) // 4)) * 4
        value = draw(st.integers(-2, 14) | st.sampled_from([-(2**31), 2**31 - 1]))
        struct.pack_into(">i", file.data, at, value)
    return file


@given(damaged_files(), KEYS)
def test_damaged_chains_are_walked_alike(file, key):
    assert walked(file, key) == once(file.walk(key))


@given(damaged_files(), KEYS, OFFSETS, TIMES)
def test_damaged_files_are_written_alike(file, key, offset, time_ms):
    native = bytearray(file.data)
    if file.header.index_count > file.entry_num:
        assert not _index.put_key(native, file.slot_num, file.entry_num, key, offset, time_ms)
        assert native == file.data
    else:
        put = _index.put_key(native, file.slot_num, file.entry_num, key, offset, time_ms)
        assert put == file.put_key(key, offset, time_ms)
        assert native == file.data


def test_many_keys_of_one_record_with_one_hash_lead_to_it_once():
    keys = ["T#AaAa", "T#AaBB", "T#BBAa", "T#BBBB"]
    puts = [(key, offset, 1000) for offset in (10, 20) for key in keys]
    assert walked(filled(1, 12, puts), "T#AaAa") == [20, 10]


def test_two_entries_that_name_each_other_end():
    file = filled(1, 8, [("T#a", 10, 1000), ("T#a", 20, 2000), ("T#a", 30, 3000)])
    struct.pack_into(">i", file.data, file.entry_at(2) + 16, 3)
    assert walked(file, "T#a") == [30, 20]
    *_, broken = _index.walk_chain(bytes(file.data), 1, 8, index_hash("T#a"))
    assert broken


def test_a_chain_survives_a_crash_between_slot_and_count():
    file = filled(1, 8, [("T#a", 10, 1000), ("T#a", 20, 2000), ("T#a", 30, 3000)])
    header = file.header
    file.header = Header(*header[:5], header.index_count - 1)
    native = bytearray(file.data)
    assert _index.put_key(native, 1, 8, "T#a", 30, 3000)
    again = IndexFile(1, 8, bytes(native))
    assert walked(again, "T#a") == [30, 20, 10]


@pytest.mark.parametrize(
    "shape", [(0, 4), (4, 1), (5, 4), (4, 5), (-1, 4), (2**31 - 1, 4), (4, 2**31 - 1)]
)
def test_a_geometry_that_does_not_fit_is_refused(shape):
    file = bytearray(_index.index_file_size(4, 4))
    with pytest.raises(CorruptIndexError):
        _index.put_key(file, *shape, "T#a", 1, 1)
    with pytest.raises(CorruptIndexError):
        _index.walk_chain(bytes(file), *shape, 1)
    assert not any(file)


@pytest.mark.engine
@given(SHAPES, PUTS, st.integers(0, 400), KEYS)
def test_a_file_that_was_cut_short_is_read_safely(tmp_path_factory, shape, puts, size, key):
    file = filled(*shape, puts)
    path = tmp_path_factory.mktemp("index") / "file"
    path.write_bytes(file.data[:size])
    with path.open("rb") as stream:
        found, _, broken = _index.walk_chain(
            stream.fileno(), *shape, index_hash(key), max_offsets=1000
        )
    whole = once(file.walk(key))
    assert found == whole[: len(found)]
    if size >= len(file.data):
        assert found == whole
    elif len(found) < len(whole):
        assert broken


@given(st.binary(max_size=80))
def test_headers_are_read_alike(data):
    if len(data) < 40:
        with pytest.raises(CorruptIndexError):
            _index.read_header(data)
    else:
        expected = Header(*struct.unpack_from(">qqqqii", data))
        count = max(1, expected.index_count)
        assert _index.read_header(data) == expected._replace(index_count=count)
