"""`sweep`: deletes the files of an Iceberg table that none of its states has.

PyIceberg forgets snapshots and leaves their files; a commit that was killed leaves some, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow.fs as pafs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

#: What lies elsewhere below a table's location is not looked at.
_FOLDERS: Final = ("data", "metadata")


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
        if info.is_file and info.mtime_ns < before_ms * 1_000_000
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
