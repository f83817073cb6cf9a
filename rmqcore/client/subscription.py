"""`Subscription`: which messages of a topic a consumer wants, by tags or SQL92."""

from __future__ import annotations

from dataclasses import dataclass

from rmqcore._codec import tags_code
from rmqcore.message import MessageExt, Sql, tags_of


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic of a consumer. Source: SubscriptionData, FilterAPI.

    Attributes:
        topic: which.
        expression: ``*``, ``a || b``, or a condition of SQL92.
        by_sql: whether it is the latter.
        version: Unix time at which the consumer began, milliseconds.
        tags: those of the expression; empty for all.
    """

    topic: str
    expression: str
    by_sql: bool
    version: int
    tags: frozenset[str]

    @classmethod
    def of(cls, topic: str, expression: str | None, version: int) -> Subscription:
        """The subscription of an expression.

        Args:
            topic: whose messages are wanted.
            expression: ``*``, ``a || b``, or an `Sql`; None for all.
            version: Unix time at which the consumer began, milliseconds.
        """
        if isinstance(expression, Sql):
            return cls(topic, str(expression), True, version, frozenset())
        text = (expression or "*").strip() or "*"
        return cls(topic, text, False, version, tags_of(text))

    @property
    def kind(self) -> str:
        """RocketMQ's name of the kind of expression."""
        return "SQL92" if self.by_sql else "TAG"

    def wants(self, message: MessageExt) -> bool:
        """Tell whether a message that came is wanted: brokers compare only hashes of tags."""
        return not self.tags or message.tags in self.tags

    def to_java(self) -> dict[str, object]:
        """The fields of ``SubscriptionData``, in alphabetical order."""
        tags = sorted(self.tags)
        return {
            "classFilterMode": False,
            "codeSet": [tags_code(tag) for tag in tags],
            "expressionType": self.kind,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": tags,
            "topic": self.topic,
        }
