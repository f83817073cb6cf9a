"""`LastingClock`: a time of day that no passing error of the clock brings forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rmqcore.world import World

#: A clock that goes forward by more than this, beside the time that has passed, was put forward.
_STEP_MS: Final = 60_000


class LastingClock:
    """Unix time; a clock that was put forward is believed when it has said so for long enough.

    What is deleted for its age would be gone when the clock is put right. A clock that is put back
    is believed at once, and so is one that was behind what is known and no longer is.

    Args:
        world: its clocks.
        long_enough_ms: gives for how long the clock has to stay as it is.
        known_ms: a time that has come, whatever the clock says now.

    Threads: any; beside each other they may learn a call later what the clock has become.
    """

    def __init__(self, world: World, long_enough_ms: Callable[[], int], known_ms: int = 0) -> None:
        self._world = world
        self._long_enough_ms = long_enough_ms
        self._known_ms = known_ms
        #: what the time of day is ahead of the time that passes
        self._ahead_ms = world.clock_ms() - self._passed_ms()
        self._put_forward_at_ms: int | None = None

    def _passed_ms(self) -> int:
        return int(1000 * (self._world.monotonic_s() + self._world.asleep_s()))

    def __call__(self) -> int:
        """The time, Unix milliseconds."""
        passed_ms, clock_ms = self._passed_ms(), self._world.clock_ms()
        put_forward_at_ms = self._put_forward_at_ms
        believed_ms = self._ahead_ms + passed_ms
        if (
            clock_ms <= believed_ms + _STEP_MS
            or believed_ms < self._known_ms <= clock_ms
            or (
                put_forward_at_ms is not None
                and passed_ms - put_forward_at_ms >= self._long_enough_ms()
            )
        ):
            self._ahead_ms, self._put_forward_at_ms = clock_ms - passed_ms, None
            return clock_ms
        if put_forward_at_ms is None:
            self._put_forward_at_ms = passed_ms
        return believed_ms
