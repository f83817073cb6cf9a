"""What exit codes say: one table, for every command and for the doctor's, which has fsck's."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple


class ExitCode(IntEnum):
    """What the exit code of every command says; `TABLE` has the words."""

    DONE = 0
    FINDINGS = 1
    USAGE = 2
    STORE = 3
    DAMAGED = 4
    SYSTEM = 5
    DEFECT = 70
    INTERRUPTED = 130
    PIPE_CLOSED = 141


class FsckCode(IntEnum):
    """What the exit code of the doctor's commands says: fsck's, for those who script it."""

    CLEAN = 0
    CORRECTED = 1
    UNCORRECTED = 4
    OPERATIONAL = 8
    USAGE = 16


class Row(NamedTuple):
    """What one code means; empty where it is not used."""

    code: int
    commands: str
    doctor: str


_INTERRUPTED: Final = "interrupted"
_DEFECT: Final = "a defect of rmqcore: please report what it says"
_PIPE: Final = "who read the output has gone"
#: docs/cli.md has the same table
TABLE: Final = (
    Row(0, "done", "nothing is wrong, nothing was to be done"),
    Row(1, "done, and there are findings, or nothing was found", "what was wrong is corrected"),
    Row(2, "wrong usage, setting or input, or an extra that is missing", ""),
    Row(3, "the store, or a broker, refuses: missing, locked, read-only", ""),
    Row(
        4,
        "damaged data where it was needed",
        "errors are left as they are; explain: not found; diff: not the same",
    ),
    Row(5, "the system refuses: disk, permission, network, port", ""),
    Row(8, "", "it could not be done: missing, locked, disk, permission"),
    Row(16, "", "wrong usage, setting or input"),
    Row(70, _DEFECT, _DEFECT),
    Row(130, _INTERRUPTED, f"{_INTERRUPTED}; the same command goes on where it was"),
    Row(141, _PIPE, _PIPE),
)
EXIT_CODES: Final = "\n".join(
    ["Exit codes:", *(f"{row.code:>3}  {row.commands}" for row in TABLE if row.commands)]
)
FSCK_CODES: Final = "\n".join(
    ["Exit codes, as of fsck:", *(f"{row.code:>3}  {row.doctor}" for row in TABLE if row.doctor)]
)
