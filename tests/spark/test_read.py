"""`format("rmq")` shows every message that the engine reads, and nothing else."""

import json
import shutil

import pytest

from golden.stores import RELEASES, packed_stores
from rmqcore import open_store
from rmqcore.errors import ConfigError, CorruptStoreError, RecordsGoneError
from rmqcore.scan import FULL_COLUMNS, read_store

pytestmark = pytest.mark.process

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

PEERS = pytest.mark.peers
COMPARED = [name for name in FULL_COLUMNS if not name.endswith("_timestamp")]


def messages_of(path, config=None):
    """Every message that is in a consumer's queue or will be, in log order, as the engine reads."""
    with open_store(path, mode="r", config=config) as store:
        return [fields_of(message) for message in store.messages() if is_queued(store, message)]


def is_queued(store, message):
    topic, queue_id, offset = message.topic, message.queue_id, message.queue_offset
    if message.sys_flag & 0xC not in (0, 8) or topic.startswith(
        ("SCHEDULE_TOPIC", "RMQ_SYS_TRANS", "rmq_sys_")
    ):
        return False
    end = store.max_queue_offset(topic, queue_id) if (topic, queue_id) in store.queues() else 0
    if not end:
        return topic in {known for known, _ in store.queues()}
    found = store.get_message(topic, queue_id, min(offset, end - 1), max_messages=1).messages
    lies = [other.phy_offset for other in found]
    return lies == [message.phy_offset] if offset < end else lies < [message.phy_offset]


def fields_of(message):
    fields = {name: getattr(message, name, None) for name in COMPARED}
    fields["keys"] = message.properties.get("KEYS")
    fields["properties"] = sorted(message.properties.items())
    del fields["tags_code"]
    return fields


def rows_of(frame):
    rows = []
    for row in frame.toArrow().sort_by("phy_offset").to_pylist():
        row["properties"] = sorted(row["properties"])
        rows.append({name: row[name] for name in COMPARED if name != "tags_code"})
    return rows


#: `make test` reads each store of the last release, and one of the one before
STORES = [
    pytest.param(release, name, marks=[] if release == RELEASES[0] or name == "basic" else PEERS)
    for release, name in packed_stores()
]


@pytest.mark.parametrize(("release", "name"), STORES)
def test_a_store_of_rocketmq_is_read_whole(rmq, golden_store, release, name):
    store = golden_store(release, name)
    frame = rmq(store.path, columns="full", config=str(store.conf))
    assert rows_of(frame) == messages_of(store.path, store.conf)


def test_default_columns_and_their_types(rmq, large_store):
    kinds = {field.name: field.dataType.simpleString() for field in rmq(large_store).schema}
    assert kinds == {
        "topic": "string",
        "queue_id": "int",
        "queue_offset": "bigint",
        "phy_offset": "bigint",
        "store_size": "int",
        "store_timestamp": "timestamp",
        "born_timestamp": "timestamp",
        "keys": "string",
        "tags": "string",
        "unique_key": "string",
        "body": "binary",
    }


@pytest.mark.parametrize(
    ("size", "partitions"), [("1m", range(20, 40)), ("9m", (3, 4)), ("1g", (1,))]
)
def test_many_partitions_hold_each_row_once(rmq, large_store, size, partitions):
    frame = rmq(large_store, maxPartitionBytes=size)
    rows = frame.select("phy_offset", "unique_key", "body").toArrow()
    assert frame.rdd.getNumPartitions() in partitions
    numbers = sorted(int(key[8:], 16) for key in rows["unique_key"].to_pylist())
    assert numbers == list(range(60_000))
    assert len(set(rows["phy_offset"].to_pylist())) == 60_000
    assert all(
        int(body) == int(key[8:], 16)
        for body, key in zip(rows["body"].to_pylist(), rows["unique_key"].to_pylist(), strict=True)
    )


def test_times_are_exact(rmq, golden_store):
    store = golden_store("5.5.0", "basic")
    found = rmq(store.path, columns="phy_offset,store_timestamp,born_timestamp").toArrow()
    with open_store(store.path, mode="r") as opened:
        times = {
            m.phy_offset: (m.store_timestamp_ms, m.born_timestamp_ms) for m in opened.messages()
        }
    stored, born = (
        found[name].cast(pa.int64()).to_pylist() for name in ("store_timestamp", "born_timestamp")
    )
    assert {
        offset: (a // 1000, b // 1000)
        for offset, a, b in zip(found["phy_offset"].to_pylist(), stored, born, strict=True)
    } == times


def test_an_empty_store_is_an_empty_frame(rmq, store_path):
    open_store(store_path).close()
    assert rmq(store_path).collect() == []


def test_a_query_in_sql(spark, large_store):
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW log USING rmq OPTIONS (path '{large_store}')")
    found = spark.sql("SELECT topic, count(*) FROM log WHERE tags = 'Tag1' GROUP BY topic")
    assert sorted(tuple(row) for row in found.collect()) == [(f"Topic{n}", 5000) for n in range(4)]


def counted(path, columns, partitions=None, **options):
    """How many rows a driver plans and workers read, in this process."""
    from rmqcore.spark.options import read_options
    from rmqcore.spark.planning import batch_partitions
    from rmqcore.spark.reading import read_partition
    from rmqcore.spark.schema import checked_columns, schema_of

    chosen = read_options({"path": str(path), **options})
    schema = checked_columns(schema_of(columns))
    parts = batch_partitions(chosen) if partitions is None else partitions
    return sum(batch.num_rows for part in parts for batch in read_partition(part, schema, chosen))


# ---- choosing columns and rows


@pytest.mark.parametrize(
    ("total", "tasks"), [(1 << 20, 1), (100 << 20, 2), (2 << 30, 2), (10 << 30, 10)]
)
def test_each_slot_gets_an_even_share_of_at_most_a_gigabyte(total, tasks):
    from rmqcore.spark.options import ReadOptions
    from rmqcore.spark.planning import split_size

    assert -(-total // split_size(ReadOptions(slots=2), total)) == tasks


def test_tasks_get_even_shares():
    from rmqcore.spark.runner import grouped

    assert [len(group) for group in grouped(range(33), 4)] == [8, 8, 8, 9]
    assert grouped(range(2), 4) == [[0], [1]]
    assert grouped([], 4) == []


def test_what_every_message_has_is_not_null(spark, rmq, large_store):
    nullable = {"store_timestamp", "born_timestamp", "keys", "tags", "unique_key"}
    frame = rmq(large_store)
    assert {field.name for field in frame.schema if field.nullable} == nullable
    assert frame.where("topic like 'Topic_' and length(body) > 0").count() == 60_000
    for schema in ("topic string, body binary NOT NULL", "topic string NOT NULL, body binary"):
        chosen = spark.read.format("rmq").schema(schema).load(str(large_store))
        assert chosen.where("topic like 'Topic_' and length(body) > 0").count() == 60_000


def test_a_schema_chooses_columns(spark, large_store):
    frame = spark.read.format("rmq").schema("body binary, topic string").load(str(large_store))
    row = frame.first()
    assert row.__fields__ == ["body", "topic"]
    assert frame.count() == 60_000


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({"columns": "light"}, 7),
        ({"columns": "topic, phy_offset"}, 2),
        ({"includeProperties": "true"}, 12),
        ({"verifyCrc": "flag"}, 12),
        ({"broker": "b"}, 12),
        ({"columns": "full"}, 21),
    ],
)
def test_columns(rmq, large_store, options, columns):
    assert len(rmq(large_store, **options).columns) == columns


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"topics": "Topic1,Topic3"}, 30_000),
        ({"subscribe": "Topic1"}, 15_000),
        ({"subscribePattern": "Topic[01]"}, 30_000),
        ({"subscribePattern": "opic1"}, 0),
        ({"queueIds": "0"}, 20_000),
        ({"tags": "Tag0 || Tag2"}, 40_000),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, 60_000),
        ({"startingOffsets": json.dumps({"Topic1": {"0": 4000, "1": -2}})}, 56_000),
        ({"endingOffsets": json.dumps({"Topic1": {"0": 4000, "1": -1}})}, 59_000),
        ({"topics": "Nothing"}, 0),
        ({"startingTimestamp": "1"}, 60_000),
        ({"endingTimestamp": "1"}, 0),
        ({"startingTimestamp": "99999999999999"}, 0),
    ],
)
def test_rows(large_store, options, count):
    """Planned and read as driver and workers do it, in this process."""
    assert counted(large_store, ("queue_offset",), **options) == count


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"topics": "Topic1,Topic3", "queueIds": "0", "tags": "Tag1"}, 3_350),
        ({"startingOffsets": json.dumps({"Topic1": {"0": 4000, "1": -2}})}, 56_000),
        ({"startingTimestamp": "99999999999999"}, 0),
    ],
)
def test_rows_of_a_frame(rmq, large_store, options, count):
    assert rmq(large_store, columns="queue_offset", **options).count() == count


def test_physical_offsets(rmq, large_store):
    offsets = sorted(row[0] for row in rmq(large_store, columns="phy_offset").collect())
    first, last = offsets[20_000], offsets[50_000]
    chosen = rmq(large_store, startingPhyOffset=first - 1, endingPhyOffset=last, columns="topic")
    assert chosen.count() == 30_000


def test_one_frame_of_two_brokers(spark, large_store, golden_store):
    other = golden_store("5.5.0", "basic").path
    frame = spark.read.format("rmq").option("broker", "a,b").load([str(large_store), str(other)])
    counts = {row[0]: row[1] for row in frame.groupBy("broker").count().collect()}
    assert counts == {"a": 60_000, "b": len(messages_of(other))}


def test_the_column_of_keys_split_at_spaces_is_the_tuple_of_the_api(large_store):
    with open_store(large_store, mode="r") as store:
        expected = [next(store.messages(f"Topic{n}")).keys for n in range(4)]
    found = [next(iter(read_store(large_store, ("keys",), topics=[f"Topic{n}"]))) for n in range(4)]
    assert [tuple(pa.record_batch(b)["keys"][0].as_py().split(" ")) for b in found] == expected
    assert expected[1] == ("K100", "G0")


# ---- what is refused, and in which words


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topc": "A"}, "unknown; did you mean topics?"),
        ({"startingofset": "earliest"}, "unknown; did you mean startingOffsets?"),
        ({"columns": "topic,quee_id"}, "unknown; did you mean queue_id?"),
        ({"columns": "topic,topic"}, "named twice"),
        ({"verifyCrc": "yes"}, "expected one of off, fail, flag"),
        ({"failOnDataLoss": "1"}, "expected true or false"),
        ({"queueIds": "a"}, "expected a whole number"),
        ({"maxPartitionBytes": "0"}, "expected bytes, such as"),
        ({"tags": "*"}, "expected tags such as"),
        ({"subscribePattern": "("}, "expected a regular expression"),
        ({"startingOffsets": "erliest"}, "expected earliest, latest, or JSON"),
        ({"startingOffsets": '{"A": {"0": "x"}}'}, "expected earliest, latest, or JSON"),
        ({"startingOffsets": "latest"}, "only for streams"),
        ({"maxBytesPerTrigger": "1m"}, "only a stream has triggers"),
        ({"topics": "A", "subscribePattern": "A"}, "not both"),
        ({"path": "s3:bucket/store"}, "driver and executors have mounted"),
        ({"broker": "a,b"}, "expected 1 different names"),
    ],
)
def test_a_wrong_option_is_refused(large_store, options, text):
    from rmqcore.spark.options import read_options
    from rmqcore.spark.planning import batch_partitions
    from rmqcore.spark.schema import chosen_columns

    def read():
        found = read_options({"path": str(large_store), **options})
        chosen_columns(found)
        batch_partitions(found)

    with pytest.raises(ConfigError) as caught:
        read()
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("topik string", "unknown; did you mean topic?"),
        ("queue_id bigint", "its type is int"),
        ("store_timestamp timestamp_ntz", "its type is timestamp"),
        ("tags string NOT NULL", "some messages have none"),
    ],
)
def test_a_wrong_schema_is_refused(spark, schema, text):
    from pyspark.sql.types import StructType

    from rmqcore.spark.schema import checked_columns

    with pytest.raises(ConfigError) as caught:
        checked_columns(StructType.fromDDL(schema))
    assert text in str(caught.value)


def test_spark_shows_why_it_refuses(refused, large_store, tmp_path):
    assert "did you mean topics?" in refused(large_store, topc="A")
    assert "its type is int" in refused(large_store, schema="queue_id bigint")
    assert "no such directory" in refused(tmp_path / "nowhere")
    assert "so no store" in refused(tmp_path)


# ---- damage


@pytest.fixture
def damaged(large_store, tmp_path):
    """A copy of the large store with one flipped byte in the body of the record in the middle."""
    path = tmp_path / "store"
    shutil.copytree(large_store, path)
    with open_store(path, mode="r") as store:
        message = next(m for m in store.messages() if m.phy_offset > 10 << 20)
    file = path / "commitlog" / f"{message.phy_offset // (4 << 20) * (4 << 20):020d}"
    with file.open("r+b") as stream:
        stream.seek(message.phy_offset % (4 << 20) + 90)
        byte = stream.read(1)
        stream.seek(-1, 1)
        stream.write(bytes([byte[0] ^ 1]))
    return path, file, message.phy_offset


def test_a_bad_crc_is_flagged_or_refused(rmq, refused, damaged):
    path, file, offset = damaged
    flagged = rmq(path, verifyCrc="flag").filter("NOT crc_ok").select("phy_offset").collect()
    assert [row[0] for row in flagged] == [offset]
    text = refused(path, verifyCrc="fail")
    assert f"{file} at {offset}: " in text
    assert rmq(path, verifyCrc="fail", failOnDataLoss="false").count() == 59_999


def test_a_file_deleted_or_cut_after_planning(large_store, tmp_path):
    from rmqcore.spark.options import read_options
    from rmqcore.spark.planning import batch_partitions

    path = tmp_path / "store"
    shutil.copytree(large_store, path)
    strict, lenient = {"maxPartitionBytes": "4m"}, {"failOnDataLoss": "false"}
    planned = batch_partitions(read_options({"path": str(path), **strict}))

    def rows(options):
        return counted(path, ("topic",), planned, **(strict | options))

    assert rows(strict) == rows(lenient) == 60_000
    files = sorted((path / "commitlog").iterdir())
    with files[1].open("r+b") as stream:
        stream.truncate(1 << 20)
    with pytest.raises(CorruptStoreError, match="the file was cut short: it ends at byte 1048576"):
        rows(strict)
    files[0].unlink()
    with pytest.raises(RecordsGoneError, match="deleted since the read was planned"):
        rows(strict)
    assert 0 < rows(lenient) < 60_000


def test_options_without_a_store_are_refused():
    from rmqcore.spark.options import read_options

    with pytest.raises(ConfigError, match="give the store's directory"):
        read_options({})
