"""The archiver: sealed log files of a store, one after the other, into an archive.

A file counts when the manifest that names it is written. Before that a kill leaves objects that
nobody reads, and the next pass finds them, compares them, and goes on::

    walk, every CRC  ->  log file  ->  its index  ->  manifest  ->  note in the store
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from rmqcore.chance import token_hex
from rmqcore.config import StoreConfig
from rmqcore.files.archive_note import load_archive_note, store_archive_note
from rmqcore.files.config_file import sealed, unsealed
from rmqcore.files.deleted_topics import DELETED_TOPICS_NAME, deletions_told
from rmqcore.files.objects import Objects, open_objects
from rmqcore.files.objects.errors import (
    ArchiveConflictError,
    ArchiveError,
    ObjectExistsError,
    ObjectMissingError,
    StoreUnsettledError,
)
from rmqcore.files.store_dir import StoreDir
from rmqcore.java.json import format_java_json
from rmqcore.scan.archive_log import TABLES
from rmqcore.scan.manifest import (
    ArchivedFile,
    Manifest,
    commit,
    create_same,
    files_of,
    load_manifest,
    read_table,
    settle_manifest,
    with_file,
)
from rmqcore.scan.object_file import log_name
from rmqcore.scan.plan import LogPlan, open_log
from rmqcore.transfer.archive.survey import sha256_of, survey
from rmqcore.world import no_failpoint, sync_file

_READ_SIZE = 8 << 20


@dataclass(slots=True)
class ArchiveReport:
    """What a pass did.

    Attributes:
        url: of the archive.
        files: log files that were archived.
        bytes: of them.
        start, end: physical offsets between which the archive now has the log.
        log_end: where the store's log ends.
    """

    url: str
    files: list[str] = field(default_factory=list)
    bytes: int = 0
    start: int = 0
    end: int = 0
    log_end: int = 0


class Archiver:
    """Archives one store; a live one, too, beside its writer.

    Args:
        store_path: the store's directory.
        url: of the archive.
        config: settings of the store, as for `open_store`.
        storage_options: credentials and endpoint, as for `rmqcore.files.objects.open_objects`.
        failpoint: called with a name at each step.
    """

    def __init__(
        self,
        store_path: str | os.PathLike[str],
        url: str,
        *,
        config: StoreConfig | str | Path | None = None,
        storage_options: Mapping[str, str] | None = None,
        failpoint: Callable[[str], None] = no_failpoint,
    ) -> None:
        self._path = store_path
        self._config = config
        self._objects: Objects = open_objects(url, storage_options)
        self._writer = token_hex(8)
        self._failpoint = failpoint
        self._manifest: Manifest | None = None
        #: the archive's last file, as the store has it: where it begins, its inode and last change
        self._last_file: tuple[int, int, int] | None = None
        #: the deleted topics that the archive knows of, and the name of the object that has them
        self._known_deletions: dict[str, int] = {}
        self._deletions_of: str | None = None
        #: objects of the present file, which no manifest names yet
        self._made: list[str] = []

    def run_once(self, progress: Callable[[int, int], None] | None = None) -> ArchiveReport:
        """Archive every file that is sealed now, and not in the archive yet.

        Args:
            progress: called with (bytes archived, bytes in all) after each file.

        Raises:
            StoreNotFoundError, CorruptStoreError: of the store; a damaged record keeps its file,
                and those behind it, out of the archive.
            ArchiveConflictError: another archiver, or another store, has been at the URL.
            StoreUnsettledError: an opening or a repair may still change the log; later it will not.
            ArchiveError: the store lacks files between the archive's end and its own first.
            ObjectStoreError: the archive cannot be read or written.
        """
        log = open_log(self._path, config=self._config)
        self._require_settled(log)
        manifest = self._current(log)
        sealed_starts = [
            start
            for start, _, size in log.files
            if size == log.file_size and start + size <= log.end and start >= manifest.end
        ]
        self._check_fits(log, manifest)
        report = ArchiveReport(self._objects.url, start=manifest.start, end=manifest.end)
        total = len(sealed_starts) * log.file_size
        for start in sealed_starts:
            manifest = self._archived(log, manifest, start)
            report.files.append(f"{start:020d}")
            report.bytes += log.file_size
            if progress is not None:
                progress(report.bytes, total)
        manifest = self._with_tables(log, manifest)
        report.start, report.end, report.log_end = manifest.start, manifest.end, log.end
        self._note(log, manifest)
        return report

    # ---- what is there

    def _current(self, log: LogPlan) -> Manifest:
        """The manifest as this archiver last wrote it; at first as it is.

        It is compared with the log where its last file is another one than before: a log that has
        lost its end and grew again meanwhile is another log.
        """
        manifest, known = self._manifest, self._last_file
        if manifest is None:
            found = load_manifest(self._objects)
            settle_manifest(self._objects, found)
            known, manifest = None, replace(found, writer=self._writer)
        last = self._file_at(log, manifest.end - log.file_size)
        if known is None or last != known:
            self._check_same(log, manifest)
        self._last_file, self._manifest = last, manifest
        return manifest

    @staticmethod
    def _file_at(log: LogPlan, start: int) -> tuple[int, int, int] | None:
        for at, path, _ in log.files:
            if at == start:
                with suppress(FileNotFoundError):
                    status = Path(path).stat()
                    return start, status.st_ino, status.st_mtime_ns
        return None

    def _check_same(self, log: LogPlan, manifest: Manifest) -> None:
        """Compare the last file of the archive that the store still has."""
        if not manifest.end:
            return
        if log.files and manifest.file_size != log.file_size:
            reason = f"its files have {manifest.file_size} bytes, the store's {log.file_size}"
            raise ArchiveConflictError(self._objects.url, f"{reason}: another store's archive")
        there = {start for start, _, _ in log.files}
        last = manifest.pages[-1:] if not manifest.files else ()
        archived = list(files_of(self._objects, manifest, last))[-1]
        if archived.start not in there:
            return
        try:
            found = sha256_of(log.split(archived.start, archived.end))
        except FileNotFoundError:
            # retention has deleted it since the log was listed
            return
        if found != archived.sha256:
            raise ArchiveConflictError(
                self._objects.url,
                f"its file {archived.start:020d} is not the one that {log.directory.path} has: "
                "another store's archive; give each store its own URL",
            )

    def _check_fits(self, log: LogPlan, manifest: Manifest) -> None:
        if manifest.end and log.files and log.start > manifest.end:
            raise ArchiveError(
                self._objects.url,
                f"it ends at {manifest.end}, and the store begins at {log.start}: what was between "
                "was deleted before it was archived (keep_unarchived prevents that); archive to "
                "another URL",
            )
        if manifest.end > log.end:
            raise ArchiveConflictError(
                self._objects.url,
                f"it ends at {manifest.end}, and the store at {log.end}: another store's archive, "
                "or the store has lost its end",
            )

    # ---- one file

    def _archived(self, log: LogPlan, manifest: Manifest, start: int) -> Manifest:
        """Bring one file into the archive; the manifest that names it."""
        split = log.split(start, start + log.file_size)
        path = split.path_at(start)
        # what a power cut could still take from the store must not be in the archive
        sync_file(path)
        last_file = self._file_at(log, start)
        self._made.clear()
        found = survey(split, log.config.delay_levels_ms)
        self._failpoint("archive: walked")
        tag = self._create_file(log_name(start), path, found.file)
        self._failpoint("archive: file written")
        index = found.index()
        self._create_index(f"{log_name(start)}.idx", index)
        self._failpoint("archive: index written")
        self._require_unchanged(log, last_file)
        file = replace(found.file, tag=tag)
        tables = self._tables(log.directory, manifest)
        named = with_file(self._objects, replace(manifest, tables=tables), file)
        self._failpoint("archive: page written")
        manifest = self._committed(named)
        self._last_file = last_file
        self._note(log, manifest)
        return manifest

    def _with_tables(self, log: LogPlan, manifest: Manifest) -> Manifest:
        """The manifest with the store's tables of now: a deleted topic waits for no log file."""
        tables = self._tables(log.directory, manifest) if manifest.end else manifest.tables
        if tables == manifest.tables:
            return manifest
        return self._committed(replace(manifest, tables=tables))

    def _committed(self, named: Manifest) -> Manifest:
        self._manifest = None
        self._manifest = commit(self._objects, named)
        self._failpoint("archive: manifest written")
        return self._manifest

    def _require_settled(self, log: LogPlan) -> None:
        reason = log.directory.why_unsettled()
        if reason is not None:
            raise StoreUnsettledError(self._objects.url, f"{reason}; nothing of it is archived yet")

    def _require_unchanged(self, log: LogPlan, file: tuple[int, int, int] | None) -> None:
        """Take back what was made of a file that an opening or a repair has changed meanwhile."""
        reason = log.directory.why_unsettled()
        # one that retention has deleted was what it was
        if file is not None and self._file_at(log, file[0]) not in (file, None):
            reason = "a log file has changed while it was archived"
        if reason is not None:
            for name in self._made:
                self._objects.delete(name)
            raise StoreUnsettledError(self._objects.url, f"{reason}; it is not archived yet")

    def _create_file(self, name: str, path: Path, file: ArchivedFile) -> str:
        """Make the object of a log file; one that a kill has left is compared byte for byte."""
        try:
            tag = self._objects.create(name, path, file.sha256)
        except ObjectExistsError as error:
            try:
                reader = self._objects.open(name)
            except ObjectMissingError:
                raise ArchiveConflictError(error.url, error.reason) from None
            try:
                digest = hashlib.sha256()
                for at in range(0, reader.size, _READ_SIZE):
                    digest.update(reader.read_at(at, _READ_SIZE))
                if digest.hexdigest() != file.sha256:
                    raise ArchiveConflictError(
                        error.url,
                        "another file is there, and is kept: give each store its own URL",
                    ) from None
                return reader.tag
            finally:
                reader.close()
        self._made.append(name)
        return tag

    def _create_index(self, name: str, data: bytes) -> None:
        create_same(self._objects, name, data, hashlib.sha256(data).hexdigest())
        if self._made:
            self._made.append(name)

    def _tables(self, directory: StoreDir, manifest: Manifest) -> dict[str, str]:
        """The store's tables, as objects; by name their SHA-256."""
        tables = dict(manifest.tables)
        for name in TABLES:
            data = b""
            with suppress(FileNotFoundError):
                data = (directory.config / name).read_bytes()
            if name == DELETED_TOPICS_NAME:
                data = self._deletions(data, manifest)
            if data:
                sha256 = hashlib.sha256(data).hexdigest()
                if tables.get(name) != sha256:
                    create_same(self._objects, f"tables/{sha256}", data, sha256)
                    tables[name] = sha256
        return tables

    def _deletions(self, data: bytes, manifest: Manifest) -> bytes:
        """The deleted topics of now, and those that the store has forgotten with their records."""
        now = _deletions_in(data)
        known = manifest.tables.get(DELETED_TOPICS_NAME)
        if known is not None and known != self._deletions_of:
            self._known_deletions = _deletions_in(read_table(self._objects, known))
            self._deletions_of = known
        both = {**(self._known_deletions if known is not None else {}), **now}
        return sealed(format_java_json({"deletedTopics": both})).encode() if both else b""

    def _note(self, log: LogPlan, manifest: Manifest) -> None:
        """Tell the store's retention what it may delete."""
        note = self._objects.url, manifest.end
        if manifest.end and load_archive_note(log.directory) != note:
            store_archive_note(log.directory, *note)


def _deletions_in(data: bytes) -> dict[str, int]:
    with suppress(ValueError, json.JSONDecodeError):
        return deletions_told(unsealed(data.decode())) or {}
    return {}
