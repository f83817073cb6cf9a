"""A small store's files in memory: cheaper to keep and to write again than a copy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

#: content by name in the store
Files = dict[Path, bytes]


def read_files(path: Path) -> Files:
    """What a store's files hold; nothing where there is no store."""
    return {
        Path(where, name).relative_to(path): Path(where, name).read_bytes()
        for where, _, names in os.walk(path)
        for name in names
    }


def write_files(path: Path, files: Files) -> None:
    """Make a directory that holds these files and nothing else.

    Args:
        path: of the directory; what is in it goes.
        files: bytes by name below the directory.

    Raises:
        OSError: the system refused.
    """
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    for name, data in files.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
