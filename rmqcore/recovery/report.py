"""Recovery's report: what opening a store found and did; and its progress meanwhile."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum


class Ending(StrEnum):
    """How the log ended when it was opened."""

    CLEAN = "clean"
    TORN = "torn"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class RecoveryProgress:
    """How far a recovery is; passed to the ``progress`` callback.

    Attributes:
        phase: "queues", "log" or "index".
        done, total: queues, or bytes of the log.
    """

    phase: str
    done: int
    total: int


@dataclass(slots=True)
class RecoveryReport:
    """What opening the store found and did.

    Attributes:
        clean_shutdown: False when the last writer did not close the store.
        ending: `Ending` of the log.
        start_offset: physical offset from which the log was walked.
        end_offset: end of the log afterwards.
        derived_to: end of what is in consume queues and index: before that of the log where the
            disk had no room for more.
        records: records walked.
        dropped_bytes: bytes of a torn tail that were cut off.
        cut_kept: where these bytes are kept, in words; empty when none were cut off.
        dropped_records: good records among them (put, but never acknowledged as on disk).
        damaged: (physical offset, reason) of each damaged place that was passed over.
        units_dropped: consume-queue units that pointed behind the end of the log, or at damage
            that was passed over.
        index_from: physical offset from which the index was derived again; -1 for none.
        findings: what was wrong with derived files, in words.
        elapsed_s: seconds taken.
    """

    clean_shutdown: bool = True
    ending: Ending = Ending.CLEAN
    start_offset: int = 0
    end_offset: int = 0
    derived_to: int = 0
    records: int = 0
    dropped_bytes: int = 0
    cut_kept: str = ""
    dropped_records: int = 0
    damaged: list[tuple[int, str]] = field(default_factory=list)
    units_dropped: int = 0
    index_from: int = -1
    findings: list[str] = field(default_factory=list)
    elapsed_s: float = 0.0

    def as_dict(self) -> dict[str, object]:
        """The report as plain values, for JSON."""
        return asdict(self) | {"ending": self.ending.value}
