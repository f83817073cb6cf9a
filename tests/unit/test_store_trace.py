"""The trace of a store: what its last 200 rows tell, and that no file can hurt who reads it."""

import os
import struct
import threading
import zlib
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqcore.errors import CorruptRecordError
from rmqcore.files import store_trace
from rmqcore.files.store_trace import (
    EVENTS,
    ROWS_MAX,
    TRACE_SIZE,
    StoreTrace,
    error_words,
    read_trace,
)

pytestmark = pytest.mark.logic

HEADER_SIZE, ROW_SIZE = 64, 160
#: where the numbers of a row lie: time, log end, flushed, dispatched, count; and its own
NUMBERS_AT = {name: 8 + 8 * place for place, name in enumerate(("time", "end", "flushed"))}
NUMBERS_AT |= {"dispatched": 32, "count": 40, "number": 152}


class Store:
    """Numbers that a trace watches."""

    def __init__(self):
        self.end = self.flushed = self.dispatched = self.puts = 0

    def put(self, count):
        self.puts += count
        self.end += 100 * count

    def numbers(self):
        return self.end, self.flushed, self.dispatched, self.puts


@pytest.fixture
def watched():
    return Store()


@pytest.fixture
def trace(tmp_path, watched):
    trace = StoreTrace(tmp_path / "storeTrace", lambda: 1_700_000_000_123)
    trace.open()
    trace.watch(watched.numbers)
    return trace


def told(rows):
    """(event, count) of each row."""
    return [(row.event, row.count) for row in rows]


# ---- what a row says


def test_a_row_says_when_who_what_and_the_numbers(trace, watched):
    watched.end, watched.flushed, watched.dispatched = 700, 500, 600
    trace.note("flush", 500, "some words")
    dispatch, row = trace.rows()
    assert (dispatch.event, dispatch.count) == ("dispatch", 600)
    assert (row.number, row.time_ms) == (2, 1_700_000_000_123)
    assert (row.thread, row.event) == (threading.current_thread().name, "flush")
    assert (row.log_end, row.flushed, row.dispatched, row.count) == (700, 500, 600, 500)
    assert row.words == "some words"


def test_puts_between_two_events_are_one_row(trace, watched):
    trace.note("open")
    watched.put(3)
    watched.put(4)
    trace.note("flush", 700)
    trace.note("mark")
    watched.put(1)
    expected = [("open", 0), ("put", 7), ("flush", 700), ("mark", 0), ("put", 1)]
    assert told(trace.rows()) == expected
    assert told(trace.rows()) == expected
    assert [row.thread for row in trace.rows() if row.event == "put"] == ["", ""]


def test_a_log_that_gets_shorter_is_no_put(trace, watched):
    watched.put(5)
    trace.note("roll")
    watched.end = 100
    watched.put(1)
    assert told(trace.rows()) == [("put", 5), ("roll", 0), ("put", 1)]


def test_dispatches_close_to_one_another_are_one_row(trace, watched, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(store_trace, "monotonic_s", lambda: clock.now)
    for seconds in (0, 0.001, 0.001, 0.02, 0.001):
        clock.now += seconds
        watched.put(1)
        watched.dispatched = watched.end
        trace.dispatched()
    rows = trace.rows()
    assert told(rows) == [
        *[("put", 1), ("dispatch", 100)],
        *[("put", 3), ("dispatch", 300)],
        *[("put", 1), ("dispatch", 100)],
    ]
    mine = threading.current_thread().name
    assert [row.thread for row in rows if row.event == "dispatch"] == [mine, mine, ""]


def test_a_refusal_that_repeats_is_one_row(trace, watched):
    for words in ("a", "a", "b", "b", "a"):
        watched.put(1)
        trace.note("refused", words=words)
    trace.note("flush")
    trace.note("refused", words="a")
    refused = [row.words for row in trace.rows() if row.event == "refused"]
    assert refused == ["a", "b", "a", "a"]


def test_before_a_store_is_open_its_numbers_are_unknown(tmp_path):
    trace = StoreTrace(tmp_path / "t", lambda: 0)
    trace.note("open", 7)
    (row,) = trace.rows()
    assert (row.log_end, row.flushed, row.dispatched, row.count) == (-1, -1, -1, 7)


def test_long_words_are_cut_between_two_letters(trace):
    trace.note("flag", words="ä" * 100)
    assert trace.rows()[0].words == "ä" * 38
    trace.note("flag", words="x" + "ä" * 100)
    assert trace.rows()[1].words == "x" + "ä" * 37


def test_what_cannot_be_shown_is_a_question_mark(trace):
    trace.note("topic", words="a\x1b[2Jb\nc\u202ed\udc80")
    assert trace.rows()[0].words == "a?[2Jb?c?d?"


def test_an_error_is_told_without_its_path():
    assert error_words(OSError(5, "Input/output error", "/a/b")) == "OSError: Input/output error"
    damage = CorruptRecordError("/a/b", 77, "bad magic")
    assert error_words(damage) == "CorruptRecordError at 77: bad magic"
    assert error_words(ValueError("so")) == "ValueError: so"


@pytest.mark.parametrize("time_ms", [1 << 63, -(1 << 64), "noon", 0.5])
def test_a_clock_that_says_anything_hurts_nobody(tmp_path, time_ms):
    trace = StoreTrace(tmp_path / "t", lambda: time_ms)
    trace.note("open")
    assert trace.rows() == []


# ---- bounded, and kept


def test_200_rows_are_kept(trace):
    for number in range(3 * ROWS_MAX + 7):
        trace.note("flush", number)
    rows = trace.rows()
    assert [row.count for row in rows] == list(range(2 * ROWS_MAX + 7, 3 * ROWS_MAX + 7))
    assert [row.number for row in rows] == list(range(2 * ROWS_MAX + 8, 3 * ROWS_MAX + 8))
    assert trace.path.stat().st_size == TRACE_SIZE < 1 << 15


def test_others_read_each_row_as_soon_as_it_is_made(trace, watched):
    for number in range(3):
        watched.put(1)
        trace.note("flush", number)
        assert read_trace(trace.path) == trace.rows()
        assert len(read_trace(trace.path)) == 2 * (number + 1)


def test_the_next_life_goes_on_behind_the_rows_of_the_one_before(trace):
    for number in range(ROWS_MAX + 3):
        trace.note("flush", number)
    before = trace.rows()
    trace.let_go()
    again = StoreTrace(trace.path, lambda: 5)
    again.open()
    assert again.rows() == before == trace.rows()
    again.note("open")
    trace.note("close")
    assert again.rows()[:-1] == before[1:]
    assert read_trace(trace.path) == again.rows()
    assert trace.rows()[-1].event == "close"


def test_a_row_that_was_written_in_part_is_passed_over(trace):
    for number in range(5):
        trace.note("flush", number)
    trace.let_go()
    data = bytearray(trace.path.read_bytes())
    for size in range(1, ROW_SIZE):
        at = HEADER_SIZE + 2 * ROW_SIZE
        torn = data[:]
        torn[at : at + size] = data[at + ROW_SIZE : at + ROW_SIZE + size]
        trace.path.write_bytes(torn)
        assert [row.count for row in read_trace(trace.path)] == [0, 1, 3, 4]


# ---- no lock is waited for


@pytest.mark.engine
def test_nobody_waits_for_who_is_summing_up(trace, watched):
    done = []

    def beside():
        watched.put(2)
        trace.note("flush")
        done.append(told(trace.rows()))

    thread = threading.Thread(target=beside)
    with trace._summing.within() as mine:
        assert mine
        thread.start()
        thread.join()
    assert done == [[("flush", 0)]]
    assert told(trace.rows()) == [("flush", 0), ("put", 2)]


def test_a_handler_that_comes_in_the_middle_notes_its_own_event(trace, watched):
    def interrupted():
        if not inside:
            inside.append(1)
            trace.note("flag")
        return 1_700_000_000_000

    inside = []
    trace._clock_ms = interrupted
    watched.put(2)
    trace.note("flush")
    assert sorted(told(trace.rows())) == [("flag", 0), ("flush", 0), ("put", 2)]


# ---- files that are none of ours


def rows_are_sane(rows):
    assert len(rows) <= ROWS_MAX
    assert [row.number for row in rows] == sorted({row.number for row in rows})
    for row in rows:
        assert row.event in EVENTS
        assert 0 < row.number < 1 << 64
        assert 0 <= row.time_ms <= 253_402_300_799_999
        for number in (row.log_end, row.flushed, row.dispatched):
            assert -1 <= number < 1 << 63
        assert 0 <= row.count < 1 << 63
        assert (row.thread + row.words).isprintable()


def some_rows(trace, count=3):
    for number in range(count):
        trace.note("flush", number, "words")
    trace.let_go()
    return bytearray(trace.path.read_bytes())


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_of_a_file_with_a_wrong_byte_all_other_rows_count(trace, flip):
    data = some_rows(trace)
    whole = read_trace(trace.path)
    for at in range(HEADER_SIZE + 3 * ROW_SIZE):
        wrong = data[:]
        wrong[at] ^= flip
        trace.path.write_bytes(wrong)
        row = (at - HEADER_SIZE) // ROW_SIZE
        left = [] if at < HEADER_SIZE else whole[:row] + whole[row + 1 :]
        assert read_trace(trace.path) == left


def sealed_row(data, at):
    """Give the row at a place the checksum that it should have."""
    body = data[at + 4 : at + ROW_SIZE]
    data[at : at + 4] = zlib.crc32(body).to_bytes(4, "little")


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_numbers_that_no_store_writes_are_passed_over_whatever_the_checksum(trace, flip):
    data = some_rows(trace)
    for at in range(HEADER_SIZE + ROW_SIZE, HEADER_SIZE + 2 * ROW_SIZE):
        wrong = data[:]
        wrong[at] ^= flip
        sealed_row(wrong, HEADER_SIZE + ROW_SIZE)
        trace.path.write_bytes(wrong)
        rows_are_sane(read_trace(trace.path))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("time", value) for value in (-1, 253_402_300_800_000, (1 << 63) - 1)],
        *[(field, -2) for field in ("end", "flushed", "dispatched")],
        ("count", -1),
        *[("number", value) for value in (0, 1, 3, -1)],
    ],
)
def test_a_number_that_cannot_be_takes_its_row_with_it(trace, field, value):
    data = some_rows(trace)
    at = HEADER_SIZE + ROW_SIZE
    struct.pack_into("<q", data, at + NUMBERS_AT[field], value)
    sealed_row(data, at)
    trace.path.write_bytes(data)
    assert [row.count for row in read_trace(trace.path)] == [0, 2]


def test_an_unknown_event_is_passed_over(trace):
    data = some_rows(trace)
    data[HEADER_SIZE + 4] = len(EVENTS)
    sealed_row(data, HEADER_SIZE)
    trace.path.write_bytes(data)
    assert [row.count for row in read_trace(trace.path)] == [1, 2]


@given(st.binary(max_size=600), st.integers(0, TRACE_SIZE))
def test_any_bytes_are_read_and_taken_over(tmp_path_factory, noise, at):
    path = tmp_path_factory.mktemp("trace") / "storeTrace"
    trace = StoreTrace(path, lambda: 1)
    trace.open()
    data = some_rows(trace, 4)
    data[at : at + len(noise)] = noise
    path.write_bytes(data)
    left = read_trace(path)
    rows_are_sane(left)
    again = StoreTrace(path, lambda: 2)
    again.open()
    assert again.rows() == left
    again.note("open")
    assert read_trace(path)[-1].event == "open"
    assert path.stat().st_size == TRACE_SIZE


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 300, TRACE_SIZE - 1, TRACE_SIZE + 1, 1 << 20])
def test_a_file_of_another_length_gets_the_right_one(trace, size):
    data = some_rows(trace).ljust(1 << 20, b"\xaa")[:size]
    trace.path.write_bytes(data)
    again = StoreTrace(trace.path, lambda: 2)
    again.open()
    assert told(again.rows()) == [("flush", n) for n in range(max(0, min(3, (size - 64) // 160)))]
    again.note("open")
    assert trace.path.stat().st_size == TRACE_SIZE
    assert told(read_trace(trace.path))[-1] == ("open", 0)


def test_a_count_near_its_end_begins_anew(trace):
    data = some_rows(trace)
    number = (1 << 53) // ROWS_MAX * ROWS_MAX + 1 + ROWS_MAX
    struct.pack_into("<q", data, HEADER_SIZE + NUMBERS_AT["number"], number)
    sealed_row(data, HEADER_SIZE)
    trace.path.write_bytes(data)
    assert [row.number for row in read_trace(trace.path)] == [2, 3, number]
    again = StoreTrace(trace.path, lambda: 2)
    again.open()
    again.note("open")
    assert [row.number for row in read_trace(trace.path)] == [1]


# ---- where nothing can be written


def refuse(monkeypatch, name):
    """Let a call of `os` or of the native module fail."""
    module = os if hasattr(os, name) else store_trace

    def refused(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, name, refused)


def in_place_of_the_file(path, what):
    path.unlink(missing_ok=True)
    if what == "directory":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "link":
        other = path.with_name("other")
        other.write_bytes(b"mine")
        path.symlink_to(other)


@pytest.mark.parametrize("what", ["directory", "pipe", "link"])
def test_what_is_no_file_is_left_alone(trace, what):
    in_place_of_the_file(trace.path, what)
    before = trace.path.lstat()
    again = StoreTrace(trace.path, lambda: 1)
    again.open()
    again.note("open")
    assert told(again.rows()) == [("open", 0)]
    assert read_trace(trace.path) == []
    assert trace.path.lstat() == before
    if what == "link":
        assert trace.path.read_bytes() == b"mine"


@pytest.mark.parametrize("call", ["pread", "reserve", "pwrite", "ftruncate", "MappedRegion"])
def test_where_a_call_is_refused_the_trace_is_in_memory(tmp_path, monkeypatch, call):
    refuse(monkeypatch, call)
    trace = StoreTrace(tmp_path / "storeTrace", lambda: 1)
    trace.open()
    trace.note("open")
    assert told(trace.rows()) == [("open", 0)]


def test_rows_that_could_be_read_are_kept_where_nothing_can_be_written(trace, monkeypatch):
    some_rows(trace)
    refuse(monkeypatch, "reserve")
    again = StoreTrace(trace.path, lambda: 1)
    again.open()
    again.note("open")
    assert told(again.rows()) == [("flush", 0), ("flush", 1), ("flush", 2), ("open", 0)]
    assert told(read_trace(trace.path)) == [("flush", 0), ("flush", 1), ("flush", 2)]


def test_a_write_that_comes_out_shorter_goes_on(tmp_path, monkeypatch):
    really = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda fd, data, at: really(fd, data[: len(data) // 2 + 1], at)
    )
    trace = StoreTrace(tmp_path / "storeTrace", lambda: 1)
    trace.open()
    assert trace.path.stat().st_size == TRACE_SIZE
    trace.note("open")
    assert told(read_trace(trace.path)) == [("open", 0)]


def test_there_is_no_trace_where_there_is_no_file(tmp_path):
    assert read_trace(tmp_path / "storeTrace") == []
