"""What a POP, a peek or a notification asks for.

Source: RocketMQ remoting/protocol/header/PopMessageRequestHeader.java.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmqcore.broker.state.budgets import check_name
from rmqcore.broker.state.subscription import Subscription
from rmqcore.remoting import Connection, RemotingCommand

#: A request that waits in vain is answered this long before its client gives up.
_BEFORE_TIMEOUT_MS: Final = 50
#: A request that comes this long after its client has given up is answered without messages.
_LATE_MS: Final = 500
#: A connection keeps by this name how far its client's clock is behind, milliseconds.
_BEHIND: Final = "pop behind"
#: A request for a longer invisible time gets this one.
INVISIBLE_MS_MAX: Final = 12 * 3_600_000


@dataclass(frozen=True, slots=True)
class PopRequest:
    """The header of a POP, a peek or a notification.

    Attributes:
        passed_ms: how much of `poll_ms` had passed when it came, as far as is known; see
            `passed_ms`.
        came_s: when it came, by the monotonic clock.
    """

    group: str
    topic: str
    queue_id: int
    count: int
    invisible_ms: int
    poll_ms: int
    passed_ms: int
    from_last: bool
    subscription: Subscription
    ordered: bool
    attempt_id: str | None
    came_s: float

    @classmethod
    def of(cls, request: RemotingCommand, came_s: float, passed_ms: int = 0) -> PopRequest:
        """Read a header.

        Args:
            request: of a POP (200050), a peek (200052) or a notification (200054).
            came_s: now, by the monotonic clock.
            passed_ms: milliseconds that the request has waited in this process already.

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
            passed_ms,
            request.number("initMode", 0) == 1,
            Subscription.of(topic, fields.get("exp"), fields.get("expType")),
            request.boolean("order"),
            fields.get("attemptId"),
            came_s,
        )

    @property
    def text_size(self) -> int:
        """Characters of what it subscribes."""
        return len(self.subscription.expression) + len(self.subscription.expression_type)

    def left_s(self, now_s: float) -> float:
        """For how long it may wait from now on, seconds, however often it was woken for nothing."""
        whole_s = (self.poll_ms - self.passed_ms - _BEFORE_TIMEOUT_MS) / 1000
        return whole_s - (now_s - self.came_s)

    @property
    def too_late(self) -> bool:
        """Whether its client has given up, so that what is handed out now reaches nobody."""
        return self.passed_ms - self.poll_ms > _LATE_MS


def passed_ms(connection: Connection, born_ms: int, now_ms: int) -> int:
    """How long a request was on its way, milliseconds.

    A request says when it was sent by its client's clock. How far that is behind this machine's is
    taken from the request before, of the same connection: who is later than that was on its way
    for so much longer. So a client whose clock is behind by minutes is refused once, and then
    served like any other.

    Args:
        connection: over which it came.
        born_ms: when it was sent, Unix time by the client's clock; 0: it does not say.
        now_ms: Unix time by this machine's.
    """
    if not born_ms:
        return 0
    behind = now_ms - born_ms
    before: int = connection.attributes.get(_BEHIND, 0)
    connection.attributes[_BEHIND] = behind
    return max(0, behind - before)


def invisible_time_of(request: RemotingCommand, default: int | None = None) -> int:
    """For how long nobody else gets what is handed out, milliseconds; 12 hours at most.

    Args:
        request: header ``invisibleTime``.
        default: milliseconds where it is missing; None refuses that.

    Raises:
        RequestRefusedError: the field is missing without a default, or no number.
    """
    return max(0, min(INVISIBLE_MS_MAX, request.number("invisibleTime", default)))
