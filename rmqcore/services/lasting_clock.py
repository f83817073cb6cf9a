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
    is believed at once.

    Args:
        world: its clocks.
        long_enough_ms: gives for how long the clock has to stay as it is.

    Threads: one at a time.
    """

    def __init__(self, world: World, long_enough_ms: Callable[[], int]) -> None:
        self._world = world
        self._long_enough_ms = long_enough_ms
        #: what the time of day is ahead of the time that passes
        self._ahead_ms = world.clock_ms() - self._passed_ms()
        self._put_forward_at_ms: int | None = None

    def _passed_ms(self) -> int:
        return int(1000 * self._world.monotonic_s())

    def __call__(self) -> int:
        """The time, Unix milliseconds."""
        passed_ms = self._passed_ms()
        ahead_ms = self._world.clock_ms() - passed_ms
        if ahead_ms <= self._ahead_ms + _STEP_MS:
            self._ahead_ms, self._put_forward_at_ms = ahead_ms, None
        elif self._put_forward_at_ms is None:
            self._put_forward_at_ms = passed_ms
        elif passed_ms - self._put_forward_at_ms >= self._long_enough_ms():
            self._ahead_ms, self._put_forward_at_ms = ahead_ms, None
        return self._ahead_ms + passed_ms
