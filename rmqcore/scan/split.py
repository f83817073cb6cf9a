"""A split: a stretch of a commit log that one task works on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Split:
    """The records that start in ``[start, end)``; small, and good to be sent to another process.

    Attributes:
        store: the store's directory.
        commit_log: the directory of its log files.
        start, end: physical offsets; both are where a record begins or the log ends.
        first_file: physical offset at which the file that holds ``start`` begins.
        file_size: bytes of every log file.
    """

    store: str
    commit_log: str
    start: int
    end: int
    first_file: int
    file_size: int

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
