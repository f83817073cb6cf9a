"""`History`: what clients did and saw, by number of the message."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from rmqcore.simulation.plan import Operation

_SEPARATOR: Final = b"|"


class Outcome(StrEnum):
    """What a client knows of a message that it has sent."""

    UNKNOWN = "unknown"
    #: at the level that was asked for
    OK = "ok"
    #: stored, and not confirmed by the disk or a slave in time
    STORED = "stored"
    REFUSED = "refused"


class Place(NamedTuple):
    """Where a message is."""

    broker: str
    topic: str
    queue_id: int
    offset: int


@dataclass(slots=True)
class Put:
    """One message that was sent.

    Attributes:
        operation: by which.
        number: its number.
        began_s, ended_s: when it was sent, and when the client knew what came of it; infinite as
            long as it does not.
        outcome: what it knows.
        place: where it is, as the broker said.
    """

    operation: Operation
    number: int
    began_s: float
    ended_s: float = float("inf")
    outcome: Outcome = Outcome.UNKNOWN
    place: Place | None = None


@dataclass(slots=True)
class Delivery:
    """One message that was handed out."""

    number: int
    place: Place
    at_s: float
    again: bool


@dataclass(slots=True)
class History:
    """Everything.

    Attributes:
        puts: by number.
        deliveries: by group, in order.
        strange: what clients were given that nobody has sent so.
        popped: how many messages that POP handed out brokers took back as done.
    """

    puts: dict[int, Put] = field(default_factory=dict)
    deliveries: dict[str, list[Delivery]] = field(default_factory=dict)
    strange: list[str] = field(default_factory=list)
    popped: int = 0


def body_of(number: int, size: int) -> bytes:
    """The body of a message, by which it is known."""
    begin = b"%d" % number + _SEPARATOR
    return begin + b"x" * (size - len(begin))


def number_of(body: bytes) -> int:
    """The number of a message.

    Raises:
        ValueError: nobody has sent such a body.
    """
    number, separator, rest = body.partition(_SEPARATOR)
    if not separator or rest.strip(b"x"):
        raise ValueError(f"a body that nobody has sent: {body[:40]!r}")
    return int(number)
