"""What a topic's configuration may hold: nothing that its file cannot be read with again."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rmqcore.arguments import text, whole_number
from rmqcore.errors import ArgumentError
from rmqcore.java.json import format_java_json, parse_java_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance

Config = TypeVar("Config", bound="DataclassInstance")
_NUMBERS: Final = ("read_queue_nums", "write_queue_nums", "perm", "topic_sys_flag")
#: RocketMQ reads the numbers of a topic as Java's int, whose smallest one this is.
_LEAST: Final = -(1 << 31)
_MOST: Final = (1 << 31) - 1


def checked_topic(config: Config) -> Config:
    """A `TopicConfig` with plain numbers and texts.

    Raises:
        ArgumentError: a field is none, or holds what JSON does not.
    """
    fields: dict[str, Any] = {
        name: whole_number(name, getattr(config, name), _LEAST, _MOST) for name in _NUMBERS
    }
    for name in ("topic_name", "topic_filter_type"):
        fields[name] = text(name, getattr(config, name))
    order = getattr(config, "order")  # noqa: B009 - of what is no other class's here
    if type(order) is not bool:
        raise ArgumentError("order", order, "True or False")
    for name in ("attributes", "other"):
        fields[name] = _as_json(name, getattr(config, name))
    return dataclasses.replace(config, **fields)


def _as_json(name: str, value: Mapping[str, object]) -> dict[str, object]:
    rule = "a dict that JSON can hold, with texts as its keys"
    try:
        kept = dict(value)
        parse_java_json(format_java_json(kept))
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(name, value, f"{rule}; {error}") from error
    if not all(isinstance(key, str) for key in kept):
        raise ArgumentError(name, value, rule)
    return kept
