"""Clock, flush and failpoints of a MetaQ store, which tests replace to cut the power or kill it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rmqcore.world import no_failpoint, sync_data, sync_file, wall_clock_ms


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file(fd)
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class Hooks:
    """The durable flush and the failpoints of one store.

    Attributes:
        sync: makes a descriptor's bytes durable, or raises OSError; never holds the GIL.
        failpoint: called with a name before and after each step that a crash may separate.
        clock_ms: wall clock.
    """

    sync: Callable[[int], object] = sync_data
    failpoint: Callable[[str], None] = no_failpoint
    clock_ms: Callable[[], int] = wall_clock_ms


HOOKS = Hooks()
