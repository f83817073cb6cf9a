"""The JSON dialect of RocketMQ's configuration files and of its bodies on the wire (fastjson).

Two things differ from standard JSON: integer keys of a map stand without quotes, and a key may be
an object. Those forms and standard JSON are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

_encode = json.JSONEncoder(ensure_ascii=False).encode
#: an end is not asked for, else each quote of a text without ends looks for its own
_STRING = r'"(?:[^"\\]|\\.)*+"?'
#: a string; else a key that standard JSON does not know: a number, or an object that holds none
_STRING_OR_BARE_KEY = re.compile(
    rf'{_STRING}|(-?\d+|\{{(?:[^{{}}"]|{_STRING})*+\}})(?=\s*:)', re.DOTALL
)


class FormattedJson(str):
    """What `format_java_json` has written for the depth where it stands, and takes as it is."""

    __slots__ = ()


def parse_java_json(text: str) -> Any:
    """Read standard JSON, or what fastjson writes; keys come out as str, objects as their text.

    Raises:
        ValueError: the text is neither.
    """
    standard = _STRING_OR_BARE_KEY.sub(
        lambda token: token[0] if token[1] is None else json.dumps(token[1]), text
    )
    try:
        return json.loads(standard, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def format_java_json(value: object, depth: int = 0) -> str:
    """Write a value as fastjson's pretty form does: tabs, no blank after a colon.

    Args:
        value: mappings with str or int keys, lists, str, int, float, bool, `FormattedJson`. A
            mapping's entries keep their order; those whose value is None are left out, as Java's
            null fields are.
        depth: tabs in front of the lines of the value.

    Source: what RocketMQ 5.5.0 writes through fastjson2; 4.x and 5.3 (fastjson 1) read it, too.
    """
    if type(value) is str or type(value) is int:  # most values are: `Mapping` is slow to ask
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
    if type(value) is str or type(value) is int:
        return _format_plain(value)
    if isinstance(value, Mapping):
        parts = [
            f"{_format_key(str(key) if quote_keys and isinstance(key, int) else key)}:"
            f"{format_compact_java_json(entry, quote_keys=quote_keys)}"
            for key, entry in value.items()
            if entry is not None
        ]
        return "{" + ",".join(parts) + "}"
    if isinstance(value, list | tuple):
        parts = [format_compact_java_json(entry, quote_keys=quote_keys) for entry in value]
        return "[" + ",".join(parts) + "]"
    return _format_plain(value)


def _format_plain(value: object) -> str:
    if type(value) is int:
        return str(value)
    return _encode(value)


def _format_mapping(value: Mapping[Any, object], depth: int) -> str:
    inner = "\n" + "\t" * (depth + 1)
    parts = [
        f"{inner}{_format_key(key)}:{format_java_json(entry, depth + 1)}"
        for key, entry in value.items()
        if entry is not None
    ]
    if not parts:
        return "{}"
    return "{" + ",".join(parts) + "\n" + "\t" * depth + "}"


def _format_key(key: str | int | tuple[tuple[str, object], ...]) -> str:
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
