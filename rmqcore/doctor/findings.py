"""What the doctor finds, and its report."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from rmqcore.errors import UNREADABLE, is_bad_sector

FINDINGS_MAX = 1000
#: The advice for what the disk refuses to give.
COPY = (
    "copy the store to another disk, with zeros for what cannot be read, and repair the copy: "
    "docs/broken.md"
)
#: The advice for a finding that a writer at work may make good by itself.
VERIFY_AGAIN = "verify again when the writer has caught up"


class Severity(StrEnum):
    """How bad a finding is.

    ERROR: messages cannot be read, or not be found. WARNING: the next opening mends it, or a reader
    may be surprised. NOTE: worth knowing; the store is clean all the same.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        severity: `Severity`.
        part: "log", "consume queue", "index", "checkpoint", "config" or "store".
        path: the file or directory.
        phy_offset: byte position in the commit log, -1 when it has none.
        what: what was found, in words.
        how: how to mend it.
    """

    severity: Severity
    part: str
    path: Path
    phy_offset: int
    what: str
    how: str = ""

    def __str__(self) -> str:
        at = f" at {self.phy_offset}" if self.phy_offset >= 0 else ""
        how = f"; {self.how}" if self.how else ""
        return f"{self.severity.value}: {self.path}{at}: {self.what}{how}"


@dataclass(slots=True)
class VerifyReport:
    """What a verification looked at and found.

    Attributes:
        path: the store's directory.
        live: a writer had the store open.
        min_phy_offset, max_phy_offset: bounds of the published log.
        records: good records.
        queues: consume queues looked at.
        units: consume-queue units that the log demands.
        index_entries: index entries looked at.
        findings: in the order they were found, the first `FINDINGS_MAX` of each severity in each
            part: many of one kind hide none of another.
        finding_count: all of them.
        elapsed_s: seconds taken.
        complete: False when the time was over before everything was looked at.
        verified_to: physical offset up to which the log was looked at.
    """

    path: Path
    live: bool = False
    min_phy_offset: int = 0
    max_phy_offset: int = 0
    records: int = 0
    queues: int = 0
    units: int = 0
    index_entries: int = 0
    findings: list[Finding] = field(default_factory=list)
    finding_count: int = 0
    elapsed_s: float = 0.0
    complete: bool = True
    verified_to: int = 0
    #: every file that the disk refuses to give in part or whole
    _unreadable: dict[Path, None] = field(default_factory=dict, init=False, repr=False)
    #: findings of each severity in each part
    _counts: dict[tuple[str, Severity], int] = field(default_factory=dict, init=False, repr=False)

    @property
    def clean(self) -> bool:
        """True when there is nothing but notes."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)

    @property
    def log_is_damaged(self) -> bool:
        """True when a place in the log was found where no good record is."""
        return any(each.part == "log" and each.severity is Severity.ERROR for each in self.findings)

    def add(
        self,
        severity: Severity,
        part: str,
        path: Path,
        phy_offset: int,
        what: str,
        how: str = "",
    ) -> None:
        """Note a finding; what is derived from a damaged log comes right when that does.

        Args:
            severity: how bad it is.
            part: what of the store, such as "log" or "index".
            path: the file or directory.
            phy_offset: where in the log, in bytes; -1 when it is nowhere there.
            what: what is wrong, a sentence.
            how: what to do about it; empty when nothing helps.
        """
        if part != "log" and "rmqcore rebuild" in how and self.log_is_damaged:
            how = "rmqcore doctor repair STORE derives it again, from the repaired log"
        self.finding_count += 1
        if what.startswith(UNREADABLE):
            self._unreadable[path] = None
        known = self._counts.get((part, severity), 0)
        self._counts[part, severity] = known + 1
        if known < FINDINGS_MAX:
            self.findings.append(Finding(severity, part, path, phy_offset, what, how))

    @contextmanager
    def past_bad_sectors(self, part: str) -> Iterator[None]:
        """Look at something, and note where the disk refuses to give it; the rest is looked at.

        Args:
            part: as for `add`.
        """
        try:
            yield
        except OSError as error:
            if not is_bad_sector(error) or error.filename is None:
                raise
            self.add_unreadable(part, Path(error.filename))

    def add_unreadable(self, part: str, path: Path) -> None:
        """Note a file that the disk refuses to give in part or whole.

        Args:
            part: as for `add`.
            path: the file.
        """
        if path not in self._unreadable:
            self.add(Severity.ERROR, part, path, -1, UNREADABLE, COPY)

    def raise_unreadable(self) -> None:
        """Raise what the disk refused; whoever changes the store takes that for no damage.

        Raises:
            OSError: it refused to give a file in part or whole.
        """
        for path in self._unreadable:
            raise OSError(errno.EIO, UNREADABLE, str(path))

    def as_dict(self) -> dict[str, object]:
        """The report as plain values, for JSON."""
        told = {name: value for name, value in asdict(self).items() if not name.startswith("_")}
        values = told | {"path": str(self.path), "clean": self.clean}
        values["findings"] = [
            asdict(finding) | {"severity": finding.severity.value, "path": str(finding.path)}
            for finding in self.findings
        ]
        return values
