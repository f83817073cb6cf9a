"""What a POP, a peek or a notification asks for.

Source: RocketMQ remoting/protocol/header/PopMessageRequestHeader.java.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmqcore.broker.state.budgets import check_name
from rmqcore.broker.state.subscription import Subscription
from rmqcore.remoting import RemotingCommand
from rmqcore.world import wall_clock_ms

#: an answer that nothing has come leaves so much earlier than the client gives up
_BEFORE_TIMEOUT_MS: Final = 50
#: for so long at most nobody else gets what was handed out
INVISIBLE_MS_MAX: Final = 12 * 3_600_000


@dataclass(frozen=True, slots=True)
class PopRequest:
    """The header of a POP, a peek or a notification."""

    group: str
    topic: str
    queue_id: int
    count: int
    invisible_ms: int
    poll_ms: int
    born_ms: int
    from_last: bool
    subscription: Subscription
    ordered: bool
    attempt_id: str | None

    @classmethod
    def of(cls, request: RemotingCommand) -> PopRequest:
        """Read a header.

        Raises:
            RequestRefusedError: a field is missing, no number or too long; answers with code 1.
        """
        topic, fields = request.text("topic"), request.ext_fields
        check_name("an attemptId", fields.get("attemptId", ""))
        return cls(
            request.text("consumerGroup"),
            topic,
            request.number("queueId", bits=32),
            request.number("maxMsgNums", 1),
            invisible_time_of(request, 0),
            request.number("pollTime", 0),
            request.number("bornTime", 0) or wall_clock_ms(),
            request.number("initMode", 0) == 1,
            Subscription.of(topic, fields.get("exp"), fields.get("expType")),
            request.boolean("order"),
            fields.get("attemptId"),
        )

    @property
    def text_size(self) -> int:
        """Characters of what it subscribes."""
        return len(self.subscription.expression) + len(self.subscription.expression_type)

    @property
    def left_s(self) -> float:
        """For how long it may wait from now on, seconds."""
        return (self.born_ms + self.poll_ms - _BEFORE_TIMEOUT_MS - wall_clock_ms()) / 1000


def invisible_time_of(request: RemotingCommand, default: int | None = None) -> int:
    """For how long nobody else gets what is handed out, milliseconds; 12 hours at most.

    Raises:
        RequestRefusedError: the field is missing without a default, or no number.
    """
    return max(0, min(INVISIBLE_MS_MAX, request.number("invisibleTime", default)))
