"""Running the functions of `rmqcore.scan` in the tasks of Spark: one Python stage, no shuffle."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from rmqcore.scan import Split
from rmqcore.spark.session import check_workers

Result = TypeVar("Result")
#: Each slot should get this many tasks, so that a slow one does not keep the others waiting.
_TASKS_A_SLOT = 2
_SLOTS_OF_CONNECT = 64


def slots_of(spark: SparkSession) -> int:
    """Tasks that run at the same time; a guess over Spark Connect, which does not tell."""
    context = getattr(spark, "_sc", None)
    return _SLOTS_OF_CONNECT if context is None else int(context.defaultParallelism)


def task_count(spark: SparkSession) -> int:
    """How many tasks a job over a whole log should have."""
    return _TASKS_A_SLOT * slots_of(spark)


def freeze_worker() -> None:
    """Leave what a worker has kept until now out of the garbage collection that ends its task.

    Spark makes one after each task. The modules that a worker imports hold some 200,000 objects,
    which take longer to look through than a small task takes.
    """
    gc.freeze()


class SparkRunner:
    """Calls a function with every split of a log, in tasks of Spark; what ``jobs=`` takes.

    Args:
        spark: the session.
        tasks: at most this many, each with its share of the splits; None for a few a slot.
    """

    def __init__(self, spark: SparkSession, tasks: int | None = None) -> None:
        self._spark = spark
        self._tasks = tasks or task_count(spark)

    def __call__(
        self, function: Callable[[Split], Result], splits: Sequence[Split], /
    ) -> Iterator[Result]:
        """Call it; yields its results in the order of the splits."""
        groups = grouped(splits, self._tasks)

        def work(group: list[Split]) -> Iterator[pa.RecordBatch]:
            results = pickle.dumps([function(split) for split in group])
            yield pa.record_batch({"first": [group[0].start], "results": [results]})

        if not groups:
            return
        frame = in_tasks(self._spark, groups, work, "first bigint, results binary")
        rows = sorted(frame.collect())
        yield from chain.from_iterable(pickle.loads(row[1]) for row in rows)  # noqa: S301 - ours


def grouped(splits: Sequence[Split], tasks: int) -> list[list[Split]]:
    """Splits in order, packed evenly for at most this many tasks.

    Args:
        splits: of a log.
        tasks: 1 or more.

    Returns:
        a list for each task; none without splits.
    """
    tasks = min(tasks, len(splits))
    cuts = [number * len(splits) // tasks for number in range(tasks + 1)] if tasks else []
    return [list(splits[start:stop]) for start, stop in pairwise(cuts)]


def in_tasks(
    spark: SparkSession,
    groups: list[list[Split]],
    work: Callable[[list[Split]], Iterator[pa.RecordBatch]],
    schema: str,
) -> DataFrame:
    """A frame of what a function makes of each group of splits; one task a group.

    Args:
        spark: the session.
        groups: from `grouped`; one or more.
        work: yields batches of ``schema``.
        schema: of the frame.

    Raises:
        SparkMissingError: the session's workers run a Python without rmqcore.
    """
    check_workers(spark)

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_worker()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(groups[number])

    return spark.range(0, len(groups), 1, len(groups)).mapInArrow(stage, schema)
