"""`TransactionId`: by what a producer ends a transaction.

It carries where the half message is, so it is good for as long as that is kept, and after a
restart; Apache's proxy keeps the place in memory, for 30 s.
"""

from __future__ import annotations

import base64
from typing import Final, NamedTuple, Self

from rmqcore.proxy.codes import Code, RefusedError

_VERSION: Final = "v1"
_WORDS: Final = 4
_DIGITS_MAX: Final = 18
_SIZE_MAX: Final = 512


class TransactionId(NamedTuple):
    """Where a half message is.

    Attributes:
        broker_name: of the broker that has it.
        phy_offset: its place in that one's log.
        queue_offset: its offset among half messages.
    """

    broker_name: str
    phy_offset: int
    queue_offset: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an id.

        Raises:
            RefusedError: it is none.
        """
        words = []
        if len(text) <= _SIZE_MAX:
            try:
                padded = text + "=" * (-len(text) % 4)
                words = base64.b64decode(padded, b"-_", validate=True).decode().split(" ")
            except ValueError:
                words = []
        if len(words) != _WORDS or words[0] != _VERSION or not words[1]:
            raise _none()
        return cls(words[1], _number(words[2]), _number(words[3]))

    def __str__(self) -> str:
        """As `parse` reads it."""
        text = " ".join((_VERSION, *map(str, self)))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _number(word: str) -> int:
    if word.isascii() and word.isdigit() and len(word) <= _DIGITS_MAX:
        return int(word)
    raise _none()


def _none() -> RefusedError:
    return RefusedError(Code.INVALID_TRANSACTION_ID, "the text is no transaction id")
