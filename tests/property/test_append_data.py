"""A master's bytes, cut anywhere and with a byte turned over: all of a piece, or nothing."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqcore import CorruptRecordError, Message
from rmqcore.native.log._tail import LogTail

pytestmark = pytest.mark.logic

FILE = 4096
BEGIN = 7 * FILE


def tail_of(buffer):
    tail = LogTail("127.0.0.1:10911", 1 << 20)
    tail.attach(buffer, BEGIN, 0)
    return tail


@st.composite
def logs(draw):
    """(bytes of a log file, offsets behind its records); with a blank at its end or without."""
    buffer, ends = bytearray(FILE), [0]
    tail = tail_of(buffer)
    tail.writable = True
    for size in draw(st.lists(st.integers(0, 600), min_size=1, max_size=40)):
        receipt = tail.put_message(Message("T", bytes(size)))
        if isinstance(receipt, int):
            tail.seal()
            return bytes(buffer), [*ends, FILE]
        ends.append(tail.wrote_position)
    return bytes(buffer[: ends[-1]]), ends


@given(logs(), st.data())
def test_a_piece_is_appended_as_a_whole_or_not_at_all(made, data):
    log, ends = made
    cuts = data.draw(st.lists(st.integers(0, len(log)), max_size=12))
    flipped = data.draw(st.none() | st.integers(0, len(log) - 1))
    sent = bytearray(log)
    if flipped is not None:
        sent[flipped] ^= data.draw(st.sampled_from([1, 0x80, 0xFF]))
    buffer = bytearray(FILE)
    tail = tail_of(buffer)
    tail.follows = True

    def record_begin(at):
        return max(end for end in ends if end <= at)

    edges = [0, *sorted(cuts), len(log)]
    for start, stop in itertools.pairwise(edges):
        before, bad_offset = bytes(buffer), None
        try:
            tail.append_data(sent[start:stop], BEGIN + start)
        except CorruptRecordError as error:
            bad_offset = error.phy_offset
        end = stop if bad_offset is None else start
        assert tail.appended_offset - BEGIN == end
        whole = tail.max_offset - BEGIN
        assert buffer == sent[:whole].ljust(FILE, b"\0")
        if whole != record_begin(end):
            # a size that is too large, so that the record would go on
            assert whole == record_begin(flipped)
        if bad_offset is not None:
            assert bad_offset - BEGIN == record_begin(flipped)
            assert buffer == before
            break
    tail.drop_partial()
    assert tail.appended_offset == tail.max_offset == BEGIN + whole
