"""Names of those who hold leases, by which it can be told that their process has gone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from rmqcore.chance import token_hex
from rmqcore.native.base._descriptor import Descriptor

_PROC: Final = Path("/proc")
#: Numbers of fields of /proc/PID/stat behind the command: state, flags, the time of the start, and
#: where the stack of the program begins.
_STATE_FIELD: Final = 0
_FLAGS_FIELD: Final = 6
_STARTED_FIELD: Final = 19
_STACK_FIELD: Final = 25
#: The number of a program, where the system does not tell it: not to everybody, and not while one
#: begins or ends.
_NOT_TOLD: Final = "0"
_PROGRAM_MAX: Final = 0xFFFF
#: The file has fewer bytes than this.
_STAT_SIZE_MAX: Final = 4096
#: A process's name has this many parts: id, start, namespace.
_PARTS: Final = 3
#: The longest of these numbers has this many digits.
_DIGITS_MAX: Final = 20
#: The states of a process that has ended while its parent has not yet asked for that.
_ENDED: Final = "ZX"
#: The flag of a process that is ending: PF_EXITING.
_EXITING: Final = 4


def new_holder() -> str:
    """A name of its own for a holder here: ``process.start.namespace-program.random``."""
    pid = os.getpid()
    return f"{_process(pid)}-{_program(_stat(pid))}.{token_hex(6)}"


class Holder:
    """Who holds what one object leases: in a forked child another than in its parent."""

    def __init__(self) -> None:
        #: by process id
        self._names: dict[int, str] = {}

    @property
    def name(self) -> str:
        """The name of this process's holder."""
        pid = os.getpid()
        if pid not in self._names:
            # of several threads that come here first, all get the name of one
            self._names.setdefault(pid, new_holder())
        return self._names[pid]


def is_gone(holder: str) -> bool:
    """Tell whether a name is of a process of this machine that has ended, or is about to.

    One that runs another program by now (``exec``), as of a server that starts itself anew, has
    ended: that one knows nothing of what this one held. A process that is killed gives up its files
    and its locks before it is gone, and stays until its parent has asked for it. Names that
    `new_holder` has not made, and those of a process of which the system tells nothing
    (`is_elsewhere`), are of nobody who could be asked, and never gone.
    """
    if not has_process(holder) or is_elsewhere(holder) or not _PROC.is_dir():
        return False
    pid, start, _ = process_of(holder).split(".")
    fields = _stat(int(pid))
    if fields is None:
        return start != "0"
    if start != fields[_STARTED_FIELD]:
        return True
    program, told, _ = holder.partition("-")[2].partition(".")
    if told and _NOT_TOLD not in (program, now := _program(fields)) and program != now:
        return True
    return fields[_STATE_FIELD] in _ENDED or bool(int(fields[_FLAGS_FIELD]) & _EXITING)


def has_process(holder: str) -> bool:
    """Tell whether a name may be one that `new_holder` has made."""
    parts = process_of(holder).split(".")
    numbers = all(each.isascii() and each.isdigit() and len(each) <= _DIGITS_MAX for each in parts)
    return "-" in holder and len(parts) == _PARTS and numbers


def process_of(holder: str) -> str:
    """The process in a name that `new_holder` has made."""
    return holder.partition("-")[0]


def is_elsewhere(holder: str) -> bool:
    """Tell whether a name is of a process of which the system tells this one nothing.

    It is of another PID namespace, such as another container's, where the same number is another
    process; or ``/proc`` hides it (``hidepid``), as it may the processes of other users.
    """
    if not has_process(holder):
        return False
    pid, _, namespace = process_of(holder).split(".")
    return namespace != _namespace() or (_stat(int(pid)) is None and _is_there(int(pid)))


def is_mine(holder: str) -> bool:
    """Tell whether a name was made in this process."""
    return process_of(holder) == _process(os.getpid())


def _process(pid: int) -> str:
    """A process by its id, the clock tick of its start and its PID namespace; 0 if not known."""
    fields = _stat(pid)
    return f"{pid}.{0 if fields is None else fields[_STARTED_FIELD]}.{_namespace()}"


def _program(fields: list[str] | None) -> str:
    """A number of the program that a process runs; `_NOT_TOLD` where nobody tells it.

    It is some bits of the place of its stack, which the system draws for each; the others are the
    process's secret.
    """
    return _NOT_TOLD if fields is None else str(int(fields[_STACK_FIELD]) >> 4 & _PROGRAM_MAX)


def _namespace() -> str:
    """The PID namespace of this process, as a number; 0 where nobody tells it."""
    try:
        return str((_PROC / "self" / "ns" / "pid").stat().st_ino)
    except OSError:
        return "0"


def _is_there(pid: int) -> bool:
    """Tell whether there is a process of this number, also where nobody tells more of it."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _stat(pid: int) -> list[str] | None:
    """What the system says of a process; None where nobody tells it."""
    try:
        # a descriptor that an interrupt leaves is closed without a warning
        file = Descriptor(os.open(_PROC / str(pid) / "stat", os.O_RDONLY | os.O_CLOEXEC))
        text = os.read(file.fileno(), _STAT_SIZE_MAX)
    except OSError:
        return None
    return text.decode("utf-8", "replace").rpartition(")")[2].split()
