"""A text corpus that every machine has: licences, word lists, package documentation, Python itself.

Reading it twice gives the same messages, so what a store hands out is compared with the files.
"""

from __future__ import annotations

import gzip
import os
import re
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

QUEUES: Final = 4
_TEXT_SUFFIXES = {"", ".txt", ".md", ".rst", ".html", ".py", ".gz", ".debian", ".news"}
_LEFT_OUT = {"__pycache__", "site-packages", "dist-packages"}
_BINARY_LOOK = 4096
_LARGEST_FILE = 4 << 20
_NO_WORD = re.compile(r"[^\w.+/-]", re.ASCII)


class Entry(NamedTuple):
    """One message to be."""

    topic: str
    queue_id: int
    key: str
    tags: str
    body: bytes


class Source(NamedTuple):
    """Where text lies: its topic, its folder, whether a line or a file makes a message.

    ``share`` is the part of the corpus that is full once this source has been read.
    """

    topic: str
    folder: Path
    by_line: bool
    share: float


_PYTHON = Path(sysconfig.get_paths()["stdlib"])
SOURCES: Final = (
    Source("Licenses", Path("/usr/share/common-licenses"), True, 0.2),
    Source("Words", Path("/usr/share/dict"), True, 0.3),
    Source("PackageDocs", Path("/usr/share/doc"), True, 0.8),
    Source("PythonSources", _PYTHON, False, 0.95),
    Source("PythonLines", _PYTHON, True, 1.0),
)


class Corpus:
    """Messages of about so many bytes, file by file.

    Args:
        size_max: bytes of text.
        sources: what to read, in this order.
    """

    def __init__(self, size_max: int, sources: tuple[Source, ...] = SOURCES) -> None:
        self.size_max = size_max
        self._sources = sources

    def __iter__(self) -> Iterator[list[Entry]]:
        """The messages of one file after the other."""
        size = 0
        for source in self._sources:
            for path in _text_files(source.folder):
                if size >= self.size_max * source.share:
                    break
                entries = _entries(source, path)
                if entries:
                    size += sum(len(entry.body) for entry in entries)
                    yield entries


def _text_files(folder: Path) -> Iterator[Path]:
    """Files below a folder that may be text, in an order that is always the same."""
    for directory, below, names in os.walk(folder):
        below[:] = sorted(set(below) - _LEFT_OUT)
        for name in sorted(names):
            path = Path(directory, name)
            if path.suffix.lower() in _TEXT_SUFFIXES and not path.is_symlink() and path.is_file():
                yield path


def _entries(source: Source, path: Path) -> list[Entry]:
    """The messages of one file; none when it cannot be read or is no text."""
    text = _text(path)
    name = _NO_WORD.sub("_", path.relative_to(source.folder).as_posix())
    tags = name.partition("/")[0]
    queue_id = zlib.crc32(name.encode()) % QUEUES
    if not source.by_line:
        return [Entry(source.topic, queue_id, name, tags, text)] if text else []
    return [
        Entry(source.topic, queue_id, f"{name}:{number}", tags, line)
        for number, line in enumerate(text.split(b"\n"), 1)
        if line
    ]


def _text(path: Path) -> bytes:
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as stream:
                text = stream.read(_LARGEST_FILE)
        else:
            with path.open("rb") as stream:
                text = stream.read(_LARGEST_FILE)
    except (OSError, EOFError, zlib.error):
        return b""
    return b"" if b"\0" in text[:_BINARY_LOOK] else text
