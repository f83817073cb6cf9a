"""What every place of objects can do, however it is reached."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object.

    Attributes:
        name: below the place's URL, with slashes.
        size: bytes.
    """

    name: str
    size: int


class ObjectReader(Protocol):
    """An object that is open for reading, by any number of threads.

    Attributes:
        size: bytes.
        tag: changes with the content, where the place has such; else empty.
    """

    size: int
    tag: str

    def read_at(self, position: int, size: int) -> bytes:
        """So many bytes from a position on, fewer only where the object ends.

        Args:
            position: of the first byte.
            size: bytes at most; none when the position is at or behind the end.

        Raises:
            ObjectStoreError: it cannot be read.
        """

    def close(self) -> None:
        """Close it."""


class Objects(Protocol):
    """A place of objects.

    Everything raises `ObjectStoreError`, and where it is known `ObjectMissingError` or
    `ObjectAccessError`; what may come right by itself is tried several times first.

    Attributes:
        url: of the place, without a slash at its end.
    """

    url: str

    def list(self, prefix: str) -> list[ObjectInfo]:
        """The objects below a name, sorted; none when nothing is there."""

    def open(self, name: str) -> ObjectReader:
        """Open an object for reading."""

    def create(self, name: str, content: bytes | Path, sha256: str) -> str:
        """Make an object that is there whole or not at all, and stays; its tag.

        Args:
            name: of the object.
            content: its bytes, or the file that holds them.
            sha256: of them, hexadecimal, for places that compare it.

        Raises:
            ObjectExistsError: there is one of that name; it is as it was.
        """

    def settle(self, name: str) -> None:
        """Make an object that was found survive a power cut; who made it may have been killed.

        Raises:
            OSError: the disk refused.
        """

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""


class ObjectWriter(Protocol):
    """The write of a store, once: what it raises is its package's, and who calls it tries again."""

    def create(self, bucket: str, name: str, content: bytes | Path, sha256: str) -> str:
        """Make an object that is there whole or not at all, if there is none; its tag.

        Args:
            bucket: or container.
            name: of the object there.
            content: its bytes, or the file that holds them.
            sha256: of them, hexadecimal, for stores that compare it.
        """

    def delete(self, bucket: str, name: str) -> None:
        """Delete an object, which is there.

        Args:
            bucket: or container.
            name: of the object there.
        """
