"""Is an archive whole: every object that its manifest names, each SHA-256, each record's CRC."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from rmqcore.errors import CorruptStoreError, RecordsGoneError
from rmqcore.files.mapped_file import OpenFiles
from rmqcore.files.objects.errors import ArchiveError
from rmqcore.native.derive._dispatch import DispatchBatch
from rmqcore.scan.archive_log import ArchiveLog
from rmqcore.scan.log_walk import LogWalk
from rmqcore.scan.runner import run
from rmqcore.scan.split import Split

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


@dataclass(slots=True)
class ArchiveVerifyReport:
    """What the verification of an archive found.

    Attributes:
        url: of the archive.
        files, records: that were looked at.
        start, end: physical offsets between which it has the log.
        findings: what is wrong, a sentence each.
    """

    url: str
    files: int = 0
    records: int = 0
    start: int = 0
    end: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """True when nothing is wrong."""
        return not self.findings

    def as_dict(self) -> dict[str, object]:
        """The report as plain values, for JSON."""
        return {**asdict(self), "clean": self.clean}


def verify_archive(
    url: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    check_crc: bool = True,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> ArchiveVerifyReport:
    """Read every file of an archive, and compare it with what the manifest says.

    Args:
        url: of the archive, or its directory.
        storage_options: credentials and endpoint, as for `rmqcore.files.objects.open_objects`.
        check_crc: compare bodies with their CRCs.
        jobs: processes.
        progress: called with (bytes read, bytes in all).

    Raises:
        ArchiveError: no archive is there.
        ObjectStoreError: its manifest cannot be read.
    """
    log = ArchiveLog(url, storage_options)
    report = ArchiveVerifyReport(log.url, start=log.start, end=log.end)
    try:
        files = log.files()
    except (ArchiveError, OSError) as error:
        report.findings.append(str(error))
        return report
    try:
        log.tables()
    except (ArchiveError, OSError, RecordsGoneError) as error:
        report.findings.append(str(error))
    for one, after in pairwise(files):
        if after.start != one.end:
            report.findings.append(f"no file is named between {one.end} and {after.start}")
    splits = [log.split(file, file.start, file.end) for file in files]
    told = [(file.sha256, file.rows) for file in files]
    found = run(partial(_checked, check_crc=check_crc), splits, jobs=jobs, progress=progress)
    for split, (sha256, rows), (digest, records, problem) in zip(splits, told, found, strict=True):
        name = f"{split.commit_log}/{split.start:020d}"
        report.files += 1
        report.records += records
        if problem:
            report.findings.append(problem)
        elif digest != sha256:
            report.findings.append(f"{name}: its SHA-256 is not the one that the manifest names")
        elif records != rows:
            report.findings.append(f"{name}: {records} records, the manifest names {rows}")
    return report


def _checked(split: Split, *, check_crc: bool) -> tuple[str, int, str]:
    """(SHA-256, records, what is wrong) of one file."""
    digest, records, batch = hashlib.sha256(), 0, DispatchBatch(keys=False)
    read = split.start

    def kernel(
        buffer: ReadableBuffer, at: int, stop: int, /, *, base_offset: int
    ) -> tuple[int, int]:
        nonlocal read
        new = max(0, read - base_offset)
        digest.update(memoryview(buffer)[new:stop])
        read = base_offset + stop
        return batch.scan(buffer, at, stop, base_offset=base_offset, verify_crc=check_crc)

    try:
        for _ in LogWalk(split).run(kernel):
            records += batch.record_count
            batch.clear()
        rest = split.end - read
        if rest > 0:
            digest.update(_bytes_of(split, read, rest))
    except (CorruptStoreError, OSError, RecordsGoneError) as error:
        return "", records, str(error)
    return digest.hexdigest(), records, ""


def _bytes_of(split: Split, start: int, size: int) -> bytes:
    """Bytes behind the end-of-file record."""
    file = split.file_at(split.first_file, OpenFiles())
    try:
        return file.read_bytes(start - split.first_file, size)
    finally:
        file.close()
