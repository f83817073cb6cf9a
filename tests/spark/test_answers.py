"""What a frame or stream answers: never fewer rows, never more, than were asked for, in silence.

The data source is driven as Spark's worker does it, without a JVM.
"""

import os
import re
import shutil
import zlib

import pyarrow as pa
import pytest
from spark_by_hand import Stream, batch, bodies_of, numbered, put, rows_of
from staged_rows import pairs, stage

from rmqcore import open_store
from rmqcore.errors import ConfigError, CorruptRecordError, MessageIllegalError, StoreError
from rmqcore.scan.plan import LogPlan
from rmqcore.scan.queue_units import QueueUnits
from rmqcore.transfer.archive import Archiver

pytestmark = pytest.mark.engine

pytest.importorskip("pyspark.sql.streaming.datasource")


# ---- ranges


@pytest.fixture
def aged(store_path):
    """A store whose queue T/0 begins at its 300th message or so."""
    put(store_path, "T", *numbered(1000, 200))
    for file in sorted((store_path / "commitlog").iterdir())[:2]:
        file.unlink()
    return store_path


DELETED = [
    {"startingOffsets": '{"T":{"0":0}}'},
    {"startingPhyOffset": "0"},
    {"startingOffsets": '{"T":{"0":1001}}'},
]
DELETED_WHOLE = [{"endingOffsets": '{"T":{"0":1}}'}, {"endingPhyOffset": "1"}]
BEYOND = [
    {"endingOffsets": '{"T":{"0":1001}}'},
    {"endingPhyOffset": str(1 << 40)},
]


@pytest.mark.parametrize("options", DELETED + BEYOND)
def test_a_range_that_is_not_there_whole_fails_a_batch(aged, options):
    with pytest.raises(StoreError, match="failOnDataLoss=false"):
        batch(aged, **options)
    left = len(batch(aged, **options, failOnDataLoss="false"))
    assert left == (0 if "1001" in str(options.get("startingOffsets")) else len(batch(aged)))


@pytest.mark.parametrize("options", DELETED_WHOLE)
def test_a_range_that_ended_before_what_is_there_fails_a_batch(aged, options):
    with pytest.raises(StoreError, match="failOnDataLoss=false"):
        batch(aged, **options)
    assert batch(aged, **options, failOnDataLoss="false") == []
    ((name, value),) = options.items()
    assert batch(aged, **{name: value.replace("1", "0")}) == []


@pytest.mark.parametrize("options", DELETED)
def test_a_range_that_is_not_there_whole_fails_a_stream(aged, options):
    with pytest.raises(StoreError, match="failOnDataLoss=false"):
        Stream(aged, **options)


def test_an_end_that_the_writer_has_not_dispatched_yet_is_there(store_path):
    put(store_path, "T", *numbered(10))
    with open_store(store_path) as store:
        store.put("T", b"last")
        assert len(batch(store_path, endingOffsets='{"T":{"0":11}}')) == 11


def test_latest_of_a_queue_is_where_the_log_ends_when_the_stream_begins(store_path):
    put(store_path, "T", *numbered(5))
    put(store_path, "T", b"other queue", queue_id=1)
    stream = Stream(store_path, startingOffsets='{"T":{"0":-1}}')
    assert bodies_of(stream.trigger()) == [b"other queue"]
    put(store_path, "T", b"new")
    at = stream.at
    assert bodies_of(stream.trigger()) == [b"new"]
    again = Stream(store_path, at=at, startingOffsets='{"T":{"0":-1}}')
    assert bodies_of(again.trigger()) == [b"new"]


@pytest.mark.parametrize(
    "options", [{"startingOffsets": '{"T":{"0":-1}}'}, {"endingOffsets": '{"T":{"0":-2}}'}]
)
def test_a_batch_that_would_be_empty_is_refused(store_path, options):
    put(store_path, "T", b"x")
    with pytest.raises(ConfigError, match="is empty"):
        batch(store_path, **options)


def test_a_start_at_time_0_is_the_log_s_begin(store_path):
    put(store_path, "T", *numbered(5))
    assert len(Stream(store_path, startingTimestamp="0").trigger()) == 5


# ---- what a stream is of


def test_a_topic_added_to_a_stream_is_read_from_its_first_message_on(store_path):
    for topic in ("A", "B", "C"):
        put(store_path, topic, *numbered(10))
    stream = Stream(store_path, startingOffsets="earliest", topics="A")
    assert len(stream.trigger()) == 10
    for topic in ("A", "B", "C"):
        put(store_path, topic, *numbered(5))
    again = Stream(store_path, at=stream.at, startingOffsets="earliest", topics="A,B")
    topics = [row["topic"] for row in again.trigger()]
    assert (topics.count("A"), topics.count("B"), topics.count("C")) == (5, 15, 0)
    assert again.trigger() == []
    every = Stream(store_path, at=again.at, startingOffsets="earliest")
    assert [row["topic"] for row in every.trigger()] == ["C"] * 15


def test_a_queue_added_to_a_stream_is_read_from_its_first_message_on(store_path):
    def more(count):
        for topic in ("A", "B"):
            for queue_id in (0, 1):
                put(store_path, topic, *numbered(count), queue_id=queue_id)

    def triggered(at=None, **options):
        stream = Stream(store_path, at=at, startingOffsets="earliest", **options)
        rows = [(row["topic"], row["queue_id"]) for row in stream.trigger()]
        assert stream.trigger() == []
        return stream.at, {place: rows.count(place) for place in sorted(set(rows))}

    more(10)
    at, rows = triggered(topics="A", queueIds="1")
    assert rows == {("A", 1): 10}
    older = {name: value for name, value in at.items() if name != "queues"}
    more(5)
    assert triggered(older, topics="A", queueIds="1")[1] == {("A", 1): 5}
    assert triggered(at, topics="A", queueIds="0")[1] == {("A", 0): 15}
    at, rows = triggered(at, topics="A,B", queueIds="1,0")
    assert rows == {("A", 0): 15, ("A", 1): 5, ("B", 0): 15, ("B", 1): 15}
    assert triggered(at, topics="A,B")[1] == {}


def test_a_batch_that_is_planned_again_is_of_the_topics_it_was_of(store_path):
    put(store_path, "A", *numbered(10))
    put(store_path, "B", *numbered(10))
    stream = Stream(store_path, startingOffsets="earliest", topics="A")
    start = stream.at
    stream.trigger()
    again = Stream(store_path, at=start, startingOffsets="earliest", topics="A,B")
    rows = rows_of(again.reader, again.reader.partitions(start, stream.at))
    assert {row["topic"] for row in rows} == {"A"}


def test_a_checkpoint_of_the_first_version_goes_on(store_path):
    put(store_path, "A", *numbered(10))
    stream = Stream(store_path, startingOffsets="earliest")
    stream.trigger()
    put(store_path, "A", b"new")
    old = {"version": 1, "phy_offset": stream.at["phy_offset"]}
    assert bodies_of(Stream(store_path, at=old, startingOffsets="earliest").trigger()) == [b"new"]


def test_a_broker_added_to_a_stream_is_read_from_its_first_message_on(tmp_path):
    a, b, c = (tmp_path / name for name in "abc")
    for path in (a, b, c):
        put(path, "T", *numbered(10))
    stream = Stream([a, b], startingOffsets="latest")
    assert stream.trigger() == []
    put(a, "T", b"new")
    rows = Stream([a, b, c], at=stream.at, startingOffsets="latest").trigger()
    assert [row["broker"] for row in rows] == ["a"] + 10 * ["c"]


def test_stores_share_a_limit_of_rows_by_their_backlog(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    put(a, "T", *numbered(300))
    put(b, "T", *numbered(100))
    stream = Stream([a, b], startingOffsets="earliest", maxOffsetsPerTrigger="40")
    seen = [row["broker"] for row in stream.trigger()]
    assert (seen.count("a"), seen.count("b")) == (30, 10)
    total = [*seen]
    while rows := stream.trigger():
        assert len(rows) <= 40
        total += [row["broker"] for row in rows]
    assert (total.count("a"), total.count("b")) == (300, 100)


def test_a_log_that_others_outrun_is_read_under_a_limit(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    put(a, "T", *numbered(3))
    put(b, "T", *numbered(9))
    stream = Stream([a, b], startingOffsets="earliest", maxOffsetsPerTrigger="1")
    for _ in range(9):
        put(a, "T", b"new")
        assert "b" in {row["broker"] for row in stream.trigger()}


# ---- what a message is


def test_a_deleted_topic_has_no_rows_however_it_is_asked_for(store_path):
    put(store_path, "Kept", b"x")
    put(store_path, "Gone", *numbered(10))
    with open_store(store_path) as store:
        store.put("Kept", b"x")
        store.delete_topic("Gone")
    put(store_path, "Gone", b"new")
    for options in ({"topics": "Gone"}, {"topics": "Gone,Kept"}, {}, {"subscribePattern": "G.*"}):
        rows = [row for row in batch(store_path, **options) if row["topic"] == "Gone"]
        assert bodies_of(rows) == [b"new"], options


def test_a_worker_hears_of_topics_that_were_deleted_since_it_has_opened_the_archive(tmp_path):
    path, archive = tmp_path / "store", str(tmp_path / "archive")
    put(path, "Kept", *numbered(4, size=30_000))
    put(path, "Gone", *numbered(4, size=30_000))
    put(path, "Kept", b"x" * 60_000)
    Archiver(path, archive).run_once()
    assert len(batch(path, topics="Gone", archive=archive)) == 4
    with open_store(path) as store:
        store.delete_topic("Gone")
    put(path, "Kept", *numbered(9, size=30_000))
    Archiver(path, archive).run_once()
    for file in sorted((path / "commitlog").iterdir())[:-1]:
        file.unlink()
    put(path, "Gone", b"new")
    rows = batch(path, topics="Gone", archive=archive)
    assert bodies_of(rows) == [b"new"]
    (end,) = {row["phy_offset"] for row in rows}
    assert batch(path, topics="Gone", archive=archive, endingPhyOffset=str(end)) == []


@pytest.mark.parametrize("options", [{}, {"topics": "T"}, {"batchRows": "1"}], ids=str)
def test_a_body_that_does_not_decompress_is_passed_over_without_fail_on_data_loss(
    store_path, options
):
    bodies = [b"no zlib", zlib.compress(b"one"), b"no zlib", b"", zlib.compress(b"two"), b"no zlib"]
    marked = pa.table({"body": bodies, "sys_flag": pa.array([1] * len(bodies), pa.int32())})
    put(store_path, "T", b"plain")
    put(store_path, "U", *numbered(20, size=3000))
    with open_store(store_path) as store:
        store.put_columns(marked, topic="T")
    put(store_path, "T", b"last")
    asked = {"decompressBody": "true", **options}
    with pytest.raises(CorruptRecordError, match="does not decompress"):
        batch(store_path, **asked)
    rows = batch(store_path, **asked, failOnDataLoss="false")
    found = [row["body"] for row in rows if row["topic"] == "T"]
    assert found == [b"plain", b"one", b"", b"two", b"last"]
    assert len(batch(store_path, **options)) == len(rows) + 3
    stream = Stream(store_path, startingOffsets="earliest", failOnDataLoss="false", **asked)
    assert stream.trigger() == rows


SERVICES = [
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    "rmq_sys_wheel_timer",
]


@pytest.mark.parametrize("topic", SERVICES)
def test_what_waits_in_a_broker_s_own_topics_is_no_row_unless_asked_for(store_path, topic):
    put(store_path, "T", b"x")
    put(store_path, topic, b"waits")
    assert bodies_of(batch(store_path)) == [b"x"]
    assert bodies_of(batch(store_path, subscribePattern=".*")) == [b"x"]
    assert bodies_of(batch(store_path, topics=topic)) == [b"waits"]
    assert bodies_of(batch(store_path, includeUncommitted="true")) == [b"x", b"waits"]


# ---- what may be appended


def staged(path, properties=None, **settings):
    columns = {"body": ["x"], "properties": pairs({"UNIQ_KEY": "U"} | (properties or {}))}
    return stage(path / "spark" / "staging-t" / "0.rows", columns, **settings)


@pytest.mark.parametrize(
    ("topic", "properties"),
    [("T", {"DELAY": "3"}), *((topic, {}) for topic in SERVICES)],
)
def test_a_message_that_is_to_wait_is_appended_as_a_copy_only(store_path, topic, properties):
    from rmqcore.spark.log_owner import append_staged

    with pytest.raises(MessageIllegalError, match=r"copy=[Tt]rue"):
        staged(store_path, properties, topic=topic)
    file = staged(store_path, properties, topic=topic, copy=True)
    assert append_staged(str(store_path), None, "job-x", 0, [file]) == 1


@pytest.mark.parametrize("sys_flag", [4, 12])
def test_a_row_of_a_transaction_that_is_not_committed_is_refused(tmp_path, sys_flag):
    columns = {"body": ["x", "y"], "sys_flag": [8, sys_flag]}
    with pytest.raises(MessageIllegalError, match=r"row 1, .* not committed"):
        stage(tmp_path / "0.rows", columns, copy=True)


def test_rows_of_a_stream_without_a_query_are_refused_and_not_forgotten(store_path):
    from pyspark.sql.types import BinaryType, StructField, StructType

    from rmqcore.spark.options import write_options
    from rmqcore.spark.stream_write import RmqStreamWriter
    from rmqcore.spark.write import Staged

    open_store(store_path).close()
    schema = StructType([StructField("body", BinaryType())])
    options = write_options({"path": str(store_path), "topic": "T"})
    writer = RmqStreamWriter(schema, options, overwrite=False)
    file = staged(store_path)
    with pytest.raises(StoreError, match="of which query"):
        writer.commit([Staged(file, 0, None, 0)], 0)
    writer.commit([None], 0)
    writer.commit([Staged(file, 0, "q", 0)], 0)
    assert bodies_of(batch(store_path)) == [b"x"]


@pytest.mark.parametrize(
    ("batch_id", "row_count", "content_sum"), [(1, 2, 1), (0, 1, 0), (1, 1, 7)]
)
def test_a_batch_of_a_checkpoint_that_is_older_than_the_store_is_refused(
    store_path, batch_id, row_count, content_sum
):
    """Behind a restored checkpoint, or files of it that a power cut took, Spark plans anew."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    from rmqcore.spark.options import write_options
    from rmqcore.spark.stream_write import RmqStreamWriter
    from rmqcore.spark.write import Staged

    schema = StructType([StructField("body", BinaryType())])
    options = write_options({"path": str(store_path), "topic": "T"})
    writer = RmqStreamWriter(schema, options, overwrite=False)

    def commit(batch_id, row_count, content_sum=None):
        path = store_path / "spark" / "staging-t" / "0.rows"
        file = stage(path, {"body": [f"{batch_id}"] * row_count})
        found = batch_id if content_sum is None else content_sum
        writer.commit([Staged(file, 0, "q", found)], batch_id)

    for number in (0, 1, 1):
        commit(number, 1)
    with pytest.raises(StoreError, match=r"query-q\.json: .* checkpoint is older than the store"):
        commit(batch_id, row_count, content_sum)
    commit(2, 1)
    with open_store(store_path, mode="r") as store:
        assert sorted(bytes(each.body) for each in store.messages()) == [b"0", b"1", b"2"]
    with pytest.raises(StoreError) as refused:
        commit(2, 2)
    (facts,) = re.findall(r"write (.*) into this file", str(refused.value))
    # so an earlier release wrote it, too
    (store_path / "spark" / "query-q.json").write_text(facts)
    commit(2, 2)
    commit(3, 1)
    with open_store(store_path, mode="r") as store:
        assert sorted(bytes(each.body) for each in store.messages()) == [b"0", b"1", b"2", b"3"]


def test_a_commit_waits_for_the_end_of_another_writer(store_path, monkeypatch):
    from rmqcore.spark import log_owner

    file = staged(store_path)
    other = open_store(store_path)
    monkeypatch.setattr(log_owner, "monotonic_s", lambda: 0)
    monkeypatch.setattr(log_owner, "sleep", lambda _seconds: other.close())
    assert log_owner.append_staged(str(store_path), None, "j", 0, [file], lock_timeout_s=1) == 1


# ---- where a log is cut


@pytest.fixture
def busy(store_path):
    """1.2 MB of one queue in a log file of 8 MiB, and four queues that nothing came into since."""
    with open_store(store_path, mapped_file_size_commit_log=8 << 20) as store:
        for queue_id in range(4):
            store.put("Zidle", b"x", queue_id=queue_id)
        store.flush()
        for number in range(1200):
            store.put("Busy", b"%01000d" % number)
    return store_path


@pytest.mark.parametrize("queues", ["kept", "lost", "equally old"])
def test_a_split_ends_near_where_it_should_whatever_queues_there_are(busy, queues):
    from rmqcore.scan import plan, read

    if queues == "lost":
        shutil.rmtree(busy / "consumequeue")
    for path in (busy / "consumequeue").glob("*/*/*") if queues == "equally old" else ():
        os.utime(path, (1, 1))
    splits = plan(busy, split_size=100_000)
    assert max(split.size for split in splits) < 180_000
    batches = [pa.record_batch(b) for split in splits for b in read(split, ("phy_offset",))]
    assert sum(batch.num_rows for batch in batches) == 1204


def test_a_trigger_asks_none_of_many_queues_for_what_is_new(store_path, monkeypatch):
    asked = []
    with open_store(store_path) as store:
        for number in range(400):
            store.put(f"T{number}", b"old")
    with open_store(store_path) as store:
        stream = Stream(store_path, startingOffsets="latest", maxOffsetsPerTrigger="2")
        narrow = Stream(store_path, startingOffsets="latest", maxOffsetsPerTrigger="2", tags="a")
        assert stream.trigger() == narrow.trigger() == []
        monkeypatch.setattr(LogPlan, "_fresh_queues", lambda plan: asked.append(plan) or [])
        monkeypatch.setattr(QueueUnits, "between", lambda units, *key: asked.append(key))
        for number in range(5):
            store.put(f"T{number}", b"new%d" % number, tags="ab"[number % 2])
        store.flush()
        found = [bodies_of(stream.trigger()) for _ in range(3)]
        assert found == [[b"new0", b"new1"], [b"new2", b"new3"], [b"new4"]]
        # what is filtered out makes a batch smaller, and its end not later
        assert [bodies_of(narrow.trigger()) for _ in range(2)] == [[b"new0"], [b"new2"]]
    assert asked == []


def test_a_stream_that_is_far_behind_follows_the_log_with_few_and_with_many_queues(store_path):
    with open_store(store_path, mapped_file_size_commit_log=1 << 20) as store:
        for number in range(3000):
            store.put(f"T{number % 30}", b"%d" % number)
    stream = Stream(store_path, startingOffsets="earliest", maxOffsetsPerTrigger="700")
    one = Stream(store_path, startingOffsets="earliest", maxOffsetsPerTrigger="70", topics="T3")
    assert [bodies_of(stream.trigger()) for _ in range(6)] == [
        [b"%d" % number for number in range(start, min(3000, start + 700))]
        for start in range(0, 4200, 700)
    ]
    assert [len(one.trigger()) for _ in range(3)] == [70, 30, 0]


@pytest.mark.parametrize("topics", [{}, {"topics": "T,Other"}], ids=["all", "named"])
@pytest.mark.parametrize("lacks", ["a queue", "a topic", "what is dispatched just now"])
def test_a_limit_counts_messages_that_their_consume_queues_do_not_know(store_path, lacks, topics):
    queues = store_path / "consumequeue"

    def sizes():
        limit = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
        stream = Stream(store_path, **limit, **topics)
        return [len(stream.trigger()) for _ in range(5)]

    with open_store(store_path) as store:
        for number in range(40):
            store.put("T", b"%d" % number, queue_id=number % 2)
            store.put("Other", b"%d" % number)
        store.flush()
        assert store.max_queue_offset("T", 1) == 20
        if lacks == "what is dispatched just now":
            with (queues / "T" / "1" / f"{0:020d}").open("r+b") as units:
                units.seek(100)
                units.write(bytes(300))
            assert sizes() == [20, 20, 20, 20, 0]
            return
    shutil.rmtree(queues / "T" / "1" if lacks == "a queue" else queues / "T")
    assert sizes() == [20, 20, 20, 20, 0]
