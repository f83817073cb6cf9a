"""A store out of an archive: its log byte for byte, its queues and index derived from it."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rmqcore.config import StoreConfig, load_config
from rmqcore.errors import StoreError
from rmqcore.files.objects.errors import ArchiveError, ObjectChangedError
from rmqcore.files.store_dir import RESTORE_MARK, StoreDir, make_directory, room_at
from rmqcore.rebuild.consume_queues import rebuild_consume_queues
from rmqcore.rebuild.index_files import rebuild_index
from rmqcore.scan.archive_log import ArchiveLog, write_tables
from rmqcore.scan.manifest import ArchivedFile
from rmqcore.scan.object_file import WINDOW_SIZE, ObjectFile
from rmqcore.world import sync_directory, sync_fd, sync_file


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
        StoreError: the directory is not empty; or what an interrupted restoration has left there
            was written to; or another restoration is going on.
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
    with room_at(directory.path), _begun(directory, log.url):
        _fetch_all(log, directory, storage_options, progress)
        write_tables(log.tables(), directory.path)
        for path in directory.config.iterdir():
            sync_file(path)
        sync_directory(directory.config)
        rebuild_consume_queues(directory.path, config=loaded, jobs=jobs)
        rebuild_index(directory.path, config=loaded, jobs=jobs)
        (directory.path / RESTORE_MARK).unlink()
        sync_directory(directory.path)
    size = sum(file.size for file in files)
    return RestoreReport(
        log.url, len(files), size, log.start, log.end, sum(file.rows for file in files)
    )


def _fetch_all(
    log: ArchiveLog,
    directory: StoreDir,
    storage_options: Mapping[str, str] | None,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Write the log files that are not there."""
    make_directory(directory.commit_log)
    files = log.files()
    names = {f"{file.start:020d}" for file in files}
    others = {path.name for path in directory.commit_log.iterdir() if path.name[0] != "."} - names
    if others:
        raise _changed(directory.commit_log / min(others), log.url)
    for number, file in enumerate(files, 1):
        path = directory.commit_log / f"{file.start:020d}"
        if path.exists():
            _check_same(path, file, log.url)
        else:
            _fetch(log, file, path, storage_options)
        if progress is not None:
            progress(number * log.file_size, len(files) * log.file_size)
    sync_directory(directory.commit_log)


def _check_same(path: Path, file: ArchivedFile, url: str) -> None:
    """Compare a log file that an interrupted restoration has left.

    Raises:
        StoreError: something has written to it since.
    """
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != file.sha256:
        raise _changed(path, url)


def _changed(path: Path, url: str) -> StoreError:
    return StoreError(
        f"{path}: {url} has no such file; something has written to the store since its restoration "
        "was interrupted; restore to another directory"
    )


@contextmanager
def _begun(directory: StoreDir, url: str) -> Iterator[None]:
    """Mark a directory as being restored, and keep other restorations out of it.

    Raises:
        StoreError: something else is in it than an interrupted restoration of this archive; or
            another one is going on.
    """
    mark = directory.path / RESTORE_MARK
    make_directory(directory.path)
    if not mark.exists() and (
        any(directory.path.iterdir())
        or (directory.commit_log.is_dir() and any(directory.commit_log.iterdir()))
    ):
        raise StoreError(f"{directory.path}: not empty; restore to a directory that is, or to none")
    with mark.open("a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(f"{directory.path}: another restoration is going on here") from None
        try:
            stream.seek(0)
            # one that was killed at once has written no URL, and nothing else
            other = stream.read()
            if other not in ("", url):
                reason = f"a restoration of {other} was interrupted here"
                raise StoreError(f"{directory.path}: {reason}; go on with that one, or remove it")
            if not other:
                stream.write(url)
                stream.flush()
                sync_fd(stream.fileno())
                sync_directory(directory.path)
            yield
        finally:
            # a forked child may have a copy of the descriptor, which keeps the lock
            fcntl.flock(stream, fcntl.LOCK_UN)


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
