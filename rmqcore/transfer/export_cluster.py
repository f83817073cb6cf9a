"""Export of a topic of a running cluster: one file a range of a queue, named by where it begins."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from rmqcore.errors import ConfigError
from rmqcore.files.store_dir import make_directory
from rmqcore.scan.cluster import Access, Cluster, QueueRange, read_range
from rmqcore.scan.cluster.ranges import cut_ranges
from rmqcore.scan.cluster.read import messages_of
from rmqcore.scan.read import FULL_COLUMNS
from rmqcore.scan.tables import TABLE_FORMATS, check_table_path, make_table, require_package
from rmqcore.transfer.export import (
    EXPORT_FORMATS,
    ROW_GROUP_ROWS,
    ExportedPart,
    columns_schema,
    forget_left,
    fresh_at,
    put_in_place,
    write_jsonl,
    write_manifest,
    write_parquet,
)
from rmqcore.world import sync_directory, sync_file

#: A file has this many messages.
_PIECE_COUNT = 1_000_000


def export_topic(
    access: Access,
    topic: str,
    directory: str | os.PathLike[str],
    *,
    file_format: str = "parquet",
    columns: Iterable[str] = FULL_COLUMNS,
    compression: str = "zstd",
) -> list[ExportedPart]:
    """Write what a topic has now to files, and ``_manifest.json`` beside them.

    A table has the files that the manifest names. Files of an earlier export stay where they are.

    Args:
        access: how the cluster is reached.
        topic: which.
        directory: where the files go; it is created.
        file_format: one of `EXPORT_FORMATS`.
        columns: of Parquet files and tables.
        compression: of Parquet files.

    Returns:
        the files; start and end of each are queue offsets.

    Raises:
        ConfigError: an unknown format, or a path that no table can have.
        NoRouteError: no broker has the topic.
        MessagesGoneError: retention has deleted messages meanwhile; the manifest says that the
            export is unfinished.
        RemotingError: a name server or broker does not answer, or will not; likewise.
    """
    if file_format not in EXPORT_FORMATS:
        raise ConfigError("format", file_format, f"one of {', '.join(EXPORT_FORMATS)}")
    if file_format in TABLE_FORMATS:
        require_package(file_format)
        check_table_path(directory)
    target, names = Path(directory), tuple(columns)
    with Cluster(access) as cluster:
        pieces = cut_ranges(cluster.ranges([topic]), _PIECE_COUNT)
    make_directory(target)
    head = {"cluster": access.namesrv_addr, "topic": topic, "format": file_format}
    # one of an earlier export would vouch for files that this one replaces
    write_manifest(target, {**head, "unfinished": True, "parts": []})
    keeps = file_format in TABLE_FORMATS
    kind = "parquet" if keeps else file_format
    parts = [
        _export_range(access, one, target, kind, names, compression, keeps=keeps) for one in pieces
    ]
    forget_left(target)
    sync_directory(target)
    write_manifest(target, {**head, "parts": [asdict(part) for part in parts]})
    if file_format in TABLE_FORMATS:
        files = [(part.file, part.rows) for part in parts]
        make_table(file_format, target, columns_schema(names), files)
    sync_directory(target)
    return parts


def _export_range(
    access: Access,
    one: QueueRange,
    target: Path,
    kind: str,
    columns: tuple[str, ...],
    compression: str,
    *,
    keeps: bool,
) -> ExportedPart:
    topic, broker, queue_id = one.queue
    place = "-".join((quote(topic, safe=""), quote(broker, safe=""), str(queue_id)))
    path = target / f"part-{place}-{one.first:020d}.{kind}"
    fresh = fresh_at(path)
    try:
        if kind == "jsonl":
            with fresh.open("wb") as stream:
                rows = write_jsonl(stream, messages_of(access, one))
        else:
            batches = read_range(access, one, columns, verify_crc=True, batch_rows=ROW_GROUP_ROWS)
            rows = write_parquet(fresh, batches, columns_schema(columns), compression)
        sync_file(fresh)
        path = put_in_place(fresh, path, keeps=keeps)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    return ExportedPart(path.name, rows, path.stat().st_size, one.first, one.stop)
