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
from rmqcore.spark.runner import settle_worker
from rmqcore.spark.schema import BROKER

_log = logging.getLogger(__name__)
#: columns that hand out what the CRC of a record is of
_HOLDS_BODY = {"body", "record"}


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
    settle_worker()
    chosen = partition.row_filter(options)
    plain = [name for name in schema.names if name != BROKER]
    wanted = list(dict.fromkeys((*plain, *chosen.columns))) or ["phy_offset"]
    end_ms = options.ending_timestamp
    batches = read(
        partition.split,
        wanted,
        topics=partition.choice.names,
        queue_ids=partition.choice.queue_ids,
        begin_ms=options.starting_timestamp,
        end_ms=None if end_ms is None else end_ms - 1,
        uncommitted=options.include_uncommitted,
        verify_crc=options.verify_crc == "fail"
        or (options.verify_crc is None and not _HOLDS_BODY.isdisjoint(wanted)),
        plain_bodies=options.decompress_body,
        batch_rows=options.batch_rows,
        batch_bytes=options.batch_bytes,
        delays_ms=load_config(options.config).delay_levels_ms,
        on_damage=None if options.fail_on_data_loss else _passed_over,
    )
    for columns_read in batches:
        batch = chosen.apply(pa.record_batch(columns_read))
        yield _arranged(batch, schema, partition.broker)


def _arranged(batch: pa.RecordBatch, schema: pa.Schema, broker: str) -> pa.RecordBatch:
    """The columns of the schema, without those that only the filter needed."""
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
