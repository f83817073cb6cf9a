"""What a consumer asks for when it leases messages, and what it gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from rmqcore.arguments import text, whole_number
from rmqcore.errors import ArgumentError
from rmqcore.files.config_tables import check_topic_name
from rmqcore.message import Lease, MessageExt, ReceivedMessage, Sql, tags_of
from rmqcore.store.consume.lease_queue import LeaseQueue
from rmqcore.store.consume.sql92 import Condition, ExpressionError, compile_condition

LEASE_MS_MAX: Final = 1 << 40
_MANY: Final = 1 << 30
_HOLDER_MAX: Final = 1000
#: One step of a lease looks at no more messages than this to pass over those that are not wanted;
#: then the journal is free for others.
LOOKS_MAX: Final = 1024
#: Where a condition decides which messages are wanted, at least this many are read together.
_LOOKED_AT: Final = 64


class Damaged(NamedTuple):
    """A message that cannot be read.

    Attributes:
        phy_offset: -1, as its place in the log cannot be believed.
        body: the bytes of its record, where they can be told.
        reason: what is wrong with them.
    """

    body: bytes
    reason: str
    phy_offset: int = -1


LeasedItem: TypeAlias = MessageExt | Damaged


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """Which messages of a topic are wanted.

    Attributes:
        tags: for `get_message`; None for all.
        words: the same tags, which are compared as text.
        condition: of SQL92, or None.
    """

    tags: str | None = None
    words: frozenset[str] = frozenset()
    condition: Condition | None = None

    @classmethod
    def of(cls, expression: str) -> TopicFilter:
        """Read ``*``, ``a || b``, or an `Sql`.

        Raises:
            ArgumentError: it is none.
        """
        if not isinstance(expression, Sql):
            words = tags_of(text("expression", expression))
            return cls(" || ".join(sorted(words)) or None, words)
        try:
            return cls(condition=compile_condition(expression))
        except ExpressionError as error:
            raise ArgumentError("expression", expression, f"SQL92; {error}") from error

    def looks_at(self, count: int) -> int:
        """How many messages are got where this many are wanted."""
        return count if self.condition is None else max(count, _LOOKED_AT)

    def is_for(self, item: LeasedItem) -> bool:
        """Tell whether a message is wanted; one that cannot be read is."""
        if isinstance(item, Damaged):
            return True
        if self.condition is not None:
            return self.condition(item.properties)
        return not self.words or item.tags in self.words


ALL: Final = TopicFilter()


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """What a consumer asks for; see `MessageStore.lease`, of the call `Consuming.lease_once`."""

    group: str
    wanted: Mapping[str, TopicFilter]
    holder: str
    max_messages: int
    lease_ms: int
    max_reconsume_times: int
    by_priority: bool
    drop_expired: bool
    call: str

    @classmethod
    def of(
        cls,
        group: str,
        subscriptions: Mapping[str, str],
        *,
        holder: str = "",
        max_messages: int = 32,
        lease_ms: int = 30_000,
        max_reconsume_times: int = 16,
        by_priority: bool = False,
        drop_expired: bool = False,
        call: str = "",
    ) -> LeaseRequest:
        """Check the arguments of a call.

        Args:
            group: whose consumers share the messages.
            subscriptions: topic -> expression; one topic or more.
            holder: who gets them; empty for this process's nameless one.
            max_messages: at most this many; 1 or more.
            lease_ms: for how long, milliseconds.
            max_reconsume_times: how often a message comes again before it is a dead letter.
            by_priority: queues with higher ids first, always.
            drop_expired: acknowledge what has expired in place of handing it out.
            call: name under which another process asks, so that it can ask again; empty for none.

        Raises:
            ArgumentError: one is not what it should be.
            MessageIllegalError: the group or a topic is no legal name.
        """
        group = text("group", group)
        check_topic_name(group, "group")
        return cls(
            group,
            _wanted_of(subscriptions),
            _holder_of(holder),
            whole_number("max_messages", max_messages, 1, _MANY),
            whole_number("lease_ms", lease_ms, 1, LEASE_MS_MAX),
            whole_number("max_reconsume_times", max_reconsume_times, 0, _MANY),
            bool(by_priority),
            bool(drop_expired),
            call,
        )

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics, the group's retry topic not among them."""
        return tuple(self.wanted)


def _holder_of(holder: object) -> str:
    """A holder's name that the journal can hold."""
    name = text("holder", holder)
    # a lone surrogate has no UTF-8
    if len(name) > _HOLDER_MAX or any("\ud800" <= each <= "\udfff" for each in name):
        raise ArgumentError("holder", name[:_HOLDER_MAX], f"at most {_HOLDER_MAX} characters")
    return name


def _wanted_of(subscriptions: object) -> dict[str, TopicFilter]:
    if not isinstance(subscriptions, Mapping) or not subscriptions:
        raise ArgumentError("subscriptions", subscriptions, "{topic: expression}")
    wanted = {text("topic", topic): each for topic, each in subscriptions.items()}
    for topic in wanted:
        check_topic_name(topic)
    return {topic: TopicFilter.of(expression) for topic, expression in wanted.items()}


#: a queue, when the leases end, and of each message its offset and how often it was handed out
LeasedOf: TypeAlias = tuple[LeaseQueue, int, list[tuple[int, int]]]


class LeaseResult:
    """What one lease collects.

    Attributes:
        found: what is handed out.
        dead: what was handed out too often, or cannot be read.
        leased: both, by queue.
        left: how many may still be handed out.
        looks: how many messages may still be looked at; 0 when there is more to be looked at.
    """

    __slots__ = ("dead", "due_ms", "found", "leased", "left", "looks", "now_ms", "request")

    def __init__(self, request: LeaseRequest) -> None:
        self.request = request
        self.now_ms = 0
        self.due_ms = 0
        self.leased: list[LeasedOf] = []
        self.left = request.max_messages
        self.looks = LOOKS_MAX
        self.found: list[ReceivedMessage] = []
        self.dead: list[tuple[LeaseQueue, LeasedItem, Lease]] = []

    def leased_of(self, queue: LeaseQueue) -> list[tuple[int, int]]:
        """A list of what is leased of a queue."""
        leased: list[tuple[int, int]] = []
        self.leased.append((queue, self.due_ms, leased))
        return leased

    def add(self, queue: LeaseQueue, item: LeasedItem, lease: Lease) -> None:
        """Take a message that is leased.

        Args:
            queue: where it lies.
            item: the message, or what is known of one that cannot be read.
            lease: under which it is handed out.
        """
        if isinstance(item, Damaged):
            self.dead.append((queue, item, lease))
            return
        message = ReceivedMessage(item, place=lease)
        message.reconsume_times += lease.attempt
        if message.reconsume_times > self.request.max_reconsume_times:
            self.dead.append((queue, item, lease))
            return
        self.found.append(message)
        self.left -= 1

    def is_expired(self, item: LeasedItem) -> bool:
        """Tell whether a message is of no use any more."""
        if not self.request.drop_expired or isinstance(item, Damaged):
            return False
        expires_ms = item.expires_ms
        return expires_ms is not None and expires_ms <= self.now_ms
