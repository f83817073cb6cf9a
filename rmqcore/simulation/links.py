"""`Link`: what lies between two machines, one way."""

from __future__ import annotations

import random
from typing import Final, Protocol

from rmqcore.simulation.loop import NANOSECONDS

#: TCP's first pause before it repeats what was lost; each is twice the one before
_AGAIN_NS: Final = NANOSECONDS // 5
_LONGEST_PAUSE_NS: Final = 8 * NANOSECONDS
_LEAST_NS: Final = 50_000
_MEAN_NS: Final = 100_000


class Waiting(Protocol):
    """What waits at a closed link."""

    def go_on(self) -> None:
        """Send again."""


class Link:
    """One direction between two machines.

    Attributes:
        least_ns: what everything takes.
        mean_ns: what it takes beyond that, on the average.
        loss: how often a segment has to be sent again.
        closed: nothing gets through.
        waiting: what has come to the closed link.
    """

    __slots__ = ("closed", "least_ns", "loss", "mean_ns", "rng", "waiting")

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.least_ns = _LEAST_NS
        self.mean_ns = _MEAN_NS
        self.loss = 0.0
        self.closed = False
        self.waiting: dict[Waiting, None] = {}

    def delay_ns(self) -> int:
        """How long the next segment takes."""
        delay_ns = self.least_ns + int(self.rng.expovariate(1.0) * self.mean_ns)
        again_ns = _AGAIN_NS
        while self.loss and again_ns < _LONGEST_PAUSE_NS and self.rng.random() < self.loss:
            delay_ns += again_ns
            again_ns *= 2
        return delay_ns

    def mend(self) -> None:
        """Be as at first."""
        self.least_ns, self.mean_ns, self.loss = _LEAST_NS, _MEAN_NS, 0.0
        self.open()

    def open(self) -> None:
        """Let everything through again, also what waits."""
        self.closed = False
        waiting, self.waiting = self.waiting, {}
        for each in waiting:
            each.go_on()
