"""What a simulation itself complains of, apart from what it finds."""

from __future__ import annotations

from rmqcore.errors import RmqCoreError


class SimulationError(RmqCoreError):
    """The simulation cannot go on: what it runs has asked for something that it does not have."""


class StuckError(SimulationError):
    """Something is waited for, and nothing that could ever happen is left."""

    def __init__(self, time_s: float) -> None:
        super().__init__(
            f"at {time_s:.6f} s: somebody waits, and nothing is left that could happen"
        )


class UnsimulatedError(SimulationError):
    """What is simulated has asked for something of the system that the simulation does not have."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: not simulated")
