"""`ReceiptHandle`: a receipt handle, by which a consumer names a message that it was handed.

Its words are those of Apache's proxy, so each takes the other's: start offset, pop time, invisible
time, revive queue, kind of topic, broker, queue, offset, place in the log. It is all that is
needed, so it is good after a restart of the proxy, too.

Source: RocketMQ common/consumer/ReceiptHandle.java.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Self

from rmqcore.proxy.codes import Code, RefusedError

#: kinds of topic: the message's own, and the retry topics of its group in two versions
NORMAL: Final = 0
RETRY: Final = 1
RETRY_V2: Final = 2
_BETWEEN: Final = {RETRY: "_", RETRY_V2: "+"}
#: revive queue of messages that were handed out in order
ORDERED: Final = 999
_NUMBER: Final = "(-?[0-9]{1,18})"
_WORDS: Final = re.compile(
    " ".join([_NUMBER] * 5) + f" ([^ ]+) {_NUMBER} {_NUMBER}(?: {_NUMBER})?(?: {_NUMBER})?"
)
_SIZE_MAX: Final = 512


@dataclass(frozen=True, slots=True)
class ReceiptHandle:
    """A message that a group was handed.

    Attributes:
        start_offset: where the pop began in the queue.
        pop_time_ms: when it was, Unix time.
        invisible_ms: for how long nobody else gets the message.
        revive_queue: where the broker keeps that; `ORDERED` for one that was handed out in order.
        kind: `NORMAL`, `RETRY` or `RETRY_V2`: which topic it was popped from.
        broker_name: of the broker that has it.
        queue_id, queue_offset: where it is in the topic that it was popped from.
        phy_offset: where it is in the broker's log.
    """

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    kind: int
    broker_name: str
    queue_id: int
    queue_offset: int
    phy_offset: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a handle.

        Raises:
            RefusedError: it is none.
        """
        found = _WORDS.fullmatch(text) if len(text) <= _SIZE_MAX else None
        if found is None:
            raise _none()
        start, popped, invisible, revive_queue, kind, broker_name, queue_id, offset, *more = (
            found.groups()
        )
        if int(kind) not in (NORMAL, RETRY, RETRY_V2):
            raise _none()
        return cls(
            int(start),
            int(popped),
            int(invisible),
            int(revive_queue),
            int(kind),
            broker_name,
            int(queue_id),
            int(offset),
            int(more[1] or more[0] or -1),
        )

    def expect_open(self, now_ms: int) -> Self:
        """Return the handle where its message is still its consumer's.

        Args:
            now_ms: Unix time by the clock of its broker.

        Raises:
            RefusedError: its time is over.
        """
        if self.due_ms <= now_ms:
            reason = "the receipt handle has expired: the message comes again, or has come"
            raise RefusedError(Code.INVALID_RECEIPT_HANDLE, reason)
        return self

    def __str__(self) -> str:
        """As `parse` reads it."""
        return f"{self.extra_info} {self.phy_offset}"

    @property
    def extra_info(self) -> str:
        """The receipt as brokers know it."""
        return (
            f"{self.start_offset} {self.pop_time_ms} {self.invisible_ms} {self.revive_queue} "
            f"{self.kind} {self.broker_name} {self.queue_id} {self.queue_offset}"
        )

    @property
    def due_ms(self) -> int:
        """When the message comes again, Unix time."""
        return self.pop_time_ms + self.invisible_ms

    def topic_of(self, group: str, topic: str) -> str:
        """The topic that the message was popped from.

        Args:
            group: that it was handed to.
            topic: that it was sent to.
        """
        if self.kind == NORMAL:
            return topic
        return f"%RETRY%{group}{_BETWEEN[self.kind]}{topic}"

    def fields(self, group: str, topic: str) -> dict[str, str]:
        """What the headers of 200051 and 200053 have in common.

        Args:
            group: that it was handed to.
            topic: that it was sent to.
        """
        return {
            "consumerGroup": group,
            "topic": self.topic_of(group, topic),
            "queueId": str(self.queue_id),
            "extraInfo": self.extra_info,
            "offset": str(self.queue_offset),
            "bname": self.broker_name,
        }

    def changed(self, pop_time_ms: int, invisible_ms: int, revive_queue: int) -> Self:
        """The handle that counts after 200053.

        Args:
            pop_time_ms: of the answer, Unix milliseconds.
            invisible_ms: of the answer, milliseconds from then on.
            revive_queue: of the answer.
        """
        start = self.start_offset if self.revive_queue == ORDERED else self.queue_offset
        return replace(
            self,
            start_offset=start,
            pop_time_ms=pop_time_ms,
            invisible_ms=invisible_ms,
            revive_queue=revive_queue,
        )


def _none() -> RefusedError:
    return RefusedError(Code.INVALID_RECEIPT_HANDLE, "the text is no receipt handle")
