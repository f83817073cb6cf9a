"""Sending frames and streams to a running cluster: tasks send their rows, in batches.

At least once: what a task has sent before it failed stays, and is sent again with the same unique
keys. A key is 16 digits that follow from the query (or job), the micro-batch and the partition, and
16 of the row's number in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmqcore.chance import token_hex
from rmqcore.client import Producer
from rmqcore.errors import ConfigError, MessageIllegalError, RowIllegalError, StoreError
from rmqcore.native.columns._table_rows import WRITTEN
from rmqcore.remoting import run
from rmqcore.spark.cluster_options import ClusterWriteOptions
from rmqcore.spark.write import check_columns

#: the producer says these of each request; a row cannot
_OF_THE_PRODUCER = frozenset({"born_timestamp", "born_host", "reconsume_times"})
_GROUP = "rmqcore-spark"
_RETRIES = 4


@dataclass
class Sent(WriterCommitMessage):
    """What one task reports: how many rows brokers have confirmed."""

    rows: int


class RowSender:
    """Sends the rows of a task.

    Args:
        schema: of the frame.
        options: of the writer.

    Raises:
        ConfigError: a column that cannot be sent, of another type, or no topic.
    """

    def __init__(self, schema: StructType, options: ClusterWriteOptions) -> None:
        check_columns(schema, options.topic)
        if "sys_flag" in schema.fieldNames():
            raise ConfigError(
                "column sys_flag",
                "...",
                "a body is sent as it is: read with decompressBody=true, and leave the column out",
            )
        self.options = options

    def send(self, batches: Iterator[pa.RecordBatch], origin: str) -> Sent:
        """Send every row; returns when brokers have all.

        Args:
            batches: of the task.
            origin: what the unique keys follow from, beside the partition.

        Raises:
            MessageIllegalError: a row is no message; its number is named. Rows in front of its
                Arrow batch are sent.
            RemotingError: a broker does not answer, or will not; a part of the rows may be sent.
            ConfigError: it is called outside of a task.
        """
        context = TaskContext.get()
        if context is None:
            raise ConfigError("write", "", "rows are sent in tasks of Spark")
        partition = context.partitionId()
        first = next(batches, None)
        if first is None:
            return Sent(0)
        names = [
            name for name in first.schema.names if name in WRITTEN and name not in _OF_THE_PRODUCER
        ]
        rows = (batch.select(names) for batch in chain((first,), batches))
        table = pa.RecordBatchReader.from_batches(first.select(names).schema, rows)
        try:
            return Sent(run(self._send(table, unique_prefix(origin, partition))))
        except RowIllegalError as error:
            text = f"row {error.row} of partition {partition}, column {error.column}"
            raise MessageIllegalError(f"{text}: {error.rule}") from error

    async def _send(self, table: pa.RecordBatchReader, prefix: str) -> int:
        counts: list[int] = []
        access = self.options.access
        async with Producer(
            access.namesrv_addr,
            group=_GROUP,
            retries=_RETRIES,
            timeout_ms=self.options.timeout_ms,
            acl=access.signer(),
            tls=access.trust(),
        ) as producer:
            await producer.send_columns(
                table,
                topic=self.options.topic,
                unique_prefix=prefix,
                on_batch=lambda _, count: counts.append(count),
            )
        return sum(counts)


def unique_prefix(origin: str, partition: int) -> str:
    """The first 16 digits of the unique keys of one partition.

    Args:
        origin: of which query and micro-batch, or which job.
        partition: its number.
    """
    text = f"{origin}/{partition}".encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest().upper()


class ClusterWriter(DataSourceArrowWriter):
    """Sends a frame to a cluster."""

    def __init__(
        self, schema: StructType, options: ClusterWriteOptions, *, overwrite: bool
    ) -> None:
        if overwrite:
            raise ConfigError("mode", "overwrite", 'a topic only grows: use .mode("append")')
        self.sender = RowSender(schema, options)
        # made once a job, so that the tasks that are run again make the same keys
        self.origin = f"job/{options.job_id or token_hex(16)}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send the rows of one task."""
        return self.sender.send(iterator, self.origin)


def stream_origin() -> str:
    """What the keys of a stream's task follow from: its query and micro-batch.

    Raises:
        StoreError: the task does not say of which query it is; nothing was sent.
    """
    context = TaskContext.get()
    query = context and context.getLocalProperty("sql.streaming.queryId")
    batch = context and context.getLocalProperty("streaming.sql.batchId")
    if not query or batch is None:
        raise StoreError("the tasks of a stream do not say of which query they are")
    return f"query/{query}/{batch}"
