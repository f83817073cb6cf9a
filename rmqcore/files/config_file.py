"""One small configuration file that is replaced as a whole and survives a power cut at any step.

It keeps RocketMQ's ``.bak`` beside the file, so that RocketMQ's own loader finds what it expects.
What the text means is for the class that owns the file to know.

Crash table (state on disk after a power cut behind each step of `ConfigFile.store`, and what
`ConfigFile.load` then answers):

1. ``.tmp`` written and synced: file old, answers old
2. file renamed to ``.bak``: no file, answers old from ``.bak``
3. ``.tmp`` renamed to file: file new, answers new
4. directory synced: file new for good

A file that cannot be parsed is never moved over a good ``.bak``: it is set aside as ``.damaged``,
see `place_of_damaged`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from rmqcore.errors import CorruptConfigFileError
from rmqcore.files.store_dir import NOT_A_FILE, room_at
from rmqcore.files.zeros import read_small
from rmqcore.world import sync_directory, sync_fd

_log = logging.getLogger("rmqcore")

T = TypeVar("T")
_SEAL = re.compile(r'\{\s*"crc32":"([0-9a-f]{8})",')

_FILE_MODE = 0o644
#: Copies of a damaged file that are kept; one more takes the place of the last.
DAMAGED_MAX: Final = 8


def place_of_damaged(path: Path, raw: bytes) -> Path:
    """Where a damaged file is kept: as ``.damaged``, or ``.damaged-2`` where that is another.

    Args:
        path: of the file.
        raw: its bytes; where they are kept already, that is the place.

    Raises:
        OSError: what lies there cannot be read.
    """
    first = path.with_name(path.name + ".damaged")
    others = (first.with_name(f"{first.name}-{number}") for number in range(2, DAMAGED_MAX + 1))
    places = [first, *others]
    for place in places:
        if not place.exists() or (place.is_file() and read_small(place) == raw):
            return place
    return places[-1]


def sealed(text: str) -> str:
    """The text of a JSON object with the CRC-32 of it as its first member."""
    return f'{{\n\t"crc32":"{_crc32(text)}",{text[1:]}'


def unsealed(text: str) -> str:
    """The text that was sealed.

    Raises:
        ValueError: its checksum is missing, or that of another text.
    """
    seal = _SEAL.match(text)
    if seal is None:
        raise ValueError("it has no checksum")
    bare = "{" + text[seal.end() :]
    if _crc32(bare) != seal[1]:
        raise ValueError("its checksum is that of another text")
    return bare


def _crc32(text: str) -> str:
    return f"{zlib.crc32(text.encode(errors='replace')):08x}"


class ConfigFile(Generic[T]):
    """A text file below ``config/`` with its backup.

    Threads: one caller at a time; other processes may read beside it.
    Source: RocketMQ common/ConfigManager.java.
    Differs: RocketMQ deletes a file that it cannot read and starts empty when both are gone bad;
        here nothing is deleted, and two bad files are an error.
    """

    def __init__(
        self, path: Path, decode: Callable[[str], T], check_there: Callable[[], object] = bool
    ) -> None:
        """Name a file; nothing is opened.

        Args:
            path: the file; the backup is ``path`` with ``.bak`` behind it.
            decode: makes a value of the text; raises ValueError when the text is damaged.
            check_there: raises when another store's file has this name, see
                `StoreDir.check_there`.
        """
        self._check_there = check_there
        self.path = path
        self.backup_path = path.with_name(path.name + ".bak")
        self._decode = decode
        #: checksum of what was last stored, which can be read
        self._stored_crc = -1
        #: whether what `load` has read is the file's, and not its backup's
        self.is_newest = False

    def load(self) -> T | None:
        """Read the newest content that can be read; a backup that counts for damage is logged.

        Returns:
            The value; None when neither file exists or both are empty, as before the first store.

        Raises:
            CorruptConfigFileError: there is content, and none of it can be parsed.
            OSError: a file exists and cannot be read.
        """
        reasons: list[str] = []
        emptied = ""
        self.is_newest = False
        for path in (self.path, self.backup_path):
            text = _read(path)
            if not text:
                if path == self.path and path.exists():
                    # no rmqcore leaves one: a power cut, another program or a hand has emptied it
                    emptied = f"{path.name} has no bytes"
                continue
            try:
                content = self._decode(text.decode())
            except ValueError as error:
                reasons.append(f"{path.name}: {error}")
            else:
                self.is_newest = path == self.path
                if why := emptied or "".join(reasons[:1]):
                    _log.warning("%s is read in its place: %s", path, why)
                return content
        if reasons:
            raise CorruptConfigFileError(self.path, -1, "; ".join(reasons))
        if emptied:
            _log.warning("%s has no bytes, nor has its backup any: it counts as new", self.path)
        return None

    def is_as_backup(self) -> bool:
        """Whether file and backup are the same: that one was put in the place of this one.

        Raises:
            OSError: one exists and cannot be read.
        """
        return _read(self.path) == _read(self.backup_path)

    def store(self, text: str) -> None:
        """Replace the content; the former one becomes the backup.

        Its directory is made when it is missing, none above that: a store that has been removed
        is not begun anew by its tables.

        Raises:
            DiskFullError: no room for it; the former one is still in place.
            OSError: the same, for any other reason.

        Durability: disk when it returns.
        """
        self._check_there()
        directory = self.path.parent
        if not directory.is_dir():
            directory.mkdir(exist_ok=True)
            sync_directory(directory.parent)
        temporary, data = self._temporary_path, text.encode(errors="replace")
        try:
            with room_at(temporary):
                _write(temporary, data)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        former, kept = _read(self.path), self.backup_path
        if former:
            sound = zlib.crc32(former) == self._stored_crc or self._is_sound(former)
            kept = self.backup_path if sound else place_of_damaged(self.path, former)
            os.replace(self.path, kept)  # noqa: PTH105 - one system call, named as such
        try:
            os.replace(temporary, self.path)  # noqa: PTH105 - same
            sync_directory(directory)
        except OSError:
            # who asked for it is refused: it must not count after the next opening
            with contextlib.suppress(OSError):
                if former:
                    os.replace(kept, self.path)  # noqa: PTH105 - same
                else:
                    self.path.unlink(missing_ok=True)
            raise
        self._stored_crc = zlib.crc32(data)

    def remove(self) -> None:
        """Remove the file and its backup; killed in between, the file is there."""
        self._check_there()
        self.backup_path.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def discard_unfinished(self) -> None:
        """Remove what a kill has left of a `store`; not beside one.

        Raises:
            CorruptConfigFileError: a directory is where `store` needs a file.
        """
        for path in (self._temporary_path, self.backup_path):
            if path.is_dir() and not path.is_symlink():
                raise CorruptConfigFileError(path, -1, NOT_A_FILE)
        self._temporary_path.unlink(missing_ok=True)

    @property
    def _temporary_path(self) -> Path:
        return self.path.with_name(self.path.name + ".tmp")

    def _is_sound(self, raw: bytes) -> bool:
        try:
            self._decode(raw.decode())
        except ValueError:
            return False
        return True


def _read(path: Path) -> bytes:
    try:
        return read_small(path)
    except FileNotFoundError:
        return b""
    except IsADirectoryError as error:
        raise CorruptConfigFileError(path, -1, NOT_A_FILE) from error


def _write(path: Path, raw: bytes) -> None:
    """Write a file and wait until its bytes are on disk."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
    try:
        rest = memoryview(raw)
        while rest:
            rest = rest[os.write(fd, rest) :]
        sync_fd(fd)
    finally:
        os.close(fd)
