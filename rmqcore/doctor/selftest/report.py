"""What a self-test found: one row a kind of damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

#: (name of the row, cases done, cases in all)
Progress = Callable[[str, int, int], None]
_KEPT = 20


@dataclass(slots=True)
class Row:
    """One kind of damage: how often it was done, and what did not hold.

    Attributes:
        name: what was done, such as ``power cuts, sync``.
        promise: what has to hold afterwards.
        cases: how often it was done.
        acknowledged: messages that had to be there, over all cases.
        failures: how many cases broke the promise.
        examples: what was seen in the first of them, with what repeats it.
        unprotected: cases that changed only what the format protects by nothing: no failures.
        elapsed_s: seconds that it took.
        skipped: why it was not done; empty when it was.
    """

    name: str
    promise: str
    cases: int = 0
    acknowledged: int = 0
    failures: int = 0
    examples: list[str] = field(default_factory=list)
    unprotected: int = 0
    elapsed_s: float = 0.0
    skipped: str = ""

    @property
    def holds(self) -> bool:
        """Whether it was done, messages had to be there, and no case broke the promise."""
        return not (self.skipped or self.failures) and self.cases > 0 and self.acknowledged > 0

    @property
    def verdict(self) -> str:
        """``holds`` in a word: yes, NO, or skipped."""
        return "skipped" if self.skipped else "yes" if self.holds else "NO"

    def why(self) -> list[str]:
        """Why it does not hold: what was seen, or why nothing was; nothing where it holds."""
        if self.skipped:
            return [f"skipped: {self.name}: {self.skipped}"]
        if self.cases and not self.acknowledged:
            return [*self.examples, f"{self.name}: no message had to be there: nothing is proved"]
        return self.examples

    def fail(self, example: str) -> None:
        """Note a case that broke the promise."""
        self.failures += 1
        if len(self.examples) < _KEPT:
            self.examples.append(example)

    def add(self, part: Row) -> None:
        """Take in another part of the same row, which was done beside this one."""
        self.cases += part.cases
        self.acknowledged += part.acknowledged
        self.failures += part.failures
        self.unprotected += part.unprotected
        self.examples = (self.examples + part.examples)[:_KEPT]
        self.elapsed_s = max(self.elapsed_s, part.elapsed_s)

    def to_dict(self) -> dict[str, Any]:
        """The row for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class SelfTestReport:
    """The rows of one self-test and the seed that gives its random choices again."""

    seed: int
    rows: list[Row]

    @property
    def clean(self) -> bool:
        """Whether every promise that was tried held; one that was skipped was not tried."""
        done = [row for row in self.rows if not row.skipped]
        return bool(done) and all(row.holds for row in done)

    @property
    def verdict(self) -> str:
        """How it ended, in a sentence."""
        skipped = sum(bool(row.skipped) for row in self.rows)
        if skipped == len(self.rows):
            return "nothing was tried"
        if not self.clean:
            return "a promise was BROKEN"
        if skipped:
            return f"every promise that was tried held, {skipped} skipped"
        return "every promise held"

    def to_dict(self) -> dict[str, Any]:
        """The report for JSON."""
        rows = [row.to_dict() | {"holds": row.holds} for row in self.rows]
        return {"seed": self.seed, "clean": self.clean, "rows": rows}
