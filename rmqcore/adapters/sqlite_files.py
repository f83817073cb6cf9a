"""SQLite databases of other programs, of which an import takes what waits."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from rmqcore.errors import RmqCoreError

_MAGIC: Final = b"SQLite format 3\0"
_JOURNAL: Final = "journal"
#: What SQLite has beside a database, by the end of the name.
_BESIDE: Final = frozenset({_JOURNAL, "wal", "shm"})


def is_sqlite(path: Path) -> bool:
    """Tell whether a file is a database."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def is_beside_sqlite(path: Path) -> bool:
    """Tell whether a file is one that SQLite has made beside a database."""
    name, _, end = path.name.rpartition("-")
    database = path.with_name(name) if name else path
    return end in _BESIDE and database.is_file() and is_sqlite(database)


def take_back_half(database: Path) -> None:
    """Take back what a program had half written when it was killed, as its next start would.

    Nothing else can read the database before that; this alone writes to it.

    Raises:
        RmqCoreError: it cannot be taken back.
    """
    journal = database.with_name(f"{database.name}-{_JOURNAL}")
    if database.is_file() and journal.is_file() and journal.stat().st_size:
        with open_database(database, mode="rw") as connection:
            connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()


@contextmanager
def open_database(database: Path, *, mode: str = "ro") -> Iterator[sqlite3.Connection]:
    """A database that is open, only for reading unless something else is asked for.

    Args:
        database: the file.
        mode: SQLite's.

    Raises:
        RmqCoreError: what is done with it fails.
    """
    uri = f"{database.absolute().as_uri()}?mode={mode}"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        try:
            yield connection
        except sqlite3.Error as error:
            raise RmqCoreError(f"{database}: no database of that kind: {error}") from error
