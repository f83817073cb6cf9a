"""How values become text, and lists become pages."""

import json
from types import SimpleNamespace

import pytest

from rmqcore.errors import CorruptRecordError
from rmqcore.web import shown
from rmqcore.web.overview import messages_by_time
from rmqcore.web.paging import paged
from rmqcore.web.shown import (
    body_view,
    parse_time,
    preview,
    rates_text,
    size_text,
    span_text,
    visible,
)
from rmqcore.web.sparkline import sparkline

pytestmark = pytest.mark.logic


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("order é 漢", "order é 漢"),
        ("a\tb\nc", "a\tb\nc"),
        ("a\x00\x1b[2J", "a\\x00\\x1b[2J"),
        ("\u202eabc\u2069", "\\u202eabc\\u2069"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_cannot_be_seen_is_an_escape(text, seen):
    assert visible(text) == seen


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (61_000, "1 min 1 s"),
        (3_600_000, "1 h"),
        (90_061_000, "1 d 1 h"),
        (86_400_000 + 61_000, "1 d"),
    ],
)
def test_a_span_has_its_two_largest_units(span_ms, text):
    assert span_text(span_ms) == text


def test_sizes_and_rates_are_short():
    assert size_text(1536) == "1.5 KiB"
    assert size_text(1023) == "1023 B"
    assert rates_text("0.0 1234.56 7.98765") == "0.0 · 1,234.6 · 8.0"


def test_a_time_is_unix_milliseconds_or_that_of_a_date_field():
    assert parse_time(" 1700000000000 ") == 1_700_000_000_000
    assert parse_time("") is None
    assert parse_time("2023-11-14T22:13:20+00:00") == 1_700_000_000_000
    for wrong in ("soon", "2023-13-01"):
        with pytest.raises(ValueError, match="is no time"):
            parse_time(wrong)


def test_a_page_beyond_the_last_is_the_last():
    assert (paged(range(101), 99, 50).page, list(paged(range(101), 99, 50).items)) == (3, [100])
    assert paged([], 0).pages == 1


def test_a_curve_ends_where_its_values_do():
    drawn = sparkline([0, 1, 4], '"<x>"')
    assert 'points="0.0,46.0 120.0,35.5 240.0,4.0"' in drawn
    assert "<x>" not in drawn
    assert "polyline" not in sparkline([1], "one")


def test_no_messages_make_no_picture():
    assert messages_by_time(None, []) == (None, None, [])


def test_json_that_is_longer_than_its_body_is_shown_to_its_end():
    body = json.dumps(list(range(20_000)), separators=(",", ":")).encode()
    message = SimpleNamespace(decompressed_body=lambda max_size: body)
    shown, start = [], 0
    while start is not None and len(shown) < 10:
        view = body_view(message, "json", start)
        shown.append(view.text)
        start = view.after
    assert "".join(shown) == json.dumps(json.loads(body), indent=2)


class Packed:
    """A message of few bytes that unpack to many; notes how many are asked for."""

    sys_flag = 1
    body_view = memoryview(b"packed")

    def __init__(self, size):
        self.size, self.asked = size, []

    def decompressed_body(self, *, max_size):
        self.asked.append(max_size)
        if self.size > max_size:
            raise CorruptRecordError("log", 0, "too large")
        return b"x" * self.size


def test_a_line_of_a_list_unpacks_little():
    small, large = Packed(10), Packed(shown.UNPACKED_MAX)
    assert preview(small) == "x" * 10
    assert preview(large) == "compressed, 6 B"
    assert max(small.asked + large.asked) <= 256 << 10
    large.body_view = memoryview(bytes(shown.TEXT_SHOWN + 1))
    assert preview(large) == "compressed, 64.0 KiB"
    assert len(large.asked) == 1
