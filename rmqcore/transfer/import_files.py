"""Import of exported messages: put again, in their order, with their topics, queues, properties.

Offsets and store times are the new store's.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rmqcore.errors import MessageIllegalError, PutMessageError, RmqCoreError
from rmqcore.message import Message, PutMessageResult
from rmqcore.native.format._message import PUT_NAMES, STORED_NAMES
from rmqcore.transfer.export import FORMATS, MANIFEST

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
}


class Putter(Protocol):
    """What messages are put into: a store that is open for writing."""

    def put_message(self, message: Message, /) -> PutMessageResult:
        """Store one message."""
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
    for row, message in enumerate(messages_in(path)):
        if row < first:
            continue
        try:
            receipt = store.put_message(message)
        except (MessageIllegalError, TypeError, OverflowError) as error:
            raise MessageIllegalError(f"{path}, row {row + 1}: {error}") from error
        if not receipt.ok:
            raise PutMessageError(receipt.status, f"{path}, row {row + 1}: {receipt.reason}")
        report.messages += 1
        report.body_bytes += len(message.body)
    report.files += 1


def messages_in(path: Path) -> Iterator[Message]:
    """The messages of a file, as they are put.

    Raises:
        MessageIllegalError: a row is no message; names file and row.
        RmqCoreError: it is no file of an export, or pyarrow is for Parquet.
    """
    for row, fields in enumerate(_rows(path)):
        try:
            yield message_of(fields)
        except (MessageIllegalError, TypeError, ValueError, OverflowError) as error:
            raise MessageIllegalError(f"{path}, row {row + 1}: {error}") from error


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
        yield from _parquet_rows(path)
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


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    file = _parquet(path)
    try:
        for batch in file.iter_batches(batch_size=4096):
            number = batch.schema.get_field_index("born_timestamp")
            plain = batch
            if number >= 0:
                column = batch.column(number).cast("int64")
                plain = batch.set_column(number, "born_timestamp", column)
            yield from (_plain(row) for row in plain.to_pylist())
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


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A Parquet row under the names of JSON lines."""
    if row.get("born_timestamp") is not None:
        row["born_timestamp_ms"] = row["born_timestamp"] // 1000
    if "properties" in row:
        row["properties"] = dict(row["properties"] or ())
    return row
