"""What commands print: tables for people, JSON for machines, messages for both.

Standard output carries the answer and nothing else; progress and notes go to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from shutil import get_terminal_size
from types import MappingProxyType
from typing import Any

from rmqcore.cli.tables import cell_text, facts_lines, table_lines
from rmqcore.message import MessageExt
from rmqcore.native.format._numbers import SysFlag

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STYLES = {
    "bold": "1",
    "dim": "2",
    "name": "36",
    "good": "1;32",
    "warning": "33",
    "error": "31",
    "bad": "1;31",
}


def show(line: str = "", *, style: str = "") -> None:
    """Print one line; in a style where standard output is a terminal.

    Args:
        line: without its end; empty prints an empty one.
        style: a key of the styles; empty for none.
    """
    sys.stdout.write(f"{styled(line, style)}\n")


def styled(text: str, style: str) -> str:
    """A text in one of the styles, where standard output shows colours.

    Args:
        text: one line.
        style: a key of the styles; empty for none.

    Raises:
        KeyError: there is no such style.
    """
    if not style or not text or not _has_colours():
        return text
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


def _has_colours() -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))


def print_json(value: object) -> None:
    """Print one value as one line of JSON."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")


def print_table(
    columns: Iterable[str],
    rows: Iterable[Iterable[object]],
    *,
    right: Iterable[str] = (),
    styles: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Print rows under column heads.

    Args:
        columns: the heads.
        rows: their cells.
        right: heads of columns that hold numbers.
        styles: style of a cell by its text.
    """
    lines = table_lines(
        list(columns),
        [[cell_text(value) for value in row] for row in rows],
        right=right,
        width=_width(),
        rule=_rule(),
        paint=lambda padded, text: styled(padded, styles.get(text, "")),
    )
    sys.stdout.write("".join(f"{line}\n" for line in [*lines, ""]))


def print_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one pair a line."""
    lines = facts_lines(
        {name: cell_text(value) for name, value in facts.items()},
        width=_width(),
        paint=lambda padded, _: styled(padded, "name"),
    )
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _width() -> int | None:
    """Columns of the terminal; a file or a pipe has none: each row is a line, for scripts."""
    if "COLUMNS" in os.environ or sys.stdout.isatty():
        return get_terminal_size().columns
    return None


def _rule() -> str:
    """What lines are made of, in the encoding of standard output."""
    try:
        "\u2500".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "-"
    return "\u2500"


def size_text(size: int) -> str:
    """Bytes as people read them: ``64.0 MiB``."""
    value = float(size)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def time_text(timestamp_ms: int | None) -> str:
    """A Unix time in local time, to the millisecond; a dash for none."""
    if timestamp_ms is None:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000)  # noqa: DTZ006 - for people
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
    return moment.isoformat(" ", "milliseconds")


def printable(body: bytes, kept: str = "") -> str:
    """A body for a terminal: what is no text, and every control character, is escaped.

    Args:
        body: any bytes.
        kept: control characters that stay, such as line ends.
    """
    text = body.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(
        letter
        if letter.isprintable() or letter in kept
        else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


def for_json(message: MessageExt) -> dict[str, Any]:
    """A message as `export` writes it, with the plain body beside a compressed one."""
    from rmqcore.transfer.export import body_fields, message_fields  # noqa: PLC0415

    fields = message_fields(message)
    if message.sys_flag & SysFlag.COMPRESSED:
        fields |= body_fields("decompressed_body", message.decompressed_body())
    return fields


def print_message(message: MessageExt, *, as_json: bool, long: bool) -> None:
    """Print one message: its body's bytes, with ``long`` one line of text, or a line of JSON.

    Args:
        message: whose body is printed unpacked.
        as_json: a line of JSON, which wins over ``long``.
        long: a line of text with time, queue, offsets, tags and keys in front of the body.
    """
    if as_json:
        print_json(for_json(message))
        return
    if long:
        where = f"{message.topic}/{message.queue_id}@{message.queue_offset}"
        words = [time_text(message.store_timestamp_ms), where, f"phy={message.phy_offset}"]
        words += [f"tags={message.tags}"] if message.tags else []
        words += [f"keys={','.join(message.keys)}"] if message.keys else []
        words.append(printable(message.decompressed_body()))
        sys.stdout.write("  ".join(words) + "\n")
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(message.decompressed_body() + b"\n")
