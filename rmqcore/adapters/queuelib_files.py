"""Moves what waits in queuelib's own files into named queues: one queue, or a Scrapy JOBDIR."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rmqcore.adapters.named_queue import NamedFifo, NamedLifo, NamedQueue
from rmqcore.adapters.named_queues import named_queues
from rmqcore.adapters.sqlite_files import is_beside_sqlite, is_sqlite, open_database, take_back_half
from rmqcore.errors import RmqCoreError
from rmqcore.transfer.import_files import ImportReport
from rmqcore.transfer.import_progress import ImportProgress
from rmqcore.transfer.import_record import ImportRecord

_SIZE: Final = struct.Struct(">L")
_INFO: Final = "info.json"
#: Files that Scrapy has beside the queues in a JOBDIR, and that are no queues.
_NO_QUEUES: Final = ("active.json",)


def import_queues(
    store: Path,
    source: Path,
    *,
    sqlite_lifo: bool = True,
    again: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ImportReport:
    """Push what waits in queuelib's disk and SQLite queues, in their order.

    Args:
        store: the directory of the new queues: the ``path`` of one queue, the ``store`` of many,
            ``JOBDIR/requests.queue/rmqcore`` of a crawl.
        source: the path of an old queue, or a directory of them, as ``JOBDIR/requests.queue``;
            those get the names that they have beside the store.
        sqlite_lifo: whether SQLite queues, whose files do not say it, are stacks. Those whose name
            ends in ``s``, Scrapy's of start requests, are not.
        again: import also what has been imported.
        progress: called with (queues done, queues in all).

    Returns:
        queues read, elements pushed, and their bytes.

    Raises:
        AlreadyImportedError: a file has been imported into this store before.
        RmqCoreError: there is no queue, or a file is damaged; what came before it is in.
        OSError: the system refused, or the store is open elsewhere.
    """
    paths = old_queues(source, store)
    report = ImportReport()
    home = named_queues(store)
    try:
        with ImportRecord(home.path) as record:
            files = [file for path in paths for file in _files(path)]
            for file in files:
                take_back_half(file)
            done = ImportProgress(home.store, record, files, again=again)
            for number, path in enumerate(paths):
                if progress is not None:
                    progress(number, len(paths))
                name = "queue" if path == source else os.path.relpath(path, store.parent)
                queue = home.open(name, _kind(path, sqlite_lifo=sqlite_lifo))
                try:
                    for body in elements(path):
                        if done.passes():
                            report.already += 1
                            continue
                        queue.properties = done.mark
                        queue.push(body)
                        done.advance()
                        report.messages += 1
                        report.body_bytes += len(body)
                finally:
                    home.close_queue(queue)
                report.files += 1
            done.finish()
    finally:
        home.leave()
    return report


def old_queues(source: Path, store: Path) -> list[Path]:
    """The queues at a path or below it, but not in the new store; sorted.

    Args:
        source: a queue's file or directory, or what has some below it.
        store: directory of the new store, which is passed over.

    Raises:
        RmqCoreError: there is none.
    """
    if source.is_file() or (source / _INFO).exists() or _chunks(source):
        return [source]
    found = set()
    for path in source.rglob("*"):
        if path.is_relative_to(store) or not path.is_file() or path.name in _NO_QUEUES:
            continue
        if is_beside_sqlite(path):
            continue
        is_chunk = path.name == _INFO or path in _chunks(path.parent)
        found.add(path.parent if is_chunk else path)
    if not found:
        raise RmqCoreError(f"{source}: no queue of queuelib is here")
    return sorted(found)


def elements(path: Path) -> Iterator[bytes]:
    """What waits in one old queue, the first push first."""
    if path.is_dir():
        return _of_fifo(path)
    return _of_sqlite(path) if is_sqlite(path) else _of_lifo(path)


def _kind(path: Path, *, sqlite_lifo: bool) -> type[NamedQueue]:
    if path.is_dir():
        return NamedFifo
    if is_sqlite(path) and (path.name.endswith("s") or not sqlite_lifo):
        return NamedFifo
    return NamedLifo


def _chunks(path: Path) -> list[Path]:
    """The files of a disk queue, oldest first."""
    return sorted(path.glob("q[0-9][0-9][0-9][0-9][0-9]"))


def _files(path: Path) -> list[Path]:
    return _chunks(path) if path.is_dir() else [path]


def _of_fifo(path: Path) -> Iterator[bytes]:
    """From the tail that the queue has written when it was closed, or all, to the end."""
    first, offset = "", 0
    if (path / _INFO).exists():
        try:
            number, _, offset = json.loads((path / _INFO).read_text("utf-8"))["tail"]
            first = f"q{number:05}"
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RmqCoreError(f"{path / _INFO}: not a queue's state: {error!r}") from error
    for chunk in _chunks(path):
        if chunk.name < first:
            continue
        with chunk.open("rb") as file:
            file.seek(offset if chunk.name == first else 0)
            while len(head := file.read(_SIZE.size)) == _SIZE.size:
                size = _SIZE.unpack(head)[0]
                body = file.read(size)
                if len(body) < size:
                    break  # the push did not return
                yield body


def _of_lifo(path: Path) -> Iterator[bytes]:
    """Found from the end, where each element's size is."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        places = []
        while end > _SIZE.size:
            file.seek(end - _SIZE.size)
            size = _SIZE.unpack(file.read(_SIZE.size))[0]
            end -= _SIZE.size + size
            places.append((end, size))
        if end != _SIZE.size:
            raise RmqCoreError(f"{path}: no stack of queuelib, or one that was cut off")
        for at, size in reversed(places):
            file.seek(at)
            yield file.read(size)


def _of_sqlite(path: Path) -> Iterator[bytes]:
    with open_database(path) as connection:
        for (item,) in connection.execute("SELECT item FROM queue ORDER BY id"):
            yield bytes(item)
