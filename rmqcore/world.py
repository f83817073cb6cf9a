"""The outside world: clocks, sleep, syncs, failpoints and helper threads, as one value.

Nothing else in this package reads a clock, sleeps or makes bytes durable by itself. What owns a
loop or a service takes a `World`; small functions import what they need from here. Both ask the
same native cells (`native/base/_world`), so whoever holds time there holds it for the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmqcore.native.base._world import (
    hold_time,
    monotonic_s,
    pass_time,
    release_time,
    sync_data,
    sync_file,
    wall_clock_ms,
    wall_clock_ns,
    watch_syncs,
)

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = [
    "REAL",
    "World",
    "hold_time",
    "monotonic_s",
    "no_failpoint",
    "release_time",
    "sleep",
    "sync_data",
    "sync_file",
    "wall_clock_ms",
    "wall_clock_ns",
    "watch_syncs",
]


def sleep(seconds: float) -> None:
    """Wait; where time is held, move it on instead."""
    if not pass_time(seconds):
        time.sleep(seconds)


def no_failpoint(name: str) -> None:
    """Go on."""


@dataclass(frozen=True, slots=True)
class World:
    """What a part is given of the outside.

    Attributes:
        clock_ms: Unix time in milliseconds.
        monotonic_s: seconds of a clock that never steps back.
        sleep: waits so many seconds.
        sync: makes a descriptor's bytes durable without the GIL, or raises OSError.
        failpoint: called with a name before and after each step that a crash may separate.
        executor: runs calls that block, for an event loop; None for the loop's own threads.
    """

    clock_ms: Callable[[], int] = wall_clock_ms
    monotonic_s: Callable[[], float] = monotonic_s
    sleep: Callable[[float], None] = sleep
    sync: Callable[[int], object] = sync_data
    failpoint: Callable[[str], None] = no_failpoint
    executor: Executor | None = None


#: the system's
REAL = World()
