"""A split: a stretch of a commit log that one task works on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from rmqcore.files.log_file import LogFile
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.scan.object_file import ObjectFile, log_name
from rmqcore.scan.unit_ranges import UnitRange


@dataclass(frozen=True, slots=True)
class Split:
    """The records that start in ``[start, end)``; small, and good to be sent to another process.

    Attributes:
        store: the store's directory, or the URL of an archive.
        commit_log: the directory of its log files; of an archive their URL.
        start, end: physical offsets; both are where a record begins or the log ends.
        first_file: physical offset at which the file that holds ``start`` begins.
        file_size: bytes of every log file.
        units: only the records of these units are wanted, and only they are read; None for all.
        unit_file_size: bytes of every consume-queue file.
        is_archived: it lies in one file of an archive.
        archive: URL of the store's archive, which has what retention deletes meanwhile; or empty.
        tag: of that file, as the archive's manifest knows it; empty where there is none.
        storage_options: with which an archive is opened; in no ``repr``.
    """

    store: str
    commit_log: str
    start: int
    end: int
    first_file: int
    file_size: int
    units: tuple[UnitRange, ...] | None = None
    unit_file_size: int = 0
    is_archived: bool = False
    archive: str = ""
    tag: str = ""
    storage_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def size(self) -> int:
        """Bytes of log."""
        return self.end - self.start

    def part(self, start: int, end: int) -> Split:
        """Every record between two physical offsets of it, whatever its units.

        Args:
            start: where a record begins.
            end: where one begins, or the split ends.
        """
        return replace(self, start=start, end=end, first_file=self.file_start(start), units=None)

    def file_start(self, phy_offset: int) -> int:
        """Where the file that holds a physical offset begins."""
        return phy_offset - (phy_offset - self.first_file) % self.file_size

    def path_at(self, file_start: int) -> Path:
        """The file that begins at a physical offset, of a store in a directory."""
        return Path(self.commit_log) / f"{file_start:020d}"

    def url_at(self, file_start: int) -> str:
        """The object of the archive that begins at a physical offset."""
        return f"{self._above}/{log_name(file_start)}"

    @property
    def _above(self) -> str:
        return self.store if self.is_archived else self.archive

    def file_at(self, file_start: int, open_files: OpenFiles) -> LogFile:
        """The file that begins at a physical offset, to be read.

        Args:
            file_start: the offset.
            open_files: the bound that files of a directory count against.

        Raises:
            RecordsGoneError, ObjectChangedError, ObjectStoreError: of an archive's file.
        """
        path = self.path_at(file_start)
        if not self.is_archived and not (self.archive and not path.exists()):
            return MappedFile(path, self.file_size, file_start, open_files, writable=False)
        return ObjectFile(
            self._above,
            dict(self.storage_options),
            file_start,
            self.file_size,
            tag=self.tag,
            wanted=(
                max(0, self.start - file_start),
                min(self.file_size, self.end - file_start),
            ),
        )
