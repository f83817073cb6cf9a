"""Sending a stream to a running cluster, micro-batch by micro-batch. Spark 4.1 and later."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmqcore.errors import ConfigError
from rmqcore.spark.cluster_options import ClusterWriteOptions
from rmqcore.spark.cluster_write import RowSender, Sent, stream_origin


class ClusterStreamWriter(DataSourceStreamArrowWriter):
    """Sends the batches of a streaming query to a cluster."""

    def __init__(
        self, schema: StructType, options: ClusterWriteOptions, *, overwrite: bool
    ) -> None:
        if overwrite:
            raise ConfigError("outputMode", "complete", 'a topic only grows: use "append"')
        self.sender = RowSender(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send the rows of one task."""
        return self.sender.send(iterator, stream_origin())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do: brokers have the rows.

        Args:
            messages: of the tasks; None for one that has written nothing.
            batchId: number of the micro-batch.
        """

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing can be taken back: the next try sends the same rows with the same keys.

        Args:
            messages: of the tasks; None for one that has failed.
            batchId: number of the micro-batch.
        """
