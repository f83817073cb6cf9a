"""A range of one consume queue's units."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UnitRange:
    """Units of one queue: numbers ``[first, end)``.

    Attributes:
        topic, queue_id: whose queue it is.
    """

    topic: str
    queue_id: int
    first: int
    end: int

    @property
    def key(self) -> tuple[str, int]:
        """Topic and queue id."""
        return self.topic, self.queue_id

    @property
    def count(self) -> int:
        """Units, fillers among them."""
        return self.end - self.first
