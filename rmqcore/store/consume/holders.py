"""Names of those who hold leases, by which it can be told that their process has gone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
#: fields of /proc/PID/stat behind the command; the time of the start is the 20th of them
_STARTED_FIELD: Final = 19


def new_holder() -> str:
    """A name of its own for a holder in this process: ``process.start-random``."""
    return f"{_process(os.getpid())}-{os.urandom(6).hex()}"


def is_gone(holder: str) -> bool:
    """Tell whether a name is of a process of this machine that has ended.

    Names that `new_holder` has not made are of nobody who could be asked, and never gone.
    """
    process, dash, _ = holder.partition("-")
    pid, dot, _ = process.partition(".")
    if not (dash and dot and pid.isascii() and pid.isdigit() and _PROC.is_dir()):
        return False
    return _process(int(pid)) != process


def is_mine(holder: str) -> bool:
    """Tell whether a name was made in this process."""
    return holder.partition("-")[0] == _process(os.getpid())


def _process(pid: int) -> str:
    """A process by its id and the clock tick of its start, 0 where nobody tells it."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return f"{pid}.0"
    return f"{pid}.{text.rpartition(')')[2].split()[_STARTED_FIELD]}"
