"""Checks of call arguments; an error names the argument and what would be accepted."""

from __future__ import annotations

import math
import numbers
import operator
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from rmqcore.errors import ArgumentError, MessageIllegalError

#: larger than any number that means something, and small enough for a float
UNBOUNDED = 1 << 200


def whole_number(name: str, value: object, least: int = -UNBOUNDED, most: int = UNBOUNDED) -> int:
    """An integer argument as an int; ``numpy.int64`` and its like are accepted.

    Args:
        name: the argument's name.
        value: what was given.
        least: the smallest number accepted.
        most: the largest number accepted.

    Raises:
        ArgumentError: it is no whole number, or out of range.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(name, value, "a whole number") from None
    if not least <= number <= most:
        raise ArgumentError(name, value, _range(least, most))
    return number


def _range(least: int, most: int) -> str:
    if most < UNBOUNDED:
        return f"a whole number from {least} to {most}"
    return "a whole number of fewer digits" if least == -UNBOUNDED else f"{least} or more"


def real_number(name: str, value: object, rule: str = "a number") -> float:
    """A number argument as a float; ``numpy.float32`` and fractions are accepted.

    Args:
        name: the argument's, for the error.
        value: what was given; one that is too large for a float is infinite.
        rule: what would be accepted, for the error.

    Raises:
        ArgumentError: it is no number.
    """
    if not isinstance(value, numbers.Real):
        raise ArgumentError(name, value, rule)
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def text(name: str, value: object) -> str:
    """A str argument as a plain str; subclasses such as an enum are accepted.

    Args:
        name: the argument's, for the error.
        value: what was given.

    Raises:
        ArgumentError: it is none.
    """
    if type(value) is str:
        return value
    if not isinstance(value, str):
        raise ArgumentError(name, value, "a str")
    # an enum has a hash and a format of its own
    return str.__str__(value)


def directory_path(name: str, value: object) -> Path:
    """The path of a directory; an empty one is none, such as that of a setting that is missing.

    Args:
        name: the argument's, for the error.
        value: what was given.

    Raises:
        ArgumentError: it is no path, or empty.
    """
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ArgumentError(name, value, "the path of a directory; '.' is the current one")
    return Path(value)


def body_view(body: object) -> memoryview:
    """The bytes of a message's body, of whatever buffer.

    Raises:
        MessageIllegalError: text; what is no contiguous buffer; an array of Python's objects, whose
            bytes are addresses.
    """
    if isinstance(body, str):
        raise MessageIllegalError("the body is a str; encode it to bytes first")
    try:
        view = memoryview(body)  # type: ignore[arg-type]
        # an empty view of several dimensions cannot be cast
        plain = view.cast("B") if view.nbytes else memoryview(b"")
    except (TypeError, BufferError, ValueError) as error:
        raise MessageIllegalError(f"the body is no contiguous buffer of bytes: {error}") from None
    if "O" in view.format:
        raise MessageIllegalError("the body is an array of objects, which has their addresses only")
    return plain


def keys_of(keys: object) -> tuple[object, ...]:
    """Look-up keys as a tuple.

    Raises:
        ArgumentError: bytes, or what has no elements.
    """
    if isinstance(keys, str):
        return (keys,)
    if isinstance(keys, Iterable) and not isinstance(keys, bytes | bytearray | memoryview):
        return tuple(keys)
    raise ArgumentError("keys", keys, "a str, or several in a tuple or list")


def texts_of(name: str, values: object) -> list[str]:
    """Names as plain strs; a str is one name, and not its letters.

    Args:
        name: the argument's, for the error.
        values: what was given.

    Raises:
        ArgumentError: one is no str, or there are no elements.
    """
    if isinstance(values, str):
        return [text(name, values)]
    if not isinstance(values, Iterable):
        raise ArgumentError(name, values, "a str, or several in a tuple or list")
    return [text(name, each) for each in values]


def properties_of(properties: object) -> dict[str, str]:
    """Properties as a dict.

    Raises:
        ArgumentError: neither a mapping nor pairs.
    """
    try:
        return dict(properties)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        raise ArgumentError("properties", properties, "a mapping of str to str") from None


def refuse_unknown(given: Iterable[str], known: Iterable[str]) -> NoReturn:
    """Refuse an argument that the call does not have.

    Args:
        given: names that are not known.
        known: names that are.

    Raises:
        ArgumentError: names the first one and the nearest right name.
    """
    import difflib  # noqa: PLC0415 - for a mistake only

    name = next(iter(given))
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ArgumentError(name, ..., f"is no argument of this call{hint}")
