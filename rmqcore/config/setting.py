"""One setting: how it is declared, converted from text, and checked by itself.

Relations between settings, and their names, are `rmqcore.config`'s.
"""

from __future__ import annotations

import dataclasses
import re
from enum import StrEnum
from functools import cache
from typing import Any, Final

from rmqcore.errors import ConfigError

_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_QUEUE_TYPES: Final = ("SimpleCQ", "BatchCQ")
_PORT_MAX: Final = 65_535


def setting(
    default: object,
    java: str | None = None,
    *,
    kind: type | None = None,
    least: float | None = None,
    most: float | None = None,
    dynamic: bool = False,
) -> Any:
    """Declare a field of the configuration.

    Args:
        default: its value when nothing is given, and, unless ``kind`` says otherwise, its type.
        java: RocketMQ's name of it; None when RocketMQ has none.
        kind: its type.
        least: the smallest number accepted.
        most: the largest number accepted.
        dynamic: whether it may change while the store is open.
    """
    metadata = {
        "java": java,
        "kind": kind or type(default),
        "least": least,
        "most": most,
        "dynamic": dynamic,
    }
    return dataclasses.field(default=default, metadata=metadata)


@cache
def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Delays in milliseconds of a ``messageDelayLevel`` text such as ``1s 5s 1m``.

    Raises:
        ConfigError: a part is not a number and one of s, m, h, d.

    Source: RocketMQ broker/schedule/ScheduleMessageService.java, parseDelayLevel.
    """
    parts = text.split()
    levels = [re.fullmatch(r"(\d{1,9})([smhd])", part, re.ASCII) for part in parts]
    if not parts or not all(levels):
        raise ConfigError(
            "message_delay_level", text, "delays such as 10s, 5m, 2h or 1d, separated by blanks"
        )
    return tuple(int(level[1]) * _UNIT_MS[level[2]] for level in levels if level)


@cache
def parse_delete_when(text: str) -> frozenset[int]:
    """Hours of a ``deleteWhen`` text such as ``04`` or ``04;16``.

    Raises:
        ConfigError: a part is not an hour of the day.
    """
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if not parts or not all(re.fullmatch(r"[01]?\d|2[0-3]", part, re.ASCII) for part in parts):
        raise ConfigError("delete_when", text, "hours from 00 to 23, separated by ;")
    return frozenset(int(part) for part in parts)


def checked_value(item: dataclasses.Field[Any], value: object) -> Any:
    """Convert one value to the setting's type and check its range.

    Args:
        item: a field that `setting` has declared.
        value: of the field's type, or a text that stands for one, as in ``broker.conf``.

    Raises:
        ConfigError: the type, the range or the grammar of the value is wrong.
    """
    name = item.name
    if value is None and item.default is None:
        return None
    converted = _converted(name, item.metadata["kind"], value)
    least, most = item.metadata["least"], item.metadata["most"]
    if least is not None and converted < least:
        raise ConfigError(name, value, f"at least {least}")
    if most is not None and converted > most:
        raise ConfigError(name, value, f"at most {most}")
    if name == "message_delay_level":
        parse_delay_levels(converted)
    elif name == "delete_when":
        parse_delete_when(converted)
    elif name == "store_host":
        _check_host(converted)
    return converted


def _converted(name: str, kind: type, value: object) -> Any:
    if isinstance(value, str) and kind is not str:
        value = _parsed(name, kind, value.strip())
    if kind is tuple:
        return _queue_types(name, value)
    if type(value) is not kind:
        raise ConfigError(name, value, f"a value of type {kind.__name__}")
    return value


def _parsed(name: str, kind: type, text: str) -> object:
    """A value from text, as a properties file or a command line brings it."""
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind is int and re.fullmatch(r"[+-]?\d{1,19}", text, re.ASCII):
        return int(text)
    if issubclass(kind, StrEnum):
        if text in tuple(kind):
            return kind(text)
        raise ConfigError(name, text, f"one of {', '.join(kind)}")
    rules = {bool: "true or false", int: "a whole number"}
    raise ConfigError(name, text, rules.get(kind, f"a value of type {kind.__name__}"))


def _queue_types(name: str, value: Any) -> tuple[tuple[str, str], ...]:
    """Pairs (topic, queue type) from a mapping, or from such pairs."""
    rule = f"a mapping from topic to one of {_QUEUE_TYPES}"
    try:
        types = dict(value)
    except (TypeError, ValueError):
        raise ConfigError(name, value, rule) from None
    if any(queue_type not in _QUEUE_TYPES for queue_type in types.values()):
        raise ConfigError(name, value, rule)
    return tuple(types.items())


def _check_host(host: str) -> None:
    address = r"(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9A-Fa-f:.]+\])"
    match = re.fullmatch(address + r":(\d{1,5})", host, re.ASCII)
    if match is None or int(match[1]) > _PORT_MAX:
        raise ConfigError("store_host", host, 'such as "10.1.2.3:10911" or "[::1]:10911"')
