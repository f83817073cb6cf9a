"""A running cluster as a frame and as a stream: our broker, the source driven without a JVM."""

import json

import pyarrow as pa
import pytest
from patience import until
from spark_by_hand import bodies_of, numbered, rows_of

from rmqcore.client import outgoing
from rmqcore.client.blocking import Admin, Producer
from rmqcore.errors import (
    ArgumentError,
    ConfigError,
    CorruptRecordError,
    RmqCoreError,
    StoreError,
)
from rmqcore.lake import TableFollower
from rmqcore.scan.cluster import Access, Cluster, TopicMadeAnewError, arrow_dataset
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine

pytest.importorskip("pyspark.sql.streaming.datasource")


@pytest.fixture
def create(rocketmq_broker):
    """`create(topic, queues)`: the name server knows it when this ends."""

    def topic(name, queues=3):
        with Admin(rocketmq_broker.namesrv_addr) as admin:
            admin.create_topic(name, queues=queues)
        with Cluster(Access(namesrv_addr=rocketmq_broker.namesrv_addr)) as cluster:
            until(lambda: len(cluster.queues([name])) == queues, f"the route of {name}")
        return name

    return topic


@pytest.fixture
def remake(rocketmq_broker, create):
    """`remake(topic)`: deletes it, and makes it again."""

    def topic(name):
        with Admin(rocketmq_broker.namesrv_addr) as admin:
            admin.delete_topic(name)
        create(name)

    return topic


@pytest.fixture
def topic(rocketmq_topic, create):
    """A topic with three queues."""
    return create(rocketmq_topic)


@pytest.fixture
def send(rocketmq_broker):
    """`send(topic, *bodies, queue_id=0)`."""

    def to_topic(topic, *bodies, queue_id=0):
        with Producer(rocketmq_broker.namesrv_addr) as producer:
            producer.send_batch(topic, bodies, queue_id=queue_id)

    return to_topic


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


def test_a_batch_has_every_message_of_a_topic_once(rocketmq_broker, topic, send):
    for queue_id in range(3):
        send(topic, *numbered(100), queue_id=queue_id)
    rows = batch(rocketmq_broker, subscribe=topic)
    assert places(rows) == [
        ("broker-a", topic, queue_id, offset) for queue_id in range(3) for offset in range(100)
    ]
    assert bodies_of(rows) == 3 * numbered(100)


def test_times_cut_a_batch(rocketmq_broker, topic, send):
    send(topic, *numbered(50), queue_id=0)
    early = batch(rocketmq_broker, subscribe=topic)
    last_ms = round(max(row["store_timestamp"] for row in early).timestamp() * 1000)
    until(lambda: wall_clock_ms() > last_ms, "another millisecond")
    send(topic, *numbered(50), queue_id=0)
    send(topic, *numbered(50), queue_id=1)
    whole = batch(rocketmq_broker, subscribe=topic)
    border = str(last_ms + 1)
    assert batch(rocketmq_broker, subscribe=topic, endingTimestamp=border) == early
    late = batch(rocketmq_broker, subscribe=topic, startingTimestamp=border)
    assert late == [row for row in whole if row not in early]
    assert len(late) == 100
    after = {topic: {"broker-a": {"0": last_ms + 600_000}}}
    with pytest.raises(ConfigError, match="nothing was stored then or later"):
        batch(rocketmq_broker, subscribe=topic, startingOffsetsByTimestamp=json.dumps(after))


# ---- streams


class Stream:
    """A stream over a broker of which each trigger is asked for by hand."""

    def __init__(self, broker, at=None, **options):
        from rmqcore.spark.limited_cluster_stream import LimitedClusterStreamReader

        self.reader = reading(LimitedClusterStreamReader, broker, options)
        self.at = at or self.reader.initialOffset()

    def trigger(self):
        end = self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())
        end = json.loads(json.dumps(end))
        rows = rows_of(self.reader, self.reader.partitions(self.at, end))
        self.at = end
        return rows


def test_a_stream_begins_at_the_end_and_has_what_comes(rocketmq_broker, topic, send):
    send(topic, b"old")
    stream = Stream(rocketmq_broker, subscribe=topic)
    assert stream.trigger() == []
    send(topic, b"new", b"newer")
    assert bodies_of(stream.trigger()) == [b"new", b"newer"]
    send(topic, b"last", queue_id=2)
    again = Stream(rocketmq_broker, at=stream.at, subscribe=topic)
    assert bodies_of(again.trigger()) == [b"last"]
    assert again.trigger() == []


def test_a_time_to_begin_with_is_not_asked_again_of_a_stream_with_a_checkpoint(
    rocketmq_broker, topic, send
):
    hour_ms = 3_600_000
    early, late = (str(wall_clock_ms() + hours * hour_ms) for hours in (-1, 1))
    begun = (
        {"startingOffsets": "earliest"},
        {"startingTimestamp": early},
        {"startingOffsetsByTimestamp": json.dumps({topic: {"0": int(early)}})},
    )
    send(topic, b"old")
    streams = [Stream(rocketmq_broker, subscribe=topic, **options) for options in begun]
    assert [bodies_of(stream.trigger()) for stream in streams] == 3 * [[b"old"]]
    send(topic, b"new")
    later = {"subscribe": topic, "startingTimestamp": late}
    for stream in streams:
        again = Stream(rocketmq_broker, at=stream.at, **later)
        assert bodies_of(again.trigger()) == [b"new"]
        assert again.at["starting"] == stream.at["starting"]


def test_topics_and_queues_that_are_new_enter_at_their_earliest(
    rocketmq_broker,
    rocketmq_topic,
    create,
    send,
):
    old, new = create(f"{rocketmq_topic}-a", queues=1), f"{rocketmq_topic}-b"
    send(old, b"before")
    pattern = f"{rocketmq_topic}-."
    stream = Stream(rocketmq_broker, subscribePattern=pattern)
    assert stream.trigger() == []
    create(new, queues=1)
    send(new, b"first of the topic")
    create(old, queues=2)
    send(old, b"first of the queue", queue_id=1)
    assert bodies_of(stream.trigger()) == [b"first of the queue", b"first of the topic"]
    assert stream.trigger() == []


def test_a_limit_is_shared_by_the_backlog(rocketmq_broker, topic, send):
    send(topic, *numbered(300), queue_id=0)
    send(topic, *numbered(100), queue_id=1)
    stream = Stream(
        rocketmq_broker, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="40"
    )
    rows = stream.trigger()
    assert [row["queue_id"] for row in rows] == 30 * [0] + 10 * [1]
    report = stream.reader.reportLatestOffset()
    assert report["messages_behind"] == 360
    assert report["lag"] == {topic: {"broker-a": {"0": 270, "1": 90}}}
    while more := stream.trigger():
        assert len(more) <= 40
        rows += more
    assert len(set(places(rows))) == len(rows) == 400


def test_a_limit_holds_when_the_route_of_a_new_topic_is_lost_for_a_moment(
    rocketmq_broker, rocketmq_topic, create, send, monkeypatch
):
    pattern = f"{rocketmq_topic}-."
    stream = Stream(rocketmq_broker, subscribePattern=pattern, maxOffsetsPerTrigger="10")
    send(create(f"{rocketmq_topic}-a", queues=1), *numbered(25))
    begins = stream.reader.begins_of_new

    def lost(ends, start):
        with monkeypatch.context() as patch:
            patch.setattr(Cluster, "queues", lambda *_: {})
            return begins(ends, start)

    with monkeypatch.context() as patch:
        patch.setattr(stream.reader, "begins_of_new", lost)
        assert stream.trigger() == []
    assert [len(stream.trigger()) for _ in range(4)] == [10, 10, 5, 0]


def test_available_now_ends_at_what_there_was(rocketmq_broker, topic, send):
    send(topic, *numbered(10))
    stream = Stream(
        rocketmq_broker, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="4"
    )
    stream.reader.prepareForTriggerAvailableNow()
    send(topic, *numbered(10))
    assert [len(stream.trigger()) for _ in range(4)] == [4, 4, 2, 0]


def test_a_trigger_waits_for_so_many_messages(rocketmq_broker, topic, send):
    stream = Stream(rocketmq_broker, subscribe=topic, minOffsetsPerTrigger="3")
    assert stream.trigger() == []
    send(topic, b"a", b"b")
    assert stream.trigger() == []
    send(topic, b"c", queue_id=1)
    assert len(stream.trigger()) == 3


def test_only_a_group_that_is_named_gets_the_progress(rocketmq_broker, topic, send):
    send(topic, *numbered(5))
    with Admin(rocketmq_broker.namesrv_addr) as admin:
        for group, groups in (({}, []), ({"groupId": "Lake"}, ["Lake"])):
            options = {"subscribe": topic, "startingOffsets": "earliest", **group}
            stream = Stream(rocketmq_broker, **options)
            assert len(stream.trigger()) == 5
            assert admin.topic_groups(topic) == []
            stream.reader.commit(stream.at)
            assert admin.topic_groups(topic) == groups
        progress = admin.consumer_progress("Lake", topic)
    assert [entry.consumer_offset for entry in progress] == [5, 0, 0]


# ---- what is there no more


def test_a_topic_that_was_made_anew_is_told(rocketmq_broker, topic, create, send):
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    send(topic, *numbered(10))
    stream = Stream(rocketmq_broker, **options)
    assert len(stream.trigger()) == 10
    with Admin(rocketmq_broker.namesrv_addr) as admin:
        admin.delete_topic(topic)
    create(topic)
    send(topic, b"of the new one")
    with pytest.raises(StoreError, match="ends at 1, before 10"):
        stream.trigger()
    for is_available_now in (False, True):
        on = Stream(rocketmq_broker, at=stream.at, **options, failOnDataLoss="false")
        if is_available_now:
            on.reader.prepareForTriggerAvailableNow()
        assert bodies_of(on.trigger()) == [b"of the new one"]
        assert on.trigger() == []


@pytest.mark.parametrize("group", [{}, {"groupId": "Lake"}])
@pytest.mark.parametrize("count", [10, 15])
def test_a_topic_that_was_made_anew_is_told_however_long_it_is(
    rocketmq_broker, topic, remake, send, count, group
):
    options = {"subscribe": topic, "startingOffsets": "earliest", **group}
    send(topic, *numbered(10))
    stream = Stream(rocketmq_broker, **options)
    assert len(stream.trigger()) == 10
    stream.reader.commit(stream.at)
    remake(topic)
    send(topic, *numbered(count))
    with pytest.raises(StoreError, match="failOnDataLoss"):
        stream.trigger()
    loose = {**options, "failOnDataLoss": "false", "maxOffsetsPerTrigger": "12"}
    on = Stream(rocketmq_broker, at=stream.at, **loose)
    rows = [row for _ in range(3) for row in on.trigger()]
    assert [row["queue_offset"] for row in rows] == list(range(count))
    send(topic, b"more")
    assert bodies_of(on.trigger()) == [b"more"]


def test_a_batch_of_which_the_topic_was_made_anew_is_not_of_the_new_one(
    rocketmq_broker, topic, remake, send
):
    from rmqcore.spark.source import ClusterReader

    send(topic, *numbered(10))
    loose = {"subscribe": topic, "failOnDataLoss": "false"}
    strict = reading(ClusterReader, rocketmq_broker, {"subscribe": topic})
    planned = strict.partitions()
    dataset = arrow_dataset(f"namesrv://{rocketmq_broker.namesrv_addr}/{topic}")
    stream = Stream(rocketmq_broker, **loose, startingOffsets="earliest")
    end = stream.reader.latestOffset(stream.at, stream.reader.getDefaultReadLimit())
    remake(topic)
    send(topic, *numbered(20))
    with pytest.raises(TopicMadeAnewError, match="plan anew"):
        rows_of(strict, planned)
    with pytest.raises(TopicMadeAnewError):
        dataset.count_rows()
    assert rows_of(reading(ClusterReader, rocketmq_broker, loose), planned) == []
    # a stream has told its end, and gives what was made anew with the next batch
    assert rows_of(stream.reader, stream.reader.partitions(stream.at, end)) == []
    stream.at = end
    assert len(stream.trigger()) == 20


def test_a_table_that_follows_a_broker_is_not_given_another_topic(
    rocketmq_broker, topic, remake, send, tmp_path
):
    url = f"namesrv://{rocketmq_broker.namesrv_addr}/{topic}"
    send(topic, *numbered(10))
    assert TableFollower(url, tmp_path / "table").run_once().rows == 10
    send(topic, b"more")
    assert TableFollower(url, tmp_path / "table").run_once().rows == 1
    assert TableFollower(url, tmp_path / "table").run_once().rows == 0
    remake(topic)
    send(topic, *numbered(11))
    with pytest.raises(RmqCoreError, match="another message 10"):
        TableFollower(url, tmp_path / "table").run_once()


def test_a_body_of_a_broker_that_does_not_decompress_stops_no_table(
    rocketmq_broker, topic, send, tmp_path, monkeypatch
):
    send(topic, b"whole", queue_id=1)
    monkeypatch.setattr(outgoing.zlib, "compress", lambda *_: b"no zlib")
    with Producer(rocketmq_broker.namesrv_addr, compress_above=1) as producer:
        producer.send(topic, b"one", queue_id=0)
    url = f"namesrv://{rocketmq_broker.namesrv_addr}/{topic}"
    done = TableFollower(url, tmp_path / "table").run_once()
    assert (done.rows, done.refused, done.behind) == (1, 1, 0)


@pytest.mark.parametrize("rows", ["1", "3", "4096"])
def test_a_body_of_a_broker_that_does_not_decompress_is_passed_over_without_fail_on_data_loss(
    rocketmq_broker, topic, send, monkeypatch, rows
):
    send(topic, *numbered(5), queue_id=0)
    with monkeypatch.context() as patched:
        patched.setattr(outgoing.zlib, "compress", lambda *_: b"no zlib")
        with Producer(rocketmq_broker.namesrv_addr, compress_above=1) as producer:
            producer.send(topic, b"bad", queue_id=0)
    with Producer(rocketmq_broker.namesrv_addr, compress_above=1) as producer:
        producer.send(topic, b"compressed", queue_id=0)
    send(topic, b"last", queue_id=0)
    options = {"subscribe": topic, "decompressBody": "true", "batchRows": rows}
    with pytest.raises(CorruptRecordError, match="does not decompress"):
        batch(rocketmq_broker, **options)
    found = batch(rocketmq_broker, **options, failOnDataLoss="false")
    assert [row["body"] for row in found] == [*numbered(5), b"compressed", b"last"]


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
def test_offsets_behind_the_end_are_told(rocketmq_broker, topic, send, name):
    send(topic, *numbered(10))
    options = {"subscribe": topic, name: json.dumps({topic: {"broker-a": {"0": 11}}})}
    with pytest.raises(StoreError, match="ends at 10"):
        batch(rocketmq_broker, **options)
    rows = batch(rocketmq_broker, **options, failOnDataLoss="false")
    assert len(rows) == (0 if name == "startingOffsets" else 10)


# ---- what else a frame has of a cluster


def queues_of(partition):
    return [(one.range.queue.queue_id, one.range.count) for one in partition.ranges]


def test_queues_with_little_to_read_share_a_task(rocketmq_broker, topic, send):
    from rmqcore.spark.source import ClusterReader

    for queue_id in range(3):
        send(topic, *numbered(10), queue_id=queue_id)
    reader = reading(ClusterReader, rocketmq_broker, {"subscribe": topic})
    (part,) = reader.partitions()
    assert queues_of(part) == [(0, 10), (1, 10), (2, 10)]
    apart = reading(ClusterReader, rocketmq_broker, {"subscribe": topic, "minPartitions": "3"})
    assert [queues_of(part) for part in apart.partitions()] == [[(0, 10)], [(1, 10)], [(2, 10)]]


def test_a_batch_is_cut_for_tasks_and_has_only_what_is_chosen(rocketmq_broker, topic, send):
    from rmqcore.spark.source import ClusterReader

    for queue_id in range(3):
        send(topic, *numbered(10), queue_id=queue_id)
    reader = reading(
        ClusterReader,
        rocketmq_broker,
        {"assign": json.dumps({topic: [0, 2]}), "maxRecordsPerPartition": "4"},
    )
    parts = reader.partitions()
    assert [queues_of(part) for part in parts] == [
        *([(0, count)] for count in (4, 4, 2)),
        *([(2, count)] for count in (4, 4, 2)),
    ]
    assert len(set(places(rows_of(reader, parts)))) == 20
    middle = {"startingOffsets": {topic: {"broker-a": {"0": 3}}}}
    middle["endingOffsets"] = {topic: {"0": 5, "1": -1}}
    texts = {name: json.dumps(value) for name, value in middle.items()}
    rows = batch(rocketmq_broker, subscribe=topic, queueIds="0,1", **texts)
    assert [row["queue_offset"] for row in rows] == [3, 4, *range(10)]


def test_rows_of_a_table_are_sent_with_keys_that_can_be_told_again(rocketmq_broker, topic):
    table = {"body": ["a", "b", "c"], "queue_id": [0, 1, 0], "tags": ["x", None, "y"]}
    sent = []
    settings = {"topic": topic, "unique_prefix": "0123456789ABCDEF"}
    settings["on_batch"] = lambda result, count: sent.append((result.queue_id, count))
    with Producer(rocketmq_broker.namesrv_addr) as producer:
        for _ in range(2):
            assert producer.send_columns(pa.table(table), **settings) == []
        assert sorted(sent) == 2 * [(0, 2)] + 2 * [(1, 1)]
        with pytest.raises(ArgumentError, match="unique_prefix"):
            producer.send_columns(pa.table(table), topic=topic, unique_prefix="short")
    rows = batch(rocketmq_broker, subscribe=topic)
    keys = {row["body"]: row["unique_key"] for row in rows}
    assert len(rows) == 6
    assert keys == {
        body: f"0123456789ABCDEF{number:016X}" for number, body in enumerate((b"a", b"b", b"c"))
    }
    tagged = batch(rocketmq_broker, subscribe=topic, tags="x || y")
    assert bodies_of(tagged) == [b"a", b"c"] * 2


def test_what_waits_at_a_broker_is_no_row_unless_it_is_named(rocketmq_broker, topic):
    with Producer(rocketmq_broker.namesrv_addr) as producer:
        producer.send(topic, b"now", queue_id=0)
        producer.send(topic, b"in two hours", queue_id=0, delay_level=18)
    assert bodies_of(batch(rocketmq_broker, subscribePattern=f"{topic}|SCHEDULE.*")) == [b"now"]
    waiting = batch(rocketmq_broker, subscribe="SCHEDULE_TOPIC_XXXX")
    assert b"in two hours" in bodies_of(waiting)


def test_what_retention_takes_before_it_is_read_is_told(rocketmq_broker, topic, send, monkeypatch):
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    send(topic, *numbered(5))
    stream = Stream(rocketmq_broker, **options)
    assert len(stream.trigger()) == 5
    send(topic, *numbered(5))
    monkeypatch.setattr(Cluster, "begins", lambda _, queues: dict.fromkeys(queues, 7))
    with pytest.raises(StoreError, match="begins at 7; 5 and what follows"):
        stream.trigger()
    on = Stream(rocketmq_broker, at=stream.at, **options, failOnDataLoss="false")
    assert [row["queue_offset"] for row in on.trigger()] == [7, 8, 9]


def test_a_slave_that_is_behind_moves_no_stream_back(rocketmq_broker, topic, send, monkeypatch):
    send(topic, *numbered(5))
    stream = Stream(rocketmq_broker, subscribe=topic, startingOffsets="earliest")
    assert len(stream.trigger()) == 5
    at = stream.at

    def ends_of_a_slave(cluster, queues, away=None):
        cluster.followed.add("broker-a")
        return dict.fromkeys(queues, 0)

    monkeypatch.setattr(Cluster, "ends", ends_of_a_slave)
    assert stream.trigger() == []
    assert stream.at == at
