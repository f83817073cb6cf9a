"""What tasks leave for the owner of the log: files of records, in the order of their rows."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmqcore.store.staged_records import StagedRecords, StagedWriter

#: A disk that is told of free blocks takes its time over each file: so many are removed at once.
_REMOVED_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A complete file of records.

    Attributes:
        path: of the file.
        size: its bytes.
        message_count: records in it.
    """

    path: str
    size: int
    message_count: int

    def records(self) -> StagedRecords:
        """What is in it.

        Raises:
            StoreError: the file is not what its task left.
        """
        return StagedRecords(self.path, self.size)


def finished(writer: StagedWriter) -> StagedFile:
    """The file of a writer that has written all of its rows."""
    return StagedFile(str(writer.path), writer.finish(), writer.row_count)


def pieces_behind(files: list[StagedFile], first: int) -> Iterator[tuple[StagedRecords, bytes]]:
    """The records of several files behind the first ``first``, each piece with its file.

    Args:
        files: in the order of their rows.
        first: rows to pass over; more than there are leaves nothing.

    Yields:
        a file's records, and the bytes of some that follow one another.

    Raises:
        StoreError: a file is not what its task left.
    """
    for file in files:
        if first < file.message_count:
            records = file.records()
            for piece in records.pieces(first):
                yield records, piece
        first = max(0, first - file.message_count)


def forget_staged(files: list[StagedFile]) -> None:
    """Remove staged files, and their directory with the last of them."""
    with ThreadPoolExecutor(_REMOVED_AT_ONCE, "ForgetStaged") as threads:
        list(threads.map(lambda file: Path(file.path).unlink(missing_ok=True), files))
    for parent in {Path(file.path).parent for file in files}:
        if parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()
