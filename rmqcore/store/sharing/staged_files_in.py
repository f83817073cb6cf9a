"""Staged files in a call: by their names below the store, which its owner may have elsewhere."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from rmqcore.errors import StoreError
from rmqcore.store.append_ledger import appending, staging_root
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.store.staged_appends import append_staged
from rmqcore.store.staged_files import StagedFile

#: path, bytes and records of a file
Listed = tuple[str, int, int]


def listed(store_path: str | os.PathLike[str], files: list[StagedFile]) -> list[Listed]:
    """Files as they are named to the owner of a store.

    Args:
        store_path: the store's directory, as this process has it.
        files: what tasks have staged.
    """
    root = staging_root(store_path)
    return [(_below(each.path, root), each.size, each.message_count) for each in files]


def append_listed(store: DefaultMessageStore, name: str, number: int, files: list[Listed]) -> int:
    """As `append_staged`, of files that another process has named.

    Args:
        store: the owner's.
        name: of the series that the append belongs to.
        number: of the append in its series.
        files: (name below the store's `staging_root`, size in bytes, records) of each.

    Raises:
        StoreError: a file lies elsewhere: what has been appended is removed; or the ledger of that
            name would.
    """
    if not name or "/" in name or "\0" in name:
        raise StoreError(f"{name!r}: no name of a series of appends, which is one of a file")
    return append_staged(store, name, number, _named(staging_root(store.path), files))


def queues_of(store: DefaultMessageStore, method: str, args: list[Any]) -> set[tuple[str, int]]:
    """The (topic, queue id) pairs that get records by a call, as far as files tell.

    Args:
        store: the records go into it.
        method: "append_staged" or "finish_staged".
        args: its arguments; appends that died are finished by it, too.
    """
    root = staging_root(store.path)
    files = [file for ledger in appending(root) for file in ledger.files]
    if method == "append_staged":
        files += _named(root, args[2])
    queues: set[tuple[str, int]] = set()
    for file in files:
        # of an append that has been done there are no files any more
        with suppress(StoreError):
            queues.update(file.records().queues)
    return queues


def _named(root: Path, files: list[Listed]) -> list[StagedFile]:
    whole = root.resolve()
    for path, _, _ in files:
        if not (whole / path).resolve().is_relative_to(whole):
            raise StoreError(f"{path}: no file below {root}, where rows are staged")
    return [StagedFile(str(root / path), size, count) for path, size, count in files]


def _below(path: str, root: Path) -> str:
    """A path as seen from a directory; one that lies elsewhere as it is."""
    return os.path.relpath(path, root) if Path(path).is_relative_to(root) else path
