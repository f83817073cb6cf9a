"""Sending frames and streams to a running cluster: tasks send their rows, in batches.

At least once: what a task has sent before it failed stays, and is sent again with the same unique
keys. A key is 16 digits that follow from the query (or job), the micro-batch, the partition and the
rows of an Arrow batch of it, and 16 of the row's number in that: where other rows come in the place
of those that were sent, as behind a checkpoint that was restored, they have other keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

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
_SENT = frozenset(WRITTEN) - _OF_THE_PRODUCER
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
            origin: what the unique keys follow from, beside the partition and its rows.

        Raises:
            MessageIllegalError: a row is no message; its number is named. Rows in front of its
                Arrow batch are sent.
            RemotingError: a broker does not answer, or will not; a part of the rows may be sent.
            ConfigError: it is called outside of a task.
        """
        context = TaskContext.get()
        if context is None:
            raise ConfigError("write", "", "rows are sent in tasks of Spark")
        return Sent(run(self._send(batches, origin, context.partitionId())))

    async def _send(self, batches: Iterator[pa.RecordBatch], origin: str, partition: int) -> int:
        sent = 0
        access = self.options.access
        async with Producer(
            access.namesrv_addr,
            group=_GROUP,
            retries=_RETRIES,
            timeout_ms=self.options.timeout_ms,
            acl=access.signer(),
            tls=access.trust(),
        ) as producer:
            for number, batch in enumerate(batches):
                names = [name for name in batch.schema.names if name in _SENT]
                rows = batch.select(names)
                prefix = unique_prefix(f"{origin}/{partition}/{number}", rows)
                try:
                    await producer.send_columns(
                        rows, topic=self.options.topic, unique_prefix=prefix
                    )
                except RowIllegalError as error:
                    text = f"row {sent + error.row} of partition {partition}, column {error.column}"
                    raise MessageIllegalError(f"{text}: {error.rule}") from error
                sent += rows.num_rows
        return sent


def unique_prefix(place: str, rows: pa.RecordBatch) -> str:
    """The first 16 digits of the unique keys of one Arrow batch.

    Args:
        place: of which query and micro-batch, or which job; which partition and batch of it.
        rows: the batch.
    """
    digest = hashlib.blake2b(place.encode(), digest_size=8)
    digest.update(rows.serialize())
    return digest.hexdigest().upper()


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
