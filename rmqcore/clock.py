"""The one place that asks for the time of day."""

from __future__ import annotations

import time


def wall_clock_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000
