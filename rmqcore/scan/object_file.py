"""A log file in an archive, read in windows: what is wanted next is fetched while this is decoded.

It reads as `MappedFile` does that is not ours; both are a `files/log_file.LogFile`.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from rmqcore.errors import RecordsGoneError
from rmqcore.files.objects import ObjectReader, open_objects
from rmqcore.files.objects.errors import ObjectChangedError, ObjectMissingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import WriteableBuffer

#: where an archive has its log files
LOG_NAME = "commitlog"
WINDOW_SIZE = 8 << 20
#: This many windows are on their way while one is read.
WINDOWS_AHEAD = 2


def log_name(file_start: int) -> str:
    """The object of the log file that begins at a physical offset."""
    return f"{LOG_NAME}/{file_start:020d}"


class ObjectFile:
    """A log file of an archive.

    Args:
        url: of the archive.
        storage_options: to open it with.
        file_from_offset: physical offset of the file's first byte.
        size: bytes that it has to have.
        tag: that it has to have; empty for any.
        wanted: positions between which windows are fetched ahead; None for the whole file.

    Raises:
        RecordsGoneError: it is not there.
        ObjectChangedError: it has another size, or another tag: it is not what was archived.
        ObjectStoreError: it cannot be read.
    """

    writable = False

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, str],
        file_from_offset: int,
        size: int,
        *,
        tag: str = "",
        wanted: tuple[int, int] | None = None,
    ) -> None:
        self.file_from_offset = file_from_offset
        self.size = size
        self._objects = open_objects(url, storage_options)
        self._name = log_name(file_from_offset)
        self.path = f"{self._objects.url}/{self._name}"
        self._tag = tag
        self._first, self._stop = wanted or (0, size)
        self._reader = self._opened()
        self._pool = ThreadPoolExecutor(WINDOWS_AHEAD + 1, "ArchiveWindows")
        self._windows: dict[int, Future[bytes]] = {}
        self._is_checked = False

    def _opened(self) -> ObjectReader:
        try:
            reader = self._objects.open(self._name)
        except ObjectMissingError:
            raise RecordsGoneError(self.path, self.file_from_offset) from None
        reason = ""
        if reader.size != self.size:
            reason = f"it has {reader.size} bytes, {self.size} were archived"
        elif reader.tag != self._tag and _kind_of(reader.tag) == _kind_of(self._tag) != "":
            reason = f"its tag is {reader.tag}, it was {self._tag} when it was archived"
        if reason:
            reader.close()
            raise ObjectChangedError(self.path, reason)
        return reader

    def _window(self, number: int) -> bytes:
        """The bytes of a window; those behind it are asked for, those before it are let go."""
        for wanted in range(number, number + WINDOWS_AHEAD + 1):
            start = self._first + wanted * WINDOW_SIZE
            if wanted not in self._windows and start < self._stop:
                size = min(WINDOW_SIZE, self._stop - start)
                self._windows[wanted] = self._pool.submit(self._reader.read_at, start, size)
        for passed in [one for one in self._windows if one < number]:
            self._windows.pop(passed).cancel()
        data = self._windows[number].result()
        if self._first + number * WINDOW_SIZE + len(data) >= self._stop:
            self._still_the_same()
        return data

    def _still_the_same(self) -> None:
        """Notice an object that was replaced while it was read, before its last rows go out."""
        if self._reader.tag and not self._is_checked:
            self._tag = self._reader.tag
            self._opened().close()
        self._is_checked = True

    def read(self, position: int, size: int) -> memoryview:
        """So many bytes from a position.

        Args:
            position: of the first byte, in the file.
            size: how many bytes.
        """
        return memoryview(self.read_bytes(position, size))

    def read_bytes(self, position: int, size: int) -> bytes:
        """A copy of so many bytes; nothing is fetched ahead.

        Args:
            position: of the first byte, in the file.
            size: how many bytes.

        Raises:
            IndexError: outside of the file.
        """
        if position < 0 or size < 0 or position > self.size - size:
            raise IndexError(f"{self.path}: bytes {position} to {position + size}")
        number, at = divmod(position - self._first, WINDOW_SIZE)
        held = self._windows.get(number)
        if held is not None and at + size <= len(held.result()):
            return held.result()[at : at + size]
        return self._reader.read_at(position, size)

    def read_into(self, position: int, buffer: WriteableBuffer) -> None:
        """Fill a buffer from a position on, out of windows.

        Args:
            position: of the first byte, in the file.
            buffer: filled to its end.
        """
        with memoryview(buffer) as view:
            done = 0
            while done < len(view):
                if not self._first <= position + done < self._stop:
                    size = len(view) - done
                    view[done:] = self._reader.read_at(position + done, size)
                    return
                number, at = divmod(position + done - self._first, WINDOW_SIZE)
                part = memoryview(self._window(number))[at : at + len(view) - done]
                view[done : done + len(part)] = part
                done += len(part)

    def data_stretches(self, position: int) -> list[tuple[int, int]]:
        """All from a position on: an archived file is full."""
        return [(position, self.size)] if position < self.size else []

    def close(self) -> None:
        """Close it, and let go what was fetched ahead."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._windows.clear()
        self._reader.close()


def _kind_of(tag: str) -> str:
    """Whose a tag is; those of an archive that was copied to a store of another kind tell nothing.

    Args:
        tag: Google's generation, or an ETag in quotes, of which Azure's are hexadecimal numbers.
    """
    if tag.isdigit():
        return "generation"
    return "Azure's" if tag.startswith('"0x') else "ETag" if tag else ""
