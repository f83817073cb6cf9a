"""A stream whose log was cut and has gone on, or is another: what was put since is not hidden."""

import shutil

import pytest
from spark_by_hand import Stream, bodies_of, numbered, put, reading, rows_of

from rmqcore import open_store
from rmqcore.errors import ConfigError, StoreError

pytestmark = pytest.mark.engine

pytest.importorskip("pyspark")

OLD = [b"old %02d" % number for number in range(20)]
NEW = [b"new %02d" % number for number in range(30)]
LENIENT = {"startingOffsets": "earliest", "failOnDataLoss": "false"}


def replaced(path):
    """Another store in its place: the messages that it has."""
    shutil.rmtree(path)
    put(path, "T", *NEW)
    return NEW


def cut(path):
    """A log that a power cut took the end of, and that has gone on: its messages."""
    with open_store(path, mode="r") as store:
        end = store.get_message("T", 0, 5).messages[0].phy_offset
    (file,) = (path / "commitlog").iterdir()
    with file.open("r+b") as log:
        log.seek(end)
        log.write(bytes((64 << 10) - end))
    with open_store(path, mapped_file_size_commit_log=64 << 10, on_corruption="truncate"):
        pass
    put(path, "T", *NEW)
    return OLD[:5] + NEW


@pytest.fixture
def read(store_path):
    """`read(**options)`: a stream that has read all of a store of old messages."""
    put(store_path, "T", *OLD)

    def streamed(**options):
        stream = Stream(store_path, startingOffsets="earliest", **options)
        assert bodies_of(stream.trigger()) == OLD
        return stream

    return streamed


@pytest.mark.parametrize("change", [replaced, cut])
def test_it_is_an_error(store_path, read, change):
    at = read().at
    change(store_path)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"has other records before \d+ .* failOnDataLoss"):
            Stream(store_path, at=at, startingOffsets="earliest").trigger()


@pytest.mark.parametrize("change", [replaced, cut])
@pytest.mark.parametrize("anew", [False, True], ids=["goes on", "is started again"])
def test_it_is_read_whole_without(store_path, read, change, anew):
    stream = read(failOnDataLoss="false")
    there = change(store_path)
    if anew:
        stream = Stream(store_path, at=stream.at, **LENIENT)
    assert bodies_of(stream.trigger()) == there
    assert stream.trigger() == []
    put(store_path, "T", b"later")
    assert bodies_of(stream.trigger()) == [b"later"]


def test_what_is_put_behind_a_shorter_log_is_not_hidden(store_path, read):
    stream = read(failOnDataLoss="false")
    shutil.rmtree(store_path)
    put(store_path, "T", *NEW[:2])
    assert stream.trigger() == []
    put(store_path, "T", *NEW[2:])
    assert bodies_of(stream.trigger()) == NEW


@pytest.mark.parametrize(
    "edited",
    [
        {"phy_offset": {"log": "5"}},
        {"phy_offset": {"log": 1.5}},
        {"phy_offset": None},
        {"tails": None},
        {"tails": {"log": "5"}},
        {"version": 3},
    ],
)
def test_a_checkpoint_that_somebody_has_edited_is_refused(store_path, read, edited):
    at = {**read().at, **edited}
    with pytest.raises(ConfigError, match="expected the checkpoint of a stream over log"):
        Stream(store_path, at=at, **LENIENT).trigger()


def test_a_batch_that_was_planned_before_is_the_next_one_s(store_path, read):
    begin = Stream(store_path, startingOffsets="earliest").at
    end = read().at
    replaced(store_path)
    with pytest.raises(StoreError, match="other records"):
        Stream(store_path, at=begin, startingOffsets="earliest").reader.partitions(begin, end)
    stream = Stream(store_path, at=end, **LENIENT)
    assert rows_of(stream.reader, stream.reader.partitions(begin, end)) == []
    assert bodies_of(stream.trigger()) == NEW


def test_a_stream_without_limits_sees_it_too(store_path):
    from rmqcore.spark.stream import RmqStreamReader

    put(store_path, "T", *OLD)
    reader = reading(RmqStreamReader, store_path, LENIENT)
    first, end = reader.initialOffset(), reader.latestOffset()
    assert bodies_of(rows_of(reader, reader.partitions(first, end))) == OLD
    replaced(store_path)
    later = reader.latestOffset()
    assert bodies_of(rows_of(reader, reader.partitions(end, later))) == NEW
    again = reading(RmqStreamReader, store_path, {"startingOffsets": "earliest"})
    with pytest.raises(StoreError, match="other records"):
        again.partitions(end, again.latestOffset())


@pytest.mark.parametrize("lenient", [False, True], ids=["an error", "read whole"])
def test_a_stream_without_limits_that_is_started_again_sees_a_shorter_one(store_path, lenient):
    from rmqcore.spark.stream import RmqStreamReader

    put(store_path, "T", *OLD)
    before = reading(RmqStreamReader, store_path, LENIENT)
    before.initialOffset()
    there = before.latestOffset()
    shutil.rmtree(store_path)
    put(store_path, "T", *NEW[:2])
    again = reading(RmqStreamReader, store_path, LENIENT if lenient else {})
    later = again.latestOffset()
    if not lenient:
        with pytest.raises(StoreError, match=r"the log ended at \d+, before \d+"):
            again.partitions(there, later)
        return
    assert bodies_of(rows_of(again, again.partitions(there, later))) == NEW[:2]
    put(store_path, "T", NEW[2])
    assert bodies_of(rows_of(again, again.partitions(later, again.latestOffset()))) == NEW[2:3]


def test_two_logs_of_which_one_is_another(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    for path in (a, b):
        put(path, "T", *OLD)
    stream = Stream([a, b], **LENIENT)
    assert len(stream.trigger()) == 40
    replaced(b)
    put(a, "T", *numbered(3))
    rows = stream.trigger()
    assert [row["body"] for row in rows if row["broker"] == "a"] == numbered(3)
    assert [row["body"] for row in rows if row["broker"] == "b"] == NEW
