"""Appending frames to a store: tasks stage encoded rows, the driver's commit appends them."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmqcore.config import load_config
from rmqcore.errors import ConfigError, MessageIllegalError
from rmqcore.files.store_dir import StoreDir
from rmqcore.message import Message
from rmqcore.native.format._numbers import SysFlag
from rmqcore.recovery.geometry import fitted_config
from rmqcore.spark.ledger import anonymous_name, job_name, staging_root
from rmqcore.spark.log_owner import abort_staged, append_staged, check_copied, check_free
from rmqcore.spark.options import WriteOptions, unknown
from rmqcore.spark.schema import spark_schema
from rmqcore.spark.staging import StagedFile, StageWriter

#: columns that become part of a message
WRITTEN = (
    "topic",
    "queue_id",
    "body",
    "tags",
    "keys",
    "unique_key",
    "properties",
    "flag",
    "sys_flag",
    "born_timestamp",
    "reconsume_times",
)
#: bits of the system flag that speak of the body: compressed, several tags, which compression
_BODY_FLAGS = SysFlag.COMPRESSED | SysFlag.MULTI_TAGS | SysFlag.COMPRESSION_MASK
_INNER_BATCH = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
_TEXT_TYPES = {"body": ("binary", "string")}


@dataclass
class Staged(WriterCommitMessage):
    """What one task reports.

    Attributes:
        file: what it has staged.
        partition: its number; files are appended in this order.
        query: id of the streaming query, None in a batch.
    """

    file: StagedFile
    partition: int
    query: str | None


class RowStager:
    """Writes the rows of a task to a file of its own.

    Args:
        schema: of the frame.
        options: of the writer.
        repeatable: the append can be told from others, so that run again it appends nothing.

    Raises:
        ConfigError: a column that no message has, of another type, or no topic.
        StoreLockedError: another process has the store open for writing.
        StoreError: an append that is not repeatable died, and this one may be the same.
    """

    def __init__(self, schema: StructType, options: WriteOptions, *, repeatable: bool) -> None:
        check_columns(schema, options)
        check_free(options.path, repeatable=repeatable)
        self.options = options
        self.folder = staging_root(options.path) / f"staging-{uuid.uuid4().hex}"
        loaded = load_config(options.config)
        config = fitted_config(loaded, StoreDir(options.path, loaded.store_path_commit_log))
        self._message_size_max = config.effective_max_message_size
        self._file_size = config.mapped_file_size_commit_log

    def stage(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Write every row.

        Raises:
            MessageIllegalError: a row breaks a limit of the format; its number is named.
        """
        context = TaskContext.get()
        if context is None:
            raise ConfigError("write", "", "rows are staged in tasks of Spark")
        partition, attempt = context.partitionId(), context.taskAttemptId()
        path = self.folder / f"{partition:06d}-{attempt}.rows"
        with StageWriter(path, self._message_size_max, self._file_size) as stage:
            for message in self._messages(batches):
                try:
                    stage.put(message)
                    check_copied(stage.only_copied, copy=self.options.copy)
                except MessageIllegalError as error:
                    raise MessageIllegalError(
                        f"row {stage.message_count} of partition {partition}: {error}"
                    ) from error
            file = stage.finish()
        return Staged(file, partition, context.getLocalProperty("sql.streaming.queryId"))

    def _messages(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Message]:
        prefix, number = secrets.token_hex(8).upper(), 0
        for batch in batches:
            names = [name for name in batch.schema.names if name in WRITTEN]
            columns = [_values(batch, name) for name in names]
            for values in zip(*columns, strict=True):
                row = dict(zip(names, values, strict=True))
                yield self._message(row, number, f"{prefix}{number:016X}")
                number += 1

    def _message(self, row: dict[str, Any], number: int, unique_key: str) -> Message:
        properties = dict(row.get("properties") or {})
        properties.setdefault("UNIQ_KEY", unique_key)
        for column, name in (("tags", "TAGS"), ("keys", "KEYS"), ("unique_key", "UNIQ_KEY")):
            if row.get(column) is not None:
                properties[name] = row[column]
        sys_flag = row.get("sys_flag") or 0
        if sys_flag & _INNER_BATCH:
            raise MessageIllegalError(f"row {number} is an inner batch, which is not one message")
        if sys_flag & SysFlag.TRANSACTION_MASK not in (0, SysFlag.TRANSACTION_COMMIT):
            raise MessageIllegalError(
                f"row {number} has sys_flag={sys_flag}, a transaction that is not committed; rows "
                "with sys_flag & 12 = 0 or 8 are messages"
            )
        body = row.get("body") or b""
        queue_id = row.get("queue_id")
        return Message(
            row.get("topic") or self.options.topic or "",
            body.encode() if isinstance(body, str) else body,
            queue_id=number % self.options.queue_count if queue_id is None else queue_id,
            properties=properties,
            flag=row.get("flag") or 0,
            sys_flag=sys_flag & _BODY_FLAGS,
            born_timestamp_ms=row.get("born_timestamp") or 0,
            reconsume_times=row.get("reconsume_times") or 0,
        )


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    column = batch.column(name)
    if name == "born_timestamp":
        return [None if us is None else us // 1000 for us in column.cast(pa.int64()).to_pylist()]
    return list(column.to_pylist())


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Refuse a frame that cannot be appended.

    Columns that say where a message lies are not looked at: the log gives it a new place.

    Raises:
        ConfigError: a column that no message has, of another type, or no topic.
    """
    known = {field.name: field.dataType.simpleString() for field in spark_schema().fields}
    for field in schema.fields:
        if field.name not in known:
            raise unknown("column", field.name, known)
        kind = field.dataType.simpleString()
        right = _TEXT_TYPES.get(field.name, (known[field.name],))
        if field.name in WRITTEN and kind not in right:
            raise ConfigError(f"column {field.name}", kind, f"its type is {' or '.join(right)}")
    names = schema.fieldNames()
    if "body" not in names:
        raise ConfigError("column", "body", "the frame has none, so there is nothing to append")
    if "topic" not in names and options.topic is None:
        raise ConfigError("topic", "", "give it as an option, or as a column of the frame")


def staged_files(messages: list[Any]) -> list[StagedFile]:
    """What the tasks have reported, in the order of their partitions."""
    found = [message for message in messages if isinstance(message, Staged)]
    return [message.file for message in sorted(found, key=lambda message: message.partition)]


class RmqWriter(DataSourceArrowWriter):
    """Appends a frame to a store."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("mode", "overwrite", 'a log only grows: use .mode("append")')
        self.stager = RowStager(schema, options, repeatable=options.job_id is not None)
        self.options = options
        self.job = job_name(options.job_id) if options.job_id else anonymous_name()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of one task."""
        return self.stager.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append what the tasks have staged."""
        append_staged(
            self.options.path,
            self.options.config,
            self.job,
            0,
            staged_files(list(messages)),
            copy=self.options.copy,
            lock_timeout_s=self.options.lock_timeout_s,
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Forget what the tasks have staged."""
        abort_staged(self.options.path, self.job, Path(self.stager.folder))
