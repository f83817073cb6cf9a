"""Spark Connect: the client has no JVM and no `sparkContext`; workers of the server read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rmqcore
from rmqcore import open_store

pytestmark = pytest.mark.peers

pytest.importorskip("pyspark")

COUNT = 3000
CLIENT = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from rmqcore import spark as jobs

store, work = sys.argv[1], Path(sys.argv[2])
spark = SparkSession.builder.remote("local[2]").getOrCreate()

def load(path, **options):
    return spark.read.format("rmq").options(**options).load(str(path))

def keys(path):
    return sorted(int(row[0], 16) for row in load(path, columns="unique_key").collect())

found = {"session": type(spark).__module__, "read": keys(store)}
for _ in range(2):
    frame = load(store, columns="full")
    frame.write.format("rmq").mode("append").option("jobId", "copy").save(str(work / "copy"))
found["written"] = keys(work / "copy")
stream = spark.readStream.format("rmq").option("startingOffsets", "earliest").load(store)
query = (
    stream.select("topic", "queue_id", "body", "unique_key").writeStream.format("rmq")
    .option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True)
    .start(str(work / "streamed"))
)
query.awaitTermination()
found["streamed"] = keys(work / "streamed")
found["audit"] = jobs.audit(spark, store).clean
found["rebuilt"] = [
    job(spark, store).identical for job in (jobs.rebuild_consume_queues, jobs.rebuild_index)
]
found["traffic"] = sum(row["messages"] for row in jobs.traffic(spark, store).collect())
found["traced"] = [row["keys"] for row in jobs.trace(spark, store, key="k7").collect()]
found["exported"] = sum(part.rows for part in jobs.export(spark, store, work / "out"))
found["compacted"] = jobs.compact(spark, store).count()
found["chosen"] = jobs.read(spark, store, columns=["topic"], topics=["T1"]).count()
spark.stop()
print(json.dumps(found))
"""


def test_all_of_it_works_over_connect(spark, store_path, tmp_path):
    pytest.importorskip("grpc", reason="Spark Connect needs: pip install 'rmqcore[connect]'")
    with open_store(store_path, mapped_file_size_commit_log=1 << 20) as store:
        for number in range(COUNT):
            unique = {"UNIQ_KEY": f"{number:032X}"}
            body = b"%d" % number
            store.put(f"T{number % 3}", body, keys=[f"k{number}"], properties=unique)
    env = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_")}
    paths = [str(Path(rmqcore.__file__).parents[1]), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    env["PYSPARK_PYTHON"] = sys.executable
    command = [sys.executable, "-c", CLIENT, store_path, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    everything = list(range(COUNT))
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "session": "pyspark.sql.connect.session",
        "read": everything,
        "written": everything,
        "streamed": everything,
        "audit": True,
        "rebuilt": [True, True],
        "traffic": COUNT,
        "traced": ["k7"],
        "exported": COUNT,
        "compacted": COUNT,
        "chosen": COUNT // 3,
    }
