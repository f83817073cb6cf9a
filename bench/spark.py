"""Spark's paths side by side in one run: ``make bench-spark``, or ``bench/spark.py --size 256m``.

Every figure stands beside what it is measured against, taken in the same rounds; the median counts.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from payload import message

from rmqcore import open_store, scan
from rmqcore import spark as jobs
from rmqcore._dispatch import DispatchBatch
from rmqcore.scan import DEFAULT_COLUMNS, LIGHT_COLUMNS, LogWalk, Split
from rmqcore.spark.runner import SparkRunner

_BATCH = 128
_LOG_FILE_SIZE = 256 << 20


def write(path: Path, size: int) -> int:
    """A store with so many bytes of log; how many messages it has."""
    number = 0
    with open_store(path, mapped_file_size_commit_log=_LOG_FILE_SIZE) as store:
        while store.max_phy_offset < size:
            first = message(number)
            batch = [message(number + 4 * index) for index in range(_BATCH)]
            store.put_messages(batch, topic=first.topic, queue_id=first.queue_id)
            number += 1 if number % 4 != 3 else 4 * _BATCH - 3
        return sum(store.max_queue_offset(*queue) for queue in store.queues())


def walk(split: Split, *, verify_crc: bool = False) -> int:
    """Records of a split, by their heads, or with every CRC."""
    batch = DispatchBatch(row_count_max=1 << 17)
    count = 0
    kernel = partial(batch.scan, verify_crc=verify_crc)
    for _ in LogWalk(split).run(kernel):
        count += batch.record_count
        batch.clear()
    return count


def shuffled(spark, store: Path) -> None:
    """Consume queues the usual way: shuffle by an integer key, sort within partitions, write."""
    frame = jobs.read(spark, store, columns=("topic", "queue_id", "queue_offset", "phy_offset",
                                             "store_size", "tags_code"))  # fmt: skip

    def pack(batches):
        import pyarrow as pa

        units = np.dtype([("phy_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
        written = 0
        for batch in batches:
            rows = np.empty(batch.num_rows, units)
            rows["phy_offset"], rows["size"], rows["tags_code"] = (
                batch.column(name).to_numpy() for name in ("phy_offset", "store_size", "tags_code")
            )
            written += len(rows.tobytes())
        yield pa.record_batch({"bytes": [written]})

    key = "abs(hash(topic)) % 1024 * 1024 + queue_id AS key"
    sorted_rows = (
        frame.selectExpr(key, "queue_offset", "phy_offset", "store_size", "tags_code")
        .repartition(8, "key")
        .sortWithinPartitions("key", "queue_offset")
    )
    sorted_rows.mapInArrow(pack, "bytes bigint").collect()


class Bench:
    """The paths, over one store and the same rows as Parquet files."""

    def __init__(self, spark, work: Path, store: Path, rows: int) -> None:
        self.spark, self.work, self.store, self.rows = spark, work, store, rows
        self.parquet = work / "parquet"
        self.splits = scan.plan(store)
        self.bytes = sum(split.size for split in self.splits)
        jobs.read(spark, store).write.parquet(str(self.parquet))

    def noop(self, frame) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def fused(self) -> None:
        def work(group):
            for split in group:
                for batch in scan.read(split, DEFAULT_COLUMNS):
                    yield batch.to_arrow()

        from rmqcore.spark.runner import grouped, in_tasks, task_count
        from rmqcore.spark.schema import schema_of

        groups = grouped(self.splits, task_count(self.spark))
        self.noop(in_tasks(self.spark, groups, work, schema_of(DEFAULT_COLUMNS)))

    def fresh(self, name: str) -> Path:
        path = self.work / name
        shutil.rmtree(path, ignore_errors=True)
        return path

    def catch_up(self) -> None:
        query = (
            self.spark.readStream.format("rmq")
            .options(startingOffsets="earliest", maxBytesPerTrigger="1g")
            .load(str(self.store))
            .writeStream.format("noop")
            .option("checkpointLocation", str(self.fresh("checkpoint")))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def on(self, runner, work: Callable) -> None:
        list(scan.run(work, self.splits, jobs=runner))

    def paths(self) -> dict[str, Callable[[], object]]:
        """What is measured, by name."""
        spark, store, light = self.spark, self.store, list(LIGHT_COLUMNS[:-1])
        parquet = partial(spark.read.parquet, str(self.parquet))
        runner = SparkRunner(spark)
        return {
            "parquet, all columns": lambda: self.noop(parquet()),
            "rmq, all columns": lambda: self.noop(jobs.read(spark, store)),
            "fused, all columns": self.fused,
            "parquet, light columns": lambda: self.noop(parquet().select(light)),
            "rmq, light columns": lambda: self.noop(jobs.read(spark, store, columns=light)),
            "stream catch-up": self.catch_up,
            "parquet to parquet": lambda: parquet().write.parquet(str(self.fresh("copy"))),
            "export in Spark": lambda: jobs.export(
                spark, store, self.fresh("export"), columns=DEFAULT_COLUMNS
            ),
            "export, 2 processes": lambda: scan.export_store(
                store, self.fresh("export"), columns=DEFAULT_COLUMNS, jobs=2
            ),
            "queues by shuffle": lambda: shuffled(spark, store),
            "queues in Spark": lambda: jobs.rebuild_consume_queues(spark, store),
            "queues, 2 processes": lambda: scan.rebuild_consume_queues(store, jobs=2),
            "CRC walk in Spark": lambda: self.on(runner, partial(walk, verify_crc=True)),
            "CRC walk, 2 processes": lambda: self.on(2, partial(walk, verify_crc=True)),
            "header walk in Spark": lambda: self.on(runner, walk),
        }


#: path, against which, at least, aim
RATIOS = (
    ("rmq, all columns", "parquet, all columns", 0.75, 1.0),
    ("fused, all columns", "parquet, all columns", 0.9, 1.2),
    ("rmq, light columns", "parquet, light columns", 0.5, 0.8),
    ("export in Spark", "parquet to parquet", 2, 4),
    ("queues in Spark", "queues by shuffle", 5, 8),
    ("queues in Spark", "queues, 2 processes", 0.7, 0.85),
    ("CRC walk in Spark", "CRC walk, 2 processes", 0.7, 0.85),
    ("export in Spark", "export, 2 processes", 0.7, 0.85),
    ("CRC walk in Spark", "header walk in Spark", 0.5, 0.9),
    ("stream catch-up", "rmq, all columns", 0.35, 0.7),
)


def main() -> int:
    """Measure and print two tables; exit code 1 when a ratio is below what it has to be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="2g", help="bytes of log")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    size = int(arguments.size[:-1]) << {"m": 20, "g": 30}[arguments.size[-1]]
    with tempfile.TemporaryDirectory(prefix="rmqcore-bench-spark-") as folder:
        rows = write(Path(folder) / "store", size)
        spark = jobs.local_session("bench", cores=2, memory="2g")
        spark.sparkContext.setLogLevel("ERROR")
        bench = Bench(spark, Path(folder), Path(folder) / "store", rows)
        seconds = measure(bench.paths(), arguments.rounds)
        spark.stop()
    print(f"\n{rows:,} messages, {bench.bytes / 2**30:.2f} GiB of log, {arguments.rounds} rounds\n")
    print("| path | s, median | best | Mrow/s | GB/s of log |\n|---|---|---|---|---|")
    for name, times in seconds.items():
        middle = statistics.median(times)
        print(
            f"| {name} | {middle:.2f} | {min(times):.2f} | {rows / middle / 1e6:.2f} "
            f"| {bench.bytes / middle / 1e9:.2f} |"
        )
    print("\n| path | against | ratio | at least | aim |\n|---|---|---|---|---|")
    below = 0
    for path, against, least, aim in RATIOS:
        ratio = statistics.median(seconds[against]) / statistics.median(seconds[path])
        below += ratio < least
        print(f"| {path} | {against} | {ratio:.2f} | {least} | {aim} |")
    return 1 if below else 0


def measure(paths: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each path in each round; a round before them warms up and does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in paths}
    for number in range(rounds + 1):
        for name, call in paths.items():
            began = time.perf_counter()
            call()
            if number:
                seconds[name].append(time.perf_counter() - began)
            print(f"round {number}: {name}: {time.perf_counter() - began:.2f} s", file=sys.stderr)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
