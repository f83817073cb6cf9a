"""When an old segment may go, and what becomes of it: deleted, renamed, or packed."""

from __future__ import annotations

import filecmp
import itertools
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from rmqcore.errors import ConfigError
from rmqcore.world import sync_directory, sync_fd

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "": 3_600_000}
_AGE = re.compile(r"(\d{1,9})([smh]?)", re.ASCII)


class DeletePolicy(Protocol):
    """Decides over one segment file. Source: MetaQ DeletePolicy.java."""

    name: ClassVar[str]

    def can_delete(self, path: Path, now_ms: int) -> bool:
        """Tell whether the file is old enough.

        Args:
            path: the segment file.
            now_ms: Unix time, milliseconds.

        Raises:
            OSError: the file's status cannot be read.
        """

    def process(self, path: Path) -> None:
        """Take the file out of the log; the file stays as it is when this raises."""


@dataclass(frozen=True, slots=True)
class DiscardDeletePolicy:
    """``delete,168``: delete what was not modified for longer than an age.

    Attributes:
        max_reserved_ms: the age in milliseconds.

    Source: MetaQ DiscardDeletePolicy.java.
    """

    name: ClassVar[str] = "delete"
    max_reserved_ms: int

    def can_delete(self, path: Path, now_ms: int) -> bool:
        """Tell whether the file is older than the age; see `DeletePolicy.can_delete`."""
        return now_ms - path.stat().st_mtime_ns // 1_000_000 > self.max_reserved_ms

    def process(self, path: Path) -> None:
        """Delete the file."""
        path.unlink()


@dataclass(frozen=True, slots=True)
class ArchiveDeletePolicy:
    """``archive,168`` or ``archive,168,true``: keep an old file under a name that is no segment.

    Differs: the original deletes the file also when packing it failed; here the archive is whole
    and durable before the file goes, and no other archive is written over.

    Attributes:
        max_reserved_ms: the age in milliseconds.
        compress: pack into ``<name>.zip`` instead of renaming to ``<name>.arc``.

    Source: MetaQ ArchiveDeletePolicy.java.
    """

    name: ClassVar[str] = "archive"
    max_reserved_ms: int
    compress: bool = False

    def can_delete(self, path: Path, now_ms: int) -> bool:
        """Tell whether the file is older than the age; see `DeletePolicy.can_delete`."""
        return now_ms - path.stat().st_mtime_ns // 1_000_000 > self.max_reserved_ms

    def process(self, path: Path) -> None:
        """Rename or pack the file."""
        if not self.compress:
            path.rename(_free_name(path, ".arc"))
            return
        packing = path.with_name(f"{path.name}.zip.tmp")
        try:
            with packing.open("wb") as out:
                with zipfile.ZipFile(
                    out, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False
                ) as archive:
                    archive.write(path, path.name)
                out.flush()
                sync_fd(out.fileno())
            packing.rename(_free_name(path, ".zip", packing))
            sync_directory(path.parent)
        except BaseException:
            packing.unlink(missing_ok=True)
            raise
        path.unlink()


def _free_name(path: Path, suffix: str, packed: Path | None = None) -> Path:
    """A name for an archive; one of a segment that had the same name before is not written over.

    Args:
        path: the segment.
        suffix: of the archive.
        packed: the archive as it is to be: an equal one is of a process that was killed before it
            removed the segment.
    """
    kept = path.with_name(f"{path.name}{suffix}")
    for number in itertools.count(2):
        if not kept.exists() or (packed and filecmp.cmp(packed, kept, shallow=False)):
            break
        kept = path.with_name(f"{path.name}-{number}{suffix}")
    return kept


def parse_delete_policy(text: str, field: str = "deletePolicy") -> DeletePolicy:
    """Read a policy as the ini file writes it: ``name,age[,compress]``.

    Args:
        text: the policy; the age is a number of hours, or ends in s, m or h.
        field: the setting, for the error.

    Raises:
        ConfigError: unknown name, missing or wrong age.

    Source: MetaQ DeletePolicyFactory.java.
    """
    name, *values = [part.strip() for part in text.split(",")]
    match = _AGE.fullmatch(values[0]) if values else None
    if name not in {DiscardDeletePolicy.name, ArchiveDeletePolicy.name} or match is None:
        rule = "delete,AGE or archive,AGE[,true]; AGE is hours, or a number with s, m or h"
        raise ConfigError(field, text, rule)
    age_ms = int(match[1]) * _UNITS_MS[match[2]]
    if name == DiscardDeletePolicy.name:
        return DiscardDeletePolicy(age_ms)
    return ArchiveDeletePolicy(age_ms, len(values) > 1 and values[1].lower() == "true")
