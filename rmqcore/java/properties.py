"""Java's ``.properties`` syntax, as ``java.util.Properties.load`` reads a ``broker.conf``.

Comments (``#``, ``!``), the separators ``=``, ``:`` and white space, continued lines, and escapes.
It knows no property by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rmqcore.errors import ConfigError

_LINE_END = re.compile(r"\r\n|\n|\r")
_WHITE = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNICODE_DIGITS = 4


def parse_properties(text: str) -> dict[str, str]:
    r"""Read the entries of a properties text; of a name given twice the last value counts.

    Values lose white space at both ends (RocketMQ's numbers fail on a trailing blank; here they
    are what the writer meant).

    Raises:
        ConfigError: a ``\uXXXX`` escape without four hexadecimal digits.

    Source: java.util.Properties, load.
    """
    return {name: value for name, value, _ in properties_by_line(text)}


def read_properties(path: Path) -> str:
    """The text of a properties file: UTF-8, or Latin-1 as Java takes it where it is no UTF-8.

    Raises:
        OSError: the file cannot be read.
    """
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def properties_by_line(text: str) -> Iterator[tuple[str, str, int]]:
    """Names and values in their order, each with the number of the line that it begins in.

    Raises:
        ConfigError: see `parse_properties`; its ``source`` is the number of the line.
    """
    for line, number in _logical_lines(text):
        name, value = _split(line)
        try:
            yield _unescape(name), _unescape(value).strip(), number
        except ConfigError as error:
            raise ConfigError(error.field, error.value, error.rule, str(number)) from None


def format_property(name: str, value: str) -> str:
    """One line ``name=value`` that `parse_properties` and Java read back, in ASCII.

    Args:
        name: as it is, not escaped: letters, digits, dots.
        value: any text; its line ends, backslashes and what is not ASCII are escaped.
    """
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    encoded = "".join(
        chr(unit) if unit < 0x7F else f"\\u{unit:04X}" for unit in _utf16_units(escaped)
    )
    return f"{name}={encoded}"


def _utf16_units(text: str) -> list[int]:
    raw = text.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]


def _logical_lines(text: str) -> Iterator[tuple[str, int]]:
    """Join continued lines, drop blank lines and comments; with the number of the first."""
    parts: list[str] = []
    begin = 0
    for number, natural in enumerate(_LINE_END.split(text), 1):
        line = natural.lstrip(_WHITE)
        if not parts:
            if not line or line[0] in "#!":
                continue
            begin = number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            parts.append(line[:-1])
            continue
        yield "".join([*parts, line]), begin
        parts = []
    if any(parts):
        yield "".join(parts), begin


def _split(line: str) -> tuple[str, str]:
    """Cut at the first separator that is not escaped."""
    at = 0
    while at < len(line) and line[at] not in "=:" + _WHITE:
        at += 2 if line[at] == "\\" else 1
    name, rest = line[:at], line[at:].lstrip(_WHITE)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_WHITE)
    return name, rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\" and at < len(text):
            char = text[at]
            at += 1
            if char == "u":
                digits = text[at : at + _UNICODE_DIGITS]
                if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
                    raise ConfigError("\\u", digits, "four hexadecimal digits after \\u")
                char = chr(int(digits, 16))
                at += _UNICODE_DIGITS
            else:
                char = _ESCAPES.get(char, char)
        elif char == "\\":
            continue
        out.append(char)
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
