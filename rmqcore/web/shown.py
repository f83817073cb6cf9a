"""How values become text on a page; what cannot be seen is written as an escape."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rmqcore.errors import CorruptRecordError, RmqCoreError
from rmqcore.message import MessageExt
from rmqcore.native.format._numbers import SysFlag

#: A page shows this many bytes of a body as text, and as hex.
TEXT_SHOWN: Final = 64 << 10
_HEX_SHOWN: Final = 4 << 10
#: a larger body is not looked at as JSON
JSON_MAX: Final = 1 << 20
#: with a member a line, each behind the blanks of its depth, it would be longer: shown as text
_PRETTY_MAX: Final = 8 * JSON_MAX
#: what a body may grow to when it is unpacked for a page
UNPACKED_MAX: Final = 16 << 20
_PREVIEW: Final = 160
#: and for a line of a list, which may have many such messages
_PREVIEW_UNPACKED_MAX: Final = 256 << 10
#: what stands where there is nothing to say
NONE: Final = "\N{EN DASH}"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_KEPT: Final = "\n\t"
_SPANS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
_UNIX_MS: Final = re.compile(r"\d{1,16}", re.ASCII)


def size_text(size: float) -> str:
    """Bytes as people read them: ``64.0 MiB``."""
    value = float(size)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{int(size)} B" if unit == "B" else f"{value:.1f} {unit}"


def count_text(number: float | None) -> str:
    """A number with its thousands apart; a dash for none."""
    if number is None:
        return NONE
    return f"{number:,}" if isinstance(number, int) else f"{number:,.1f}"


def rates_text(told: str) -> str:
    """Rates as RocketMQ tells them, ``1.8999 2.0 2.1``, each to one place behind the point."""
    return " · ".join(f"{float(each):,.1f}" for each in told.split())


def time_text(timestamp_ms: int | None) -> str:
    """A Unix time in local time, to the millisecond; a dash for none."""
    if timestamp_ms is None or timestamp_ms < 0:
        return NONE
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000)  # noqa: DTZ006 - for people
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
    return moment.isoformat(" ", "milliseconds")


def span_text(span_ms: int | None) -> str:
    """How long something takes or is ago, in its two largest units; a dash for none."""
    if span_ms is None:
        return NONE
    rest, parts = max(0, span_ms), []
    for size, unit in _SPANS:
        if rest >= size:
            parts.append(f"{rest // size} {unit}")
            rest %= size
        elif parts:
            break
    return " ".join(parts[:2]) or f"{rest} ms"


def parse_time(text: str) -> int | None:
    """A time as a form gives it, as Unix milliseconds; None for an empty text.

    Args:
        text: ``2024-05-01T10:00`` as a date field writes it (local time), or Unix milliseconds.

    Raises:
        ValueError: neither.
    """
    text = text.strip()
    if not text:
        return None
    if _UNIX_MS.fullmatch(text):
        return int(text)
    try:
        return max(0, int(datetime.fromisoformat(text).astimezone().timestamp() * 1000))
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is no time; write 2024-05-01T10:00, or Unix milliseconds"
        ) from None


def visible(text: str) -> str:
    """A text in which everything can be seen: what cannot be printed is written as an escape.

    So are marks that turn the direction of what follows, which would let a name look like another.
    """
    if text.isprintable():
        return text
    return "".join(
        letter
        if letter.isprintable() or letter in _KEPT
        else letter.encode("unicode_escape", "surrogatepass").decode("ascii")
        for letter in text
    )


@dataclass(frozen=True, slots=True)
class BodyView:
    """A stretch of a body as a page shows it.

    Attributes:
        form: "text", "json" or "hex".
        text: what is shown.
        size: bytes of the whole body.
        start, stop: the bytes shown; of JSON the characters of its text.
        after: where the next stretch begins; None at the end.
        trouble: why the body cannot be shown so; empty when it can.
    """

    form: str
    text: str = ""
    size: int = 0
    start: int = 0
    stop: int = 0
    after: int | None = None
    trouble: str = ""


def plain_body(message: MessageExt, size_max: int = UNPACKED_MAX) -> tuple[bytes, str]:
    """A message's body as the producer gave it, and why it is not, or an empty text.

    Args:
        message: whose body.
        size_max: bytes that it may unpack to.
    """
    try:
        return message.decompressed_body(max_size=size_max), ""
    except (CorruptRecordError, RmqCoreError) as error:
        return bytes(message.body_view), f"shown as it is stored: {error}"


def body_view(message: MessageExt, form: str, start: int) -> BodyView:
    """A stretch of a message's body.

    Args:
        message: whose body.
        form: "text", "json", "hex"; anything else chooses what fits.
        start: where the stretch begins, in bytes, or characters of JSON.
    """
    body, trouble = plain_body(message)
    pretty = _pretty(body) if form not in ("text", "hex") else None
    # as a page has it JSON is longer than the body
    start = max(0, min(start, len(body if pretty is None else pretty)))
    if pretty is not None:
        stop = min(len(pretty), start + TEXT_SHOWN)
        after = stop if stop < len(pretty) else None
        return BodyView("json", pretty[start:stop], len(body), start, stop, after, trouble)
    if form == "json":
        why = "it is no JSON, or nests too deeply"
        why = why if len(body) <= JSON_MAX else "only up to 1 MiB is read as JSON"
        trouble = "; ".join(filter(None, [trouble, f"shown as text: {why}"]))
    if form == "hex" or (form not in ("text", "json") and _is_binary(body)):
        stop = min(len(body), start + _HEX_SHOWN)
        text = _hex(body[start:stop], start)
        shown = "hex"
    else:
        stop = _whole_letters(body, min(len(body), start + TEXT_SHOWN))
        text = body[start:stop].decode("utf-8", "backslashreplace")
        shown = "text"
    after = stop if stop < len(body) else None
    return BodyView(shown, text, len(body), start, stop, after, trouble)


def preview(message: MessageExt) -> str:
    """The beginning of a body in one line."""
    if message.sys_flag & SysFlag.COMPRESSED:
        size = len(message.body_view)
        body, trouble = b"", "large"
        if size <= TEXT_SHOWN:
            body, trouble = plain_body(message, _PREVIEW_UNPACKED_MAX)
        if trouble:
            return f"compressed, {size_text(size)}"
    else:
        body = bytes(message.body_view[: 4 * _PREVIEW])
    text = body[: _whole_letters(body, 4 * _PREVIEW - 4)].decode("utf-8", "backslashreplace")
    shown = " ".join(visible(text[:_PREVIEW]).split())
    return shown + ("…" if len(text) > _PREVIEW or len(message.body_view) > 4 * _PREVIEW else "")


def _pretty(body: bytes) -> str | None:
    """A body as JSON with one member a line; None when it is none, or that is too long."""
    if len(body) > JSON_MAX or body[:1].strip() not in (b"{", b"[", b'"', b""):
        return None
    parts, left = list[str](), _PRETTY_MAX
    try:
        for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(body)):
            parts.append(part)
            left -= len(part)
            if left < 0:
                return None
    except (ValueError, RecursionError):
        return None
    return "".join(parts)


def _is_binary(body: bytes) -> bool:
    try:
        text = body[: _whole_letters(body, 4096)].decode("utf-8")
    except UnicodeDecodeError:
        return True
    odd = sum(not letter.isprintable() and letter not in "\n\t\r" for letter in text)
    return odd * 10 > len(text)


def _whole_letters(body: bytes, stop: int) -> int:
    """Where to end at or shortly before ``stop`` without cutting a letter of UTF-8."""
    if stop >= len(body):
        return len(body)
    for at in range(stop, max(0, stop - 4), -1):
        if body[at] & 0xC0 != 0x80:
            return at
    return stop


def _hex(body: bytes, start: int) -> str:
    lines = []
    for at in range(0, len(body), 16):
        row = body[at : at + 16]
        left, right = row[:8].hex(" "), row[8:].hex(" ")
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{start + at:08x}  {left:<23}  {right:<23}  {letters}")
    return "\n".join(lines)
