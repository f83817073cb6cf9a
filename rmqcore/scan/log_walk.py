"""The walk over one split: feeds its records to a kernel, and reports damaged places.

Files of a directory are read with ``pread``: one that is deleted or cut short meanwhile is an error
with path and offset, never a signal. Those of an archive are read in windows, ahead of the walk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rmqcore.errors import (
    UNREADABLE,
    CorruptRecordError,
    CorruptStoreError,
    RecordsGoneError,
    is_bad_sector,
)
from rmqcore.files.log_file import LogFile
from rmqcore.files.log_walker import (
    PIECE_SIZE,
    FileWalk,
    Kernel,
    LogStep,
    find_good_record,
    view_of,
)
from rmqcore.files.mapped_file import OpenFiles
from rmqcore.native.format._next_record import ScanStatus
from rmqcore.scan.split import Split

CHUNK_SIZE = PIECE_SIZE


@dataclass(frozen=True, slots=True)
class Damage:
    """A place where no good record is.

    Attributes:
        path: the log file; of an archive its URL.
        phy_offset: where it begins.
        next_offset: where good records go on, or the split ends.
        reason: what is there.
    """

    path: Path | str
    phy_offset: int
    next_offset: int
    reason: str


class LogWalk:
    """One walk over one split.

    Args:
        split: what to walk.
        on_damage: called for each damaged place, after which the walk goes on with the next good
            record; None raises instead.
        on_progress: called with the number of bytes that have been walked since the last call.
        chunk_size: bytes read at once; a larger record is read whole all the same.
    """

    def __init__(
        self,
        split: Split,
        *,
        on_damage: Callable[[Damage], None] | None = None,
        on_progress: Callable[[int], None] | None = None,
        chunk_size: int = CHUNK_SIZE,
    ) -> None:
        self._split = split
        self._on_damage = on_damage
        self._on_progress = on_progress
        self._chunk_size = chunk_size
        self._open_files = OpenFiles()

    def run(self, kernel: Kernel) -> Iterator[ScanStatus]:
        """Feed the split to a kernel, piece by piece.

        Yields after each call of the kernel, with its answer: what it has made is to be taken then,
        before the buffer changes.

        Raises:
            CorruptRecordError: a damaged place, without ``on_damage``.
            CorruptStoreError: a file is shorter than it should be.
            OSError: the disk refuses to give what lies in a place, without ``on_damage``.
            RecordsGoneError: a file is gone.
            ObjectStoreError: an archive's file cannot be read, or is another one.
        """
        split = self._split
        at = split.start
        while at < split.end:
            start = split.file_start(at)
            stop = min(start + split.file_size, split.end)
            try:
                file = split.file_at(start, self._open_files)
            except RecordsGoneError:
                # the error has no URL, but a path
                self._gone(split.url_at(start), at, stop)
                at = stop
                continue
            try:
                yield from self._run_file(kernel, file, at, stop)
            finally:
                file.close()
            at = stop

    def _run_file(self, kernel: Kernel, file: LogFile, at: int, stop: int) -> Iterator[ScanStatus]:
        file_end, size, view = file.file_from_offset + file.size, self._chunk_size, view_of(file)
        walk = FileWalk(view, kernel, at, stop, file_end=file_end, piece_size=size)
        steps, cut = iter(walk), None
        while True:
            try:
                step = self._next(steps, file.path, at, stop)
            except OSError as error:
                if self._on_damage is None or not is_bad_sector(error):
                    raise
                following, reason, steps = at, UNREADABLE, iter(walk)
            except CorruptStoreError as error:
                if isinstance(error, CorruptRecordError):
                    raise
                # what lies in front of the cut is there, and was not handed out yet
                end = at if cut is not None else max(at, min(error.phy_offset, stop))
                cut = cut or error
                walk = FileWalk(view, kernel, at, end, file_end=file_end, piece_size=size)
                steps = iter(walk)
                continue
            else:
                if step is None:
                    if cut is not None and at < stop:
                        self._cut(file, at, stop, cut)
                    return
                yield step.status
                following = stop if step.status is ScanStatus.BLANK else step.phy_offset
                reason = "" if step.is_good else step.reason
                if cut is not None and step.status is ScanStatus.TRUNCATED:
                    reason = cut.reason
                    if self._on_damage is None:
                        raise cut
            if reason:
                following = self._damaged(file, following, reason, stop)
                walk.go_on(following)
            self._progressed(following - at)
            at = following

    def _next(
        self, steps: Iterator[LogStep], path: Path | str, at: int, stop: int
    ) -> LogStep | None:
        """The next step; None at the end, and where the file is gone."""
        try:
            return next(steps, None)
        except FileNotFoundError:
            self._gone(path, at, stop)
        return None

    def _cut(self, file: LogFile, at: int, stop: int, error: CorruptStoreError) -> None:
        """Tell that a file has no more bytes, behind what was walked."""
        if self._on_damage is None:
            raise error
        self._on_damage(Damage(file.path, at, stop, error.reason))

    def _progressed(self, size: int) -> None:
        if self._on_progress is not None and size:
            self._on_progress(size)

    def _gone(self, path: Path | str, at: int, stop: int) -> None:
        if self._on_damage is None:
            raise RecordsGoneError(path, at)
        self._on_damage(Damage(path, at, stop, "the file is gone"))

    def _damaged(self, file: LogFile, at: int, reason: str, stop: int) -> int:
        """Tell a damaged place; where good records go on, or the split ends."""
        if self._on_damage is None:
            raise CorruptRecordError(file.path, at, reason)
        start = file.file_from_offset
        try:
            found = find_good_record([file], at + 1 - start, stop - start, past_bad_sectors=True)
        except CorruptStoreError:
            # the file was cut short meanwhile
            found = None
        following = stop if found is None else found.phy_offset
        self._on_damage(Damage(file.path, at, following, reason))
        return following
