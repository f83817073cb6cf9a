"""Rows laid out for a width: names and numbers stay whole, whatever their length.

Pure text; nothing here looks at a terminal.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

#: what a cell looks like: its padded text, and its bare one
Painter: TypeAlias = Callable[[str, str], str]

_GAP: Final = "  "
#: A last column that would be narrower is not wrapped.
_WRAPPED_MIN: Final = 20
_WIDE: Final = frozenset("WF")


def cell_text(value: object) -> str:
    """A value as people read it: numbers with commas, yes and no; no control character passes."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:,}" if isinstance(value, int) else str(value)
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


def text_width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in _WIDE)
        for letter in text
    )


def table_lines(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[str] = (),
    width: int | None = None,
    rule: str = "-",
    paint: Painter | None = None,
) -> list[str]:
    """Lay rows out under their heads.

    Where they are too wide, heads take several lines; then the last column does, if it holds
    sentences; then each row becomes a line of its names above a line of its numbers.

    Args:
        heads: of each column.
        rows: the cells' texts.
        right: heads of columns that hold numbers.
        width: columns of the terminal; None for no limit.
        rule: what the line below the heads is made of.
        paint: colours a cell.
    """
    cells = [list(row) for row in rows]
    numbers = set(right)
    widths = [max((text_width(row[at]) for row in cells), default=0) for at in range(len(heads))]
    one_line = [max(size, text_width(head)) for size, head in zip(widths, heads, strict=True)]
    if width is not None and _total(one_line) > width:
        one_line = [
            max(size, *map(text_width, head.split() or [""]))
            for size, head in zip(widths, heads, strict=True)
        ]
        over = _total(one_line) - width
        if over > 0:
            last = one_line[-1] - over
            sentences = heads[-1] not in numbers and any(" " in row[-1] for row in cells)
            if not sentences or last < _WRAPPED_MIN:
                return _stacked(heads, cells, numbers, width)
            one_line[-1] = last
    painted = paint or _plain
    turned = [head in numbers for head in heads]
    lines = _row_lines(heads, one_line, turned, _plain)
    lines.append(" " + rule * (_total(one_line) - 1))
    for row in cells:
        lines += _row_lines(row, one_line, turned, painted)
    return [line.rstrip() for line in lines]


def facts_lines(
    facts: Mapping[str, str], *, width: int | None = None, paint: Painter | None = None
) -> list[str]:
    """Names and values, a pair a line; a value that is too long goes on below itself.

    Args:
        facts: value by name.
        width: columns of a line, which names and unbroken words may pass; None for no end.
        paint: given a padded text and the bare one, returns what is printed; None changes nothing.
    """
    painted = paint or _plain
    names = max(map(text_width, facts), default=0)
    lines = []
    for name, value in facts.items():
        room = None if width is None else max(_WRAPPED_MIN, width - names - 3)
        first, *others = _wrapped(value, room)
        lines.append(f" {painted(_padded(name, names), name)}{_GAP}{first}".rstrip())
        lines += [" " * (names + 3) + other for other in others]
    return lines


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * len(widths)


def _row_lines(
    row: Sequence[str], widths: Sequence[int], turned: Sequence[bool], paint: Painter
) -> list[str]:
    """The lines of one row; a cell that is too long takes several, the first is at the top."""
    columns = [_wrapped(text, size) for text, size in zip(row, widths, strict=True)]
    lines = []
    for number in range(max(map(len, columns), default=0)):
        texts = [column[number] if number < len(column) else "" for column in columns]
        lines.append(
            _GAP
            + _GAP.join(
                paint(_padded(text, size, right=right), text)
                for text, size, right in zip(texts, widths, turned, strict=True)
            )
        )
    return lines


def _stacked(
    heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: set[str], width: int
) -> list[str]:
    lines = []
    for row in rows:
        named = [
            text for head, text in zip(heads, row, strict=True) if head not in numbers and text
        ]
        counted = [
            f"{head} {text}" for head, text in zip(heads, row, strict=True) if head in numbers
        ]
        lines += _packed(named, _GAP, width - 2, _GAP)
        lines += _packed(counted, ", ", width - 4, _GAP * 2)
    return lines


def _packed(texts: Iterable[str], between: str, width: int, indent: str) -> list[str]:
    """Texts one behind the other in as many lines as they need; each stays whole."""
    lines: list[str] = []
    for text in texts:
        joined = f"{lines[-1]}{between}{text}" if lines else text
        if lines and text_width(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(text)
    return [indent + line for line in lines]


def _wrapped(text: str, width: int | None) -> list[str]:
    """A text in lines of a width; words stay whole."""
    if width is None or text_width(text) <= width:
        return [text]
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _padded(text: str, width: int, *, right: bool = False) -> str:
    blanks = " " * (width - text_width(text))
    return blanks + text if right else text + blanks


def _plain(padded: str, _: str) -> str:
    return padded
