"""Which process holds a file lock, for the error message of a store that is locked.

The system does not name the holder of an open-file-description lock; what ``/proc`` says of open
files does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def lock_owner(lock_file: Path) -> int | None:
    """Id of a process that has a lock on a file; None when the system does not tell.

    Only root sees the open files of other users' processes.
    """
    with suppress(OSError):
        wanted = lock_file.stat()
        for process in _processes():
            for descriptor in _open_files(process, wanted):
                if "\nlock:" in _text(process / "fdinfo" / descriptor):
                    return int(process.name)
    return None


def command_of(pid: int) -> str | None:
    """The command line of a process; None when the system does not tell."""
    command = _text(_PROC / str(pid) / "cmdline").replace("\0", " ").strip()
    return command or _text(_PROC / str(pid) / "comm").strip() or None


def _processes() -> Iterator[Path]:
    return (path for path in _PROC.iterdir() if path.name.isdigit())


def _open_files(process: Path, wanted: os.stat_result) -> Iterator[str]:
    """Descriptors with which a process has a file open."""
    with suppress(OSError):
        for file in (process / "fd").iterdir():
            with suppress(OSError):
                if os.path.samestat(file.stat(), wanted):
                    yield file.name


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
