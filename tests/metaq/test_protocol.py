"""Lines of the text protocol: read, written, and what is none."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import metaq as reference
from rmqcore.metaq._puts import scan_puts
from rmqcore.metaq.protocol import (
    Get,
    Offset,
    ProtocolError,
    Put,
    Quit,
    Stats,
    Sync,
    Transaction,
    Version,
    format_get,
    format_offset,
    format_put,
    parse_command,
)

pytestmark = pytest.mark.logic

WORD = st.text("abc-_é.$", min_size=1, max_size=8)
INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)


@given(
    st.builds(Put, WORD, INT, st.integers(0, 2**31 - 1), INT, INT, st.none() | st.just("TX:1"), INT)
)
def test_puts_round_trip(command):
    assert parse_command(format_put(command)[:-2]) == command


@given(st.builds(Get, WORD, WORD, INT, LONG, INT, INT))
def test_gets_round_trip(command):
    assert parse_command(format_get(command)[:-2]) == command


@given(st.builds(Offset, WORD, WORD, INT, LONG, INT))
def test_offset_queries_round_trip(command):
    assert parse_command(format_offset(command)[:-2]) == command


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (b"put t 0 5 0 9", Put("t", 0, 5, 0, -1, None, 9)),
        (b"put t 0 5 0 77 9", Put("t", 0, 5, 0, 77, None, 9)),
        (b"put t 0 5 0 -1 9", Put("t", 0, 5, 0, -1, None, 9)),
        (b"put t 0 5 0 TX:a:1 9", Put("t", 0, 5, 0, -1, "TX:a:1", 9)),
        (b"put t 0 5 0 77 TX:a:1 9", Put("t", 0, 5, 0, 77, "TX:a:1", 9)),
        (b"stats", Stats("", 2**31 - 1)),
        (b"stats  5", Stats("", 5)),
        (b"stats topics 5", Stats("topics", 5)),
        (b"version", Version(2**31 - 1)),
        (b"version 5", Version(5)),
        (b"quit", Quit()),
        (b"transaction k s BEGIN 30 q 5", Transaction("BEGIN", 5)),
        (b"sync t 0 100 0 7 5", Sync(100, 5)),
        (b"sync t 0 100 0 7 77 5", Sync(100, 5)),
    ],
)
def test_forms_of_older_clients(line, command):
    assert parse_command(line) == command


@given(
    st.binary(max_size=80)
    | st.sampled_from([b"put", b"get", b"offset"]).flatmap(
        lambda verb: st.lists(st.binary(max_size=6), max_size=8).map(
            lambda w: b" ".join([verb, *w])
        )
    )
)
def test_any_line_is_a_command_or_a_protocol_error(line):
    with contextlib.suppress(ProtocolError):
        parse_command(line)


@given(
    st.lists(st.builds(Put, WORD, INT, st.integers(0, 40), INT, INT, st.none(), INT), max_size=8),
    st.integers(0, 400),
    st.integers(0, 50),
)
def test_a_burst_of_puts_is_cut_as_line_by_line(commands, missing, max_size):
    buffer = b"".join(format_put(c) + b"#" * c.size for c in commands)
    buffer = buffer[: max(0, len(buffer) - missing)]
    rows, used = scan_puts(buffer, 8192, max_size)
    expected, at = [], 0
    for command in commands:
        data_at = at + len(format_put(command))
        stop = data_at + command.size
        if stop > len(buffer) or command.size > max_size:
            break
        data = buffer[data_at:stop]
        fits = command.checksum == reference.checksum(data)
        checksum = -1 if fits else command.checksum
        expected.append(
            (command.topic, command.partition, command.flag, checksum, command.opaque, data)
        )
        at = stop
    assert (rows, used) == (expected, at)


@given(st.binary(max_size=200), st.integers(0, 60))
def test_a_burst_of_anything_is_cut_where_it_is_no_put(junk, max_line):
    rows, used = scan_puts(b"put " + junk, max_line, 1000)
    assert 0 <= used <= 4 + len(junk)
    assert bool(rows) == bool(used)
