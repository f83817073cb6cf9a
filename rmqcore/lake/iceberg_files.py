"""Which states of an Iceberg table are forgotten, and which files then are nobody's.

Each commit writes down all states that there are, and so does a reader read them: a commit a minute
for a week were 10,000. PyIceberg forgets states and leaves their files; a commit that was killed
leaves some, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow.fs as pafs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
#: What lies elsewhere below a table's location is not looked at.
_FOLDERS: Final = ("data", "metadata")
#: Readers without a catalog find the newest state by it; whoever keeps it for them writes it.
_VERSION_HINT: Final = "version-hint.text"


def forgotten(states: Mapping[int, int], now_ms: int, keep_ms: int) -> list[int]:
    """The states that are too many: all of the last hour stay, one an hour of a day, one a day.

    Args:
        states: by number, when they were made. Unix time.
        now_ms: Unix time.
        keep_ms: older ones go.
    """
    stay: dict[tuple[int, int], int] = {}
    for number, made_ms in sorted(states.items(), key=lambda state: state[1]):
        age_ms = now_ms - made_ms
        if age_ms > keep_ms:
            continue
        if age_ms <= _HOUR_MS:
            stay[0, number] = number
        else:
            span_ms = _HOUR_MS if age_ms <= _DAY_MS else _DAY_MS
            # the newest of each
            stay[span_ms, made_ms // span_ms] = number
    return sorted(states.keys() - stay.values())


def sweep(table: Table, before_ms: int) -> int:
    """Delete files that no state of a table has; how many there were.

    Args:
        table: as it is now.
        before_ms: younger files stay, as a commit may be about to name them. Unix time.
    """
    io = PyArrowFileIO(table.io.properties)
    scheme, host, place = PyArrowFileIO.parse_location(table.location(), io.properties)
    files: Any = io.fs_by_scheme(scheme, host)
    old = [
        info.path
        for folder in _FOLDERS
        for info in files.get_file_info(
            pafs.FileSelector(f"{place}/{folder}", recursive=True, allow_not_found=True)
        )
        if info.is_file
        and info.base_name != _VERSION_HINT
        and info.mtime_ns < before_ms * 1_000_000
    ]
    if not old:
        return 0
    named = {PyArrowFileIO.parse_location(each, io.properties)[2] for each in _named(table)}
    gone = [path for path in old if path not in named]
    for path in gone:
        files.delete_file(path)
    return len(gone)


def _named(table: Table) -> Iterator[str]:
    """The locations of all files that some state of a table has."""
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (one.statistics_path for one in metadata.statistics)
    yield from (one.statistics_path for one in metadata.partition_statistics)
    seen: set[str] = set()
    for snapshot in table.snapshots():
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(table.io):
                yield entry.data_file.file_path
