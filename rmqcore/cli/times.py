"""Times and durations as options take them: what is meant, ago or to come, is never guessed."""

from __future__ import annotations

import re
from datetime import datetime

import typer

from rmqcore.world import wall_clock_ms

#: The help of every option whose value is shown as TIME ends with this.
TIMES = """TIME is one of:
  15m                  so long ago (ms, s, m, h, d); to deliver at: in so long
  -15m, +15m           ago, to come: everywhere
  2024-05-01T10:00:00  local, or with +02:00; or the day alone
  1714557600000        Unix milliseconds; @1714557600 for seconds"""

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN = re.compile(r"([+-]?)(\d{1,12})(ms|s|m|h|d)", re.ASCII)
_SECONDS = re.compile(r"@(\d{1,12})(\.\d{1,3}\d*)?", re.ASCII)
_NUMBER = re.compile(r"\d{1,19}", re.ASCII)
#: a number of eight digits is a day, as in 20240501
_DAY_DIGITS = 8
#: what a number from the first up to the second is, taken for the time of our days; milliseconds
#: a unit, or units a millisecond
_OTHER_UNITS = (
    (1, 10**11, "seconds", 1000, 1),
    (10**14, 10**17, "microseconds", 1, 10**3),
    (10**17, 10**20, "nanoseconds", 1, 10**6),
)


def parse_duration(text: str | None) -> float | None:
    """Seconds of a text like ``30s`` or ``10m``; None for None.

    Raises:
        typer.BadParameter: it is none.
    """
    if text is None:
        return None
    found = _SPAN.fullmatch(text)
    if found is None or found[1]:
        raise typer.BadParameter(f"{text!r} is no duration; write 30s, 10m or 2h")
    return int(found[2]) * _UNIT_MS[found[3]] / 1000


def parse_time(text: str | None) -> int | None:
    """A time as Unix milliseconds, where ``15m`` is 15 minutes ago; None for None.

    Args:
        text: as `TIMES` says.

    Raises:
        typer.BadParameter: none of these, or Unix time in another unit.
    """
    return None if text is None else _parsed(text, unsigned=-1)


def parse_time_to_come(text: str | None) -> int | None:
    """As `parse_time`, where ``15m`` is in 15 minutes.

    Raises:
        typer.BadParameter: likewise, or so long ago.
    """
    if text is not None and text.startswith("-"):
        raise typer.BadParameter(f"{text!r} is ago; a time to come is asked for, as 15m or +15m")
    return None if text is None else _parsed(text, unsigned=1)


def _parsed(text: str, *, unsigned: int) -> int:
    span = _SPAN.fullmatch(text)
    if span:
        sign = {"+": 1, "-": -1, "": unsigned}[span[1]]
        return wall_clock_ms() + sign * int(span[2]) * _UNIT_MS[span[3]]
    seconds = _SECONDS.fullmatch(text)
    if seconds:
        return round(float(text[1:]) * 1000)
    if _NUMBER.fullmatch(text) and len(text) != _DAY_DIGITS:
        return _milliseconds(text)
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is no time; write 15m (ago), +15m (to come), 2024-05-01T10:00:00, Unix "
            "milliseconds, or @ and Unix seconds"
        ) from None


def _milliseconds(text: str) -> int:
    """A number of Unix milliseconds; one that is a time of our days in another unit is refused."""
    number = int(text)
    for low, high, unit, times, parts in _OTHER_UNITS:
        if low <= number < high:
            right = number * times // parts
            raise typer.BadParameter(
                f"{text} milliseconds are no time of our days; in {unit} it would be {right}"
                + (f" milliseconds, or @{text}" if unit == "seconds" else " milliseconds")
            )
    return number
