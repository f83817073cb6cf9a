"""The key-value configuration: small texts that operators keep with the name server.

One caller changes it at a time, on any thread; others may read meanwhile.

With a path it is on the disk before a change is answered, in RocketMQ's own form, and read again at
the next start; without one it is in memory.

Source: KVConfigManager.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from rmqcore.errors import CorruptConfigFileError
from rmqcore.files.config_file import ConfigFile
from rmqcore.java.json import format_compact_java_json, parse_java_json
from rmqcore.remoting import RequestRefusedError, ResponseCode
from rmqcore.world import sync_found_name

#: A key beyond this number in all namespaces together, or a character beyond `SIZE_MAX`, is
#: refused.
ENTRIES_MAX = 10_000
SIZE_MAX = 4 << 20
#: the namespace of the order configuration of topics
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"

Table = dict[str, dict[str, str]]


class KVConfig:
    """Namespace -> key -> value."""

    def __init__(self, path: str = "") -> None:
        """Read what is kept.

        Args:
            path: the file; empty keeps nothing.

        Raises:
            CorruptConfigFileError: the file and its backup cannot be parsed.
            OSError: the file cannot be read.
        """
        self._file = ConfigFile(Path(path).absolute(), _decode) if path else None
        self._table: Table = {} if self._file is None else _kept_in(self._file)
        #: whether the names of its directories are on the disk for certain
        self._named = False

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, None when there is none.

        Args:
            namespace: of the key.
            key: by name; capitals matter.
        """
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return all keys and values of a namespace, None when there is no such namespace."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value.

        Args:
            namespace: of the key; made with its first key.
            key: by name; its former value goes.
            value: any text.

        Raises:
            RequestRefusedError: too much would be kept; answers with code 1.
            OSError: it could not be kept; nothing has changed.
        """
        known, size = self.get(namespace, key), len(namespace) + len(key) + len(value)
        if known is None and sum(map(len, self._table.values())) >= ENTRIES_MAX:
            raise _too_much(f"keys, {ENTRIES_MAX}")
        table = self._table
        if _size(table) + size > SIZE_MAX:
            # namespaces whose keys were deleted: no request would ever take them away
            table = {name: entries for name, entries in table.items() if entries}
        if (known is None or len(value) > len(known)) and _size(table) + size > SIZE_MAX:
            raise _too_much(f"characters of keys and values, {SIZE_MAX}")
        self._change(table, namespace, table.get(namespace, {}) | {key: value})

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value, if there is one.

        Args:
            namespace: of the key.
            key: by name; one that is not there is nothing to do.

        Raises:
            OSError: it could not be kept; nothing has changed.
        """
        entries = self._table.get(namespace, {})
        if key in entries:
            left = {name: entries[name] for name in entries if name != key}
            self._change(self._table, namespace, left)

    def _change(self, table: Table, namespace: str, entries: dict[str, str]) -> None:
        table = table | {namespace: entries}
        if self._file is not None:
            self._make_directory(self._file.path.parent)
            self._file.store(format_compact_java_json({"configTable": table}))
        self._table = table

    def _make_directory(self, directory: Path) -> None:
        if not self._named:
            directory.mkdir(parents=True, exist_ok=True)
            # made now, or by one that was killed before it synced them
            for path in (directory, *directory.parents):
                sync_found_name(path)
            self._named = True


def _kept_in(file: ConfigFile[Table]) -> Table:
    """What is kept, or the error that says what to do: no doctor of a store knows this file."""
    try:
        return file.load() or {}
    except CorruptConfigFileError as error:
        advice = (
            "put a good copy in its place, or move it and its .bak away: rmqcore then begins "
            "without keys and values"
        )
        reason = f"{error.reason}; {advice}"
        raise CorruptConfigFileError(error.path, error.phy_offset, reason) from error


def _size(table: Table) -> int:
    """Characters of all names, keys and values."""
    return sum(
        len(namespace) + sum(len(key) + len(value) for key, value in entries.items())
        for namespace, entries in table.items()
    )


def _too_much(what: str) -> RequestRefusedError:
    return RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"no more {what} at most, are kept")


def _decode(text: str) -> Table:
    members = parse_java_json(text)
    table = members.get("configTable") if isinstance(members, dict) else None
    if not isinstance(table, dict):
        raise ValueError("configTable is missing")  # noqa: TRY004 - the text is wrong, not a type
    for namespace, entries in table.items():
        if not isinstance(entries, dict) or not all(isinstance(v, str) for v in entries.values()):
            raise ValueError(f"the namespace {json.dumps(namespace)} holds other than texts")
    return table
