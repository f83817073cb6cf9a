"""What commands print: tables for people, JSON for machines, messages for both.

Standard output carries the answer and nothing else; progress and notes go to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from rmqcore.message import MessageExt
from rmqcore.native.format._numbers import SysFlag
from rmqcore.transfer.export import body_fields, message_fields


class _Console(Console):
    """Leaves it to the command what a closed pipe means."""

    def on_broken_pipe(self) -> None:
        """Called while a BrokenPipeError is handled; rich would end the process with code 1."""
        raise BrokenPipeError


CONSOLE = _Console(highlight=False)
NOTES = _Console(stderr=True, highlight=False, soft_wrap=True)
#: A table that is not for a terminal is this many columns wide, so that no cell is cut.
_WIDE = 10_000
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def print_json(value: object) -> None:
    """Print one value as one line of JSON."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")


def print_table(
    columns: Iterable[str],
    rows: Iterable[Iterable[object]],
    *,
    title: str | None = None,
    right: Iterable[str] = (),
) -> None:
    """Print rows under column heads; columns named in ``right`` hold numbers."""
    numbers = set(right)
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    _print_wide(table)


def print_facts(facts: Mapping[str, object], *, title: str | None = None) -> None:
    """Print names and values, one pair a line."""
    table = Table(
        box=None, show_header=False, title=title, title_justify="left", title_style="bold"
    )
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, _cell(value))
    _print_wide(table)


def _print_wide(table: Table) -> None:
    """Print a table; a file or a pipe gets each row in one line, which scripts can search."""
    console = CONSOLE
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = _Console(file=console.file, width=_WIDE, highlight=False)
    console.print(table)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


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
    fields = message_fields(message)
    if message.sys_flag & SysFlag.COMPRESSED:
        fields |= body_fields("decompressed_body", message.decompressed_body())
    return fields


def print_message(message: MessageExt, *, as_json: bool, long: bool) -> None:
    """Print one message: its body's bytes, with ``long`` one line of text, or a line of JSON."""
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
