"""Appending frames to a store: tasks stage encoded rows, the driver's commit appends them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmqcore.chance import token_hex
from rmqcore.errors import ConfigError, MessageIllegalError, RowIllegalError
from rmqcore.native.columns._table_rows import WRITTEN
from rmqcore.spark.log_owner import (
    abort_staged,
    append_staged,
    check_free,
    config_of,
    forget_attempts,
)
from rmqcore.spark.options import WriteOptions, unknown
from rmqcore.spark.schema import spark_schema
from rmqcore.store.append_ledger import anonymous_name, job_name, staging_root
from rmqcore.store.staged_files import StagedFile, finished
from rmqcore.store.staged_records import StagedWriter

_TYPES = {"body": ("binary", "string"), "keys": ("string", "array<string>")}


@dataclass
class Staged(WriterCommitMessage):
    """What one task reports.

    Attributes:
        file: what it has staged.
        partition: its number; files are appended in this order.
        query: id of the streaming query, None in a batch.
        content_sum: of its rows, as of `ColumnEncoder`.
    """

    file: StagedFile
    partition: int
    query: str | None
    content_sum: int


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
        check_columns(schema, options.topic)
        check_free(options.path, repeatable=repeatable)
        self.options = options
        self.folder = staging_root(options.path) / f"staging-{token_hex(16)}"
        self._config = config_of(options.path, options.config)

    def stage(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Write every row.

        Raises:
            MessageIllegalError: a row breaks a limit of the format; its number is named.
            ConfigError: it is called outside of a task.
        """
        context = TaskContext.get()
        if context is None:
            raise ConfigError("write", "", "rows are staged in tasks of Spark")
        partition, attempt = context.partitionId(), context.taskAttemptId()
        path = self.folder / f"{partition:06d}-{attempt}.rows"
        with StagedWriter(path, self._config) as writer:
            try:
                self._write(writer, batches)
            except RowIllegalError as error:
                text = f"row {error.row} of partition {partition}, column {error.column}"
                raise MessageIllegalError(f"{text}: {error.rule}") from error
            file = finished(writer)
        query = context.getLocalProperty("sql.streaming.queryId")
        return Staged(file, partition, query, writer.content_sum)

    def _write(self, writer: StagedWriter, batches: Iterator[pa.RecordBatch]) -> None:
        first = next(batches, None)
        if first is None:
            return
        names = [name for name in first.schema.names if name in WRITTEN]
        rows = (batch.select(names) for batch in chain((first,), batches))
        writer.put_table(
            pa.RecordBatchReader.from_batches(first.select(names).schema, rows),
            topic=self.options.topic,
            queue_count=self.options.queue_count,
            unique_prefix=token_hex(8).upper().encode(),
            copy=self.options.copy,
        )


def check_columns(schema: StructType, topic: str | None) -> None:
    """Refuse a frame that cannot be appended, or sent.

    Columns that say where a message lies are not looked at: the log gives it a new place.

    Args:
        schema: of the frame.
        topic: of rows without one.

    Raises:
        ConfigError: a column that no message has, of another type, or no topic.
    """
    known = {field.name: field.dataType.simpleString() for field in spark_schema().fields}
    for field in schema.fields:
        if field.name not in known:
            raise unknown("column", field.name, known)
        kind = field.dataType.simpleString()
        right = _TYPES.get(field.name, (known[field.name],))
        if field.name in WRITTEN and kind not in right:
            raise ConfigError(f"column {field.name}", kind, f"its type is {' or '.join(right)}")
    names = schema.fieldNames()
    if "body" not in names:
        raise ConfigError("column", "body", "the frame has none, so there is nothing to append")
    if "topic" not in names and topic is None:
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
            lock_timeout_s=self.options.lock_timeout_s,
        )
        forget_attempts(self.stager.folder)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Forget what the tasks have staged."""
        abort_staged(self.options.path, self.job, Path(self.stager.folder))
