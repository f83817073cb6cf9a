"""A running cluster in a Spark session."""

import pytest

from rmqcore.client.blocking import Producer

pytestmark = pytest.mark.process


def test_a_topic_of_a_broker_is_a_frame(spark, rocketmq_broker, rocketmq_topic):
    with Producer(rocketmq_broker.namesrv_addr) as producer:
        for queue_id in range(2):
            producer.send_batch(rocketmq_topic, [b"%d" % n for n in range(50)], queue_id=queue_id)
    options = {"namesrvAddr": rocketmq_broker.namesrv_addr, "subscribe": rocketmq_topic}
    frame = spark.read.format("rmq").options(**options).load()
    counted = frame.groupBy("broker", "queue_id").count().collect()
    assert sorted(map(tuple, counted)) == [("broker-a", 0, 50), ("broker-a", 1, 50)]
    assert frame.select("body").distinct().count() == 50
