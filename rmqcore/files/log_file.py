"""What a walk needs of a log file, wherever that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from _typeshed import WriteableBuffer


class LogFile(Protocol):
    """A log file that is read: `MappedFile`, or one of an archive.

    Attributes:
        path: of the file; of an archive's its URL.
        file_from_offset: physical offset of its first byte.
        size: bytes.
        writable: it is mapped, as `MappedFile.region`.
    """

    @property
    def path(self) -> Path | str:
        """The file, or its URL."""

    @property
    def file_from_offset(self) -> int:
        """Physical offset of its first byte."""

    @property
    def size(self) -> int:
        """Bytes that it has."""

    @property
    def writable(self) -> bool:
        """True for a file that is ours, and mapped."""

    def read(self, position: int, size: int) -> memoryview:
        """So many bytes from a position.

        Args:
            position: of the first byte in the file.
            size: bytes, all of them in the file.

        Raises:
            CorruptStoreError: the file has become shorter than it was.
            IndexError: outside the file.
            ObjectStoreError: of an archive: its store of objects fails.
        """

    def read_bytes(self, position: int, size: int) -> bytes:
        """A copy of them.

        Args:
            position: of the first byte in the file.
            size: bytes, all of them in the file.

        Raises:
            CorruptStoreError: the file has become shorter than it was.
            ObjectStoreError: of an archive: its store of objects fails.
        """

    def read_into(self, position: int, buffer: WriteableBuffer) -> None:
        """Fill a buffer from a position on.

        Args:
            position: of the first byte in the file.
            buffer: is filled whole, from the file.

        Raises:
            CorruptStoreError: the file has become shorter than it was.
            ObjectStoreError: of an archive: its store of objects fails.
        """

    def data_stretches(self, position: int) -> list[tuple[int, int]]:
        """(first byte, end) of what may hold data from a position on."""

    def close(self) -> None:
        """Close it."""
