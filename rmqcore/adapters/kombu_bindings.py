"""Bindings of kombu's exchanges as entries of a table: their keys, their values, their ranges."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, TypedDict

from kombu.utils.json import loads

#: Stands between the parts of a binding's key; kombu's names have no such character.
SEPARATOR: Final = "\0"


class Range(TypedDict):
    """A range of keys of a table."""

    first: bytes
    last: bytes


def binding_key(exchange: str, queue: str, routing_key: str) -> bytes:
    """The key of a binding."""
    return SEPARATOR.join((exchange, queue, routing_key)).encode()


@lru_cache(maxsize=4096)
def binding_of(value: bytes) -> tuple[str, str | None, str]:
    """The (routing key, pattern, queue) that a binding's value says."""
    routing_key, pattern, queue = loads(value)
    return routing_key, pattern, queue


def bindings_from(exchange: str) -> Range:
    """The range of the bindings of an exchange."""
    return {"first": f"{exchange}\0".encode(), "last": f"{exchange}\1".encode()}
