"""What a ReceiveMessage asks for.

Source: RocketMQ proxy/grpc/v2/consumer/ReceiveMessageActivity.java.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmqcore.proxy.calls import Call
from rmqcore.proxy.codes import Code, RefusedError
from rmqcore.proxy.messages import FilterType, V2Message
from rmqcore.proxy.names import group_name, topic_name
from rmqcore.proxy.outgoing import duration_ms
from rmqcore.proxy.renewal import Renewals

BATCH_MAX: Final = 32
#: A message that was handed out is kept from others for a time between these two.
INVISIBLE_MS_MIN: Final = 10_000
INVISIBLE_MS_MAX: Final = 12 * 3_600_000
POLL_MS_MAX: Final = 20_000
_POLL_MS_DEFAULT: Final = 20_000
#: The answer that nothing has come is sent this long before the client gives up.
_BEFORE_DEADLINE_MS: Final = 500
#: Characters of a filter's expression.
EXPRESSION_MAX: Final = 16_384
_ATTEMPT_ID_MAX: Final = 255
_MATCH_ALL: Final = "*"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one receive asks for.

    Attributes:
        count: messages at most.
        invisible_ms: for how long nobody else is handed them, milliseconds.
        poll_ms: for how long it waits while there are none, milliseconds.
        by_sql: whether the expression is SQL92; else it names tags.
        renews: whether they are kept for the client for as long as it works on them.
    """

    group: str
    topic: str
    broker_name: str
    count: int
    invisible_ms: int
    poll_ms: int
    expression: str
    by_sql: bool
    attempt_id: str
    renews: bool

    @classmethod
    def of(cls, call: Call, request: V2Message, now_s: float) -> Wanted:
        """Read a request.

        Args:
            call: that it came by; says how long its client waits.
            request: a ``ReceiveMessageRequest``.
            now_s: by the clock of the call.

        Raises:
            RefusedError: it cannot be.
        """
        queue, chosen = request.message_queue, request.filter_expression
        if request.auto_renew:
            invisible_ms = Renewals.INVISIBLE_MS
        else:
            invisible_ms = duration_ms(request.invisible_duration)
            _check_invisible(invisible_ms)
        left_ms = min(call.left_s(now_s) * 1000, float(POLL_MS_MAX + _BEFORE_DEADLINE_MS))
        if left_ms <= 0:
            raise RefusedError(Code.ILLEGAL_POLLING_TIME, "the call's time is over")
        poll_ms = _POLL_MS_DEFAULT
        if request.HasField("long_polling_timeout"):
            poll_ms = duration_ms(request.long_polling_timeout)
        expression = chosen.expression.strip()
        if len(expression) > EXPRESSION_MAX or len(request.attempt_id) > _ATTEMPT_ID_MAX:
            raise RefusedError(Code.ILLEGAL_FILTER_EXPRESSION, "the expression is too long")
        return cls(
            group_name(request.group),
            topic_name(queue.topic),
            queue.broker.name,
            max(1, min(request.batch_size, BATCH_MAX)),
            invisible_ms,
            max(0, min(poll_ms, POLL_MS_MAX, round(left_ms) - _BEFORE_DEADLINE_MS)),
            expression or _MATCH_ALL,
            chosen.type == FilterType.SQL,
            request.attempt_id,
            request.auto_renew,
        )

    @property
    def tags(self) -> frozenset[str] | None:
        """The tags that are wanted; None for any, and where a broker decides."""
        if self.by_sql or self.expression == _MATCH_ALL:
            return None
        return frozenset(tag.strip() for tag in self.expression.split("||"))


def _check_invisible(invisible_ms: int) -> None:
    if not INVISIBLE_MS_MIN <= invisible_ms <= INVISIBLE_MS_MAX:
        reason = f"the duration is {INVISIBLE_MS_MIN // 1000} to {INVISIBLE_MS_MAX // 1000} s"
        raise RefusedError(Code.ILLEGAL_INVISIBLE_TIME, reason)
