"""A store out of an archive: its log byte for byte, its queues and index derived from it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rmqcore.config import StoreConfig, load_config
from rmqcore.errors import StoreError
from rmqcore.files.objects.errors import ArchiveError, ObjectChangedError
from rmqcore.files.store_dir import StoreDir, make_directory, room_at
from rmqcore.rebuild.consume_queues import rebuild_consume_queues
from rmqcore.rebuild.index_files import rebuild_index
from rmqcore.scan.archive_log import ArchiveLog, write_tables
from rmqcore.scan.manifest import ArchivedFile
from rmqcore.scan.object_file import WINDOW_SIZE, ObjectFile
from rmqcore.world import sync_directory, sync_fd, sync_file

#: This file is in a store while it is being restored, and stays there when that is killed.
_UNFINISHED = "restore.unfinished"


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restoration did.

    Attributes:
        url: of the archive.
        files, bytes: log files that were written.
        start, end: physical offsets of the log.
        records: of them.
    """

    url: str
    files: int
    bytes: int
    start: int
    end: int
    records: int


def restore(
    url: str,
    store_path: str | os.PathLike[str],
    *,
    config: StoreConfig | str | Path | None = None,
    storage_options: Mapping[str, str] | None = None,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> RestoreReport:
    """Write the store that an archive has, into a directory that is empty or not there.

    One that a kill has interrupted goes on where it was.

    Args:
        url: of the archive, or its directory.
        store_path: the store's directory.
        config: settings of the store, as for `open_store`.
        storage_options: credentials and endpoint, as for `rmqcore.files.objects.open_objects`.
        jobs: processes that derive queues and index.
        progress: called with (bytes written, bytes in all) after each file.

    Raises:
        StoreError: the directory is not empty.
        ArchiveError: no archive is there, or it has no file.
        ObjectChangedError: a file is not the one that was archived.
        ObjectStoreError: the archive cannot be read.
        DiskFullError: there is no room.
    """
    log = ArchiveLog(url, storage_options)
    files = log.files()
    if not files:
        raise ArchiveError(log.url, "the archive has no file")
    loaded = load_config(config).with_settings({"mapped_file_size_commit_log": log.file_size})
    directory = StoreDir(store_path, loaded.store_path_commit_log)
    _begin(directory, log.url)
    make_directory(directory.commit_log)
    for number, file in enumerate(files, 1):
        path = directory.commit_log / f"{file.start:020d}"
        if not (path.exists() and path.stat().st_size == file.size):
            _fetch(log, file, path, storage_options)
        if progress is not None:
            progress(number * log.file_size, len(files) * log.file_size)
    sync_directory(directory.commit_log)
    write_tables(log.tables(), directory.path)
    for path in directory.config.iterdir():
        sync_file(path)
    sync_directory(directory.config)
    rebuild_consume_queues(directory.path, config=loaded, jobs=jobs)
    rebuild_index(directory.path, config=loaded, jobs=jobs)
    (directory.path / _UNFINISHED).unlink()
    sync_directory(directory.path)
    size = sum(file.size for file in files)
    return RestoreReport(
        log.url, len(files), size, log.start, log.end, sum(file.rows for file in files)
    )


def _begin(directory: StoreDir, url: str) -> None:
    """Refuse a directory with anything in it but an interrupted restoration of this archive."""
    mark = directory.path / _UNFINISHED
    make_directory(directory.path)
    if mark.exists():
        if mark.read_text("utf-8") != url:
            reason = f"a restoration of {mark.read_text('utf-8')} was interrupted here"
            raise StoreError(f"{directory.path}: {reason}; go on with that one, or remove it")
        return
    if any(directory.path.iterdir()) or (
        directory.commit_log.is_dir() and any(directory.commit_log.iterdir())
    ):
        raise StoreError(f"{directory.path}: not empty; restore to a directory that is, or to none")
    mark.write_text(url, "utf-8")
    sync_file(mark)
    sync_directory(directory.path)


def _fetch(
    log: ArchiveLog, file: ArchivedFile, path: Path, storage_options: Mapping[str, str] | None
) -> None:
    """Write one log file; it has its name when it is whole and on the disk."""
    fresh = path.with_name(f".{path.name}.tmp")
    source = ObjectFile(log.url, storage_options or {}, file.start, file.size, tag=file.tag)
    digest = hashlib.sha256()
    window = bytearray(min(WINDOW_SIZE, file.size))
    try:
        with room_at(fresh), fresh.open("wb") as stream:
            for at in range(0, file.size, len(window)):
                with memoryview(window) as view:
                    part = view[: min(len(window), file.size - at)]
                    source.read_into(at, part)
                    digest.update(part)
                    stream.write(part)
                    part.release()
            if digest.hexdigest() != file.sha256:
                reason = "its SHA-256 is not the one that the manifest names"
                raise ObjectChangedError(source.path, reason)
            stream.flush()
            sync_fd(stream.fileno())
        fresh.rename(path)
    finally:
        source.close()
        fresh.unlink(missing_ok=True)
