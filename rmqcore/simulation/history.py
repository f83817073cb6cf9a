"""`History`: what clients did and saw, by number of the message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from rmqcore.simulation.plan import Fault, Operation, Plan

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

    def may_be_at(self, broker: str) -> bool:
        """Whether a broker may have it."""
        return self.place is None or self.place.broker == broker


@dataclass(slots=True)
class Delivery:
    """One message that was handed out.

    Attributes:
        number, place: which, and where it was.
        at_s, done_s: when, and when the consumer was done with it; infinite when it never was.
        again: whether the broker says that it was handed out before.
    """

    number: int
    place: Place
    at_s: float
    again: bool
    done_s: float = float("inf")


@dataclass(slots=True)
class Deletion:
    """A topic that was deleted at one broker.

    Attributes:
        broker, topic: what and where.
        began_s, ended_s: when a client asked for it, and when it was told that it is done; infinite
            when it never was, for then it may come at any later time.
    """

    broker: str
    topic: str
    began_s: float
    ended_s: float = float("inf")


@dataclass(slots=True)
class Reset:
    """A group that somebody has let read a topic of a broker from its beginning on.

    Attributes:
        group, broker, topic: whose, where and what.
        began_s, ended_s: when a client asked for it, and when it was told that it is done; infinite
            when it never was.
    """

    group: str
    broker: str
    topic: str
    began_s: float
    ended_s: float = float("inf")


@dataclass(slots=True)
class Trouble:
    """A fault that has befallen the cluster: when it began, and when all was in order again."""

    began_s: float
    ended_s: float = float("inf")


@dataclass(slots=True)
class History:
    """Everything.

    Attributes:
        puts: by number.
        deliveries: by group, in order.
        strange: what clients were given that nobody has sent so.
        popped: how many messages that POP handed out brokers took back as done.
        deletions: of topics, in the order in which they were asked for.
        resets: of groups, likewise.
        troubles: all faults, in the order in which they began.
    """

    puts: dict[int, Put] = field(default_factory=dict)
    deliveries: dict[str, list[Delivery]] = field(default_factory=dict)
    strange: list[str] = field(default_factory=list)
    popped: int = 0
    deletions: list[Deletion] = field(default_factory=list)
    resets: list[Reset] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)

    def deleted(self, broker: str, topic: str) -> bool:
        """Whether a topic may have been deleted at a broker.

        Args:
            broker: its name in the plan.
            topic: its name; the broker may never have had it.
        """
        return any((each.broker, each.topic) == (broker, topic) for each in self.deletions)

    def is_deleted_later(self, delivery: Delivery) -> bool:
        """Whether what was handed out lay in a topic that was deleted, or may have been, then."""
        return any(
            (each.broker, each.topic) == delivery.place[:2] and each.began_s > delivery.at_s
            for each in self.deletions
        )

    def is_read_anew(self, plan: Plan, place: Place) -> bool:
        """Whether nobody may know that a group has read the deleted topic of a place.

        The broker's disk has refused what was to be written of its groups, and it was started anew.

        Args:
            plan: of the run, with its faults.
            place: broker, topic, queue id and queue offset.
        """
        refusing = (Fault.FULL, Fault.FAIL)
        return self.deleted(place.broker, place.topic) and any(
            fault.what in refusing and fault.whom == place.broker for fault in plan.faults
        )

    def is_last(self, put: Put) -> bool:
        """Whether a message was sent when no deletion that may take it was still to be done."""
        return all(
            each.ended_s < put.began_s
            for each in self.deletions
            if each.topic == put.operation.topic and put.may_be_at(each.broker)
        )

    def unread_since(
        self, is_expired: Callable[[Put], bool] = lambda _: False
    ) -> Iterator[tuple[Reset, Put]]:
        """What groups have not got again since their offsets were reset.

        A message counts that was confirmed before, in a topic that nobody has deleted.

        Args:
            is_expired: whether a message may be gone with the oldest files of its log.
        """
        for reset in self.resets:
            where = reset.broker, reset.topic
            if reset.ended_s == float("inf") or self.deleted(*where):
                continue
            since = (each for each in self.deliveries[reset.group] if each.at_s > reset.began_s)
            got = {each.number for each in since}
            for put in self.puts.values():
                if put.outcome is not Outcome.OK or put.place is None or put.number in got:
                    continue
                is_there = put.place[:2] == where and put.ended_s < reset.began_s
                if is_there and not is_expired(put):
                    yield reset, put

    def is_set_back(self, group: str, delivery: Delivery) -> bool:
        """Whether a group got something when somebody had let it read the topic anew there.

        Args:
            group: of consumers.
            delivery: what it got.
        """
        topic = self.puts[delivery.number].operation.topic
        return any(
            (each.group, each.broker, each.topic) == (group, delivery.place.broker, topic)
            and each.began_s < delivery.at_s
            for each in self.resets
        )

    def was_calm(self, since_s: float, until_s: float, for_s: float) -> bool:
        """Whether there was no trouble for so long between two times.

        Args:
            since_s: the first.
            until_s: the second.
            for_s: how long, in seconds.
        """
        for trouble in self.troubles:
            if trouble.began_s - since_s >= for_s:
                break
            since_s = max(since_s, trouble.ended_s)
        return until_s - since_s >= for_s

    def is_homeless(self, number: int) -> bool:
        """Whether a message may have come, late, to a broker that had lost its topic.

        Nobody is told of such a queue before somebody makes the topic again there.
        """
        put = self.puts.get(number)
        return put is not None and put.place is None and not self.is_last(put)

    def is_deleted(self, put: Put) -> bool:
        """Whether a message was in a queue of its topic when that was deleted there."""
        return put.place is not None and any(
            (each.broker, each.topic) == put.place[:2]
            and put.ended_s < each.began_s
            and each.ended_s < float("inf")
            for each in self.deletions
        )


def body_of(number: int, size: int) -> bytes:
    """The body of a message, by which it is known.

    Args:
        number: of the message, as the plan counts.
        size: bytes; a number that needs more gets them.
    """
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
