"""The JSON dialect of RocketMQ's configuration files and of its bodies on the wire (fastjson).

Two things differ from standard JSON: integer keys of a map stand without quotes, and a key may be
an object. Those forms and standard JSON are read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any, NoReturn

_encode = json.JSONEncoder(ensure_ascii=False).encode
_encode_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
#: One token: a string, a brace or a number; and whatever is behind it and is none. Each is matched
#: whole or not at all, so that no character is looked at twice; a string needs no end, or every
#: quote of a text without ends would search for one.
_TOKEN = re.compile(
    r'("[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{}]|-?[0-9]++)[^"{}0-9-]*+(?:-(?![0-9])[^"{}0-9-]*+)*+',
    re.DOTALL,
)
#: A string; one without an end goes to the text's.
_STRING = re.compile(r'("[^"\\]*+(?:\\.[^"\\]*+)*+"?)', re.DOTALL)
#: A key that is a number, outside of strings.
_NUMBER_KEY = re.compile(r"(?<![0-9])(-?[0-9]++)(?=\s*+:)")
#: The end of a key that is an object, outside of strings.
_OBJECT_KEY = re.compile(r"\}\s*+:")
#: Stands where a string was; no JSON has it outside of one.
_CUT = "\0"
#: What a key begins with that is no text.
_NO_TEXT = re.compile(r"\s*+[-0-9{]")
_SCALARS = frozenset((str, int, bool))
#: What follows a key.
_COLON = re.compile(r"\s*+:")


class FormattedJson(str):
    """What `format_java_json` has written for the depth where it stands, and takes as it is."""

    __slots__ = ()


def parse_json(text: str) -> Any:
    """Read standard JSON.

    Raises:
        ValueError: the text is none, nests too deeply, or has a number that 4,300 digits or a
            double cannot hold.
    """
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parse_java_json(text: str) -> Any:
    """Read standard JSON, or what fastjson writes; keys come out as str, objects as their text.

    Takes time in proportion to the text's size, whatever it holds; ten times as long where keys are
    objects.

    Raises:
        ValueError: the text is neither, or as in `parse_json`.
    """
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        if _NO_TEXT.match(text, error.pos) is None:
            raise
        return parse_json(_with_quoted_keys(text))


def _with_quoted_keys(text: str) -> str:
    """Make standard JSON of fastjson's: quote the keys that are numbers or plain objects."""
    parts = _STRING.split(text)
    outside = _CUT.join(parts[::2])
    if _OBJECT_KEY.search(outside) is not None:
        return _with_quoted_objects(text)
    around = _NUMBER_KEY.split(outside)
    around[1::2] = [f'"{number}"' for number in around[1::2]]
    quoted = "".join(around).split(_CUT)
    if len(quoted) == len(parts[::2]):
        parts[::2] = quoted
    return "".join(parts)


def _with_quoted_objects(text: str) -> str:
    """As `_with_quoted_keys`, token by token."""
    keys: list[tuple[int, int]] = []
    opened = -1  # where the object begins that holds no other so far
    for token in _TOKEN.finditer(text):
        begin, end = token.span(1)
        kind = text[begin]
        if kind == "{":
            opened = begin
            continue
        if kind == "}":
            begin, opened = opened, -1
        if kind == '"' or begin < 0 or _COLON.match(text, end) is None:
            continue
        while keys and keys[-1][0] > begin:  # keys of an object that is a key itself
            keys.pop()
        keys.append((begin, end))
    parts, at = [], 0
    for begin, end in keys:
        parts += [text[at:begin], json.dumps(text[begin:end])]
        at = end
    return "".join([*parts, text[at:]])


def format_java_json(value: object, depth: int = 0) -> str:
    """Write a value as fastjson's pretty form does: tabs, no blank after a colon.

    Args:
        value: mappings with str or int keys, lists, str, int, float, bool, `FormattedJson`. A
            mapping's entries keep their order; those whose value is None are left out, as Java's
            null fields are.
        depth: tabs in front of the lines of the value.

    Source: what RocketMQ 5.5.0 writes through fastjson2; 4.x and 5.3 (fastjson 1) read it, too.
    """
    if type(value) in _SCALARS:  # most values are: `Mapping` is slow to ask
        return _format_plain(value)
    if isinstance(value, Mapping):
        return _format_mapping(value, depth)
    if isinstance(value, list | tuple):
        return _format_list(list(value), depth)
    return value if isinstance(value, FormattedJson) else _format_plain(value)


def format_compact_java_json(value: object, *, quote_keys: bool = False) -> str:
    """Write a value as fastjson's compact form does: without any white space.

    Args:
        value: as in `format_java_json`; a mapping's entries keep their order, those whose value is
            None are left out. A tuple of (name, value) pairs as a key is written as an object.
        quote_keys: write integer keys as standard JSON wants them.

    Source: what RocketMQ 4.9.7 and 5.5.0 write through RemotingSerializable.
    """
    if type(value) in _SCALARS:
        return _format_plain(value)
    if isinstance(value, Mapping):
        parts = []
        for key, entry in value.items():
            if entry is None:
                continue
            if type(key) is type(entry) is int and not quote_keys:  # most entries are, of offsets
                parts.append(f"{key}:{entry}")
                continue
            name = _format_key(str(key) if quote_keys and isinstance(key, int) else key)
            if type(entry) in _SCALARS:
                parts.append(f"{name}:{_format_plain(entry)}")
            else:
                parts.append(f"{name}:{format_compact_java_json(entry, quote_keys=quote_keys)}")
        return "{" + ",".join(parts) + "}"
    if isinstance(value, list | tuple):
        parts = [format_compact_java_json(entry, quote_keys=quote_keys) for entry in value]
        return "[" + ",".join(parts) + "]"
    return _format_plain(value)


def format_plain_object(value: dict[str, object]) -> str:
    """As `format_compact_java_json`, quicker, where both are standard JSON.

    Args:
        value: its keys are texts; its values texts, numbers, booleans or lists of those.
    """
    return _encode_compact(value)


def _format_plain(value: object) -> str:
    if type(value) is str:
        return encode_basestring(value)
    if type(value) is int:
        return str(value)
    if type(value) is bool:
        return "true" if value else "false"
    return _encode(value)


def _format_mapping(value: Mapping[Any, object], depth: int) -> str:
    inner = "\n" + "\t" * (depth + 1)
    parts = []
    for key, entry in value.items():
        if type(key) is type(entry) is int:  # most are, of offsets
            parts.append(f"{inner}{key}:{entry}")
        elif type(entry) in _SCALARS:
            parts.append(f"{inner}{_format_key(key)}:{_format_plain(entry)}")
        elif entry is not None:
            parts.append(f"{inner}{_format_key(key)}:{format_java_json(entry, depth + 1)}")
    if not parts:
        return "{}"
    return "{" + ",".join(parts) + "\n" + "\t" * depth + "}"


def _format_key(key: str | int | tuple[tuple[str, object], ...]) -> str:
    if type(key) is str:
        return encode_basestring(key)
    if isinstance(key, tuple):
        return format_compact_java_json(dict(key))
    return str(key) if isinstance(key, int) else _encode(key)


def _format_list(value: list[object], depth: int) -> str:
    inner = "\n" + "\t" * (depth + 1)
    if not value:
        return "[]"
    parts = [inner + format_java_json(entry, depth + 1) for entry in value]
    return "[" + ",".join(parts) + "\n" + "\t" * depth + "]"


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is beyond all that Java's double can hold")
    return number
