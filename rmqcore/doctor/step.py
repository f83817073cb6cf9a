"""One step of a repair: what is wrong, what is done, what that saves and gives up."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class StepKind(StrEnum):
    """What a step of a repair does; the order is that of the steps."""

    RESTORE_CONFIG = "restore-config"
    DROP_CONFIG = "drop-config"
    COVER = "cover"
    RENUMBER = "renumber"
    RESET_FLAG = "reset-flag"
    RESIZE = "resize"
    CUT_TAIL = "cut-tail"
    REMOVE_FILE = "remove-file"
    REBUILD_QUEUES = "rebuild-queues"
    REBUILD_INDEX = "rebuild-index"
    SET_OFFSETS = "set-offsets"
    CHECKPOINT = "checkpoint"
    CLEAR_ABORT = "clear-abort"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a repair.

    Attributes:
        kind: `StepKind`.
        path: the file or directory that is changed, below the store's; absolute for a log that
            lies elsewhere.
        what: what is wrong.
        saves, gives_up: what the step keeps, and what is lost by it, in words.
        start, stop: physical offsets of the stretch of the log, -1 for none; of a file that gets
            its size, where it begins and ends before.
        timestamp_ms: store time of the records that cover it.
        number: queue offset, or flag, that the record at ``start`` gets; -1 for none.
    """

    kind: StepKind
    path: Path
    what: str
    saves: str
    gives_up: str = ""
    start: int = -1
    stop: int = -1
    timestamp_ms: int = 0
    number: int = -1

    def to_dict(self) -> dict[str, Any]:
        """The step as plain values, for JSON."""
        return asdict(self) | {"kind": self.kind.value, "path": str(self.path)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Step:
        """The step that `to_dict` has written."""
        kind, path = StepKind(values["kind"]), Path(values["path"])
        return cls(**{**values, "kind": kind, "path": path})
