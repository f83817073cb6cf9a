"""A small mapped file of 64-bit numbers (words): what is set survives a kill of the process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from rmqcore.errors import CorruptStoreError
from rmqcore.files.file_time import renew_file_time
from rmqcore.files.store_dir import room_at
from rmqcore.native.base._mapped import MappedRegion
from rmqcore.world import sync_directory

WORD_SIZE: Final = 8


class WordsFile:
    """Numbers of a file, by their place; word 0 says what file it is.

    - Setting one is a store to mapped memory: whole or not at all for whoever reads the file after
      a kill, and never a wait for the disk.
    - The file's room is taken when it is made or grows, so that a full disk is an error there.
    - Numbers are in the machine's byte order; word 0 is refused when they are in another.

    Args:
        path: the file; made when missing.
        kind: eight bytes that word 0 holds.
        size: bytes that a new file has.

    Raises:
        CorruptStoreError: it is a file of another kind.
        DiskFullError: there is no room for it.
    """

    def __init__(self, path: Path, kind: bytes, size: int) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            found = os.fstat(self._fd).st_size
            size = max(size, found // WORD_SIZE * WORD_SIZE)
            with room_at(path):
                os.posix_fallocate(self._fd, 0, size)
            if not found:
                # `flush` promises that the file is on the disk, which needs its name
                sync_directory(path.parent)
            self._map(size)
            self._check(int.from_bytes(kind, "little"))
        except BaseException:
            os.close(self._fd)
            raise

    def _check(self, word: int) -> None:
        found = self.words[0]
        if found not in (0, word):
            self._unmap()
            raise CorruptStoreError(self.path, 0, f"word 0 is {found:#x}, not {word:#x}")
        self.words[0] = word

    def _map(self, size: int) -> None:
        region = MappedRegion(self._fd, size, path=self.path)
        content = memoryview(region)
        words = content.cast("q")
        # one statement without a call, in which no signal handler can raise
        self._region, self._bytes, self.words = region, content, words

    def _unmap(self) -> None:
        _let_go(self.words, self._bytes, self._region)

    def __len__(self) -> int:
        """How many words the file has."""
        return len(self.words)

    def read_bytes(self, at: int, size: int) -> bytes:
        """Bytes from a word on.

        Args:
            at: number of the word.
            size: how many bytes.
        """
        return bytes(self._bytes[at * WORD_SIZE : at * WORD_SIZE + size])

    def write_bytes(self, at: int, content: bytes) -> None:
        """Set bytes from a word on; not whole or not at all.

        Args:
            at: number of the word.
            content: the bytes.
        """
        self._bytes[at * WORD_SIZE : at * WORD_SIZE + len(content)] = content

    def grow(self) -> None:
        """Make the file twice as long.

        Raises:
            DiskFullError: there is no room; nothing has changed.
        """
        size = 2 * self._region.size
        with room_at(self.path):
            os.posix_fallocate(self._fd, 0, size)
        before = self.words, self._bytes, self._region
        self._map(size)
        _let_go(*before)

    def is_there(self) -> bool:
        """Whether it is still the file at its path; its directory may have been removed."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def flush(self) -> None:
        """Write everything through to the disk."""
        self._region.sync()
        renew_file_time(self._fd)

    def close(self) -> None:
        """Let the file go; idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._unmap()
            renew_file_time(fd)
            os.close(fd)


def _let_go(words: memoryview, content: memoryview, region: MappedRegion) -> None:
    words.release()
    content.release()
    region.retire()
