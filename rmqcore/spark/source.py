"""``format("rmq")``: a RocketMQ store as a Spark data source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from rmqcore.spark.cluster_options import (
    ClusterOptions,
    cluster_read_options,
    cluster_write_options,
    is_cluster,
)
from rmqcore.spark.cluster_planning import (
    ClusterPartition,
    cluster_batch_partitions,
    read_cluster_partition,
)
from rmqcore.spark.cluster_stream import ClusterStreamReader
from rmqcore.spark.cluster_write import ClusterWriter
from rmqcore.spark.options import ReadOptions, read_options, write_options
from rmqcore.spark.planning import LogPartition, batch_partitions
from rmqcore.spark.reading import read_partition
from rmqcore.spark.schema import checked_columns, chosen_columns, schema_of
from rmqcore.spark.stream import RmqStreamReader
from rmqcore.spark.write import RmqWriter

with suppress(ImportError):  # Spark 4.0 has none
    from rmqcore.spark.cluster_stream_write import ClusterStreamWriter
    from rmqcore.spark.stream_write import RmqStreamWriter
_StreamReader = RmqStreamReader
_ClusterStreamReader = ClusterStreamReader
with suppress(ImportError):  # Spark 4.0 and 4.1 have no limits
    from rmqcore.spark.limited_cluster_stream import (
        LimitedClusterStreamReader as _ClusterStreamReader,
    )
    from rmqcore.spark.limited_stream import LimitedStreamReader as _StreamReader


class RmqSource(DataSource):
    """The format ``rmq``. Options: docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """What ``format(...)`` takes."""
        return "rmq"

    def schema(self) -> StructType:
        """The columns that the options ask for, when the user gives no schema."""
        if is_cluster(self.options):
            return schema_of(chosen_columns(cluster_read_options(self.options).read))
        return schema_of(chosen_columns(read_options(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of what the store or the cluster holds now."""
        if is_cluster(self.options):
            return ClusterReader(cluster_read_options(self.options), checked_columns(schema))
        return RmqReader(read_options(self.options), checked_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader that follows what the store's writer appends, or what a cluster is sent."""
        if is_cluster(self.options):
            return _ClusterStreamReader(cluster_read_options(self.options), checked_columns(schema))
        return _StreamReader(read_options(self.options), checked_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer that appends a frame to a store, or sends it to a cluster.

        Args:
            schema: columns of the frame.
            overwrite: refused when it is true: messages are only added.

        Raises:
            ConfigError: an option or a column is wrong.
        """
        if is_cluster(self.options):
            options = cluster_write_options(self.options)
            return ClusterWriter(schema, options, overwrite=overwrite)
        return RmqWriter(schema, write_options(self.options), overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A writer that appends each batch of a stream to a store, or sends it to a cluster.

        Args:
            schema: columns of the stream.
            overwrite: refused when it is true: messages are only added.

        Raises:
            ConfigError: an option or a column is wrong.
        """
        if is_cluster(self.options):
            options = cluster_write_options(self.options)
            return ClusterStreamWriter(schema, options, overwrite=overwrite)
        return RmqStreamWriter(schema, write_options(self.options), overwrite=overwrite)


class RmqReader(DataSourceReader):
    """Reads the log once, as it is when the query is planned."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> list[LogPartition]:
        """One for each task."""
        return batch_partitions(self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        return read_partition(partition, self.schema, self.options)


class ClusterReader(DataSourceReader):
    """Reads queues of a running cluster once, as they are when the query is planned."""

    def __init__(self, options: ClusterOptions, schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> list[ClusterPartition]:
        """One for each task."""
        return cluster_batch_partitions(self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        return read_cluster_partition(partition, self.schema, self.options)
