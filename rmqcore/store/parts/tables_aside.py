"""Tables beside the log, for as long as a full disk has no room in it to put them anew."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from rmqcore.files.config_file import ConfigFile, sealed, unsealed
from rmqcore.files.store_dir import StoreDir, room_at

FILE_NAME: Final = "movingTables.json"
RESERVE_NAME: Final = "movingTables.reserve"
_RESERVE_SIZE: Final = 1 << 18
Entry = tuple[bytes, bytes, int]


class Aside(NamedTuple):
    """One table.

    Attributes:
        end: queue offset behind the last record that its entries come from.
        entries: key, value, and the Unix time in ms from which on it is gone, 0 for never.
    """

    end: int
    entries: list[Entry]


class TablesAside:
    """The file ``config/movingTables.json``; docs/format/key-values.md describes it.

    Args:
        directory: of the store.
    """

    def __init__(self, directory: StoreDir) -> None:
        self._check_there = directory.check_there
        self._file = ConfigFile(directory.config / FILE_NAME, _decode, self._check_there)
        self._reserve = directory.config / RESERVE_NAME

    def reserve(self) -> None:
        """Keep room on the disk for the file, if there is any now."""
        self._check_there()
        if self._reserve.exists():
            return
        try:
            with self._reserve.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, _RESERVE_SIZE)
        except OSError:
            with suppress(OSError):
                self._reserve.unlink(missing_ok=True)

    def load(self) -> Mapping[str, Aside]:
        """The tables in the file, by topic.

        Raises:
            CorruptConfigFileError: it cannot be read.
        """
        return self._file.load() or {}

    def store(self, tables: Mapping[str, Aside]) -> None:
        """Write tables into the file, in the place of those that are in it.

        On a full disk the reserve makes room for it, and for the table of offsets.

        Raises:
            DiskFullError: there is no room for it, either; nothing has changed.
        """
        content = {
            topic: {"end": end, "entries": [_text_of(each) for each in entries]}
            for topic, (end, entries) in tables.items()
        }
        self._check_there()
        self._reserve.unlink(missing_ok=True)
        with room_at(self._file.path):
            self._file.store(sealed(json.dumps(content)))

    def forget(self, topics: Collection[str]) -> None:
        """Have no table of these topics in the file."""
        tables = self.load()
        left = {topic: table for topic, table in tables.items() if topic not in topics}
        if len(left) == len(tables):
            return
        if left:
            self.store(left)
        else:
            self.remove()

    def remove(self) -> None:
        """Remove the file: the log has all its tables."""
        self._file.remove()
        self.reserve()


def _text_of(entry: Entry) -> list[str | int]:
    key, value, expires_ms = entry
    return [key.hex(), value.hex(), expires_ms]


def _decode(text: str) -> dict[str, Aside]:
    tables = json.loads(unsealed(text))
    return {topic: Aside(each["end"], _entries(each["entries"])) for topic, each in tables.items()}


def _entries(texts: Iterable[tuple[str, str, int]]) -> list[Entry]:
    return [
        (bytes.fromhex(key), bytes.fromhex(value), expires_ms) for key, value, expires_ms in texts
    ]
