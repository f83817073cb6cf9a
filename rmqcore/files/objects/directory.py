"""Objects in a directory of this machine, or of a mount."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

from rmqcore.errors import Naming
from rmqcore.files.objects.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectMissingError,
)
from rmqcore.files.objects.protocol import ObjectInfo
from rmqcore.files.store_dir import make_directory, room_at
from rmqcore.world import sync_directory, sync_fd, sync_found_name


class DirectoryObjects:
    """Files below a directory; one that begins with a dot is being written, and no object.

    Args:
        path: the directory; made with the first object.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = str(path)
        #: directories whose names are on the disk for certain
        self._named: set[Path] = set()

    def list(self, prefix: str) -> list[ObjectInfo]:
        """The objects below a name, sorted.

        Raises:
            OSError: the system refused.
        """
        found = []
        for folder, _, names in os.walk(self.path / prefix, onerror=_not_there):
            for name in names:
                path = Path(folder) / name
                # who archives deletes old ones meanwhile
                with suppress(FileNotFoundError):
                    if not name.startswith("."):
                        size = path.stat().st_size
                        found.append(ObjectInfo(path.relative_to(self.path).as_posix(), size))
        return sorted(found, key=lambda one: one.name)

    def open(self, name: str) -> FileReader:
        """Open an object for reading."""
        return FileReader(self.path / name)

    def create(self, name: str, content: bytes | Path, sha256: str) -> str:
        """As `Objects.create`, on the disk when it returns.

        Of two who make it at once one gets an error. What a kill has left is written anew.

        Raises:
            DiskFullError: there is no room.
            OSError: the system refused.
        """
        path = self.path / name
        if path.parent not in self._named or not path.parent.is_dir():
            make_directory(path.parent)
            self._sync_names_of(path.parent)
        fresh = path.with_name(f".{path.name}.tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        # around the closing, too: that writes once more what a full disk did not take
        with room_at(fresh), os.fdopen(os.open(fresh, flags, 0o644), "r+b") as stream:
            self._own(stream.fileno(), fresh, path)
            # it goes in any case: a full disk gets its room back
            try:
                stream.truncate(0)
                if isinstance(content, bytes):
                    stream.write(content)
                else:
                    with content.open("rb") as source:
                        shutil.copyfileobj(source, stream, 1 << 20)
                stream.flush()
                sync_fd(stream.fileno())
                os.link(fresh, path)
            except FileExistsError:
                # who has made it may have been killed just then
                sync_directory(path.parent)
                raise ObjectExistsError(str(path), "there is a file of that name") from None
            finally:
                fresh.unlink()
            sync_directory(path.parent)
        return ""

    def _sync_names_of(self, directory: Path) -> None:
        """Sync the names of a directory and of those above it, once: others may have made them."""
        while directory not in self._named:
            sync_found_name(directory)
            self._named.add(directory)
            if directory == self.path:
                break
            directory = directory.parent

    @staticmethod
    def _own(fd: int, fresh: Path, path: Path) -> None:
        """Take the file that is to become an object, or say that another has it."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = os.path.samestat(fresh.stat(), os.fstat(fd))
        except (BlockingIOError, FileNotFoundError):
            mine = False
        if not mine:
            raise ObjectExistsError(str(path), "another process is writing it")
        if os.fstat(fd).st_nlink > 1:
            # it got its name, and then came a kill
            fresh.unlink()
            sync_directory(path.parent)
            raise ObjectExistsError(str(path), "there is a file of that name")

    def settle(self, name: str) -> None:
        """As `Objects.settle`: sync the object's name, and those of the directories above it."""
        directory = (self.path / name).parent
        sync_directory(directory)
        self._sync_names_of(directory)

    def delete(self, name: str) -> None:
        """Delete an object."""
        (self.path / name).unlink(missing_ok=True)


def _not_there(error: OSError) -> None:
    """Take a directory that is not there for an empty one, and no other for one."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


class FileReader:
    """A file that is open for reading.

    Args:
        path: the file.
    """

    tag = ""

    def __init__(self, path: Path) -> None:
        try:
            self._stream = path.open("rb", buffering=0)
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectMissingError(str(path), "no such file") from None
        self.size = os.fstat(self._stream.fileno()).st_size

    def read_at(self, position: int, size: int) -> bytes:
        """So many bytes from a position on; see `ObjectReader.read_at`.

        Raises:
            ObjectChangedError: it has been cut short since it was opened.
            OSError: the system refused.
        """
        fd, size = self._stream.fileno(), max(0, min(size, self.size - position))
        with Naming(self._stream.name):
            data = os.pread(fd, size, position)
            while len(data) < size:
                more = os.pread(fd, size - len(data), position + len(data))
                if not more:
                    reason = f"it had {self.size} bytes, and was cut short while it was read"
                    raise ObjectChangedError(str(self._stream.name), reason)
                data += more
        return data

    def close(self) -> None:
        """Close it."""
        self._stream.close()
