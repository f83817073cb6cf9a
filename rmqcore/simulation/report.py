"""`Report`: what a run of a plan was."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmqcore.simulation.invariants import Broken


@dataclass(slots=True)
class Report:
    """What a run was.

    Attributes:
        broken: what did not hold.
        trace: follows from every event; a run of the same plan has the same one.
        events: how many events it had.
        for_s: how long it lasted, simulated.
        took_s: how long it took, of the processor's time.
        counts: what was reached, by name.
    """

    broken: list[Broken] = field(default_factory=list)
    trace: int = 0
    events: int = 0
    for_s: float = 0.0
    took_s: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)

    def note(self, name: str) -> None:
        """Count something that was reached."""
        self.counts[name] = self.counts.get(name, 0) + 1
