"""A stream reads each row once, whatever dies, and says what it cannot read any more."""

import json
import shutil

import pytest

from rmqcore import open_store
from rmqcore.errors import ConfigError
from rmqcore.lake import BatchTable

pytestmark = pytest.mark.process

pytest.importorskip("pyspark")


@pytest.fixture
def stream(spark, tmp_path):
    """`stream(path, ...)`: run until all there is has been read; (rows, batches) of all runs."""
    from pyspark.sql import functions as F

    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    def run(path, trigger=None, schema=None, **options):
        reader = spark.readStream.format("rmq").options(startingOffsets="earliest")
        reader = reader.options(**options)
        frame = (reader.schema(schema) if schema else reader).load(str(path))
        query = (
            frame.select("phy_offset", "unique_key", F.length("body").alias("size"))
            .writeStream.format("parquet")
            .option("checkpointLocation", checkpoint)
            .trigger(**(trigger or {"availableNow": True}))
            .start(out)
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        rows = spark.read.parquet(out).select("unique_key").collect()
        return [row[0] for row in rows], [p for p in query.recentProgress if p.numInputRows]

    return run


@pytest.fixture
def small_store(store_path):
    """1,000 messages in log files of 64 KiB."""
    put(store_path, 0, 1000)
    return store_path


def put(path, start, stop):
    with open_store(path, mapped_file_size_commit_log=64 << 10) as store:
        for number in range(start, stop):
            unique = {"UNIQ_KEY": f"{number:032X}"}
            store.put(f"T{number % 3}", b"%d" % number, queue_id=number % 2, properties=unique)


def numbers_of(rows):
    return sorted(int(key, 16) for key in rows)


def test_what_was_there_and_what_came_later(stream, small_store):
    rows, _ = stream(small_store)
    assert numbers_of(rows) == list(range(1000))
    put(small_store, 1000, 1500)
    rows, _ = stream(small_store)
    assert numbers_of(rows) == list(range(1500))
    rows, batches = stream(small_store)
    assert len(rows) == 1500
    assert not batches


@pytest.mark.peers
def test_a_limit_of_bytes(stream, small_store):
    rows, batches = stream(small_store, maxBytesPerTrigger="20k")
    assert numbers_of(rows) == list(range(1000))
    assert len(batches) > 5
    assert max(batch.numInputRows for batch in batches) < 300


@pytest.mark.peers
def test_a_limit_of_rows_counts_the_rows_chosen(stream, small_store):
    rows, batches = stream(small_store, maxOffsetsPerTrigger="100", topics="T1")
    assert numbers_of(rows) == list(range(1, 1000, 3))
    assert [batch.numInputRows for batch in batches] == [100, 100, 100, 33]


@pytest.mark.peers
def test_once_ignores_the_limit(stream, small_store):
    _, batches = stream(small_store, trigger={"once": True}, maxBytesPerTrigger="20k")
    assert [batch.numInputRows for batch in batches] == [1000]


@pytest.mark.peers
def test_without_a_start_only_what_is_new_is_read(spark, small_store, tmp_path):
    query = (
        spark.readStream.format("rmq")
        .load(str(small_store))
        .writeStream.format("memory")
        .queryName("fresh")
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    try:
        query.processAllAvailable()
        put(small_store, 1000, 1010)
        query.processAllAvailable()
        found = [row[0] for row in spark.sql("SELECT unique_key FROM fresh").collect()]
    finally:
        query.stop()
    assert numbers_of(found) == list(range(1000, 1010))


@pytest.mark.peers
def test_a_torn_tail_is_not_read_before_it_is_whole(stream, small_store):
    with open_store(small_store, mode="r") as store:
        end = store.max_phy_offset
        record = bytes(list(store.messages())[-1].record)
    file = sorted((small_store / "commitlog").iterdir())
    (file,) = [path for path in file if int(path.name) <= end < int(path.name) + (64 << 10)]
    torn = record[:28] + end.to_bytes(8, "big") + record[36:60] + bytes(len(record) - 60)
    with file.open("r+b") as log:
        log.seek(end % (64 << 10))
        log.write(torn)
    rows, _ = stream(small_store)
    assert len(rows) == 1000
    with file.open("r+b") as log:
        log.seek(end % (64 << 10))
        log.write(record[:28] + end.to_bytes(8, "big") + record[36:])
    rows, _ = stream(small_store)
    assert len(rows) == 1001


def failure(call):
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        call()
    return str(caught.value)


@pytest.mark.peers
def test_records_that_retention_has_deleted(stream, small_store):
    stream(small_store, maxOffsetsPerTrigger="1000")
    put(small_store, 1000, 2000)
    for file in sorted((small_store / "commitlog").iterdir())[:4]:
        file.unlink()
    text = failure(lambda: stream(small_store))
    assert "has been deleted; set failOnDataLoss=false" in text
    rows, _ = stream(small_store, failOnDataLoss="false")
    assert 1000 < len(rows) < 2000
    assert len(set(rows)) == len(rows)


@pytest.mark.peers
def test_a_log_that_is_shorter_than_the_checkpoint(stream, small_store):
    stream(small_store)
    shutil.rmtree(small_store)
    put(small_store, 0, 10)
    text = failure(lambda: stream(small_store))
    assert "where the stream is; set failOnDataLoss=false" in text


@pytest.mark.peers
def test_a_checkpoint_of_other_stores(stream, small_store):
    stream(small_store)
    text = failure(lambda: stream(small_store, broker="other"))
    assert "expected the checkpoint of a stream over other" in text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"endingTimestamp": "1"}, "a stream does not end"),
        ({"endingOffsets": "latest"}, "a stream does not end"),
        ({"maxBytesPerTrigger": "1m", "maxOffsetsPerTrigger": "1"}, "not both"),
    ],
)
def test_options_that_a_stream_does_not_have(small_store, options, text):
    from rmqcore.spark.schema import schema_of
    from rmqcore.spark.source import RmqSource

    with pytest.raises(ConfigError, match=text):
        RmqSource({"path": str(small_store), **options}).streamReader(schema_of(("topic",)))


@pytest.mark.peers
def test_spark_shows_why_a_stream_is_refused(stream, small_store):
    assert "a stream does not end" in failure(lambda: stream(small_store, endingTimestamp="1"))


def test_an_offset_never_goes_back(small_store):
    from rmqcore.spark.options import read_options
    from rmqcore.spark.schema import checked_columns, schema_of
    from rmqcore.spark.stream import RmqStreamReader

    options = read_options({"path": str(small_store), "failOnDataLoss": "false"})
    reader = RmqStreamReader(options, checked_columns(schema_of(("topic",))))
    first = reader.latestOffset()
    assert json.loads(json.dumps(first)) == first
    file = sorted((small_store / "commitlog").iterdir())[-1]
    file.unlink()
    assert reader.latestOffset() == first


def test_a_stream_fills_a_table_whatever_becomes_of_its_checkpoint(spark, small_store, tmp_path):
    deltalake = pytest.importorskip("deltalake")
    place = str(tmp_path / "table")
    for checkpoint in ("first", "first", "lost"):
        frame = spark.readStream.format("rmq").options(startingOffsets="earliest", topics="T1")
        frame = frame.option("columns", "full").load(str(small_store))
        out = frame.writeStream.foreachBatch(BatchTable(place, topic="T1").write)
        out = out.option("checkpointLocation", str(tmp_path / checkpoint))
        query = out.trigger(availableNow=True).start()
        query.awaitTermination()
        put(small_store, 1000, 1003)
    table = deltalake.DeltaTable(place).to_pyarrow_table(columns=["unique_key", "properties"])
    assert numbers_of(table["unique_key"].to_pylist()) == [*range(1, 1000, 3), 1000, 1000]
    assert dict(table["properties"][0].as_py())["UNIQ_KEY"] == table["unique_key"][0].as_py()
