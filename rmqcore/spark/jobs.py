"""Whole stores in one Python stage each: rebuild, audit, export.

What is done with a split, and with the results, is what `rmqcore.scan` does without Spark; tasks of
Spark only take the place of processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from rmqcore import rebuild as rebuilding
from rmqcore import transfer
from rmqcore.config import StoreConfig
from rmqcore.doctor.findings import VerifyReport
from rmqcore.doctor.verify import verify
from rmqcore.errors import ConfigError
from rmqcore.rebuild import RebuildReport
from rmqcore.scan import FULL_COLUMNS
from rmqcore.spark.runner import SparkRunner
from rmqcore.transfer import ExportedPart

StorePath = str | os.PathLike[str]
ConfigSource = StoreConfig | str | Path | None
TABLE_FORMATS = ("parquet", "delta", "iceberg")
_FINDINGS = "severity string, part string, path string, phy_offset bigint, what string, how string"


def rebuild_consume_queues(
    spark: SparkSession, store: StorePath, *, config: ConfigSource = None, skip_damage: bool = False
) -> RebuildReport:
    """Derive every consume queue of a cold store from its log.

    Every task writes its units where they belong, so nothing is shuffled, and a task that is run
    again writes the same bytes. See `rmqcore.rebuild.rebuild_consume_queues`.

    Args:
        spark: the session whose executors work.
        store: the store's directory, at the same path on every executor.
        config: settings of the store, as for `open_store`.
        skip_damage: pass over damaged records instead of raising.
    """
    return rebuilding.rebuild_consume_queues(
        store, config=config, jobs=SparkRunner(spark), skip_damage=skip_damage
    )


def rebuild_index(
    spark: SparkSession, store: StorePath, *, config: ConfigSource = None, skip_damage: bool = False
) -> RebuildReport:
    """Derive every index file of a cold store from its log.

    One walk counts keys, a second one writes; a file is written whole by one task, in its place, so
    nothing is shuffled. See `rmqcore.rebuild.index_files`.

    Args:
        spark: the session whose executors work.
        store: the store's directory, at the same path on every executor.
        config: settings of the store, as for `open_store`.
        skip_damage: pass over damaged records instead of raising.
    """
    return rebuilding.rebuild_index(
        store, config=config, jobs=SparkRunner(spark), skip_damage=skip_damage
    )


def audit(
    spark: SparkSession, store: StorePath, *, config: ConfigSource = None, check_crc: bool = True
) -> VerifyReport:
    """Check every record, and the derived files against the log; ``clean`` is the verdict.

    See `rmqcore.doctor.verify.verify`; `findings_frame` makes a frame of the report.

    Args:
        spark: the session whose executors work.
        store: the store's directory, at the same path on every executor.
        config: settings of the store, as for `open_store`.
        check_crc: whether the body of every record is compared with its CRC.
    """
    return verify(store, config=config, jobs=SparkRunner(spark), check_crc=check_crc)


def findings_frame(spark: SparkSession, report: VerifyReport) -> DataFrame:
    """What an audit found, one row a finding.

    Args:
        spark: the session that the frame belongs to.
        report: of `audit`.

    Returns:
        columns severity, part, path, phy_offset, what, how.
    """
    rows = [
        (str(f.severity), f.part, str(f.path), f.phy_offset, f.what, f.how) for f in report.findings
    ]
    return spark.createDataFrame(rows, _FINDINGS)


def export(
    spark: SparkSession,
    store: StorePath,
    target: StorePath,
    *,
    table_format: str = "parquet",
    columns: Iterable[str] = FULL_COLUMNS,
    topics: Iterable[str] | None = None,
    config: ConfigSource = None,
) -> list[ExportedPart]:
    """Write the messages of a store as Parquet files, one a split, and make a table of them.

    Files are named by where their split begins, so the same export again writes the same files.
    They are written in the tasks; only their names come back. See `rmqcore.transfer.export_store`.

    Args:
        spark: the session.
        store: the store's directory; only read.
        target: directory of the files, which every executor has mounted.
        table_format: one of `TABLE_FORMATS`; "delta" and "iceberg" need the extras of these names.
        columns: of the files.
        topics: only messages of these.
        config: settings of the store, as for `open_store`.

    Raises:
        ConfigError: an unknown format.
        RmqCoreError: the package that the format needs is not installed.
    """
    if table_format not in TABLE_FORMATS:
        raise ConfigError("table_format", table_format, f"one of {', '.join(TABLE_FORMATS)}")
    return transfer.export_store(
        store,
        target,
        file_format=table_format,
        columns=columns,
        topics=topics,
        config=config,
        jobs=SparkRunner(spark),
    )
