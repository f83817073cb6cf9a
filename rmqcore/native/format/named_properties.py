"""The properties that a message has as attributes: one table, which a new one is added to.

Of a row there come, by ``scripts/named_properties.py``, an argument of `Message` and of a put, and
an attribute of a message, put, stored or received. In the record it is a property as any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from rmqcore.arguments import properties_of, text, whole_number
from rmqcore.errors import MessageIllegalError


class NamedProperty(NamedTuple):
    """One row.

    Attributes:
        attribute: its name in Python.
        name: its name in the record.
        kind: str; or int, which the record has as a decimal number of at most 18 digits.
        words: what it says of a message.
    """

    attribute: str
    name: str
    kind: type[str] | type[int]
    words: str


NAMED: Final = (
    NamedProperty(
        "expires_ms", "EXPIRES_MS", int, "Unix milliseconds from which on it is of no use."
    ),
    NamedProperty(
        "sharding_key", "__SHARDINGKEY", str, "messages with the same one stay in order."
    ),
)
_ROWS: Final = {each.attribute: each for each in NAMED}
#: A longer number is none that 64 bits hold for certain.
_DIGITS_MAX: Final = 18


def with_named(properties: Mapping[str, str] | None, **values: object) -> dict[str, str]:
    """Properties, and what the arguments of `NAMED` say.

    Args:
        properties: further ones.
        values: by attribute; None for none.

    Raises:
        ArgumentError: a value is of another type than its row says.
        MessageIllegalError: one is among the properties, too.
    """
    found = {} if properties is None else dict(properties_of(properties))
    for attribute, value in values.items():
        if value is None:
            continue
        row = _ROWS[attribute]
        if row.name in found:
            raise MessageIllegalError(
                f"{row.name!r} is given as an argument and as a property; keep one"
            )
        if row.kind is str:
            found[row.name] = text(attribute, value)
        else:
            found[row.name] = str(whole_number(attribute, value, 0, 10**_DIGITS_MAX - 1))
    return found


def number_of(properties: Mapping[str, str] | None, name: str) -> int | None:
    """The value of a property as a number; None where there is none, or no number.

    Args:
        properties: of a message.
        name: in the record.
    """
    digits = (properties or {}).get(name, "")
    plain = digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX
    return int(digits) if plain else None


def text_of(properties: Mapping[str, str] | None, name: str) -> str | None:
    """The value of a property; None where there is none.

    Args:
        properties: of a message.
        name: in the record.
    """
    return (properties or {}).get(name)
