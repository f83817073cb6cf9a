"""Times of options: ago and to come are what was asked for, and no unit is guessed."""

import pytest
import typer

from rmqcore.cli.times import parse_duration, parse_time, parse_time_to_come
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.logic

MINUTES = 900_000


def between(before, found, offset):
    return before + offset <= found <= wall_clock_ms() + offset


@pytest.mark.parametrize(
    ("parse", "text", "offset"),
    [
        (parse_time, "15m", -MINUTES),
        (parse_time, "-15m", -MINUTES),
        (parse_time, "+15m", MINUTES),
        (parse_time_to_come, "15m", MINUTES),
        (parse_time_to_come, "+900s", MINUTES),
    ],
)
def test_a_span_is_ago_or_to_come(parse, text, offset):
    before = wall_clock_ms()
    assert between(before, parse(text), offset)


@pytest.mark.parametrize("parse", [parse_time, parse_time_to_come])
def test_a_moment_is_the_same_for_every_option(parse):
    assert parse("1714557600000") == parse("@1714557600") == parse("2024-05-01T10:00:00+00:00")
    assert parse("@1714557600.5") == 1714557600500
    assert parse("0") == 0
    assert parse("20240501") == parse("2024-05-01")
    assert parse(None) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1714557600", "in seconds it would be 1714557600000 milliseconds, or @1714557600"),
        ("1714557600000000", "in microseconds it would be 1714557600000 milliseconds"),
        ("1714557600000000000", "in nanoseconds it would be 1714557600000 milliseconds"),
        ("yesterday", "write 15m"),
        ("15 m", "write 15m"),
        ("@", "write 15m"),
        ("\u0661\u0665m", "write 15m"),
    ],
)
def test_what_is_no_time_is_refused_and_said(text, said):
    for parse in (parse_time, parse_time_to_come):
        with pytest.raises(typer.BadParameter, match=said.replace("+", r"\+")):
            parse(text)


def test_a_time_to_come_is_not_ago():
    with pytest.raises(typer.BadParameter, match="a time to come is asked for"):
        parse_time_to_come("-15m")
    with pytest.raises(typer.BadParameter):
        parse_duration("+15m")
    assert parse_duration("90s") == 90


@pytest.mark.parametrize(
    "words",
    [
        ("cat", "{}", "--since"),
        ("cat", "{}", "--until"),
        ("query", "{}", "--key", "k", "--since"),
        ("query", "{}", "--key", "k", "--until"),
        ("query", "{}", "--time"),
        ("produce", "T", "x", "--deliver-at"),
        ("consume", "T", "--start"),
        ("admin", "resetOffsetByTime", "-g", "G", "-t", "T", "-s"),
    ],
)
@pytest.mark.engine
def test_every_option_that_takes_a_time_refuses_seconds(rmqcore, store, words, monkeypatch):
    monkeypatch.setattr("rmqcore.cli.admin.expect_topic", lambda *_: None)
    outcome = rmqcore(*(word.format(store) for word in words), "1714557600")
    assert outcome.exit_code == 2
    assert "@1714557600" in outcome.stderr
