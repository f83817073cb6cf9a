"""`RecallHandle`: by what a sender names a timer message that it takes back.

Source: RocketMQ common/producer/RecallMessageHandle.java.
"""

from __future__ import annotations

import base64
from typing import Final, NamedTuple

from rmqcore.remoting import RequestRefusedError, ResponseCode

_VERSION: Final = "v1"
_DIGITS_MAX: Final = 19


class RecallHandle(NamedTuple):
    """By what the sender of a timer message may take it back.

    Attributes:
        topic: of the message.
        broker_name: of the broker that has it.
        due_ms: a time in the second of its delivery, Unix time.
        unique_key: the producer's id of the message.
    """

    topic: str
    broker_name: str
    due_ms: int
    unique_key: str

    @classmethod
    def parse(cls, text: str) -> RecallHandle:
        """Read a handle.

        Raises:
            RequestRefusedError: it is none; answers with code 604.
        """
        try:
            words = (
                base64.b64decode(f"{text}{'=' * (-len(text) % 4)}", b"-_", validate=True)
                .decode()
                .split(" ")
            )
        except ValueError:
            words = []
        if len(words) < 5 or words[0] != _VERSION or not words[4]:
            remark = "recall handle is invalid"
            raise RequestRefusedError(ResponseCode.ILLEGAL_OPERATION, remark)
        digits = words[3]
        known = digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX
        return cls(words[1], words[2], int(digits) if known else -1, words[4])

    def __str__(self) -> str:
        """As `parse` reads it."""
        text = " ".join((_VERSION, *map(str, self)))
        return base64.urlsafe_b64encode(text.encode()).decode()
