"""The outside world as one value: clocks, sleep, syncs and failpoints; and what it allows.

Nothing else in this package reads a clock, sleeps or makes bytes durable by itself. What owns a
loop or a service takes a `World`; a store with what works on it, servers and clients have their
clocks from one that they were given; small functions elsewhere import what they need from here.
Both ask the same native cells (`native/base/_world`), so whoever holds time there holds it for the
process.
Helper threads are no part of it: what would block an event loop goes to that loop's executor.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rmqcore.native.base._world import (
    begin_sync,
    hold_time,
    monotonic_s,
    pass_time,
    release_time,
    sync_data,
    sync_fd,
    wall_clock_ms,
    wall_clock_ns,
    watch_syncs,
)

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "REAL",
    "World",
    "asleep_s",
    "begin_sync",
    "connections_allowed",
    "hold_time",
    "monotonic_s",
    "no_failpoint",
    "raise_limit",
    "release_time",
    "sleep",
    "sync_data",
    "sync_directory",
    "sync_fd",
    "sync_file",
    "sync_found_name",
    "wall_clock_ms",
    "wall_clock_ns",
    "watch_syncs",
]


#: Connections that were accepted get this part of every limit of descriptors.
_CONNECTIONS_SHARE: Final = 3 / 8


def sleep(seconds: float) -> None:
    """Wait; where time is held, move it on instead."""
    if not pass_time(seconds):
        time.sleep(seconds)


def sync_file(path: Path) -> None:
    """Make the bytes of a file survive a power cut.

    Raises:
        OSError: the disk refused.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync_fd(fd)
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    """Make names created in or removed from a directory survive a power cut.

    Raises:
        OSError: the disk refused.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_fd(fd)
    finally:
        os.close(fd)


def sync_found_name(path: Path) -> None:
    """Make the name of a directory that was there already survive a power cut, too.

    Who made it may have been killed before it synced the name. Where this user may not read the
    directory above, or its file system cannot sync it, the name is left as it is.

    Raises:
        OSError: the disk refused.
    """
    with suppress(PermissionError, FileNotFoundError):
        try:
            sync_directory(path.absolute().parent)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EINVAL):
                raise


def raise_limit() -> None:
    """Let this process have as many descriptors as it may give itself, as servers do."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # a container may forbid it
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_allowed() -> int | None:
    """How many connections all servers of this process may accept together; None for no limit.

    Stores take at most half of the descriptors (`rmqcore.files.mapped_file.OpenFiles`), connections
    most of the other half; what is left is for directories, logs and the connections that this
    process makes.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else max(8, int(soft * _CONNECTIONS_SHARE))


def asleep_s() -> float:
    """For how many whole seconds the machine was suspended, which `monotonic_s` does not count.

    Only Linux tells; elsewhere it is 0.
    """
    if sys.platform != "linux":
        return 0.0
    with_sleep = time.clock_gettime(time.CLOCK_BOOTTIME)
    return float(round(with_sleep - time.clock_gettime(time.CLOCK_MONOTONIC)))


def no_failpoint(name: str) -> None:
    """Go on."""


@dataclass(frozen=True, slots=True)
class World:
    """What a part is given of the outside.

    Attributes:
        clock_ms: Unix time in milliseconds.
        monotonic_s: seconds of a clock that never steps back.
        sleep: waits this many seconds.
        sync: makes a descriptor's bytes durable without the GIL, or raises OSError.
        failpoint: called with a name before and after each step that a crash may separate.
        asleep_s: seconds for which the machine was suspended; ``monotonic_s`` does not count them.
    """

    clock_ms: Callable[[], int] = wall_clock_ms
    monotonic_s: Callable[[], float] = monotonic_s
    sleep: Callable[[float], None] = sleep
    sync: Callable[[int], object] = sync_data
    failpoint: Callable[[str], None] = no_failpoint
    asleep_s: Callable[[], float] = asleep_s


#: The system's clocks and syncs.
REAL = World()
