"""A queue of mapped files: files in offset order that make one long sequence of bytes.

Finds, rolls, truncates and removes files; knows no record format.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from rmqcore.errors import CorruptStoreError
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.files.store_dir import NOT_A_FILE, NUMBERED_FILE, entries_of, leads_to, make_directory
from rmqcore.files.zeros import holds_nothing
from rmqcore.native.base._lock import ReentrantLock
from rmqcore.world import sync_directory

if TYPE_CHECKING:
    from collections.abc import Callable

#: the last offset there is, as every format keeps offsets in 8 bytes with a sign
OFFSET_MAX = 2**63 - 1
#: beyond this offset a file of the largest size, 2 GiB, does not end in front of the last one
_START_MAX = OFFSET_MAX - 2**31
_TOO_FAR = "no file begins so far behind: it is none of this store's; move it away"
#: A directory that changes while it is listed is listed again; after this many times the last
#: listing counts.
_LISTINGS_MAX = 32
#: directories that a queue's first file may need: its kind's, a topic's and the queue's
_LEVELS = 3


def offset_to_file_name(offset: int) -> str:
    """Name of the file that begins at an offset: 20 digits. Source: common/UtilAll.java."""
    return f"{offset:020d}"


def numbered_files(directory: Path) -> list[tuple[int, Path, int]]:
    """(offset, path, size in bytes) of the files of a queue, in offset order.

    What is listed was there at one moment, whatever a writer does meanwhile.
    """
    found = _snapshot(directory)
    return [(start, directory / name, size) for start, name, size in found if size >= 0]


def no_files(directory: Path) -> list[Path]:
    """What has the name of a file of a queue, and is none, such as a directory.

    Args:
        directory: of the queue.
    """
    return [directory / name for _, name, size in _listed(directory) if size < 0]


def _snapshot(directory: Path) -> list[tuple[int, str, int]]:
    """As `numbered_files`, with names.

    A listing is no snapshot: beside a writer it may show a file, and not the one made before it.
    One with a hole is made again until two are equal: between them nothing came or went, so the
    hole is there.
    """
    found = _listed(directory)
    for _ in range(_LISTINGS_MAX):
        if all(start + size == after[0] for (start, _, size), after in pairwise(found)):
            break
        before, found = found, _listed(directory)
        if found == before:
            break
    return found


def _listed(directory: Path) -> list[tuple[int, str, int]]:
    """As `numbered_files`, with names; the size of what is no file is -1.

    Raises:
        CorruptStoreError: a file would end behind the last offset there is.
    """
    found = []
    for entry in entries_of(directory):
        # retention may remove it just now
        with suppress(FileNotFoundError):
            if NUMBERED_FILE.fullmatch(entry.name):
                size = entry.stat().st_size if leads_to(entry.is_file) else -1
                found.append((int(entry.name), entry.name, size))
    found.sort()
    if found and found[-1][0] > _START_MAX:
        # a log may begin there, and then has files as small as its first
        room = OFFSET_MAX - max(0, found[0][2])
        if found[0][0] <= _START_MAX or found[-1][0] > room:
            raise CorruptStoreError(directory / found[-1][1], -1, _TOO_FAR)
    return found


def file_size_of(files: list[tuple[int, Path, int]]) -> int | None:
    """The size that files of one queue were created with, or None when that cannot be told.

    Two neighbours tell it by their names; a single file by its length.
    """
    steps = {after[0] - before[0] for before, after in pairwise(files)}
    lengths = Counter(size for _, _, size in files if size)
    if not lengths:
        return None
    common, _ = lengths.most_common(1)[0]
    return common if len(files) == 1 or common in steps else min(steps)


def cut_short(file: MappedFile, size: int) -> CorruptStoreError:
    """The error of a last file that holds data, and has fewer bytes than it should.

    Args:
        file: the last one.
        size: bytes that it has.
    """
    return CorruptStoreError(
        file.path,
        file.file_from_offset + size,
        f"the file was cut short: it has {size} bytes, files here have {file.size}. "
        "Nothing was changed. rmqcore doctor plan STORE says what a repair saves. Read the store "
        'as it is with mode="r", or open it with on_corruption="truncate" to go on with what is '
        "there",
    )


class MappedFileQueue:
    """The files of one directory as one sequence of bytes.

    - Files are contiguous: each begins where the one before ends.
    - All files have one size; only the last is written to.
    - A file whose name is not 20 digits is not of the queue and is left alone.

    Args:
        directory: where the files lie.
        file_size: bytes of each file.
        open_files: the bound on descriptors and mappings.
        writable: False reads only and follows what another process does.
        sync_names: False leaves the names of new files and directories to the owner, who finds
            them noted in ``unsynced``.

    Threads: one appends, another may remove the oldest; readers see the old list or the new one.
    Source: RocketMQ store/MappedFileQueue.java.
    """

    def __init__(
        self,
        directory: Path,
        file_size: int,
        open_files: OpenFiles,
        *,
        writable: bool = True,
        sync_names: bool = True,
    ) -> None:
        self.directory = directory
        self.file_size = file_size
        self.writable = writable
        self.files: list[MappedFile] = []
        self._by_start: tuple[list[int], list[MappedFile]] = ([], [])
        self._change = ReentrantLock()
        self.open_files = open_files
        self._sync_names = sync_names
        self.unsynced = False

    def load(
        self, *, lengthen: bool = False, keep_first: bool = False, any_lost: bool = False
    ) -> None:
        """Take in the files of the directory.

        A last file that is short and holds nothing, left by a crash during creation, is brought
        to its length in a store opened for writing. An empty one is removed, with the files behind
        it that hold nothing: a power cut may leave any of those that were made ahead.

        Args:
            lengthen: do the same with a short last file that holds data.
            keep_first: bring the first file to its length, too, in place of removing it: without
                any, what is derived would tell of a lost log.
            any_lost: do the same with any file without a byte, whose length a power cut may have
                taken, and not that of one behind it.

        Raises:
            CorruptStoreError: a file has another length, a file is missing between two, what has
                the name of one is none, or one would end behind the last offset there is.
        """
        found = [
            (start, self.directory / name, size) for start, name, size in _snapshot(self.directory)
        ]
        for _, path, size in found:
            if size < 0:
                raise CorruptStoreError(path, -1, NOT_A_FILE)
        begun = next((number for number, (_, _, size) in enumerate(found) if not size), len(found))
        if keep_first and self.writable:
            begun = max(begun, 1)
        if all(holds_nothing(path) for _, path, _ in found[begun:]):
            for _, path, _ in reversed(found[begun:]) if self.writable else ():
                path.unlink()
                # one by one: a power cut may not take one in front of another
                sync_directory(self.directory)
            del found[begun:]
        files: list[MappedFile] = []
        for number, (start, path, size) in enumerate(found):
            last = number == len(found) - 1
            short = size < self.file_size and (last or (any_lost and not size))
            if size != self.file_size and not short:
                raise CorruptStoreError(
                    path, -1, f"the file has {size} bytes, files here have {self.file_size}"
                )
            if start > OFFSET_MAX - self.file_size:
                raise CorruptStoreError(path, -1, f"no file of {self.file_size} bytes begins there")
            if files and start != files[-1].file_from_offset + self.file_size:
                raise CorruptStoreError(
                    self.directory,
                    files[-1].file_from_offset + self.file_size,
                    f"a file is missing before {path.name}",
                )
            file = MappedFile(path, self.file_size, start, self.open_files, writable=self.writable)
            if size < self.file_size:
                self._heal_short(file, size, lengthen=lengthen)
            file.set_positions(file.size)
            files.append(file)
        self._set(files)

    def _heal_short(self, file: MappedFile, size: int, *, lengthen: bool) -> None:
        if not self.writable:
            file.size = size
            return
        if not lengthen and not holds_nothing(file.path):
            raise cut_short(file, size)
        with file.path.open("r+b") as stream:
            stream.truncate(file.size)
        file.zero_from(size)

    def follow(self) -> bool:
        """Take in files that another process has added or removed; True when there were any."""
        found = _snapshot(self.directory)
        known = {file.file_from_offset: file for file in self.files}
        if [start for start, _, size in found if size > 0] == list(known):
            return False
        files = []
        for start, name, size in found:
            file = known.pop(start, None)
            if file is None and size >= self.file_size:
                path = self.directory / name
                file = MappedFile(path, self.file_size, start, self.open_files, writable=False)
                file.set_positions(file.size)
            if file is not None:
                files.append(file)
        for gone in known.values():
            gone.forget()
        self._set(files)
        return True

    def _set(self, files: list[MappedFile]) -> None:
        self._by_start = [file.file_from_offset for file in files], files
        self.files = files

    # ---- finding

    @property
    def last(self) -> MappedFile | None:
        """The file that is written to."""
        return self.files[-1] if self.files else None

    @property
    def min_offset(self) -> int:
        """Offset of the first byte there is; 0 without files."""
        return self.files[0].file_from_offset if self.files else 0

    @property
    def max_offset(self) -> int:
        """Offset behind the last readable byte; 0 without files."""
        for file in reversed(self.files):
            if file.read_position:
                return file.file_from_offset + file.read_position
        return self.min_offset

    def find(self, offset: int) -> MappedFile | None:
        """The file that holds the byte at ``offset``, or None.

        Differs: RocketMQ answers offset 0 with its oldest file, whatever that holds.
        """
        starts, files = self._by_start
        number = bisect_right(starts, offset) - 1
        if number < 0 or number >= len(files):
            return None
        file = files[number]
        return file if offset < file.file_from_offset + self.file_size else None

    # ---- growing and shrinking

    def path_of(self, offset: int) -> Path:
        """Path of the file that begins at ``offset``."""
        return self.directory / offset_to_file_name(offset)

    def append_file(
        self, offset: int, make: Callable[[Path, int], MappedFile] | None = None
    ) -> MappedFile:
        """Create the file that begins at ``offset`` and make it the last.

        Args:
            offset: of the file's first byte; the end of the last file.
            make: gives a ready file for (path, offset), for files made ahead of need.

        Raises:
            DiskFullError: there is no room.
        """
        if not self.files:
            make_directory(self.directory, synced=self._sync_names, levels=_LEVELS)
        path = self.path_of(offset)
        file = self.new_file(path, offset, whole=False) if make is None else make(path, offset)
        with self._change.within():
            self._set([*self.files, file])
        return file

    def new_file(self, path: Path, offset: int, *, whole: bool) -> MappedFile:
        """Create a file; it is not in the queue yet.

        Args:
            path: of the file, whose directory exists.
            offset: in the queue, of its first byte.
            whole: reserve all of its space on the disk at once.

        Raises:
            DiskFullError: there is no room.
            OSError: the system refused, for one because the file exists; nothing is left of it.
        """
        file = MappedFile(path, self.file_size, offset, self.open_files)
        file.create(whole=whole)
        try:
            if self._sync_names:
                sync_directory(self.directory)
        except OSError:
            file.destroy()
            raise
        self.unsynced = not self._sync_names
        return file

    def add_file_at(self, offset: int) -> MappedFile:
        """The file that is to hold the byte at ``offset``, which no file here does yet.

        In any order, and side by side with other processes: one of them makes it, all write to it.

        Raises:
            DiskFullError: there is no room.
        """
        if not self.files:
            make_directory(self.directory, synced=self._sync_names)
        start = offset - offset % self.file_size
        file = MappedFile(self.path_of(start), self.file_size, start, self.open_files)
        with suppress(FileExistsError):
            file.create(whole=False, over_zeros=False)
        self.unsynced = not self._sync_names
        with self._change.within():
            self._set(sorted([*self.files, file], key=lambda one: one.file_from_offset))
        return file

    def truncate(self, offset: int) -> int:
        """Drop every byte from ``offset`` on; what remains of the last file reads as zeros.

        A file that begins at ``offset`` stays, empty: its name says where the next byte goes.

        Returns:
            how many files were removed.
        """
        kept = [file for file in self.files if file.file_from_offset <= offset]
        removed = self.files[len(kept) :]
        count = len(removed)
        self._set(kept)
        # one that is removed is held no longer than by its readers: there may be very many
        while removed:
            removed.pop().destroy()
            # one by one: a power cut may not take one in front of another
            sync_directory(self.directory)
        if kept:
            last = kept[-1]
            position = min(offset - last.file_from_offset, last.size)
            if position < last.size:
                last.zero_from(position)
            last.set_positions(position)
        return count

    def remove_first(self, count: int) -> None:
        """Remove the oldest files, never the last one.

        Raises:
            OSError: a file could not be removed; it and those behind it stay.
        """
        gone = self.files[: max(0, min(count, len(self.files) - 1))]
        if not gone:
            return
        try:
            with self._change.within():
                self._set(self.files[len(gone) :])
            while gone:
                gone[0].destroy()
                # one by one: a power cut may not take one behind another
                sync_directory(self.directory)
                del gone[0]
        except BaseException:
            # on an interrupt, too: this file would stand alone in front of a gap when later ones
            # are removed
            with self._change.within():
                left = [file for file in gone if file.path.exists() and file not in self.files]
                self._set([*left, *self.files])
            raise

    def close(self) -> None:
        """Close every file."""
        for file in self.files:
            file.close()
        self._set([])

    def destroy(self) -> None:
        """Remove every file, and the directory when nothing else is in it."""
        gone = self.files[::-1]
        self._set([])
        while gone:
            gone.pop().destroy()
        if self.directory.is_dir() and not any(self.directory.iterdir()):
            self.directory.rmdir()
