"""Import of exported messages: put again, in their order, with their topics, queues, properties.

Offsets, store times and hosts are the new store's. Of Parquet files whole batches are put as
columns; a batch that has what only a put of a single message can do, or that is refused, goes row
by row.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rmqcore.config import StoreConfig
from rmqcore.errors import (
    ArgumentError,
    MessageIllegalError,
    PutMessageError,
    RmqCoreError,
    RowIllegalError,
)
from rmqcore.message import Message, PutMessageResult
from rmqcore.native.columns._table_rows import WRITTEN
from rmqcore.native.format._message import PUT_NAMES
from rmqcore.native.format._message_ext import STORED_NAMES
from rmqcore.native.format._numbers import SysFlag
from rmqcore.store.parts.column_puts import encoder_for
from rmqcore.transfer.export import FORMATS, MANIFEST

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqcore.store.parts.put_columns_result import PutColumnsResult
    from rmqcore.transfer.trial_puts import TrialPuts

#: The property that the store writes itself, so that it is not put.
_NOT_PUT = "__CRC32#"
_PARKED_TOPIC = "SCHEDULE_TOPIC_XXXX"
#: A longer text is no queue's number.
_DIGITS_MAX = 9
#: What is put as the export says it; the others are looked at one by one, and what a delay level
#: was is among the properties.
_AS_EXPORTED = frozenset(PUT_NAMES) & frozenset(STORED_NAMES) - {
    "topic",
    "body",
    "tags",
    "keys",
    "properties",
    "store_host",
}
#: Columns of a Parquet file that are read.
_READ = _AS_EXPORTED | {"body_base64", *WRITTEN}
#: A time in each unit is so many milliseconds: by what it is multiplied, and then divided.
_MS = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}
#: So many rows of a Parquet file are put together, or one by one.
_BATCH_ROWS = 4096
#: What has more bytes is no manifest of an export.
_MANIFEST_SIZE_MAX = 1 << 28
#: Bits of a system flag that speak of the body or of hosts; others are not put as columns.
_PLAIN_FLAGS = SysFlag.COMPRESSED | SysFlag.MULTI_TAGS | SysFlag.COMPRESSION_MASK | SysFlag.HOSTS_V6


class Putter(Protocol):
    """What messages are put into: a store that is open for writing."""

    def put_message(self, message: Message, /) -> PutMessageResult:
        """Store one message."""
        ...

    def put_columns(self, table: object, /) -> PutColumnsResult:
        """Store the rows of a table."""
        ...


@dataclass(slots=True)
class ImportReport:
    """What an import did.

    Attributes:
        files: files read.
        messages: messages put.
        body_bytes: bytes of their bodies.
        already: messages that were there, of an import that ended early.
    """

    files: int = 0
    messages: int = 0
    body_bytes: int = 0
    already: int = 0


def import_files(
    store: Putter,
    source: str | os.PathLike[str],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> ImportReport:
    """Put what `export_store` wrote, or any JSON lines of that form.

    Args:
        store: open for writing.
        source: a file, or the directory of an export; its manifest, where there is one, says which
            files must be there.
        progress: called with (files done, files in all).

    Raises:
        MessageIllegalError: a row is no message; names file and row. What came before is stored.
        PutMessageError: the store refused.
        RmqCoreError: there is no file, one of the manifest is missing, or pyarrow is for Parquet.
    """
    paths = exported_files(Path(source))
    report = ImportReport()
    for number, path in enumerate(paths):
        if progress is not None:
            progress(number, len(paths))
        put_file(store, path, report)
    if progress is not None:
        progress(len(paths), len(paths))
    return report


def put_file(store: Putter, path: Path, report: ImportReport, *, first: int = 0) -> None:
    """Put the messages of one file.

    Args:
        store: open for writing.
        path: of the file.
        report: what is put is counted there.
        first: rows that are passed over.

    Raises:
        MessageIllegalError, PutMessageError: as `import_files`.
    """
    if path.suffix == ".parquet":
        _put_parquet(store, path, report, first)
    else:
        _put_messages(store, path, first, islice(messages_in(path), first, None), report)
    report.files += 1


def check_file(path: Path, trial: TrialPuts) -> None:
    """Look at every row of a file, and put none.

    Args:
        path: of the file.
        trial: of the store that they are for.

    Raises:
        MessageIllegalError: a row is no message, or one that the store does not take.
        RmqCoreError: as `messages_in`.
    """
    if path.suffix != ".parquet":
        _check_rows(path, 0, _rows(path), trial)
        return
    first = 0
    for batch in _batches(path):
        if not _is_accepted(batch, trial.config):
            _check_rows(path, first, _rows_of(path, batch), trial)
        first += batch.num_rows


def _check_rows(path: Path, first: int, rows: Iterable[dict[str, Any]], trial: TrialPuts) -> None:
    """Look at rows as a put of each would; the file has ``first`` rows before them."""
    for row, message in enumerate(_messages_of(path, first, rows), first + 1):
        try:
            trial.put_message(message)
        except (MessageIllegalError, TypeError, OverflowError) as error:
            raise MessageIllegalError(f"{path}, row {row}: {error}") from error


def messages_in(path: Path) -> Iterator[Message]:
    """The messages of a file, as they are put.

    Raises:
        MessageIllegalError: a row is no message; names file and row.
        RmqCoreError: it is no file of an export, or pyarrow is for Parquet.
    """
    return _messages_of(path, 0, _rows(path))


def _messages_of(path: Path, first: int, rows: Iterable[dict[str, Any]]) -> Iterator[Message]:
    """The messages of some rows; the file has ``first`` rows before them."""
    for row, fields in enumerate(rows, first + 1):
        try:
            yield message_of(fields)
        except (MessageIllegalError, TypeError, ValueError, OverflowError) as error:
            raise MessageIllegalError(f"{path}, row {row}: {error}") from error


def _put_messages(
    store: Putter, path: Path, first: int, messages: Iterable[Message], report: ImportReport
) -> None:
    """Put messages one by one; the file has ``first`` rows before them."""
    for row, message in enumerate(messages, first + 1):
        try:
            receipt = store.put_message(message)
        except (MessageIllegalError, TypeError, OverflowError) as error:
            raise MessageIllegalError(f"{path}, row {row}: {error}") from error
        if not receipt.ok:
            raise PutMessageError(receipt.status, f"{path}, row {row}: {receipt.reason}")
        report.messages += 1
        report.body_bytes += len(message.body)


def _put_parquet(store: Putter, path: Path, report: ImportReport, first: int) -> None:
    """Put the rows of a Parquet file from row ``first`` on, batch by batch."""
    place = 0
    for batch in _batches(path):
        at = min(max(place, first), place + batch.num_rows)
        rest = batch.slice(at - place)
        if rest.num_rows > 0 and not _put_batch(store, path, at, rest, report):
            _put_messages(store, path, at, _messages_of(path, at, _rows_of(path, rest)), report)
        place += batch.num_rows


def _put_batch(
    store: Putter, path: Path, first: int, batch: pa.RecordBatch, report: ImportReport
) -> bool:
    """Put the rows of a batch together; False, and nothing is stored, where that cannot be done."""
    if not _is_plain(batch):
        return False
    try:
        result = store.put_columns(_written(batch))
    except (RowIllegalError, ArgumentError):
        # a delayed message, say, which put by itself is delayed; or an error that it tells better
        return False
    report.messages += result.row_count
    report.body_bytes += _body_bytes(batch.slice(0, result.row_count))
    if not result.ok:
        # when all are stored, but not as durably as was asked for, it is the last one
        row = first + min(result.row_count + 1, batch.num_rows)
        raise PutMessageError(result.status, f"{path}, row {row}: {result.reason}")
    return True


def _is_accepted(batch: pa.RecordBatch, config: StoreConfig) -> bool:
    """True where the rows of a batch can be put together, and each is a message."""
    if not _is_plain(batch):
        return False
    try:
        light_queues = config.numbers_light_queues
        encoder_for(config, _written(batch), light_queues=light_queues).next_batch()
    except (RowIllegalError, ArgumentError):
        return False
    return True


def _is_plain(batch: pa.RecordBatch) -> bool:
    """True where columns say all of what its rows are, as `message_of` reads them."""
    from pyarrow import types  # noqa: PLC0415 - an extra

    kinds = dict(zip(batch.schema.names, batch.schema.types, strict=True))
    if len(kinds) < batch.num_columns or not kinds.keys() >= {"topic", "body"}:
        return False
    if "born_timestamp_ms" in kinds or not _are_bodies(batch.column("body")):
        return False
    bits = {"sys_flag": ~_PLAIN_FLAGS, "prepared_transaction_offset": ~0}
    return _are_plain_topics(batch.column("topic")) and all(
        types.is_integer(kinds[name])
        and not any((number or 0) & kept for number in batch.column(name).unique().to_pylist())
        for name, kept in bits.items()
        if name in kinds
    )


def _are_plain_topics(topics: pa.Array) -> bool:
    from pyarrow import types  # noqa: PLC0415 - an extra

    if types.is_dictionary(topics.type):
        topics = topics.unique().dictionary_decode()
    if not _is_text(topics.type):
        return False
    # as bytes: what is no UTF-8 is told later, with its file
    return _PARKED_TOPIC.encode() not in topics.unique().cast("binary").to_pylist()


def _are_bodies(bodies: pa.Array) -> bool:
    """True where each is there, and of bytes or UTF-8."""
    from pyarrow import types  # noqa: PLC0415 - an extra

    if bodies.null_count > 0:
        return False
    if not _is_text(bodies.type):
        return bool(types.is_binary(bodies.type) or types.is_large_binary(bodies.type))
    try:
        bodies.validate(full=True)
    except ValueError:
        return False
    return True


def _is_text(kind: pa.DataType) -> bool:
    from pyarrow import types  # noqa: PLC0415 - an extra

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _written(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that are put, as `message_of` chooses them."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    left_out = {"keys", "tags", "unique_key"} if "properties" in batch.schema.names else set()
    kept = batch.select(
        [name for name in batch.schema.names if name in WRITTEN and name not in left_out]
    )
    place = kept.schema.get_field_index("born_timestamp")
    if place >= 0 and pa.types.is_timestamp(kept.schema.field(place).type):
        # files of Spark have no time zone: it is UTC
        unit = kept.schema.field(place).type.unit
        born = kept.column(place).cast(pa.timestamp(unit, "UTC"))
        kept = kept.set_column(place, "born_timestamp", born)
    return kept


def _body_bytes(batch: pa.RecordBatch) -> int:
    import pyarrow.compute as pc  # noqa: PLC0415 - an extra

    return pc.sum(pc.binary_length(batch.column("body"))).as_py() or 0


def message_of(fields: dict[str, Any]) -> Message:
    """The message that a row of an export stands for.

    Raises:
        MessageIllegalError: a field is missing or of a wrong type.
    """
    topic = fields.get("topic")
    if not isinstance(topic, str):
        raise MessageIllegalError("it has no topic")
    properties = fields.get("properties") or {}
    if not isinstance(properties, dict):
        raise MessageIllegalError(f"properties={properties!r}: expected an object")
    properties = {name: value for name, value in properties.items() if name != _NOT_PUT}
    if "properties" not in fields:
        properties = _properties_of(fields)
    if topic == _PARKED_TOPIC and "REAL_TOPIC" in properties:
        # the store parks it again, for as long as its delay level says
        topic = properties.pop("REAL_TOPIC")
        fields = fields | {"queue_id": _queue_id(properties.pop("REAL_QID", "0"))}
    kept = {name: fields[name] for name in _AS_EXPORTED if fields.get(name) is not None}
    return Message(topic, _body(fields), properties=properties, **kept)


def _properties_of(fields: dict[str, Any]) -> dict[str, str]:
    """Properties out of the single columns, where an export left the map out."""
    keys = fields.get("keys") or ""
    found = {
        "KEYS": keys if isinstance(keys, str) else " ".join(keys),
        "TAGS": fields.get("tags"),
        "UNIQ_KEY": fields.get("unique_key"),
    }
    return {name: value for name, value in found.items() if value}


def _queue_id(text: object) -> int:
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
        return int(text)
    raise MessageIllegalError(f"property REAL_QID={text!r} is no queue")


def _body(fields: dict[str, Any]) -> bytes:
    body, encoded = fields.get("body"), fields.get("body_base64")
    if isinstance(body, bytes):
        return body
    try:
        if isinstance(body, str):
            return body.encode("utf-8")
        if body is None and isinstance(encoded, str):
            return base64.b64decode(encoded, validate=True)
    except (ValueError, binascii.Error) as error:
        raise MessageIllegalError(f"the body: {error}") from None
    raise MessageIllegalError("the body: expected a text as body or body_base64")


def exported_files(source: Path) -> list[Path]:
    """The files that an import of ``source`` reads, in order.

    Raises:
        RmqCoreError: there is none, one that the manifest names is missing or of another length,
            or the export is unfinished.
        OSError: there is no such directory.
    """
    if source.is_file():
        return [source]
    if (source / MANIFEST).is_file():
        return _files_of_manifest(source)
    found = sorted(
        path
        for path in source.iterdir()
        if path.suffix.removeprefix(".") in FORMATS and not path.name.startswith(".")
    )
    if not found:
        raise RmqCoreError(f"{source}: no file of an export is in it ({', '.join(FORMATS)})")
    return found


def _files_of_manifest(source: Path) -> list[Path]:
    """The files that the manifest of a directory names, each as long as it says."""
    manifest = source / MANIFEST
    try:
        size = manifest.stat().st_size
        if size > _MANIFEST_SIZE_MAX:
            raise RmqCoreError(f"{manifest}: no manifest of an export: it has {size} bytes")
        told: Any = json.loads(manifest.read_text("utf-8"))
        if told.get("unfinished"):
            raise RmqCoreError(
                f"{source}: the export did not come to its end, so messages are missing; export "
                "again, or import single files of it"
            )
        sizes = {str(part["file"]): part["bytes"] for part in told["parts"]}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RmqCoreError(f"{manifest}: no manifest of an export: {error!r}") from error
    for name, size in sizes.items():
        if not name or Path(name).name != name:
            raise RmqCoreError(f"{manifest}: it names {name!r}, which is no file of {source}")
        if not (source / name).is_file():
            raise RmqCoreError(f"{source}: {name} is missing, which {MANIFEST} names")
        found = (source / name).stat().st_size
        if found != size:
            raise RmqCoreError(
                f"{source / name}: it has {found} bytes, and {MANIFEST} says {size}: messages may "
                "be missing; copy it again, or import the file by its own name"
            )
    return [source / name for name in sizes]


def is_empty(path: Path) -> bool:
    """Tell whether a file of an export has no message."""
    if path.suffix != ".parquet":
        return path.stat().st_size == 0
    return bool(_parquet(path).metadata.num_rows == 0)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix == ".parquet":
        for batch in _batches(path):
            yield from _rows_of(path, batch)
        return
    with path.open("rb") as stream:
        for number, line in enumerate(stream):
            try:
                fields = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise MessageIllegalError(f"{path}, row {number + 1}: no JSON: {error}") from None
            if not isinstance(fields, dict):
                raise MessageIllegalError(f"{path}, row {number + 1}: not a JSON object")
            yield fields


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    file = _parquet(path)
    try:
        yield from file.iter_batches(batch_size=_BATCH_ROWS)
    except (OSError, ValueError, TypeError) as error:
        raise RmqCoreError(f"{path}: it cannot be read to its end: {error}") from error


def _rows_of(path: Path, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    read = [number for number, name in enumerate(batch.schema.names) if name in _READ]
    ms = _MS["us"]
    try:
        batch = batch.select(read)
        number = batch.schema.get_field_index("born_timestamp")
        if number >= 0:
            ms = _MS[getattr(batch.schema.field(number).type, "unit", "us")]
            column = batch.column(number).cast("int64")
            batch = batch.set_column(number, "born_timestamp", column)
        return [_plain(row, ms) for row in batch.to_pylist()]
    except (OSError, ValueError, TypeError) as error:
        raise RmqCoreError(f"{path}: it cannot be read to its end: {error}") from error


def _parquet(path: Path) -> Any:
    try:
        from pyarrow import parquet  # noqa: PLC0415 - an extra
    except ImportError:
        raise RmqCoreError("Parquet needs pyarrow: pip install 'rmqcore[arrow]'") from None
    try:
        return parquet.ParquetFile(path)
    except ValueError as error:
        raise RmqCoreError(f"{path}: no Parquet file: {error}") from error


def _plain(row: dict[str, Any], ms: tuple[int, int]) -> dict[str, Any]:
    """A Parquet row under the names of JSON lines."""
    if row.get("born_timestamp") is not None:
        row["born_timestamp_ms"] = row["born_timestamp"] * ms[0] // ms[1]
    if "properties" in row:
        row["properties"] = dict(row["properties"] or ())
    return row
