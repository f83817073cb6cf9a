"""Options that Kafka's source has, too, mean what they mean there.

The data source is driven as Spark's worker does it, without a JVM.
"""

import json

import pytest
from spark_by_hand import Stream, batch, bodies_of, numbered, put

from rmqcore import open_store
from rmqcore.errors import ConfigError
from rmqcore.spark.options import read_options

pytestmark = pytest.mark.engine

pytest.importorskip("pyspark.sql.streaming.datasource")


@pytest.fixture
def store(store_path):
    """Topics A and B with three queues each; ten messages in every queue."""
    with open_store(store_path, mapped_file_size_commit_log=64 << 10) as opened:
        for number in range(10):
            for queue_id in range(3):
                for topic in "AB":
                    opened.put(
                        topic, b"%s%d-%d" % (topic.encode(), queue_id, number), queue_id=queue_id
                    )
    return store_path


def queues_of(rows):
    return sorted({(row["topic"], row["queue_id"]) for row in rows})


# ---- assign


def test_assign_names_the_queues_of_each_topic(store):
    rows = batch(store, assign=json.dumps({"A": [0, 2], "B": [1]}))
    assert queues_of(rows) == [("A", 0), ("A", 2), ("B", 1)]
    assert len(rows) == 30


def test_a_queue_that_a_restarted_stream_assigns_is_read_from_its_first_message_on(store):
    first = Stream(store, startingOffsets="earliest", assign=json.dumps({"A": [0]}))
    assert len(first.trigger()) == 10
    put(store, "A", b"later", queue_id=0)
    again = Stream(store, at=first.at, assign=json.dumps({"A": [0, 1], "B": [2]}))
    rows = again.trigger()
    assert queues_of(rows) == [("A", 0), ("A", 1), ("B", 2)]
    assert len(rows) == 21
    assert again.trigger() == []


def test_a_stream_may_go_from_topics_to_assigned_queues_and_back(store):
    whole = Stream(store, startingOffsets="earliest", topics="A")
    assert len(whole.trigger()) == 30
    assigned = Stream(store, at=whole.at, assign=json.dumps({"A": [1], "B": [1]}))
    assert queues_of(assigned.trigger()) == [("B", 1)]
    back = Stream(store, at=assigned.at, topics="A,B")
    assert queues_of(back.trigger()) == [("A", 0), ("A", 2), ("B", 0), ("B", 2)]


@pytest.mark.parametrize("text", ["A", "[]", "{}", '{"A": 0}', '{"A": ["0"]}', '{"A": [-1]}'])
def test_what_assigns_nothing_is_refused(store, text):
    with pytest.raises(ConfigError, match="assign"):
        batch(store, assign=text)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"assign": '{"A": [0]}', "topics": "A"}, "not both"),
        ({"assign": '{"A": [0]}', "subscribePattern": "A"}, "not both"),
        ({"assign": '{"A": [0]}', "queueIds": "0"}, "not both"),
        ({"startingOffsetsByTimestamp": '{"A": {"0": 1}}', "startingTimestamp": "1"}, "not both"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "no more than"),
        ({"startingOffsetsByTimestamp": '{"A": {"0": 1700000000}}'}, "looks like seconds"),
    ],
)
def test_options_that_contradict_each_other(options, text):
    with pytest.raises(ConfigError, match=text):
        read_options({"path": "/nowhere", **options})


# ---- times of single queues


@pytest.fixture
def timed(store_path):
    """Two queues; message n was stored in second n."""
    with open_store(store_path, mapped_file_size_commit_log=64 << 10) as opened:
        for number in range(20):
            opened.parts.files.tail.fixed_time_ms = at(number)
            for queue_id in range(2):
                opened.put("T", b"%d" % number, queue_id=queue_id)
    return store_path


def at(second):
    return 1_700_000_000_000 + 1000 * second


def counts(rows):
    return [sum(row["queue_id"] == queue_id for row in rows) for queue_id in range(2)]


def test_queues_begin_and_end_at_times_of_their_own(timed):
    starts = json.dumps({"T": {"0": at(15)}})
    ends = json.dumps({"T": {"0": at(18), "1": at(3)}})
    assert counts(batch(timed, startingOffsetsByTimestamp=starts)) == [5, 20]
    assert counts(batch(timed, endingOffsetsByTimestamp=ends)) == [18, 3]
    both = batch(timed, startingOffsetsByTimestamp=starts, endingOffsetsByTimestamp=ends)
    assert counts(both) == [3, 3]


def test_a_stream_begins_at_the_times_of_its_queues(timed):
    starts = json.dumps({"T": {"0": at(15), "1": at(19)}})
    stream = Stream(timed, startingOffsetsByTimestamp=starts)
    assert counts(stream.trigger()) == [5, 1]
    with pytest.raises(ConfigError, match="does not end"):
        Stream(timed, endingOffsetsByTimestamp=starts)


@pytest.mark.parametrize(
    "later",
    [
        {"startingOffsets": '{"T": {"0": 18, "1": 18}}'},
        {"startingOffsets": '{"T": {"0": 30}}'},
        {"startingOffsetsByTimestamp": json.dumps({"T": {"0": at(18)}})},
        {"startingTimestamp": str(at(18))},
        {"startingPhyOffset": "100000"},
        {"startingOffsets": "latest"},
    ],
    ids=["offsets", "one offset", "times", "a time", "a place", "latest"],
)
@pytest.mark.parametrize(
    ("first", "count"),
    [({"startingOffsets": "earliest"}, 40), ({"startingOffsets": '{"T": {"0": 15}}'}, 25)],
    ids=["earliest", "an offset"],
)
def test_where_a_stream_begins_is_not_asked_again_of_one_with_a_checkpoint(
    timed, first, count, later
):
    stream = Stream(timed, maxOffsetsPerTrigger="7", **first)
    seen = stream.trigger()
    assert 0 < len(seen) <= 7
    again = Stream(timed, at=stream.at, maxOffsetsPerTrigger="7", **later)
    while rows := again.trigger():
        seen += rows
    assert len(seen) == len({row["phy_offset"] for row in seen}) == count


def test_a_checkpoint_of_an_earlier_release_is_read_by_the_options_of_the_run(timed):
    stream = Stream(timed, startingOffsets="earliest", maxOffsetsPerTrigger="4")
    stream.trigger()
    at = {name: value for name, value in stream.at.items() if name != "starting"}
    again = Stream(timed, at=at, startingOffsets='{"T": {"0": 15}}')
    assert counts(again.trigger()) == [5, 18]
    assert "starting" not in again.at
    with pytest.raises(ConfigError, match="expected a start"):
        Stream(timed, at={**at, "starting": [5]}).trigger()


def test_a_time_behind_which_a_queue_has_nothing(timed):
    starts = json.dumps({"T": {"0": at(20), "1": at(0)}})
    with pytest.raises(ConfigError, match="nothing was stored then or later"):
        batch(timed, startingOffsetsByTimestamp=starts)
    rows = batch(
        timed, startingOffsetsByTimestamp=starts, startingOffsetsByTimestampStrategy="latest"
    )
    assert counts(rows) == [0, 20]


# ---- sizes of batches and partitions


def test_a_trigger_waits_for_its_least_number_of_messages(store, monkeypatch):
    from rmqcore.spark import limited_stream

    now = [1000.0]
    monkeypatch.setattr(limited_stream, "monotonic_s", lambda: now[0])
    options = {"minOffsetsPerTrigger": "20", "maxTriggerDelay": "5m", "topics": "A"}
    stream = Stream(store, startingOffsets="earliest", **options)
    assert len(stream.trigger()) == 30
    put(store, "A", *numbered(19))
    put(store, "B", *numbered(19))
    before = stream.at
    assert stream.trigger() == []
    assert stream.at == before
    put(store, "A", b"one more")
    assert len(stream.trigger()) == 20
    put(store, "A", b"alone")
    assert stream.trigger() == []
    now[0] += 300
    assert bodies_of(stream.trigger()) == [b"alone"]


def test_a_trigger_that_waits_has_no_more_than_its_limit(store):
    options = {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "8", "topics": "A"}
    stream = Stream(store, startingOffsets="earliest", **options)
    assert [len(stream.trigger()) for _ in range(5)] == [8, 8, 8, 6, 0]


@pytest.mark.parametrize("options", [{}, {"topics": "A"}, {"topics": "A", "queueIds": "1"}])
def test_a_row_limit_is_planned_from_consume_queues(store, options, monkeypatch):
    from rmqcore.spark import limited_stream

    wanted = batch(store, **options)
    monkeypatch.setattr(limited_stream, "read", None)
    stream = Stream(store, startingOffsets="earliest", maxOffsetsPerTrigger="7", **options)
    found = []
    while rows := stream.trigger():
        assert len(rows) <= 7
        found += rows
    assert found == wanted


def test_partitions_hold_no_more_records_than_asked_for(store):
    from spark_by_hand import reading, rows_of

    from rmqcore.spark.source import RmqReader

    for options in ({}, {"topics": "A"}, {"topics": "B", "queueIds": "2"}):
        reader = reading(RmqReader, store, {"maxRecordsPerPartition": "7", **options})
        parts = reader.partitions()
        sizes = [len(rows_of(reader, [part])) for part in parts]
        assert max(sizes) <= 7
        assert len(parts) == -(-sum(sizes) // 7)
        assert rows_of(reader, parts) == batch(store, **options)


# ---- progress


@pytest.mark.parametrize("by_log", [False, True])
def test_the_progress_says_what_is_behind_and_what_is_read(store, monkeypatch, by_log):
    if by_log:
        # as if there were thousands of queues
        monkeypatch.setattr("rmqcore.spark.queue_lag._DISPATCHED_AT_ONCE", 0)
    stream = Stream(store, startingOffsets="earliest", maxOffsetsPerTrigger="12", topics="A")
    rows = stream.trigger()
    told = json.loads(json.dumps(stream.reader.reportLatestOffset()))
    assert told["messages_behind"] == 30 - len(rows) == 18
    assert told["lag"] == {"A": {"0": 6, "1": 6, "2": 6}}
    assert 0 < told["bytes"]["read"] <= told["bytes"]["log"]
    while stream.trigger():
        pass
    told = stream.reader.reportLatestOffset()
    assert (told["lag"], told["messages_behind"]) == ({}, 0)


def test_a_trigger_without_news_opens_no_store(store, monkeypatch):
    from rmqcore.spark import stream as module

    stream = Stream(store, startingOffsets="earliest")
    assert len(stream.trigger()) == 60
    opened = []
    original = module.open_plan
    monkeypatch.setattr(module, "open_plan", lambda *given: opened.append(1) or original(*given))
    assert stream.trigger() == []
    assert opened == []
    put(store, "A", b"new")
    assert bodies_of(stream.trigger()) == [b"new"]
    assert opened


def test_numbers_to_start_with_are_not_those_of_a_topic_that_was_made_anew(tmp_path):
    put(tmp_path, "A", *numbered(10))
    stream = Stream(tmp_path, topics="A", startingOffsets='{"A": {"0": 5}}')
    assert bodies_of(stream.trigger()) == numbered(10)[5:]
    with open_store(tmp_path) as store:
        store.delete_topic("A")
    put(tmp_path, "A", *numbered(10))
    assert bodies_of(stream.trigger()) == numbered(10)


def test_a_queue_that_begins_at_its_end_is_read_by_the_places_that_consume_queues_know(tmp_path):
    def put_both(numbers):
        with open_store(tmp_path) as store:
            for number in numbers:
                store.put("Rare", b"%d" % number, queue_id=number % 2)
                store.put("Most", bytes(7000))

    put_both(range(100))
    stream = Stream(tmp_path, topics="Rare", startingOffsets='{"Rare": {"0": -1, "1": -2}}')
    assert bodies_of(stream.trigger()) == [b"%d" % number for number in range(1, 100, 2)]
    put_both(range(100, 200))
    assert bodies_of(stream.trigger()) == numbered(200)[100:]
