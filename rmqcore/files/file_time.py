"""The time of a file that is written through a mapping: by it programs tell what to copy anew.

The kernel moves it when a page is first stored to behind a flush, and not with what is stored to
that page later. Between two runs of rsync a log file would get messages, and keep size and time.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from rmqcore.world import wall_clock_ms

#: The kernel moves times in steps of up to so many milliseconds: one that is no older is new.
_STEP_MS: Final = 10


def renew_file_time(fd: int) -> None:
    """Let a file be of now, as something was stored to it since its time was moved.

    Args:
        fd: of the file; one that nobody may change stays as it is.
    """
    with suppress(OSError):
        if abs(wall_clock_ms() - os.fstat(fd).st_mtime_ns // 1_000_000) > _STEP_MS:
            os.utime(fd)
