"""Spark's paths side by side in one run: ``make bench-spark``, or ``bench/spark.py --size 256m``.

Every path is run right beside what it is measured against, round after round; a ratio is that of
one round, and the median counts. A full run writes its figures into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from payload import BODY_SIZE, message
from pyarrow.dataset import dataset

from rmqcore import Message, open_store, rebuild, scan, transfer
from rmqcore import spark as jobs
from rmqcore._codec import crc32
from rmqcore.doctor.verify import verify
from rmqcore.native.columns._columns import ColumnDecoder
from rmqcore.native.columns._encode_columns import ColumnEncoder
from rmqcore.scan import DEFAULT_COLUMNS, LIGHT_COLUMNS, LogWalk, Split
from rmqcore.spark.runner import SparkRunner

DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"
_BEGIN, _END = "<!-- figures: written by make bench-spark -->", "<!-- end of Spark's figures -->"
_BATCH = 128
_LOG_FILE_SIZE = 256 << 20
_PIECE_SIZE = 512 << 10
#: a smaller log, or fewer rounds, is for a look only
_FULL_SIZE, _FULL_ROUNDS = 2 << 30, 5
#: the JVM compiles what is hot: rounds that do not count
_WARM_UP_ROUNDS = 4
_LIGHT = LIGHT_COLUMNS[:-1]


def some_text(size: int) -> bytes:
    """Text of made-up words, which compress as prose does, not as padding; the same each time."""
    random = np.random.default_rng(1)
    letters = np.frombuffer(b"etaoinshrdlcumwfgypbvk", np.uint8)
    words = [bytes(random.choice(letters, length)) for length in random.integers(2, 11, 5000)]
    chosen = random.integers(0, len(words), size // 5)
    return b" ".join([words[index] for index in chosen])[:size]


def write(path: Path, size: int) -> int:
    """A store with so many bytes of log, its last file nearly full; how many messages it has."""
    text, number = some_text(16 << 20), 0

    def texted(number: int) -> Message:
        one = message(number)
        at = number * 7919 % (len(text) - BODY_SIZE)
        one.body = b"%08d" % number + text[at : at + BODY_SIZE - 8]
        return one

    settings = {"mapped_file_size_commit_log": _LOG_FILE_SIZE, "message_index_enable": False}
    with open_store(path, **settings) as store:
        while store.max_phy_offset < size - (1 << 20):
            first = message(number)
            batch = [texted(number + 4 * index) for index in range(_BATCH)]
            store.put_messages(batch, topic=first.topic, queue_id=first.queue_id)
            number += 1 if number % 4 != 3 else 4 * _BATCH - 3
        count = sum(store.max_queue_offset(*queue) for queue in store.queues())
    # the index is one process's work wherever it is checked, and no path reads it
    shutil.rmtree(path / "index")
    return count


def count_heads(split: Split, *, verify_crc: bool = False) -> int:
    """Records of a split, from head to head; with ``verify_crc`` each body is compared, too."""
    decoder = ColumnDecoder(
        ["phy_offset"], row_max=1 << 16, byte_max=1 << 29, verify_crc=verify_crc
    )
    count = 0
    for _ in LogWalk(split).run(decoder.decode):
        count += len(decoder.take())
    return count


def shuffled(spark, store: Path, target: Path) -> None:
    """Consume queues the usual way: shuffle by an integer key, sort within partitions, write."""
    frame = jobs.read(spark, store, columns=("topic", "queue_id", "queue_offset", "phy_offset",
                                             "store_size", "tags_code"))  # fmt: skip

    def pack(batches):
        import pyarrow as pa

        units = np.dtype([("phy_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
        written = 0
        target.mkdir(exist_ok=True)
        for batch in batches:
            rows = np.empty(batch.num_rows, units)
            rows["phy_offset"], rows["size"], rows["tags_code"] = (
                batch.column(name).to_numpy() for name in ("phy_offset", "store_size", "tags_code")
            )
            for key in np.unique(keys := batch.column("key").to_numpy()):
                with (target / str(key)).open("ab") as file:
                    written += file.write(rows[keys == key].tobytes())
        yield pa.record_batch({"bytes": [written]})

    key = "abs(hash(topic)) % 1024 * 1024 + queue_id AS key"
    sorted_rows = (
        frame.selectExpr(key, "queue_offset", "phy_offset", "store_size", "tags_code")
        .repartition(8, "key")
        .sortWithinPartitions("key", "queue_offset")
    )
    sorted_rows.mapInArrow(pack, "bytes bigint").collect()


@dataclass(slots=True)
class Times:
    """What a path took in each round, in seconds."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    @property
    def middle(self) -> float:
        """The median."""
        return statistics.median(self.wall)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a path, what it is measured against, and how fast it has to be.

    Attributes:
        title: what the path does.
        path, against: names of `Bench.paths`.
        least, aim: of the ratio of both speeds.
    """

    title: str
    path: str
    against: str
    least: float
    aim: float


ROWS = (
    Row('`format("rmq")`, default columns', "rmq", "Parquet", 0.75, 1.0),
    Row("the same by fused `mapInArrow`", "fused", "Parquet", 0.9, 1.2),
    Row('`format("rmq")`, light columns', "rmq, light", "Parquet, light", 0.5, 0.8),
    Row("export to Parquet", "export", "Parquet to Parquet", 2, 4),
    Row("rebuild of consume queues", "rebuild", "shuffle and sort", 5, 8),
    Row("rebuild of consume queues", "rebuild", "rebuild, two processes", 0.7, 0.85),
    Row("audit", "audit", "audit, two processes", 0.7, 0.85),
    Row("export to Parquet", "export", "export, two processes", 0.7, 0.85),
    Row("CRC of every record", "CRC", "header walk", 0.5, 0.9),
    Row("audit, consume queues compared, too", "audit", "header walk", 0.5, 0.9),
    Row('`write.format("rmq")`, text, distinct born times', "append", "write Parquet", 0.5, 1.0),
    Row(
        "the same of a stream, one batch",
        "stream append",
        "stream write Parquet",
        0.5,
        1.0,
    ),
    Row("records of Arrow batches", "encode", "memcpy and CRC", 0.2, 0.6),
    Row("stream catch-up", "stream", "rmq", 0.35, 0.7),
)

#: what each path does, for the document
DID = {
    "rmq": "a fresh `load` with the columns of the default set, into Spark's `noop` sink",
    "Parquet": "the same rows, written by Spark from that frame (Snappy), into the `noop` sink",
    "fused": "`scan.read` inside `mapInArrow`, default columns, into the `noop` sink",
    "rmq, light": f"a fresh `load` with {', '.join(_LIGHT)}, into the `noop` sink",
    "Parquet, light": "the same columns of the Parquet files, into the `noop` sink",
    "export": "`spark.export`: pyarrow writes the default columns inside the tasks (zstd)",
    "Parquet to Parquet": "`spark.read.parquet` of the same rows, `write.parquet`",
    "export, two processes": "`transfer.export_store` with `jobs=2`, without Spark",
    "rebuild": "`spark.rebuild_consume_queues`: units written, synced, compared, swapped in",
    "shuffle and sort": "`repartition` by integer key, `sortWithinPartitions`, a file a queue",
    "rebuild, two processes": "`rebuild.rebuild_consume_queues` with `jobs=2`",
    "audit": "`spark.audit`: every record, every CRC, every consume-queue unit against the log",
    "audit, two processes": "`doctor.verify` with `jobs=2`: the same",
    "CRC": "the header walk, and the CRC of every body",
    "header walk": "from record to record in tasks of Spark, by the heads alone",
    "append": 'the same rows from Parquet files, `write.format("rmq")` into a new store',
    "write Parquet": "text bodies, tag, key, unique key, a born time each, `write.parquet` of them",
    "stream append": 'a stream of those files, `AvailableNow`, to `format("rmq")`, a new store',
    "stream write Parquet": 'the same stream to `format("parquet")`',
    "encode": "the same batches made into records by one thread, without Spark",
    "memcpy and CRC": "as many bytes copied in pieces of 512 KiB, and the CRC-32 of the bodies",
    "stream": "`AvailableNow` from the earliest message on, 1 GiB a batch, into the `noop` sink",
}


class Bench:
    """The paths, over one store and the same rows as Parquet files."""

    def __init__(self, spark, work: Path, store: Path) -> None:
        self.spark, self.work, self.store = spark, work, store
        self.parquet = work / "parquet"
        self.made: set[Path] = set()
        self.splits = scan.plan(store)
        self.bytes = sum(split.size for split in self.splits)
        jobs.read(spark, store).write.parquet(str(self.parquet))
        self.texts = work / "texts"
        self.write_rows()
        # a part of them, so that it is in memory and measured often enough; Spark's files know no
        # time zone
        part = dataset(self.texts).head(500_000)
        born, column = pa.timestamp("us", "UTC"), part.column_names.index("born_timestamp")
        part = part.set_column(column, "born_timestamp", part.column(column).cast(born))
        self.table = pa.Table.from_batches(part.combine_chunks().to_batches(max_chunksize=10_000))
        self.copied = np.ones(self.encode(), np.uint8)

    def rows(self):
        """The rows that are written, as text with a born time each."""
        return self.spark.read.parquet(str(self.texts))

    def write_rows(self) -> None:
        columns = ("topic", "queue_id", "tags", "keys", "unique_key")
        jobs.read(self.spark, self.store).selectExpr(
            *columns,
            "decode(body, 'UTF-8') AS body",
            "timestamp_micros(1700000000000000 + phy_offset) AS born_timestamp",
        ).write.parquet(str(self.texts))

    def append(self) -> None:
        frame = self.rows().write.format("rmq").mode("append")
        frame.option("jobId", "bench").save(str(self.fresh("appended")))

    def stream(self, sink: str, target: Path) -> None:
        frame = self.spark.readStream.schema(self.rows().schema).parquet(str(self.texts))
        query = (
            frame.writeStream.format(sink)
            .option("checkpointLocation", str(self.fresh("checkpoint")))
            .trigger(availableNow=True)
            .start(str(target))
        )
        query.awaitTermination()

    def encode(self) -> int:
        size = 0
        settings = {"body_max": 4 << 20, "log_file_size": 1 << 30, "store_host": "127.0.0.1:10911"}
        encoder = ColumnEncoder(self.table, **settings)
        while encoder.next_batch() is not None:
            while (piece := encoder.next_piece(_PIECE_SIZE)) is not None:
                size += len(piece)
        return size

    def copy_and_sum(self) -> None:
        piece = np.empty(_PIECE_SIZE, np.uint8)
        for at in range(0, len(self.copied) - _PIECE_SIZE, _PIECE_SIZE):
            piece[:] = self.copied[at : at + _PIECE_SIZE]
        bodies = memoryview(self.copied)[: self.table.num_rows * BODY_SIZE]
        for at in range(0, len(bodies), _PIECE_SIZE):
            crc32(bodies[at : at + _PIECE_SIZE])

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
        self.made.add(path)
        return path

    def clear(self) -> None:
        """Remove what paths have made: a disk takes its time over a GiB that nobody measures."""
        for path in self.made:
            shutil.rmtree(path, ignore_errors=True)

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

    def clean(self, report) -> None:
        assert report.clean, report.findings[:3]

    def paths(self) -> dict[str, Callable[[], object]]:
        """What is measured, by name, those beside each other that are compared."""
        spark, store, columns = self.spark, self.store, list(DEFAULT_COLUMNS)
        parquet = partial(spark.read.parquet, str(self.parquet))

        def walk(*, verify_crc: bool) -> int:
            work = partial(count_heads, verify_crc=verify_crc)
            return sum(scan.run(work, self.splits, jobs=SparkRunner(spark)))

        return {
            "stream": self.catch_up,
            "rmq": lambda: self.noop(jobs.read(spark, store)),
            "Parquet": lambda: self.noop(parquet()),
            "fused": self.fused,
            "rmq, light": lambda: self.noop(jobs.read(spark, store, columns=_LIGHT)),
            "Parquet, light": lambda: self.noop(parquet().select(*_LIGHT)),
            "Parquet to Parquet": lambda: parquet().write.parquet(str(self.fresh("copy"))),
            "export": lambda: jobs.export(spark, store, self.fresh("export"), columns=columns),
            "export, two processes": lambda: transfer.export_store(
                store, self.fresh("export"), columns=columns, jobs=2
            ),
            "append": self.append,
            "write Parquet": lambda: self.rows().write.parquet(str(self.fresh("written"))),
            "stream append": lambda: self.stream("rmq", self.fresh("streamed")),
            "stream write Parquet": lambda: self.stream("parquet", self.fresh("streamed-parquet")),
            "encode": lambda: [self.encode() for _ in range(5)],
            "memcpy and CRC": lambda: [self.copy_and_sum() for _ in range(5)],
            "shuffle and sort": lambda: shuffled(spark, store, self.fresh("units")),
            "rebuild": lambda: jobs.rebuild_consume_queues(spark, store),
            "rebuild, two processes": lambda: rebuild.rebuild_consume_queues(store, jobs=2),
            "audit, two processes": lambda: self.clean(verify(store, jobs=2)),
            "audit": lambda: self.clean(jobs.audit(spark, store)),
            "header walk": lambda: walk(verify_crc=False),
            "CRC": lambda: walk(verify_crc=True),
        }


def measure(
    paths: dict[str, Callable[[], object]], rounds: int, clear: Callable[[], object]
) -> dict[str, Times]:
    """Times of each path; the rounds before them that warm up do not count, nor does `clear`."""
    times = {name: Times() for name in paths}
    for number in range(-_WARM_UP_ROUNDS, rounds):
        for name, call in paths.items():
            clear()
            before, began = processor_seconds(), time.perf_counter()
            call()
            wall, processor = time.perf_counter() - began, processor_seconds() - before
            if number >= 0:
                times[name].wall.append(wall)
                times[name].processor.append(processor)
            print(f"{number}: {name}: {wall:.2f} s, processor {processor:.2f} s", file=sys.stderr)
    return times


def processor_seconds() -> float:
    """What this process and all below it have used: the JVM, Spark's workers, our own."""
    used: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        used[int(path.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    total, family = 0, {os.getpid()}
    for _ in range(len(used)):
        more = {pid for pid, (parent, _) in used.items() if parent in family} | {os.getpid()}
        if more <= family:
            break
        family |= more
    total = sum(used[pid][1] for pid in family)
    return total / os.sysconf("SC_CLK_TCK")


def tables(times: dict[str, Times], rows: int, size: int, rounds: int) -> str:
    """The figures in Markdown."""
    load = ", ".join(f"{part:.1f}" for part in os.getloadavg())
    lines = [
        f"{rows:,} messages with bodies of 256 bytes, {size / 2**30:.2f} GiB of log, {rounds} "
        f"rounds after {_WARM_UP_ROUNDS} that warm up; {os.cpu_count()} cores; load at the "
        f"end {load}, of which this run is 2.\n",
        "| path | against | ratio, median | min | max | by processor time | at least | aim | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows_of(times):
        ratios, used = ratios_of(times, row), processor_ratio(times, row)
        middle = statistics.median(ratios)
        verdict = "aim" if middle >= row.aim else "reached" if middle >= row.least else "**below**"
        lines.append(
            f"| {row.title} | {row.against} | {middle:.2f} | {min(ratios):.2f} "
            f"| {max(ratios):.2f} | {used:.2f} | {row.least:g} | {row.aim:g} | {verdict} |"
        )
    lines += [
        "\n| path | s, median | best | processor s | Mrow/s | GB/s of log | what it does |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, one in times.items():
        lines.append(
            f"| {name} | {one.middle:.2f} | {min(one.wall):.2f} "
            f"| {statistics.median(one.processor):.2f} | {rows / one.middle / 1e6:.2f} "
            f"| {size / one.middle / 1e9:.2f} | {DID[name]} |"
        )
    return "\n".join(lines) + "\n"


def rows_of(times: dict[str, Times]) -> list[Row]:
    """The rows of which both paths were measured."""
    return [row for row in ROWS if {row.path, row.against} <= times.keys()]


def ratios_of(times: dict[str, Times], row: Row) -> list[float]:
    """How fast a path is beside what it is measured against, in each round."""
    pairs = zip(times[row.against].wall, times[row.path].wall, strict=True)
    return [against / path for against, path in pairs]


def processor_ratio(times: dict[str, Times], row: Row) -> float:
    """The same by what both use of the processors, which other work on the machine blurs less."""
    pairs = zip(times[row.against].processor, times[row.path].processor, strict=True)
    return statistics.median(against / path for against, path in pairs)


def write_down(text: str) -> None:
    """Put the figures into the document."""
    before, _, rest = DOCUMENT.read_text("utf-8").partition(_BEGIN)
    after = rest.partition(_END)[2]
    DOCUMENT.write_text(f"{before}{_BEGIN}\n\n{text}\n{_END}{after}", "utf-8")


def main() -> int:
    """Measure and print; exit code 1 when a ratio is below what it has to be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="2g", help="bytes of log")
    parser.add_argument("--rounds", type=int, default=_FULL_ROUNDS)
    parser.add_argument("--only", default="", help="paths that are measured, by commas")
    arguments = parser.parse_args()
    size = int(arguments.size[:-1]) << {"m": 20, "g": 30}[arguments.size[-1]]
    with tempfile.TemporaryDirectory(prefix="rmqcore-bench-spark-") as folder:
        rows = write(Path(folder) / "store", size)
        spark = jobs.local_session("bench", cores=2, memory="2g")
        spark.sparkContext.setLogLevel("ERROR")
        bench = Bench(spark, Path(folder), Path(folder) / "store")
        paths, wanted = bench.paths(), arguments.only.split(",") if arguments.only else ()
        chosen = {name: paths[name] for name in wanted or paths}
        times = measure(chosen, arguments.rounds, bench.clear)
        spark.stop()
    text = tables(times, rows, bench.bytes, arguments.rounds)
    print(text)
    if not arguments.only and size >= _FULL_SIZE and arguments.rounds >= _FULL_ROUNDS:
        write_down(text)
    return int(any(statistics.median(ratios_of(times, row)) < row.least for row in rows_of(times)))


if __name__ == "__main__":
    sys.exit(main())
