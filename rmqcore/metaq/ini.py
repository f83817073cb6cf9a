"""Reading MetaQ's ini file: sections, and numbers written as small expressions.

Knows the syntax, not the keys.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from rmqcore.errors import ConfigError

_MAX_EXPRESSION = 200
#: The characters that Java's `String.trim` removes.
_BLANK = "".join(map(chr, range(0x21)))
_LINE_END = re.compile(r"\r\n|\r|\n")
_OPERATOR = re.compile("[=:]")
_ESCAPE = re.compile(r"\\(?:u(?P<code>[0-9A-Fa-f]{4})|(?P<letter>.?))", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "f": "\f", "b": "\b", "r": "\r"}


def read_text(path: Path) -> str:
    """Read an ini file: UTF-8, or GBK as the original's samples are written.

    Raises:
        ConfigError: it is neither.
    """
    content = path.read_bytes()
    for encoding in ("utf-8-sig", "gb18030"):
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise ConfigError(str(path), content[:20], "a text in UTF-8 or GBK")


def parse_ini(text: str) -> dict[str, dict[str, str]]:
    r"""Split a text into sections of keys and values; keys keep their case.

    As ini4j 0.5.1 reads it, on which MetaQ stands: a line that begins with ``#`` or ``;`` is a
    comment; one that ends in a backslash goes on in the next; ``\t``, ``\n``, ``\f``, ``\b``,
    ``\r`` and ``\uXXXX`` are characters, and any other character behind a backslash is itself. A
    key or section that comes again adds to the first, the last value counts. Blank values stay
    and are empty.

    Differs: ini4j drops a last line that ends in a backslash.

    Raises:
        ConfigError: a line is no section, setting or comment, a setting has no section, or the
            text ends inside a line that goes on.
    """
    sections: dict[str, dict[str, str]] = {}
    section: dict[str, str] | None = None
    for number, line in _logical_lines(text):
        operator = _OPERATOR.search(line)
        name = ""
        if line.startswith("[") and line.endswith("]"):
            name = _unescape(number, line[1:-1])
            section = sections.setdefault(name, {})
        elif operator is not None and section is not None:
            name = _unescape(number, line[: operator.start()])
            section[name] = _unescape(number, line[operator.end() :])
        if not name:
            rule = "[section], key=value in a section, or a comment after # or ;"
            raise ConfigError(f"line {number}", line, rule)
    return sections


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments and blank ones, continued ones as one; with their numbers."""
    begun, begun_at = "", 0
    for number, physical in enumerate(_LINE_END.split(text), 1):
        line = physical.strip(_BLANK)
        if not line or (not begun_at and line[0] in "#;"):
            continue
        begun, begun_at = begun + line, begun_at or number
        if (len(begun) - len(begun.rstrip("\\"))) % 2:
            begun = begun[:-1]
            continue
        yield begun_at, begun
        begun, begun_at = "", 0
    if begun_at:
        raise ConfigError(f"line {begun_at}", begun, "a line behind one that ends in a backslash")


def _unescape(number: int, text: str) -> str:
    """Resolve backslashes, and trim."""

    def character(match: re.Match[str]) -> str:
        if match["code"] is not None:
            return chr(int(match["code"], 16))
        letter = match["letter"]
        if letter in {"", "u"}:
            raise ConfigError(f"line {number}", text, r"\uXXXX, or a character behind a backslash")
        return _ESCAPES.get(letter, letter)

    return _ESCAPE.sub(character, text.strip(_BLANK)).strip(_BLANK)


def evaluate_int(key: str, text: str, low: int, high: int) -> int:
    """Compute a whole number such as ``1024*1024``.

    ``+ - * / %`` and brackets over whole numbers, dividing towards zero as Java does.

    Args:
        key: its name, for errors.
        text: of the value.
        low: smallest number.
        high: largest number.

    Raises:
        ConfigError: the text is no such expression, or its value lies outside ``low..high``.
    """
    rule = f"a whole number from {low} to {high}, or + - * / % of such"
    try:
        value = _compute(ast.parse(text.strip()[:_MAX_EXPRESSION], mode="eval").body)
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
        raise ConfigError(key, text, rule) from None
    if not low <= value <= high or len(text.strip()) > _MAX_EXPRESSION:
        raise ConfigError(key, text, rule)
    return value


def evaluate_bool(key: str, text: str) -> bool:
    """Read ``true`` or ``false``.

    Args:
        key: its name, for errors.
        text: of the value; capitals do not matter.

    Raises:
        ConfigError: it is something else.
    """
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise ConfigError(key, text, "true or false")
    return value


def _compute(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_compute(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _compute(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _compute(left) + _compute(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _compute(left) - _compute(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _compute(left) * _compute(right)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _divide(_compute(left), _compute(right))
        case ast.BinOp(left=left, op=ast.Mod(), right=right):
            dividend, divisor = _compute(left), _compute(right)
            return dividend - divisor * _divide(dividend, divisor)
        case _:
            raise ValueError(ast.dump(node))


def _divide(dividend: int, divisor: int) -> int:
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient
