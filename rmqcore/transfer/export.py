"""Export of messages to JSON lines and Parquet: one file a split, named by where it begins.

A file appears under its name when it is complete; exporting again writes the same files. Delta and
Iceberg tables are Parquet files with a description beside them: those never change, one that has
grown gets another name.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypedDict

from rmqcore._codec import check_record, decode_record
from rmqcore.chance import token_hex
from rmqcore.config import StoreConfig
from rmqcore.errors import ConfigError, CorruptStoreError, RmqCoreError
from rmqcore.files.objects import is_url
from rmqcore.files.store_dir import StoreDir, make_directory, room_at
from rmqcore.message import MessageExt
from rmqcore.native.columns._columns import ColumnDecoder
from rmqcore.native.derive._dispatch import DispatchBatch
from rmqcore.native.format._numbers import SysFlag
from rmqcore.scan.any_log import is_archive, open_any_log
from rmqcore.scan.log_walk import Damage, LogWalk
from rmqcore.scan.plan import LogPlan
from rmqcore.scan.read import FULL_COLUMNS, read
from rmqcore.scan.runner import Runner, run
from rmqcore.scan.selection import Selection, TopicRule
from rmqcore.scan.split import Split
from rmqcore.scan.tables import TABLE_FORMATS, check_table_path, make_table, require_package
from rmqcore.transfer.exported_topics import exported_topics, read_delivered
from rmqcore.world import sync_directory, sync_fd, sync_file, wall_clock_ms

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

EXPORT_SPLIT_SIZE = 256 << 20
#: The name of the manifest; readers of Parquet files pass over it because of its first character.
MANIFEST = "_manifest.json"
#: A row group of a Parquet file has this many rows: one batch.
ROW_GROUP_ROWS = 16384
#: What nobody has put in its place for so long, in seconds, is a killed export's.
_LEFT_S = 86_400
#: Matches a URL, also as `Path` writes it.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
FORMATS = ("jsonl", "parquet")
EXPORT_FORMATS = (*FORMATS, *TABLE_FORMATS)


class _Selected(TypedDict, total=False):
    """What of a split is exported."""

    topics: Iterable[str] | None
    uncommitted: bool
    topic_rule: TopicRule


@dataclass(frozen=True, slots=True)
class ExportedPart:
    """One file of an export.

    Attributes:
        file: its name.
        rows: messages in it.
        bytes: its length.
        start, end: physical offsets of the split it was made from.
        damaged: places of the split that were passed over because no good record is there.
        passed_over: each of them: file, physical offset, where good records go on, reason.
    """

    file: str
    rows: int
    bytes: int
    start: int
    end: int
    damaged: int = 0
    passed_over: tuple[dict[str, str | int], ...] = ()


def body_fields(name: str, body: bytes) -> dict[str, str]:
    """A body for JSON: under its name where it is UTF-8 text, else with ``_base64`` behind it.

    Args:
        name: of the field.
        body: the bytes.
    """
    try:
        return {name: body.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(body).decode("ascii")}


def message_fields(message: MessageExt) -> dict[str, Any]:
    """A message for JSON, under the names of its attributes; the body as it is stored."""
    fields = message.to_dict()
    fields["keys"] = list(message.keys)
    body = fields.pop("body")
    return fields | body_fields("body", body)


def messages(
    split: Split,
    *,
    topics: Iterable[str] | None = None,
    uncommitted: bool = False,
    topic_rule: TopicRule | None = None,
    on_damage: Callable[[Damage], None] | None = None,
) -> Iterator[MessageExt]:
    """The messages of a split as objects, in log order; each has bytes of its own.

    Args:
        split: from `plan`.
        topics: only messages of these.
        uncommitted: also prepared and rolled-back transactional records.
        topic_rule: which records of a topic are messages at all; None for every one.
        on_damage: called for each damaged place, which is passed over; None raises there.

    Raises:
        CorruptRecordError: a damaged record.
    """
    wanted = None if topics is None else set(topics)
    rules: dict[str, tuple[int, dict[int, int]]] = {}

    def is_shown(message: MessageExt) -> bool:
        if topic_rule is None:
            return True
        if message.topic not in rules:
            rules[message.topic] = topic_rule(message.topic)
        first, queues = rules[message.topic]
        return message.phy_offset >= queues.get(message.queue_id, first)

    batch = DispatchBatch()
    pieces: list[bytes] = []

    def kernel(
        buffer: ReadableBuffer, at: int, stop: int, /, *, base_offset: int
    ) -> tuple[int, int]:
        reached, code = batch.scan(buffer, at, stop, base_offset=base_offset, verify_crc=True)
        batch.clear()
        pieces.append(bytes(memoryview(buffer)[at:reached]))
        return reached, code

    for _ in LogWalk(split, chunk_size=1 << 20, on_damage=on_damage).run(kernel):
        piece, at = pieces.pop(), 0
        while at < len(piece):
            size = check_record(piece, at, verify_crc=False)
            message = decode_record(piece[at : at + size], check_crc=False)
            at += size
            transaction = message.sys_flag & SysFlag.TRANSACTION_MASK
            if (
                (uncommitted or transaction in (0, SysFlag.TRANSACTION_COMMIT))
                and (wanted is None or message.topic in wanted)
                and is_shown(message)
            ):
                yield message


def write_jsonl(stream: BinaryIO, found: Iterable[MessageExt]) -> int:
    """Write messages as lines of JSON; how many there were.

    Args:
        stream: gets UTF-8; it stays open.
        found: the messages.
    """
    count = 0
    for message in found:
        stream.write(json.dumps(message_fields(message), ensure_ascii=False).encode("utf-8"))
        stream.write(b"\n")
        count += 1
    return count


def export(
    split: Split,
    directory: str | os.PathLike[str],
    *,
    file_format: str = "parquet",
    columns: Iterable[str] = FULL_COLUMNS,
    topics: Iterable[str] | None = None,
    uncommitted: bool = False,
    topic_rule: TopicRule | None = None,
    compression: str = "zstd",
    skip_damaged: bool = False,
    keeps: bool = False,
) -> ExportedPart:
    """Write the messages of one split to one file.

    Args:
        split: from `plan`.
        directory: where the file goes; it must exist.
        file_format: one of `FORMATS`.
        columns: of a Parquet file; the import wants all of `FULL_COLUMNS`.
        topics: only messages of these.
        uncommitted: also prepared and rolled-back transactional records.
        topic_rule: which records of a topic are messages at all; None for every one.
        compression: of a Parquet file.
        skip_damaged: pass over damaged records and count the places.
        keeps: see `put_in_place`.

    Raises:
        ConfigError: an unknown format.
        CorruptStoreError: a damaged record; the file holds the messages before it.
        DiskFullError: no room; there is no file, or the one of an earlier export.
    """
    if file_format not in FORMATS:
        raise ConfigError("format", file_format, f"one of {', '.join(FORMATS)}")
    path = Path(directory) / f"part-{split.start:020d}.{file_format}"
    fresh = fresh_at(path)
    damaged: list[Damage] = []
    on_damage = damaged.append if skip_damaged else None
    failure: CorruptStoreError | None = None
    selection = _Selected(topics=topics, uncommitted=uncommitted)
    if topic_rule is not None:
        selection["topic_rule"] = topic_rule
    rows = 0
    try:
        with room_at(path):
            try:
                if file_format == "jsonl":
                    found = messages(split, on_damage=on_damage, **selection)
                    with fresh.open("wb") as stream:
                        rows = write_jsonl(stream, found)
                else:
                    batches = read(
                        split,
                        columns,
                        verify_crc=True,
                        batch_rows=ROW_GROUP_ROWS,
                        on_damage=on_damage,
                        **selection,
                    )
                    rows = write_parquet(fresh, batches, columns_schema(batches.names), compression)
            except CorruptStoreError as error:
                failure = error
            with fresh.open("rb") as stream:
                sync_fd(stream.fileno())
            path = put_in_place(fresh, path, keeps=keeps)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    if failure is not None:
        raise failure
    size = path.stat().st_size
    passed_over = tuple(asdict(one) | {"path": str(one.path)} for one in damaged)
    return ExportedPart(
        path.name, rows, size, split.start, split.end, len(passed_over), passed_over
    )


def fresh_at(path: Path) -> Path:
    """A name beside a file for what becomes it, of nobody else.

    A task that ran twice, or another export, may write the same file at the same time.

    Args:
        path: of the file.
    """
    return path.with_name(f".{path.name}.{token_hex(8)}.tmp")


def forget_left(directory: Path) -> None:
    """Remove what exports that were killed have left.

    Args:
        directory: of an export.
    """
    for left in chain(directory.glob(".part-*"), directory.glob(f".{MANIFEST}.*")):
        # another export may be about to put a younger one in its place
        with suppress(FileNotFoundError):
            if left.stat().st_mtime < wall_clock_ms() / 1000 - _LEFT_S:
                left.unlink()


def put_in_place(fresh: Path, path: Path, *, keeps: bool) -> Path:
    """Give a file that is complete its name.

    Args:
        fresh: the file.
        path: its name.
        keeps: a file of that name with other bytes stays, as states of a table have it; this one
            gets the beginning of its SHA-256 behind the name.

    Returns:
        where it is.
    """
    if keeps:
        try:
            # of two exports at a time one has the name
            path.open("xb").close()
        except FileExistsError:
            digest = _sha256(fresh)
            if digest != _sha256(path):
                path = path.with_stem(f"{path.stem}-{digest[:16]}")
    fresh.rename(path)
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_parquet(path: Path, batches: Any, schema: Any, compression: str) -> int:
    """Write record batches to a Parquet file; how many rows there were.

    Args:
        path: of the file, which is made anew.
        batches: of `rmqcore.scan.read`, with the columns of the schema.
        schema: of pyarrow, as `columns_schema` gives it.
        compression: as pyarrow names it: ``zstd``, ``snappy``, ``none``.

    Raises:
        RmqCoreError: pyarrow is not installed.
    """
    try:
        from pyarrow import parquet  # noqa: PLC0415 - an extra
    except ImportError:
        raise RmqCoreError("Parquet needs pyarrow: pip install 'rmqcore[arrow]'") from None
    rows = 0
    with parquet.ParquetWriter(path, schema, compression=compression) as writer:
        for batch in batches:
            rows += batch.num_rows
            writer.write_batch(batch.to_arrow())
    _leave_out_bounds(path, compression)
    return rows


def _leave_out_bounds(path: Path, compression: str) -> None:
    """Write a Parquet file once more, without the bounds of times that Python does not show.

    Any producer may choose such a time of birth, and who makes tables of files fails with one.
    """
    from pyarrow import parquet  # noqa: PLC0415 - an extra

    stated, odd = set(), set()
    facts = parquet.read_metadata(path)
    for group in range(facts.num_row_groups):
        for number in range(facts.num_columns):
            column = facts.row_group(group).column(number)
            stated.add(column.path_in_schema)
            bounds = column.statistics
            try:
                _ = bounds and (bounds.min, bounds.max)
            except OverflowError:
                odd.add(column.path_in_schema)
    if not odd:
        return
    again = path.with_name(f"{path.name}.again")
    settings = {"compression": compression, "write_statistics": sorted(stated - odd)}
    try:
        with (
            parquet.ParquetFile(path) as source,
            parquet.ParquetWriter(again, source.schema_arrow, **settings) as writer,
        ):
            for group in range(source.num_row_groups):
                writer.write_table(source.read_row_group(group))
        again.rename(path)
    finally:
        again.unlink(missing_ok=True)


def columns_schema(columns: tuple[str, ...]) -> Any:
    """The schema of Parquet files with these columns."""
    return ColumnDecoder(columns, row_max=1).take().to_arrow().schema


def export_store(
    store_path: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    file_format: str = "parquet",
    columns: Iterable[str] = FULL_COLUMNS,
    topics: Iterable[str] | None = None,
    uncommitted: bool = False,
    config: StoreConfig | str | Path | None = None,
    jobs: int | Runner = 1,
    split_size: int = EXPORT_SPLIT_SIZE,
    skip_damaged: bool = False,
    progress: Callable[[int, int], None] | None = None,
    archive: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> list[ExportedPart]:
    """Write the messages of a store or an archive to files, and ``_manifest.json`` beside them.

    A table has the files that the manifest names. Files of an earlier export stay where they are.
    What `ExportedTopics` tells are no messages are in none: an import puts again what is in.

    Args:
        store_path: the store's directory; only read. Or an archive, by its URL or its directory.
        directory: where the files go; it is created.
        file_format: one of `EXPORT_FORMATS`.
        columns: of Parquet files and tables.
        topics: only messages of these.
        uncommitted: also prepared and rolled-back transactional records.
        config: settings of the store, as for `open_store`.
        jobs: processes, or what else runs a function over splits.
        split_size: bytes of log in a file.
        skip_damaged: pass over damaged records; each part says of how many places.
        progress: called with (bytes of log done, bytes in all).
        archive: of the store, as for `rmqcore.scan.open_any_log`.
        storage_options: of the archive, as for `rmqcore.scan.open_any_log`.

    Raises:
        ConfigError: an unknown format, a URL for a directory, or a path that no table can have.
        CorruptStoreError: a damaged record; the messages before it are written, and the manifest
            says that the export is unfinished, as after a kill: nothing imports it.
        DiskFullError: no room; the manifest says that the export is unfinished.
        RmqCoreError: the package that the format needs is not installed; nothing was written.
    """
    if file_format not in EXPORT_FORMATS:
        raise ConfigError("format", file_format, f"one of {', '.join(EXPORT_FORMATS)}")
    if _URL.match(os.fspath(directory)):
        rule = "a directory of this machine, no URL; write ./NAME for one that is named so"
        raise ConfigError("directory", os.fspath(directory), rule)
    if file_format in TABLE_FORMATS:
        require_package(file_format)
        check_table_path(directory)
    target, names = Path(directory), tuple(columns)
    chosen = None if topics is None else tuple(topics)
    delivered = {} if is_archive(store_path) else read_delivered(StoreDir(store_path))
    log = open_any_log(store_path, config=config, archive=archive, storage_options=storage_options)
    work = partial(
        export,
        directory=target,
        file_format="parquet" if file_format in TABLE_FORMATS else file_format,
        columns=names,
        topics=chosen,
        uncommitted=uncommitted,
        topic_rule=exported_topics(log, chosen or (), delivered, uncommitted=uncommitted),
        skip_damaged=skip_damaged,
        keeps=file_format in TABLE_FORMATS,
    )
    if isinstance(log, LogPlan):
        splits = log.splits(split_size, topics=chosen)
    else:
        wanted: Selection = {"topics": chosen, "uncommitted": uncommitted}
        splits = log.select(wanted).splits(split_size)
    make_directory(target)
    place = log.place if is_url(log.place) else str(Path(log.place).absolute())
    head = {"store": place, "format": file_format}
    # the manifest of an earlier export would vouch for files that this one replaces
    write_manifest(target, {**head, "unfinished": True, "parts": []})
    parts = list(run(work, splits, jobs=jobs, progress=progress))
    forget_left(target)
    sync_directory(target)
    write_manifest(target, {**head, "parts": [asdict(part) for part in parts]})
    if file_format in TABLE_FORMATS:
        make_table(
            file_format, target, columns_schema(names), [(part.file, part.rows) for part in parts]
        )
    sync_directory(target)
    return parts


def write_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest of an export, whole or not at all.

    Args:
        directory: of the export.
        manifest: what JSON can hold.
    """
    fresh = fresh_at(directory / MANIFEST)
    with room_at(directory / MANIFEST):
        fresh.write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
        sync_file(fresh)
        fresh.rename(directory / MANIFEST)
        sync_directory(directory)
