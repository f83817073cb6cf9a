"""A running cluster in a Spark session."""

import pytest
from patience import until

from rmqcore.client.blocking import Producer
from rmqcore.scan.cluster import Access, Cluster, read_range
from rmqcore.spark import read

pytestmark = pytest.mark.process


def test_a_topic_of_a_broker_is_a_frame(spark, rocketmq_broker, rocketmq_topic):
    with Producer(rocketmq_broker.namesrv_addr) as producer:
        for queue_id in range(2):
            producer.send_batch(rocketmq_topic, [b"%d" % n for n in range(50)], queue_id=queue_id)
    url = f"namesrv://{rocketmq_broker.namesrv_addr}/{rocketmq_topic}"
    frame = read(spark, url, accessKey="lake", secretKey="a-secret-of-lake")
    assert "a-secret-of-lake" not in frame._jdf.queryExecution().toString()
    rows = sorted(map(tuple, frame.select("broker", "queue_id", "body").collect()))
    expected = [("broker-a", q, bytearray(b"%d" % n)) for q in range(2) for n in range(50)]
    assert rows == sorted(expected)


@pytest.fixture
def keys_of(rocketmq_broker):
    """`keys_of(topic)`: (unique key, body) of all that a topic has."""
    access = Access(namesrv_addr=rocketmq_broker.namesrv_addr)

    def found(topic):
        with Cluster(access) as cluster:
            until(lambda: cluster.queues([topic]), "the route")
            ranges = cluster.ranges([topic])
        return [
            (row["unique_key"], row["body"])
            for one in ranges
            for batch in read_range(access, one, ("unique_key", "body"))
            for row in batch.to_arrow().to_pylist()
        ]

    return found


def test_a_job_that_is_run_again_sends_the_same_keys(
    spark, rocketmq_broker, rocketmq_topic, keys_of
):
    rows = spark.range(0, 300, 1, 2).selectExpr(
        "cast(id as string) body",
        "if(id % 3 = 0, null, 'new') tags",
        "if(id % 3 = 1, null, array('a', cast(id as string))) keys",
        "if(id % 3 = 2, null, map('b', cast(id as string))) properties",
        "if(id % 5 = 0, null, cast(id as int)) flag",
    )
    options = {"topic": rocketmq_topic, "jobId": "nightly"}
    options["namesrvAddr"] = rocketmq_broker.namesrv_addr
    for _ in range(2):
        rows.write.format("rmq").mode("append").options(**options).save()
    found = keys_of(rocketmq_topic)
    assert len(found) == 600
    assert len(set(found)) == len({key for key, _ in found}) == 300


def test_a_stream_that_goes_on_sends_a_batch_again_with_the_same_keys(
    spark, tmp_path, rocketmq_broker, rocketmq_topic, keys_of
):
    place = {"namesrvAddr": rocketmq_broker.namesrv_addr}
    source, sink = f"{rocketmq_topic}-in", f"{rocketmq_topic}-out"
    with Producer(rocketmq_broker.namesrv_addr) as producer:
        producer.send_batch(source, [b"%d" % number for number in range(100)])
    keys_of(source)

    def run():
        frame = spark.readStream.format("rmq").options(**place, subscribe=source)
        frame = frame.option("startingOffsets", "earliest").load().select("body")
        out = frame.writeStream.format("rmq").options(**place, topic=sink)
        out = out.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = out.trigger(availableNow=True).start()
        query.awaitTermination()

    run()
    first = keys_of(sink)
    assert sorted(body for _, body in first) == sorted(b"%d" % number for number in range(100))
    for name in ("0", ".0.crc"):  # died after it had sent, before it noted that
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    run()
    assert sorted(keys_of(sink)) == sorted(2 * first)


def test_rows_of_an_older_checkpoint_get_no_ids_that_others_have(
    spark, tmp_path, rocketmq_broker, rocketmq_topic, keys_of
):
    place = {"namesrvAddr": rocketmq_broker.namesrv_addr}
    source, sink = f"{rocketmq_topic}-in", f"{rocketmq_topic}-out"

    def send(first, count):
        with Producer(rocketmq_broker.namesrv_addr) as producer:
            for queue_id in range(2):
                bodies = [b"%d/%d" % (queue_id, first + number) for number in range(count)]
                producer.send_batch(source, bodies, queue_id=queue_id)

    def run():
        frame = spark.readStream.format("rmq").options(**place, subscribe=source)
        frame = frame.option("startingOffsets", "earliest").load().select("body")
        out = frame.writeStream.format("rmq").options(**place, topic=sink)
        out = out.option("checkpointLocation", str(tmp_path / "checkpoint"))
        out.trigger(availableNow=True).start().awaitTermination()

    send(0, 20)
    keys_of(source)
    run()
    before = keys_of(sink)
    for folder in ("offsets", "commits"):  # restored, or lost in a power cut
        for path in (tmp_path / "checkpoint" / folder).iterdir():
            path.unlink()
    send(20, 20)
    run()
    bodies = {}
    for key, body in keys_of(sink):
        bodies.setdefault(key, set()).add(body)
    assert {len(each) for each in bodies.values()} == {1}
    assert len(set().union(*bodies.values())) == 80
    assert {key for key, _ in before} <= bodies.keys()
