"""What a task does: a split of a log as Arrow record batches, exactly as the schema says."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from rmqcore.config import load_config
from rmqcore.scan import Damage, read
from rmqcore.spark.options import ReadOptions
from rmqcore.spark.planning import LogPartition
from rmqcore.spark.runner import freeze_worker
from rmqcore.spark.schema import BROKER

_log = logging.getLogger(__name__)
#: The columns that hand out bytes which a record's CRC covers.
HOLDS_BODY = {"body", "record"}


def read_partition(
    partition: InputPartition, schema: pa.Schema, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """The rows of one partition.

    Args:
        partition: a `LogPartition`; anything else is what Spark makes up when there is none.
        schema: of the batches.
        options: of the reader.

    Raises:
        CorruptRecordError, CorruptStoreError, RecordsGoneError: with ``failOnDataLoss``; the text
            has the file and the physical offset.
    """
    if not isinstance(partition, LogPartition):
        return
    freeze_worker()
    names = [name for name in schema.names if name != BROKER] or ["phy_offset"]
    batches = read(
        partition.split,
        names,
        verify_crc=options.verify_crc == "fail"
        or (options.verify_crc is None and not HOLDS_BODY.isdisjoint(names)),
        plain_bodies=options.decompress_body,
        batch_rows=options.batch_rows,
        batch_bytes=options.batch_bytes,
        delays_ms=load_config(options.config).delay_levels_ms,
        on_damage=None if options.fail_on_data_loss else _passed_over,
        **partition.selection(options),
    )
    for columns_read in batches:
        yield arranged(pa.record_batch(columns_read), schema, partition.broker)


def arranged(batch: pa.RecordBatch, schema: pa.Schema, broker: str) -> pa.RecordBatch:
    """The columns of the schema, of the types and names that it says, and the broker's name.

    Args:
        batch: with all columns of the schema, but for the broker's name.
        schema: of the answer.
        broker: by name; without effect where the schema has no column for it.
    """
    if BROKER in schema.names:
        batch = batch.append_column(BROKER, pa.repeat(broker, batch.num_rows))
    arrays = [batch.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _passed_over(damage: Damage) -> None:
    _log.warning(
        "%s at %d: passed over up to %d: %s (failOnDataLoss=false)",
        damage.path,
        damage.phy_offset,
        damage.next_offset,
        damage.reason,
    )
