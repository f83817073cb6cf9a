"""A split: a stretch of a commit log that one task works on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rmqcore.scan.unit_ranges import UnitRange


@dataclass(frozen=True, slots=True)
class Split:
    """The records that start in ``[start, end)``; small, and good to be sent to another process.

    Attributes:
        store: the store's directory.
        commit_log: the directory of its log files.
        start, end: physical offsets; both are where a record begins or the log ends.
        first_file: physical offset at which the file that holds ``start`` begins.
        file_size: bytes of every log file.
        units: only the records of these units are wanted, and only they are read; None for all.
        unit_file_size: bytes of every consume-queue file.
    """

    store: str
    commit_log: str
    start: int
    end: int
    first_file: int
    file_size: int
    units: tuple[UnitRange, ...] | None = None
    unit_file_size: int = 0

    @property
    def size(self) -> int:
        """Bytes of log."""
        return self.end - self.start

    def file_start(self, phy_offset: int) -> int:
        """Where the file that holds a physical offset begins."""
        return phy_offset - (phy_offset - self.first_file) % self.file_size

    def path_at(self, file_start: int) -> Path:
        """The file that begins at a physical offset."""
        return Path(self.commit_log) / f"{file_start:020d}"
