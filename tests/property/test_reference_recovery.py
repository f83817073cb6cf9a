"""How the oracle judges the end of a log: clean, torn, or damaged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.records import Record, encode_blank, encode_record, fits
from reference.recovery import Ending, walk_log

pytestmark = pytest.mark.logic

FILE_SIZE = 512


def log_of(bodies, *, first=FILE_SIZE * 3):
    """Lay records out as RocketMQ does; the log's files, and the records' positions."""
    files, start, data, offsets = {}, first, b"", []
    for body in bodies:
        size = len(encode_record(Record(topic="T", body=body)))
        if not fits(size, FILE_SIZE - len(data)):
            files[start] = (data + encode_blank(FILE_SIZE - len(data))).ljust(FILE_SIZE, b"\0")
            start, data = start + FILE_SIZE, b""
        offsets.append(start + len(data))
        data += encode_record(Record(topic="T", body=body, phy_offset=start + len(data)))
    files[start] = data.ljust(FILE_SIZE, b"\0")
    return files, offsets


def damaged(files, offset, replacement):
    """Overwrite bytes at a log position."""
    start = offset - offset % FILE_SIZE
    data = bytearray(files[start])
    data[offset - start : offset - start + len(replacement)] = replacement
    return files | {start: bytes(data)}


BODIES = st.lists(st.binary(min_size=1, max_size=150), min_size=1, max_size=12)


@given(BODIES)
def test_a_whole_log_ends_clean(bodies):
    files, offsets = log_of(bodies)
    walk = walk_log(files)
    assert [record.body for record in walk.records] == bodies
    assert [record.phy_offset for record in walk.records] == offsets
    assert (walk.end, walk.ending, walk.reason) == (walk.records[-1].end, Ending.CLEAN, "")


def test_no_log_and_a_log_without_records():
    assert walk_log({}).ending is Ending.CLEAN
    walk = walk_log({1024: bytes(FILE_SIZE), 1536: bytes(FILE_SIZE)})
    assert (walk.records, walk.end, walk.ending) == ([], 1024, Ending.CLEAN)


@given(BODIES, st.data())
def test_a_last_record_cut_short_is_torn(bodies, data):
    files, offsets = log_of(bodies)
    record = encode_record(Record(topic="T", body=bodies[-1], phy_offset=offsets[-1]))
    kept = data.draw(st.integers(4, 88))
    files = damaged(files, offsets[-1] + kept, bytes(len(record) - kept))
    walk = walk_log(files)
    assert (walk.end, walk.ending) == (offsets[-1], Ending.TORN)
    assert [r.body for r in walk.records] == bodies[:-1]


@given(BODIES, st.data())
def test_a_bad_record_before_a_good_one_is_damage(bodies, data):
    files, offsets = log_of([*bodies, b"the last one"])
    bad = data.draw(st.integers(0, len(bodies) - 1))
    at = offsets[bad] + data.draw(st.sampled_from([4, 28, 88]))
    files = damaged(files, at, bytes([files[at - at % FILE_SIZE][at % FILE_SIZE] ^ 0xEE]))
    walk = walk_log(files)
    assert (walk.end, walk.ending) == (offsets[bad], Ending.DAMAGED)
    assert len(walk.records) == bad
    assert walk.reason


def test_a_blank_at_the_end_is_not_counted():
    files, offsets = log_of([b"x" * 100, b"y" * 100])
    end = offsets[-1] + (offsets[1] - offsets[0])
    sealed = damaged(files, end, encode_blank(FILE_SIZE - end % FILE_SIZE))
    walk = walk_log(sealed)
    assert (walk.end, walk.ending) == (end, Ending.CLEAN)
    longer = walk_log(sealed | {FILE_SIZE * 4: bytes(FILE_SIZE)})
    assert (longer.end, longer.ending) == (FILE_SIZE * 4, Ending.CLEAN)


def test_a_record_that_names_another_position_is_refused():
    files, offsets = log_of([b"x" * 50] * 3)
    copy = encode_record(Record(topic="T", body=b"x" * 50, phy_offset=offsets[0]))
    walk = walk_log(damaged(files, offsets[1], copy))
    assert (walk.end, walk.ending) == (offsets[1], Ending.DAMAGED)
    assert "says it lies at" in walk.reason


@pytest.mark.parametrize("tail", [b"\x01", b"\0" * 40 + b"\x01", b"\0\0\0\x10\xcb\xd4\x31\x94"])
def test_anything_but_zeros_behind_the_log_is_torn(tail):
    files, offsets = log_of([b"x" * 50])
    walk = walk_log(damaged(files, offsets[0] + 150, tail))
    assert walk.end < offsets[0] + 150
    assert walk.ending is Ending.TORN
