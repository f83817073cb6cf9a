"""A driver of a standalone cluster: appends rows of which some tasks fail, are slow, or die.

cluster_job.py URL WORK {"kind": "retry", "first": 0, "count": 20000, "job": "a"}
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

PARTS = 8
#: Behind a row's number, all of it follows from that.
ROW = (
    "concat('T', id % 3) AS topic",
    "cast(id % 5 AS int) AS queue_id",
    "cast(concat('body ', id, ' ', repeat('x', cast(id % 97 AS int))) AS binary) AS body",
    "concat('Tag', id % 4) AS tags",
    "concat('k', id, ' g', id % 10) AS keys",
    "lpad(hex(id), 32, '0') AS unique_key",
    "cast(id % 7 AS int) AS flag",
    "cast(id % 2 AS int) AS reconsume_times",
    "timestamp_millis(1700000000000 + id) AS born_timestamp",
    "map('number', cast(id AS string)) AS properties",
)
#: What happens to a partition's first tries.
TROUBLES = {
    "retry": {1: ["fail"], 3: ["fail", "fail"], 6: ["fail", "fail", "fail"]},
    "kill": {2: ["kill at the end"], 5: ["kill at the beginning"]},
    "speculate": {1: ["slow"], 4: ["slow"]},
    "stream": {1: ["kill at the end"]},
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "200ms",
    "spark.speculation.efficiency.enabled": "false",
}


def wanted(number):
    """What a store has of a row."""
    return (
        f"T{number % 3}",
        number % 5,
        f"body {number} {'x' * (number % 97)}".encode(),
        f"Tag{number % 4}",
        (f"k{number}", f"g{number % 10}"),
        f"{number:032X}",
        number % 7,
        number % 2,
        1700000000000 + number,
        str(number),
    )


def found(message):
    """A message as `wanted` has it."""
    return (
        message.topic,
        message.queue_id,
        message.body,
        message.tags,
        message.keys,
        message.unique_key,
        message.flag,
        message.reconsume_times,
        message.born_timestamp_ms,
        message.properties.get("number"),
    )


def session(url, kind):
    from pyspark.sql import SparkSession

    if url.startswith("sc:"):
        return SparkSession.builder.remote(url).getOrCreate()
    from spark_cluster import SETTINGS

    builder = SparkSession.builder.master(url).appName(kind)
    settings = SETTINGS | (SPECULATION if kind == "speculate" else {})
    settings |= {"spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]}
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def with_troubles(frame, marks, troubles):
    """The frame; a mark tells what has happened to a partition, and that it has once."""
    marks, kill = str(marks), _kill_executor

    def run(batches):
        from pyspark import TaskContext

        part, attempt = TaskContext.get().partitionId(), TaskContext.get().attemptNumber()
        mine = troubles.get(part, [])
        trouble = mine[attempt] if attempt < len(mine) else "none"
        if mine:
            Path(marks, f"{part} {attempt} {trouble}").touch()
        first = True
        for batch in batches:
            yield batch
            if first and trouble == "kill at the beginning":
                kill()
            if first and trouble == "slow":
                # the other try is quicker
                while not Path(marks, f"{part} {attempt + 1} none").exists():
                    time.sleep(0.05)
            first = False
        if trouble == "fail":
            raise RuntimeError("the task failed behind its last row")
        if trouble == "kill at the end":
            kill()

    return frame.mapInArrow(run, frame.schema)


def _kill_executor():
    import os
    import signal
    import time
    from pathlib import Path

    # a task's process is the child of a daemon, and that one of the executor's JVM
    jvm = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
    assert "CoarseGrainedExecutorBackend" in Path(f"/proc/{jvm}/cmdline").read_text()
    os.kill(jvm, signal.SIGKILL)
    time.sleep(60)


def main(url, work, kind="plain", first=0, count=0, job=None):
    work, spark = Path(work), session(url, kind)
    troubles = TROUBLES.get(kind, {})
    (work / "ready").touch()
    if kind == "stream":
        frame = spark.readStream.format("rmq").option("startingOffsets", "earliest")
        frame = frame.options(columns="full", maxOffsetsPerTrigger="9000", maxPartitionBytes="200k")
        frame = frame.load(str(work / "source")).drop("phy_offset")
    else:
        frame = spark.range(first, first + count, 1, PARTS).selectExpr(*ROW)
    if troubles:
        (work / "marks").mkdir(exist_ok=True)
        frame = with_troubles(frame, work / "marks", troubles)
    if kind == "stream":
        writer = frame.writeStream.format("rmq").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(work / "checkpoint"))
        writer.start(str(work / "store")).awaitTermination()
    else:
        options = {"jobId": job} if job else {}
        frame.write.format("rmq").mode("append").options(**options).save(str(work / "store"))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3]))
