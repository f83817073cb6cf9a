"""Appending a stream to a store, each micro-batch once. Spark 4.1 and later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmqcore.errors import ConfigError, StoreError
from rmqcore.spark.log_owner import abort_staged, append_staged, forget_attempts
from rmqcore.spark.options import WriteOptions
from rmqcore.spark.write import RowStager, Staged, staged_files
from rmqcore.store.append_ledger import Ledger, staging_root

#: Sums of checksums are modulo this.
_SUM_END: Final = 1 << 64


class RmqStreamWriter(DataSourceStreamArrowWriter):
    """Appends the batches of a streaming query to a store."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("outputMode", "complete", 'a log only grows: use "append"')
        self.stager = RowStager(schema, options, repeatable=True)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of one task."""
        return self.stager.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append one batch, unless an earlier run of it was appended.

        Args:
            messages: of the tasks; None for one that has written nothing.
            batchId: number of the micro-batch in its query; one that was appended is nothing to do.

        Raises:
            StoreError: the tasks do not say of which query they are, or the batch was appended with
                other rows, or in front of others; nothing was appended.
        """
        files = staged_files(list(messages))
        if not files:
            return
        query = self._query(messages)
        if query is None:
            raise StoreError("the tasks of a stream do not say of which query they are")
        content_sum = sum(m.content_sum for m in messages if isinstance(m, Staged)) % _SUM_END
        root = staging_root(self.options.path)
        Ledger(root, query).note_batch(batchId, content_sum)
        append_staged(
            self.options.path,
            self.options.config,
            query,
            batchId,
            files,
            lock_timeout_s=self.options.lock_timeout_s,
        )
        row_count = sum(file.message_count for file in files)
        Ledger(root, query).refuse_another(batchId, row_count, content_sum)
        for folder in {Path(file.path).parent for file in files}:
            forget_attempts(folder)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Forget what the tasks have staged.

        Args:
            messages: of the tasks; None for one that has failed.
            batchId: number of the micro-batch in its query.
        """
        folders = {Path(file.path).parent for file in staged_files(list(messages))}
        for folder in folders:
            abort_staged(self.options.path, self._query(messages) or "", folder)

    @staticmethod
    def _query(messages: list[WriterCommitMessage | None]) -> str | None:
        """The ledger's name for the query that the tasks belong to; None without tasks."""
        queries = {m.query for m in messages if isinstance(m, Staged) and m.query}
        return f"query-{queries.pop()}" if queries else None
