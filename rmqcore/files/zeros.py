"""Zeros in files: what was reserved and not written yet, and what is cleared again."""

from __future__ import annotations

import errno
import os
import resource
import stat
from pathlib import Path
from typing import Final

from rmqcore.errors import Naming

#: As many as are compared or written in one go.
ZEROS: Final = bytes(1 << 20)
PAGE_SIZE: Final = resource.getpagesize()


def holds_nothing(path: Path) -> bool:
    """True for an empty file and for zeros, which an interrupted creation leaves behind."""
    with path.open("rb") as stream:
        while data := stream.read(len(ZEROS)):
            if data.strip(b"\0"):
                return False
    return True


def read_small(path: Path) -> bytes:
    """What a small file holds: of the hole that it ends in, when it was made far too long, a page.

    Raises:
        IsADirectoryError: it is a directory, a pipe or a device, which may never end.
        OSError: the system does not let it be read.
    """
    # without the flag a pipe that nobody writes to holds whoever opens it
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with Naming(path):
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            end, size = _end_of_data(fd), found.st_size
            # ext4 tells of a directory that its data ends at 2**63 - 1
            return read_up_to(fd, 0, min(end, size) if end >= 0 else size)
    finally:
        os.close(fd)


def read_up_to(fd: int, at: int, size: int) -> bytes:
    """What a file holds from a byte on, ``size`` bytes or what there is.

    Args:
        fd: open for reading.
        at: position of the first byte.
        size: bytes.

    Raises:
        OSError: the disk refuses to give some of it; a single call gives what lies before.
    """
    data = os.pread(fd, size, at)
    while len(data) < size and (more := os.pread(fd, size - len(data), at + len(data))):
        data += more
    return data


def read_pages(fd: int, at: int, size: int) -> bytes:
    """What a file holds from a byte on; zeros stand for pages that the disk refuses to give.

    Args:
        fd: open for reading.
        at: position of the first byte.
        size: bytes; fewer where the file ends.
    """
    data = b""
    for page in range(at - at % PAGE_SIZE, at + size, PAGE_SIZE):
        begin, stop = max(page, at), min(page + PAGE_SIZE, at + size)
        try:
            data += os.pread(fd, stop - begin, begin)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data += bytes(stop - begin)
    return data


def is_blank_behind(fd: int, at: int) -> bool:
    """True when a file has nothing but zeros from a byte on; its holes are not read.

    Args:
        fd: open for reading.
        at: position of the byte.

    Raises:
        OSError: the system does not let it be read.
    """
    end = os.fstat(fd).st_size
    while at < end:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return True
            # the file system knows no holes
        data = os.pread(fd, len(ZEROS), at)
        if data != ZEROS[: len(data)]:
            return False
        at += max(1, len(data))
    return True


def _end_of_data(fd: int) -> int:
    """A page behind the place where the last hole of a file begins; -1 where nothing tells it."""
    end = 0
    try:
        while True:
            end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
    except OSError as error:
        if error.errno != errno.ENXIO:  # the file system knows no holes
            return -1
    finally:
        os.lseek(fd, 0, os.SEEK_SET)
    return end + PAGE_SIZE


def zero_pages(fd: int, start: int, stop: int) -> None:
    """Write zeros to a file from byte ``stop`` back to ``start``, page by page.

    A kill breaks a write off between two pages. What it leaves here is the front as it was.

    Args:
        fd: open for writing.
        start: position of the first byte that becomes zero.
        stop: position behind the last one.

    Raises:
        OSError: the system refused; what is in front of the page it refused is as it was.
    """
    for page in reversed(range(start - start % PAGE_SIZE, stop, PAGE_SIZE)):
        begin = max(page, start)
        os.pwrite(fd, ZEROS[: min(page + PAGE_SIZE, stop) - begin], begin)
