"""The answer to why a message is not found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Explanation:
    """What was asked, and what the bytes of the store say to it.

    Attributes:
        question: in words.
        found: the message is found, or the store takes puts.
        reason: the one sentence that answers.
        facts: (what was looked at, what is there), in the order of looking.
        advice: what helps; empty when nothing is to be done.
        in_use: a process has the store open for writing, and nothing else is against it.
    """

    question: str
    found: bool = False
    reason: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)
    advice: str = ""
    in_use: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The explanation as plain values, for JSON."""
        return {
            "question": self.question,
            "found": self.found,
            "reason": self.reason,
            "facts": [list(fact) for fact in self.facts],
            "advice": self.advice,
            "in_use": self.in_use,
        }
