"""A digest of a directory tree: the same for the same content, sparse or not."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rmqcore.errors import Naming

_BLOCK = 1 << 16
_ZEROS = bytes(_BLOCK)


def tree_digest(root: Path, *, names: bool = True) -> str:
    """SHA-256 over the files below a directory, in the order of their names.

    Of each file its name, its length, and every 64 KiB block that is not all zeros count; so holes
    of sparse files cost nothing.

    Args:
        root: a directory; one that is missing counts as empty.
        names: False counts the files' order instead of their names.
    """
    digest = hashlib.sha256()
    paths = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else []
    for number, path in enumerate(paths):
        name = path.relative_to(root).as_posix() if names else str(number)
        digest.update(f"{name}\0{path.stat().st_size}\0".encode("utf-8", "surrogateescape"))
        for at, block in _used_blocks(path):
            digest.update(b"%d\0" % at)
            digest.update(block)
    return digest.hexdigest()


def tree_digests(*roots: Path) -> list[str]:
    """`tree_digest` of each directory, computed in parallel: hashing does not hold the GIL."""
    with ThreadPoolExecutor(len(roots)) as pool:
        return list(pool.map(tree_digest, roots))


def _used_blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb", buffering=0) as stream, Naming(path):
        fd, at = stream.fileno(), 0
        while True:
            at = next_data(fd, at)
            block = os.pread(fd, _BLOCK, at) if at >= 0 else b""
            if not block:
                return
            if block != _ZEROS[: len(block)]:
                yield at, block
            at += _BLOCK


def next_data(fd: int, at: int) -> int:
    """Where the first block at or behind a position lies that is no hole, -1 for none.

    Args:
        fd: of a file.
        at: position in it.
    """
    try:
        found = os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        return -1 if error.errno == errno.ENXIO else at
    return max(at, found - found % _BLOCK)
