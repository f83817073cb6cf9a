"""Names and times that are accepted: another is refused before anybody waits for it."""

from __future__ import annotations

import numbers
import re
from typing import Final

from rmqcore.errors import ArgumentError

#: A topic's name has at most this many characters.
TOPIC_MAX: Final = 127
#: A consumer group's name has at most this many characters, so that the name of its retry topic is
#: not too long.
GROUP_MAX: Final = TOPIC_MAX - len("%RETRY%")
#: A producer group's name may be longer, as it has no topic.
PRODUCERS_MAX: Final = 255
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def check_name(argument: str, name: object, most: int) -> None:
    """Refuse what is no name.

    Args:
        argument: what the caller gave it as.
        name: of a topic or a group.
        most: characters that it may have.

    Raises:
        ArgumentError: it is none.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > most:
        raise ArgumentError(argument, name, f"1 to {most} letters, digits, %, |, _ and -")


def check_time(argument: str, value: object) -> float:
    """A time to wait, in the unit of the argument's name.

    Args:
        argument: its name, for the error; it ends in its unit.
        value: what was given.

    Raises:
        ArgumentError: it is no number, or below 0.
    """
    if isinstance(value, numbers.Real) and float(value) >= 0:
        return float(value)
    raise ArgumentError(argument, value, "a number, 0 or more")
