"""Reading MetaQ's ini file: sections, and numbers written as small expressions.

Knows the syntax, not the keys.
"""

from __future__ import annotations

import ast
import configparser
from pathlib import Path

from rmqcore.errors import ConfigError

_MAX_EXPRESSION = 200


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
    """Split a text into sections of keys and values; keys keep their case.

    Lines beginning with ``#`` or ``;`` are comments. Blank values stay and are empty.

    Raises:
        ConfigError: a line is no section, setting or comment, or a setting has no section.
    """
    parser = configparser.RawConfigParser(
        delimiters=("=", ":"),
        comment_prefixes=("#", ";"),
        strict=False,
        allow_no_value=False,
        default_section="",
        empty_lines_in_values=False,
    )
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    flat = "\n".join(line.strip() for line in text.splitlines())  # an indent continues no value
    try:
        parser.read_string(flat)
    except configparser.Error as error:
        lines = [number for number, _ in getattr(error, "errors", ())]
        line = lines[0] if lines else getattr(error, "lineno", 0)
        rule = "[section], key=value, or a comment after # or ;"
        raise ConfigError(f"line {line}", str(error).splitlines()[0], rule) from None
    return {name: dict(parser.items(name)) for name in parser.sections()}


def evaluate_int(key: str, text: str, low: int, high: int) -> int:
    """Compute a whole number such as ``1024*1024``.

    ``+ - * / %`` and brackets over whole numbers, dividing towards zero as Java does.

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
