"""What a consumer wants of a topic: a tag expression, or one of SQL92."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rmqcore._codec import tags_code

TAG: Final = "TAG"
SQL92: Final = "SQL92"


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic of one consumer group. Source: SubscriptionData.

    Attributes:
        topic: what is subscribed.
        expression: ``*``, ``a || b``, or an SQL92 condition.
        expression_type: ``TAG`` or ``SQL92``.
        version: Unix time at which the consumer made it, milliseconds.
    """

    topic: str
    expression: str = "*"
    expression_type: str = TAG
    version: int = 0

    @property
    def by_tags(self) -> bool:
        """Tell whether the expression names tags."""
        return self.expression_type == TAG

    @property
    def tags(self) -> str | None:
        """The tags for `store.get_message`; None for all of them."""
        return self.expression if self.by_tags and self.expression not in ("", "*") else None

    @classmethod
    def of(cls, topic: str, expression: str | None, expression_type: str | None) -> Subscription:
        """The subscription that a request carries."""
        kind = expression_type or TAG
        return cls(topic, (expression or "*").strip() or "*", kind)

    @classmethod
    def from_java(cls, fields: Mapping[str, Any]) -> Subscription:
        """Read a ``SubscriptionData`` of a heart-beat.

        Raises:
            ValueError: a field has a wrong type.
        """
        topic, expression = fields.get("topic"), fields.get("subString") or "*"
        kind, version = fields.get("expressionType") or TAG, fields.get("subVersion", 0)
        if not (isinstance(topic, str) and isinstance(expression, str) and isinstance(kind, str)):
            raise ValueError(  # noqa: TRY004 - the text is wrong, not a type
                "a subscription needs topic, subString and expressionType as text"
            )
        if type(version) is not int:
            raise ValueError(f"subVersion={version!r} is no number")
        return cls(topic, expression, kind, version)

    def to_java(self) -> dict[str, object]:
        """The fields of ``SubscriptionData``, in alphabetical order."""
        words = sorted({word.strip() for word in self.expression.split("||") if word.strip()})
        tags = words if self.by_tags and self.expression != "*" else []
        return {
            "classFilterMode": False,
            "codeSet": [tags_code(tag) for tag in tags],
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": tags,
            "topic": self.topic,
        }
