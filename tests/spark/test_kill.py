"""A stream over a store that is being written, while all that can die is killed: each row once."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import TIMEOUT_S, until

import rmqcore

pytestmark = pytest.mark.peers

pytest.importorskip("pyspark")

#: puts until there is a file, so that there is always another batch; says how many
PRODUCER = """
import itertools, sys, time
from pathlib import Path
from rmqcore import open_store
with open_store(sys.argv[1], mapped_file_size_commit_log=1 << 20) as store:
    for number in itertools.count():
        if number % 50 == 0:
            if Path(sys.argv[2]).exists():
                break
            time.sleep(0.1)
        store.put("T", b"%d" % number, queue_id=number % 4,
                  properties={"UNIQ_KEY": f"{number:032X}"})
print(number)
"""
DRIVER = """
import sys
from rmqcore.spark import local_session
store, out, checkpoint, sink = sys.argv[1:]
spark = local_session("kill", cores=2, memory="600m", spark__sql__shuffle__partitions="2")
frame = (spark.readStream.format("rmq").options(startingOffsets="earliest")
         .option("maxBytesPerTrigger", "256k").option("maxPartitionBytes", "100k").load(store))
if sink == "rmq":
    frame = frame.select("topic", "queue_id", "body", "unique_key")
writer = frame.writeStream.format(sink).option("checkpointLocation", checkpoint)
writer.trigger(processingTime="0 seconds").start(out).awaitTermination()
"""


def processes():
    """(process id, parent's, command line) of every process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text()
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                yield int(entry.name), int(stat.rpartition(")")[2].split()[1]), line


def below(root):
    """Process ids that descend from ``root``, itself included, with command lines."""
    found = {root: ""}
    everything = list(processes())
    for _ in range(6):
        found |= {pid: line for pid, parent, line in everything if parent in found}
    return found


def victim(driver, kind):
    """The process to kill: the driver, its JVM, or a worker."""
    found = below(driver.pid)
    java = [pid for pid, line in found.items() if "java" in line.split(" ")[0]]
    workers = [pid for pid, line in found.items() if "pyspark.daemon" in line and pid not in java]
    return {"driver": [driver.pid], "jvm": java, "worker": workers}[kind]


def end(driver, family):
    """End the driver, what it has started, and what it had started before it was killed."""
    left = {pid: line for pid, _, line in processes() if line and family.get(pid) == line}
    for pid in sorted((left | below(driver.pid)).keys() - {driver.pid}, reverse=True):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    driver.kill()
    driver.wait()


def batches_done(checkpoint):
    folder = checkpoint / "commits"
    return len([p for p in folder.iterdir() if p.name.isdigit()]) if folder.is_dir() else 0


def wait_for_batch(checkpoint, or_else=lambda: False):
    """Wait until one more batch has been committed, or until something else has come."""
    done = batches_done(checkpoint)
    until(lambda: batches_done(checkpoint) > done or or_else(), f"batch {done} is committed")


def let_catch_up(store, checkpoint):
    """Wait, batch by batch, until the stream is at the end of the log."""
    while progressed_to(checkpoint) != end_of(store):
        wait_for_batch(checkpoint, lambda: progressed_to(checkpoint) == end_of(store))


@pytest.mark.parametrize("sink", ["parquet", "rmq"])
def test_every_row_once_whatever_is_killed(spark, tmp_path, rng, sink):
    store, out, checkpoint = tmp_path / "store", tmp_path / "out", tmp_path / "checkpoint"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_"))}
    env["PYTHONPATH"] = str(Path(rmqcore.__file__).parents[1])
    enough = tmp_path / "enough"
    producer = subprocess.Popen(
        [sys.executable, "-c", PRODUCER, store, enough], env=env, stdout=subprocess.PIPE
    )
    until((store / "commitlog").is_dir, "the producer has made the store")
    command = [sys.executable, "-c", DRIVER, store, out, checkpoint, sink]
    try:
        for kind in ("jvm", "worker", "driver", "worker", "jvm", None):
            driver, family = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL), {}
            try:
                for part in ("jvm", "worker"):
                    until(lambda d=driver, part=part: victim(d, part), f"the driver has its {part}")
                for _ in range(2):
                    wait_for_batch(checkpoint)
                if kind is None:
                    enough.touch()
                    count = int(producer.communicate(timeout=TIMEOUT_S)[0])
                    let_catch_up(store, checkpoint)
                else:
                    time.sleep(rng.random())
                    family = below(driver.pid)
                    for pid in victim(driver, kind):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    # it ends, or goes on without
                    wait_for_batch(checkpoint, lambda driver=driver: driver.poll() is not None)
            finally:
                end(driver, family)
    finally:
        producer.kill()
        producer.wait()
    reader = spark.read.format("rmq") if sink == "rmq" else spark.read.format("parquet")
    keys = [row[0] for row in reader.load(str(out)).select("unique_key").collect()]
    assert sorted(int(key, 16) for key in keys) == list(range(count))


def end_of(store):
    from rmqcore.scan import plan

    return plan(store)[-1].end


def progressed_to(checkpoint):
    """The physical offset up to which batches are committed."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    text = (checkpoint / "offsets" / str(last)).read_text().splitlines()[-1]
    return json.loads(text)["phy_offset"]["log"]
