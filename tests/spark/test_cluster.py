"""A running cluster as a frame and as a stream: our broker, the source driven without a JVM."""

import pytest
from patience import until
from spark_by_hand import bodies_of, numbered, rows_of

from rmqcore.client.blocking import Admin, Producer
from rmqcore.scan.cluster import Access, Cluster
from rmqcore.testing import rocketmq_broker, rocketmq_topic  # noqa: F401 - fixtures

pytestmark = pytest.mark.engine

pytest.importorskip("pyspark.sql.streaming.datasource")


@pytest.fixture
def create(rocketmq_broker):  # noqa: F811
    """`create(topic, queues)`: the name server knows it when this ends."""

    def topic(name, queues=3):
        with Admin(rocketmq_broker.namesrv_addr) as admin:
            admin.create_topic(name, queues=queues)
        with Cluster(Access(namesrv_addr=rocketmq_broker.namesrv_addr)) as cluster:
            until(lambda: len(cluster.queues([name])) == queues, f"the route of {name}")
        return name

    return topic


@pytest.fixture
def topic(rocketmq_topic, create):  # noqa: F811
    """A topic with three queues."""
    return create(rocketmq_topic)


@pytest.fixture
def send(rocketmq_broker):  # noqa: F811
    """`send(topic, *bodies, queue_id=0)`."""
    with Producer(rocketmq_broker.namesrv_addr) as producer:

        def to_topic(topic, *bodies, queue_id=0):
            producer.send_batch(topic, bodies, queue_id=queue_id)

        yield to_topic


def reading(kind, broker, options):
    from rmqcore.spark.cluster_options import cluster_read_options
    from rmqcore.spark.schema import checked_columns, chosen_columns, schema_of

    found = cluster_read_options({"namesrvAddr": broker.namesrv_addr, **options})
    return kind(found, checked_columns(schema_of(chosen_columns(found.read))))


def batch(broker, **options):
    from rmqcore.spark.source import ClusterReader

    reader = reading(ClusterReader, broker, options)
    return rows_of(reader, reader.partitions())


def places(rows):
    return [(row["broker"], row["topic"], row["queue_id"], row["queue_offset"]) for row in rows]


def test_a_batch_has_every_message_of_a_topic_once(rocketmq_broker, topic, send):  # noqa: F811
    for queue_id in range(3):
        send(topic, *numbered(100), queue_id=queue_id)
    rows = batch(rocketmq_broker, subscribe=topic)
    assert places(rows) == [
        ("broker-a", topic, queue_id, offset) for queue_id in range(3) for offset in range(100)
    ]
    assert bodies_of(rows) == 3 * numbered(100)
