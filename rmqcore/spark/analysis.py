"""Questions to a whole log: what went through it, where a message is, what is the latest of a key.

Each is one Python stage that decodes only the columns it needs, and hands Spark what is left of
them: a few groups, a few hits.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rmqcore import open_store
from rmqcore.errors import ConfigError
from rmqcore.message import decode_message_id
from rmqcore.scan import (
    DEFAULT_COLUMNS,
    AnyLog,
    LogPlan,
    Selection,
    Split,
    open_any_log,
    read,
    select,
)
from rmqcore.spark.planning import SPLIT_SIZE
from rmqcore.spark.runner import grouped, in_tasks, task_count
from rmqcore.spark.schema import schema_of

StorePath = str | os.PathLike[str]
_MINUTE_US = 60_000_000
#: All messages of a key are asked for.
_MOST = 2**31 - 1
_TRAFFIC_PART = (
    "topic string, minute timestamp, latency_ms bigint, messages bigint, bytes bigint, "
    "largest bigint"
)
_KEYS_PART = "topic string, key string, messages bigint"
_LATEST_PART = "topic string, key string, split int, phy_offset bigint"


def traffic(
    spark: SparkSession, store: StorePath, *, topics: Iterable[str] | None = None, **window: Any
) -> DataFrame:
    """Per topic and minute of storing: messages, bytes, the largest, and how late they came.

    Columns: topic, minute, messages, bytes (of records), largest (bytes), p50_ms, p99_ms, max_ms:
    percentiles of the time from birth to storing, exact.

    Args:
        spark: the session.
        store: the store's directory, or an archive's URL.
        topics: only messages of these.
        **window: ``begin_ms`` and ``end_ms``: only messages stored at or between these times.
    """
    columns = ("topic", "store_timestamp", "born_timestamp", "store_size")
    chosen = None if topics is None else tuple(topics)

    def work(group: list[Split]) -> Iterator[pa.RecordBatch]:
        for split in group:
            parts = [
                _by_minute(pa.record_batch(batch))
                for batch in read(split, columns, topics=chosen, **window)
            ]
            if parts:
                yield from _summed(pa.concat_tables(parts)).to_batches()

    parts = _frame(spark, store, chosen, work, _TRAFFIC_PART)
    late = "percentile(latency_ms, array(0.5D, 0.99D), messages)"
    return (
        parts.groupBy("topic", "minute")
        .agg(
            F.sum("messages").alias("messages"),
            F.sum("bytes").alias("bytes"),
            F.max("largest").alias("largest"),
            F.expr(late).alias("late"),
            F.max("latency_ms").alias("max_ms"),
        )
        .selectExpr(
            "topic",
            "minute",
            "messages",
            "bytes",
            "largest",
            "late[0] AS p50_ms",
            "late[1] AS p99_ms",
            "max_ms",
        )
        .orderBy("minute", "topic")
    )


def _by_minute(batch: pa.RecordBatch) -> pa.Table:
    """Rows of a batch by topic, minute and latency."""
    stored, born = (
        batch.column(name).cast(pa.int64()) for name in ("store_timestamp", "born_timestamp")
    )
    minute = pc.multiply(pc.divide(stored, _MINUTE_US), _MINUTE_US)
    table = pa.table(
        {
            "topic": batch.column("topic"),
            "minute": minute.cast(pa.timestamp("us", "UTC")),
            "latency_ms": pc.divide(pc.subtract(stored, born), 1000),
            "messages": pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows),
            "bytes": batch.column("store_size").cast(pa.int64()),
            "largest": batch.column("store_size").cast(pa.int64()),
        }
    )
    return _summed(table)


def _summed(table: pa.Table) -> pa.Table:
    sums = table.group_by(["topic", "minute", "latency_ms"]).aggregate(
        [("messages", "sum"), ("bytes", "sum"), ("largest", "max")]
    )
    return sums.rename_columns(
        [name.removesuffix("_sum").removesuffix("_max") for name in sums.column_names]
    ).select(table.column_names)


def hottest_keys(
    spark: SparkSession, store: StorePath, *, topics: Iterable[str] | None = None, count: int = 10
) -> DataFrame:
    """The keys that the most messages of each topic have: topic, key, messages.

    Args:
        spark: the session.
        store: the store's directory, or an archive's URL.
        topics: only messages of these.
        count: keys of each topic.
    """
    chosen = None if topics is None else tuple(topics)

    def work(group: list[Split]) -> Iterator[pa.RecordBatch]:
        for split in group:
            for batch in read(split, ("topic", "keys"), topics=chosen):
                yield from _key_counts(pa.record_batch(batch)).to_batches()

    parts = _frame(spark, store, chosen, work, _KEYS_PART)
    sums = parts.groupBy("topic", "key").agg(F.sum("messages").alias("messages"))
    rank = "row_number() OVER (PARTITION BY topic ORDER BY messages DESC, key)"
    return sums.withColumn("rank", F.expr(rank)).filter(f"rank <= {int(count)}").drop("rank")


def _key_counts(batch: pa.RecordBatch) -> pa.Table:
    lists = pc.split_pattern(batch.column("keys"), " ")
    rows = pc.list_parent_indices(lists)
    table = pa.table({"topic": batch.column("topic").take(rows), "key": pc.list_flatten(lists)})
    table = table.filter(pc.not_equal(table["key"], ""))
    counts = table.group_by(["topic", "key"]).aggregate([([], "count_all")])
    return counts.rename_columns(["topic", "key", "messages"])


def trace(
    spark: SparkSession,
    store: StorePath,
    *,
    key: str | Iterable[str] | None = None,
    message_id: str | None = None,
    unique_key: str | Iterable[str] | None = None,
    body: str | None = None,
    topics: Iterable[str] | None = None,
    columns: Iterable[str] = DEFAULT_COLUMNS,
    index: bool = False,
    **window: Any,
) -> DataFrame:
    """Where messages are that satisfy all that is asked for.

    Reads what lies in the window, or what the index names. Prepared and rolled-back transactional
    messages are found, too.

    Args:
        spark: the session.
        store: the store's directory, or an archive's URL.
        key: one of their keys, or their unique key; of several any.
        message_id: the id that a broker gave, which holds the physical offset.
        unique_key: the id that a producer gave; of several any.
        body: a regular expression (RE2) that is found in the body.
        topics: only messages of these.
        columns: of the frame.
        index: ask the store's index for the keys and read nothing else; what the index has lost is
            not found then.
        **window: ``begin_ms`` and ``end_ms``: only messages stored at or between these times.

    Raises:
        ConfigError: nothing was asked for, or an index without keys.
        ValueError: the message id is none.
    """
    if not (key or message_id or unique_key or body or topics or window):
        raise ConfigError("trace", "", "give a key, an id, a body, topics or a time to look for")
    names = tuple(columns)
    selection = cast("Selection", {"uncommitted": True, **window})
    for name, given in (("keys", key), ("unique_keys", unique_key)):
        if given is not None:
            texts = (given,) if isinstance(given, str) else tuple(given)
            selection[name] = texts  # type: ignore[literal-required]
    if topics is not None:
        selection["topics"] = tuple(topics)
    log = open_any_log(store)
    if index:
        if not isinstance(log, LogPlan):
            raise ConfigError("index", True, "an archive has no index")
        splits = _places_in_index(store, log, selection)
    elif message_id is not None:
        splits = _record_split(log, decode_message_id(message_id)[1])
    else:
        splits = select(log, selection).splits(SPLIT_SIZE)
    wanted = names if body is None else tuple(dict.fromkeys((*names, "body")))

    def work(group: list[Split]) -> Iterator[pa.RecordBatch]:
        for split in group:
            for columns_read in read(split, wanted, **selection):
                found = pa.record_batch(columns_read)
                if body is not None:
                    found = found.filter(pc.match_substring_regex(found.column("body"), body))
                if found.num_rows:
                    yield found.select(names)

    return _frame(spark, store, None, work, schema_of(names), splits)


def _record_split(log: AnyLog, phy_offset: int) -> list[Split]:
    """A split that is one record; none when it is not there."""
    record = log.record_at(phy_offset)
    return [] if record is None else select(log, {}, phy_offset, phy_offset + len(record)).splits()


def _places_in_index(store: StorePath, log: LogPlan, selection: Selection) -> list[Split]:
    """A split for each message that the index finds under one of the keys."""
    keys = [*(selection.get("keys") or ()), *(selection.get("unique_keys") or ())]
    if not keys:
        raise ConfigError("index", True, "give keys or unique keys to ask it for")
    window = {name: selection[name] for name in ("begin_ms", "end_ms") if name in selection}
    found: set[tuple[int, int]] = set()
    with open_store(store, mode="r") as opened:
        for topic in selection.get("topics") or sorted({topic for topic, _ in opened.queues()}):
            for result in opened.query_many(topic, keys, max_messages=_MOST, **window):
                found.update((one.phy_offset, one.store_size) for one in result)
    return [log.split(offset, offset + size) for offset, size in sorted(found)]


def compact(
    spark: SparkSession,
    store: StorePath,
    *,
    topics: Iterable[str] | None = None,
    columns: Iterable[str] = DEFAULT_COLUMNS,
) -> DataFrame:
    """The latest message of each topic and key, whole; messages without a key are all kept.

    The key is all that a message has as its keys, in one text. Only keys and offsets are shuffled;
    the messages are then read where they lie.

    Args:
        spark: the session.
        store: the store's directory, or an archive's URL.
        topics: only messages of these.
        columns: of the frame.
    """
    chosen = None if topics is None else tuple(topics)
    names = tuple(columns)
    splits = select(open_any_log(store), {"topics": chosen}).splits(SPLIT_SIZE)
    numbers = {split.start: number for number, split in enumerate(splits)}

    def latest(group: list[Split]) -> Iterator[pa.RecordBatch]:
        for split in group:
            for batch in read(split, ("topic", "keys", "phy_offset"), topics=chosen):
                yield from _latest(pa.record_batch(batch), numbers[split.start]).to_batches()

    def fetch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number, offsets in zip(*(column.to_pylist() for column in batch), strict=True):
                yield from _fetched(splits[number], names, pa.array(offsets, pa.int64()))

    parts = _frame(spark, store, chosen, latest, _LATEST_PART, splits)
    # a message without keys is a group of its own
    alone = F.when(F.col("key").isNull(), F.col("phy_offset"))
    kept = parts.groupBy("topic", "key", alone.alias("alone")).agg(
        F.max(F.struct("phy_offset", "split")).alias("last")
    )
    places = kept.groupBy(F.col("last.split").alias("split")).agg(
        F.sort_array(F.collect_list("last.phy_offset")).alias("offsets")
    )
    return places.mapInArrow(fetch, schema_of(names))


def _latest(batch: pa.RecordBatch, number: int) -> pa.Table:
    table = pa.table(
        {
            "topic": batch.column("topic"),
            "key": batch.column("keys"),
            "phy_offset": batch.column("phy_offset"),
        }
    )
    keyed = table.filter(pc.is_valid(table["key"])).group_by(["topic", "key"])
    last = keyed.aggregate([("phy_offset", "max")]).rename_columns(["topic", "key", "phy_offset"])
    table = pa.concat_tables([last, table.filter(pc.is_null(table["key"]))])
    split = pa.repeat(pa.scalar(number, pa.int32()), table.num_rows)
    return table.add_column(2, "split", split)


def _fetched(split: Split, names: tuple[str, ...], offsets: pa.Array) -> Iterator[pa.RecordBatch]:
    wanted = tuple(dict.fromkeys((*names, "phy_offset")))
    for columns in read(split, wanted):
        batch = pa.record_batch(columns)
        batch = batch.filter(pc.is_in(batch.column("phy_offset"), offsets))
        if batch.num_rows:
            yield batch.select(names)


def _frame(
    spark: SparkSession,
    store: StorePath,
    topics: tuple[str, ...] | None,
    work: Any,
    schema: Any,
    splits: list[Split] | None = None,
) -> DataFrame:
    """A frame of what a function makes of the splits of a store; empty for an empty store."""
    found = splits
    if found is None:
        found = select(open_any_log(store), {"topics": topics}).splits(SPLIT_SIZE)
    if not found:
        return spark.createDataFrame([], schema)
    return in_tasks(spark, grouped(found, task_count(spark)), work, schema)
