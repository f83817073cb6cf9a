"""What opening cuts off the end of a log, kept beside the store for who wants to look at it."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rmqcore.files.store_dir import REPAIRS_NAME, room_at
from rmqcore.world import sync_directory, sync_file

if TYPE_CHECKING:
    from rmqcore.files.mapped_file import MappedFile

_log = logging.getLogger("rmqcore")
#: Of a longer cut only this many bytes are kept, its first ones.
CUT_SIZE_MAX: Final = 64 << 20
#: When there are more cuts than this, the oldest ones are removed.
CUTS_MAX: Final = 8
#: The name of a copy while it is being made.
UNFINISHED: Final = "unfinished-cut"
_PREFIX: Final = "cut-"
_PIECE: Final = 1 << 20


class KeptCuts:
    """Files ``doctor/cut-OFFSET``: bytes of the log as they were, from a physical offset on.

    A log that is cut in the same place again makes ``cut-OFFSET-2``, and so on.

    Args:
        store: the store's directory.
    """

    def __init__(self, store: Path) -> None:
        self._home = store / REPAIRS_NAME

    def keep(self, files: Iterable[MappedFile], start: int, size: int) -> str:
        """Copy what is about to be cut off; the copy is on the disk when this returns.

        Args:
            files: of the log, in order; the first one holds ``start``.
            start: physical offset of the first byte.
            size: bytes up to the last one that is not zero.

        Returns:
            what has been kept, or why it could not be, in words.
        """
        files, kept = list(files), min(size, CUT_SIZE_MAX)
        try:
            path, is_there = self._place(files, start, kept)
            if not is_there:
                self._write(path, files, start, kept)
            # the name also of one that is there: who made it may have been killed just then
            sync_directory(self._home)
            sync_directory(self._home.parent)
            self._forget_oldest()
        except OSError as error:
            _log.warning("what is cut off at %d is not kept: %s", start, error)
            return f"what was cut off at {start} could not be kept: {error}"
        part = "" if kept == size else f", the first of {size}"
        return f"what was cut off at {start} is kept in {path}: {kept} bytes{part}"

    def _place(self, files: list[MappedFile], start: int, size: int) -> tuple[Path, bool]:
        """Where these bytes go, or lie already: an opening that cut them may have been killed.

        A log is cleared from its end on, so what is left begins as the copy does. No copy is
        written over: the log may have been cut in the same place before.
        """
        path = self._home / f"{_PREFIX}{start:020d}"
        for number in itertools.count(2):
            if not path.exists() or _begins_with(path, _pieces(files, start, size)):
                break
            path = path.with_name(f"{_PREFIX}{start:020d}-{number}")
        return path, path.exists()

    def _write(self, path: Path, files: Iterable[MappedFile], start: int, size: int) -> None:
        self._home.mkdir(exist_ok=True)
        written = self._home / UNFINISHED
        try:
            with room_at(path), written.open("wb") as copy:
                for piece in _pieces(files, start, size):
                    copy.write(piece)
            sync_file(written)
            written.replace(path)
        finally:
            written.unlink(missing_ok=True)

    def _forget_oldest(self) -> None:
        cuts = [path for path in self._home.glob(f"{_PREFIX}*") if path.is_file()]
        cuts.sort(key=lambda path: path.stat().st_mtime_ns)
        for path in cuts[:-CUTS_MAX]:
            path.unlink()


def _begins_with(path: Path, pieces: Iterable[bytes]) -> bool:
    with path.open("rb") as copy:
        return all(copy.read(len(piece)) == piece for piece in pieces)


def _pieces(files: Iterable[MappedFile], start: int, size: int) -> Iterable[bytes]:
    """Bytes of the log, from a physical offset on, in pieces."""
    end = start + size
    for file in files:
        at = max(start - file.file_from_offset, 0)
        stop = min(end - file.file_from_offset, file.size)
        while at < stop:
            piece = bytes(file.read(at, min(_PIECE, stop - at)))
            yield piece
            at += len(piece)
