"""Copies, moves and stamps of a store's files, as the journal of a repair needs them."""

from __future__ import annotations

import errno
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rmqcore.files.store_dir import REPAIRS_NAME, StoreDir, room_at
from rmqcore.world import sync_directory, sync_fd, sync_file

_BLOCK = 1 << 20
_ZEROS = bytes(_BLOCK)
#: bytes and time of each file, by its path below the store's
Stamps = dict[str, list[int]]


def below(root: Path, path: Path) -> str:
    """A path as it is kept: that below the store, so that a store may be moved; else absolute.

    Args:
        root: the store's directory.
        path: a file's, anywhere.
    """
    with suppress(ValueError):
        return str(path.relative_to(root))
    return str(path.absolute())


def stamps_of(directory: StoreDir) -> Stamps:
    """Bytes and time of each file of a store, but for its lock, its trace and the journals."""
    passed_over = (directory.lock_file, directory.trace, directory.path / REPAIRS_NAME)
    return {
        below(directory.path, path): [facts.st_size, facts.st_mtime_ns]
        for root in {directory.path, directory.commit_log}
        for path, facts in _files_below(root, passed_over)
    }


def stamps_below(root: Path) -> Stamps:
    """The same of one file, under an empty name, or of each below a directory."""
    return {
        "" if path == root else str(path.relative_to(root)): [facts.st_size, facts.st_mtime_ns]
        for path, facts in _files_below(root, ())
    }


def _files_below(
    root: Path, passed_over: tuple[Path, ...]
) -> Iterator[tuple[Path, os.stat_result]]:
    """Each file below a directory, also behind links, once; or the file itself."""
    seen: set[tuple[int, int]] = set()
    ways = [root]
    while ways:
        path = ways.pop()
        if path in passed_over:
            continue
        try:
            facts = path.stat()
        except OSError as error:
            # a link to nowhere, or to itself
            if error.errno in (errno.ENOENT, errno.ELOOP):
                continue
            raise
        if not path.is_dir():
            yield path, facts
        elif (place := (facts.st_dev, facts.st_ino)) not in seen:
            seen.add(place)
            ways += sorted(path.iterdir())


def write_whole(path: Path, data: bytes) -> None:
    """Make a file of these bytes, on the disk when it returns.

    Args:
        path: of the file; what it held is gone.
        data: all that it holds afterwards.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_at(fd, 0, data)
        sync_fd(fd)
    finally:
        os.close(fd)


def write_at(fd: int, position: int, data: bytes) -> None:
    """Write all of some bytes.

    Args:
        fd: open for writing.
        position: in the file, of the first byte.
        data: the bytes.
    """
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, position)
        position, view = position + count, view[count:]


def blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """(position, bytes) of a file, piece by piece; none when it is not there."""
    with suppress(FileNotFoundError), path.open("rb", buffering=0) as stream:
        at = 0
        while data := os.pread(stream.fileno(), _BLOCK, at):
            yield at, data
            at += len(data)


def put_bytes(path: Path, start: int, size: int, source: Path, time_ns: int) -> None:
    """Put the bytes of a file in the place of those of another, which is made when it is missing.

    Args:
        path: the file that is changed.
        start: position of the first byte.
        size: bytes of the file afterwards.
        source: holds the bytes; when they go up to the file's end, its zeros are left as holes.
        time_ns: when the file was last changed, as it says afterwards.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with room_at(path):
            to_the_end = start + source.stat().st_size >= size
            if to_the_end:
                os.ftruncate(fd, start)
            os.ftruncate(fd, size)
            for at, data in blocks(source):
                if not to_the_end or data != _ZEROS[: len(data)]:
                    write_at(fd, start + at, data)
            os.utime(fd, ns=(time_ns, time_ns))
            sync_fd(fd)
    finally:
        os.close(fd)


def write_pieces(path: Path, size: int, pieces: Iterable[tuple[int, bytes]]) -> None:
    """Make a file of zeros with some bytes in it, on the disk when it returns.

    Args:
        path: of the file; what it held is gone.
        size: its bytes afterwards.
        pieces: (position, bytes) of each.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        with room_at(path):
            os.ftruncate(fd, size)
            for at, data in pieces:
                write_at(fd, at, data)
            sync_fd(fd)
    finally:
        os.close(fd)
    sync_directory(path.parent)


def is_mixed_of(path: Path, start: int, *sources: Path) -> bool:
    """True when each byte of a file from a position on is zero, or that of one of some others.

    Args:
        path: of the file.
        start: position in it of the first byte that is compared.
        sources: files whose first byte stands for that one.
    """
    size = max((one.stat().st_size for one in sources if one.exists()), default=0)
    for at in range(0, size, _BLOCK):
        now = _part(path, start + at, min(_BLOCK, size - at))
        known = now == 0
        for source in sources:
            known |= now == _part(source, at, len(now))
        if not known.all():
            return False
    return True


def _part(path: Path, at: int, size: int) -> NDArray[np.uint8]:
    """Some bytes of a file, with zeros behind its end."""
    data = b""
    with suppress(FileNotFoundError), path.open("rb") as stream:
        data = os.pread(stream.fileno(), size, at)
    return np.frombuffer(data.ljust(size, b"\0"), np.uint8)


def crc_of(path: Path) -> int:
    """The CRC-32 of a file."""
    crc = 0
    with path.open("rb") as stream:
        while data := stream.read(_BLOCK):
            crc = zlib.crc32(data, crc)
    return crc


def copy_bytes(path: Path, start: int, stop: int, target: Path) -> int:
    """Copy a part of a file; long zeros stay holes. The CRC-32 of the copy.

    Args:
        path: of the file.
        start: position of the first byte.
        stop: position behind the last one.
        target: the copy, which is on the disk when this returns.
    """
    crc = 0
    out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        with room_at(target), path.open("rb", buffering=0) as stream:
            os.ftruncate(out, stop - start)
            for at in range(start, stop, _BLOCK):
                data = os.pread(stream.fileno(), min(_BLOCK, stop - at), at)
                crc = zlib.crc32(data, crc)
                if data != _ZEROS[: len(data)]:
                    write_at(out, at - start, data)
            sync_fd(out)
    finally:
        os.close(out)
    sync_directory(target.parent)
    return crc


def move(source: Path, target: Path) -> None:
    """Move a file or directory, also to another disk; done before, it stays done.

    Args:
        source: what is moved; nothing is done when it is not there.
        target: its new path, not the directory that it goes into.
    """
    if os.path.lexists(source):
        try:
            source.rename(target)
        except OSError:
            if source.is_dir() or source.stat().st_dev == target.parent.stat().st_dev:
                raise
            part = target.with_name(target.name + ".part")
            shutil.copy2(source, part)
            give_to(source, part)
            sync_file(part)
            part.rename(target)
            sync_directory(target.parent)
            source.unlink()
        # where it is now first: a power cut in between may leave it in both places, never in none
        sync_directory(target.parent)
        sync_directory(source.parent)


def give_to(example: Path, path: Path) -> None:
    """Make what root has made another's, so that a broker can open it; with all that is below.

    Args:
        example: whose owner and group it gets.
        path: the file or directory.
    """
    if os.geteuid() == 0:
        owner = example.stat()
        for one in (path, *path.rglob("*")):
            os.chown(one, owner.st_uid, owner.st_gid)


def remove(path: Path) -> None:
    """Remove a file, or a directory with all that is in it; nothing when it is not there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
