"""Subscriptions: a consumer's filter on a topic, a tag expression or an SQL92 condition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rmqcore._codec import tags_code
from rmqcore.broker.state.settings import BrokerConfig
from rmqcore.message import tags_of
from rmqcore.remoting import RequestRefusedError, ResponseCode
from rmqcore.store.consume.sql92 import Condition, ExpressionError, compile_condition

TAG: Final = "TAG"
SQL92: Final = "SQL92"
#: Bytes of memory that a subscription needs beside its texts, for the bound on those of a group.
_SUBSCRIPTION_SIZE: Final = 256


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
    def size(self) -> int:
        """Characters of its texts, with what keeps them."""
        return (
            len(self.topic) + len(self.expression) + len(self.expression_type) + _SUBSCRIPTION_SIZE
        )

    @property
    def by_tags(self) -> bool:
        """Tell whether the expression names tags."""
        return self.expression_type == TAG

    @property
    def tags(self) -> str | None:
        """The tags for `store.get_message`; None for all of them."""
        return self.expression if self.by_tags and self.expression not in ("", "*") else None

    @property
    def condition(self) -> Condition:
        """Tells of a message's properties whether the message is wanted.

        Raises:
            RequestRefusedError: the expression is none that can be used; answers with code 23.
        """
        if self.by_tags:
            return Condition(self._has_tag)
        if self.expression_type != SQL92:
            raise _unusable(f"there is no expression type {self.expression_type[:40]!r}")
        try:
            return compile_condition(self.expression)
        except ExpressionError as error:
            raise _unusable(str(error)) from error

    def check_allowed(self, config: BrokerConfig) -> None:
        """Refuse an expression of another type than tags where the broker filters by tags only.

        Raises:
            RequestRefusedError: it is not allowed, code 1, or cannot be used, code 23.
        """
        if not (self.by_tags or config.enable_property_filter):
            remark = (
                f"The broker does not support consumer to filter message by {self.expression_type}"
            )
            raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
        _ = self.condition

    def _has_tag(self, properties: Mapping[str, str]) -> bool:
        return self.tags is None or properties.get("TAGS", "") in tags_of(self.tags)

    @classmethod
    def of(cls, topic: str, expression: str | None, expression_type: str | None) -> Subscription:
        """The subscription that a request carries.

        Args:
            topic: by name; nothing is checked.
            expression: tags such as ``a || b``, or a condition; None and empty for all messages.
            expression_type: ``TAG`` or ``SQL92``; None for the first.
        """
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


def _unusable(reason: str) -> RequestRefusedError:
    remark = f"parse the consumer's subscription failed: {reason}"
    return RequestRefusedError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)
