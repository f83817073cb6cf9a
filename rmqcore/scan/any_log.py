"""One way to the log of a store, wherever it is: a directory, an archive, or both."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rmqcore.config import StoreConfig
from rmqcore.errors import ConfigError
from rmqcore.files.objects import is_url
from rmqcore.files.store_dir import StoreDir
from rmqcore.scan.archive_log import ArchiveLog, SelectedArchive
from rmqcore.scan.joined_log import JoinedLog, SelectedJoined
from rmqcore.scan.plan import LogPlan, open_log
from rmqcore.scan.selected import SelectedLog
from rmqcore.scan.selection import Selection

AnyLog = LogPlan | ArchiveLog | JoinedLog
AnySelected = SelectedLog | SelectedArchive | SelectedJoined


def is_archive(place: str | os.PathLike[str]) -> bool:
    """True for a URL, and for a directory that an archive is in."""
    if is_url(place):
        return True
    path = Path(place)
    return (path / "manifest").is_dir() and not StoreDir(path).consume_queue.exists()


def open_any_log(
    place: str | os.PathLike[str],
    *,
    config: StoreConfig | str | Path | None = None,
    archive: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    before: AnyLog | None = None,
) -> AnyLog:
    """The log of a store or of an archive as it is now; only read.

    Args:
        place: the store's directory; or an archive, by its URL or its directory.
        config: settings of the store, as for `open_store`.
        archive: of the store: what retention has deleted is read from there.
        storage_options: credentials and endpoint of the archive, as for
            `rmqcore.files.objects.open_objects`.
        before: the same log, some time ago, as for `open_log`.

    Raises:
        StoreNotFoundError: no store is there.
        ConfigError: a setting contradicts the files.
        CorruptStoreError: a log file has another length, or is missing between two.
        ArchiveError: no archive is there, or it does not reach up to the store.
        ObjectStoreError: the archive cannot be read.
    """
    if is_archive(place):
        if archive is not None:
            raise ConfigError("archive", archive, f"of a store, and {place} is an archive itself")
        return ArchiveLog(os.fspath(place), storage_options)
    live = before.live if isinstance(before, JoinedLog) else before
    log = open_log(place, config=config, before=live if isinstance(live, LogPlan) else None)
    return log if archive is None else JoinedLog(ArchiveLog(archive, storage_options), log)


def select(
    log: AnyLog, selection: Selection, start: int | None = None, end: int | None = None
) -> AnySelected:
    """What of a log a selection needs.

    Args:
        log: the log.
        selection: what is wanted.
        start: physical offset where a record begins; None for the log's own.
        end: the same; nothing from there on.
    """
    if isinstance(log, LogPlan):
        return SelectedLog(log, selection, start, end)
    return log.select(selection, start, end)
