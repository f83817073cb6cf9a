"""Every job's output is what the engine, or plain counting, says."""

import collections
import json
import shutil

import pytest

from rmqcore import open_store
from rmqcore.rebuild.digest import tree_digest
from rmqcore.transfer import export_store

pytestmark = pytest.mark.process

pytest.importorskip("pyspark")


@pytest.fixture
def copy_of(tmp_path):
    """`copy_of(path)`: a copy that may be spoilt."""

    def copy(path):
        shutil.copytree(path, tmp_path / "copy")
        return tmp_path / "copy"

    return copy


@pytest.fixture(scope="module")
def messages(large_store):
    with open_store(large_store, mode="r") as store:
        return [
            (m.topic, " ".join(m.keys), m.phy_offset, m.store_size, m.store_timestamp_ms,
             m.born_timestamp_ms, m.unique_key, m.message_id)
            for m in store.messages()
        ]  # fmt: skip


def test_consume_queues_are_rebuilt_byte_for_byte(spark, large_store, copy_of):
    from rmqcore.spark import rebuild_consume_queues

    copy = copy_of(large_store)
    before = tree_digest(copy / "consumequeue")
    report = rebuild_consume_queues(spark, copy)
    assert report.identical
    assert report.records == 60_000
    shutil.rmtree(copy / "consumequeue")
    rebuild_consume_queues(spark, copy)
    assert tree_digest(copy / "consumequeue") == before


#: `make test` rebuilds the store of light queues and the one whose beginning has expired
GATE, MORE = ("lmq", "aged"), ("basic", "batches", "transactions")


@pytest.mark.parametrize(
    "name", [*GATE, *(pytest.param(name, marks=pytest.mark.peers) for name in MORE)]
)
def test_stores_of_rocketmq_are_rebuilt(spark, golden_store, name):
    from rmqcore import rebuild as rebuilding
    from rmqcore.spark import rebuild_consume_queues, rebuild_index

    one, other = (golden_store(release, name) for release in ("5.5.0", "4.9.7"))
    for store in (one, other):
        copy = store.path.with_name("twin")
        shutil.copytree(store.path, copy)
        for ours, theirs in (
            (rebuild_consume_queues, rebuilding.rebuild_consume_queues),
            (rebuild_index, rebuilding.rebuild_index),
        ):
            found = ours(spark, store.path, config=str(store.conf)).as_dict()
            assert found == theirs(copy, config=str(store.conf)).as_dict()


def test_an_audit_finds_what_is_wrong_and_nothing_else(spark, large_store, copy_of):
    from rmqcore.doctor.verify import verify
    from rmqcore.spark import audit, findings_frame

    copy = copy_of(large_store)
    assert audit(spark, copy).clean
    log = sorted((copy / "commitlog").iterdir())[1]
    with log.open("r+b") as stream:
        stream.seek(1000)
        stream.write(b"\0\1\2\3")
    queue = next((copy / "consumequeue" / "Topic2" / "1").iterdir())
    with queue.open("r+b") as stream:
        stream.seek(200)
        stream.write(bytes(20))
    report = audit(spark, copy)
    assert not report.clean
    assert report.findings == verify(copy).findings
    parts = {row["part"] for row in findings_frame(spark, report).collect()}
    assert {"log", "consume queue"} <= parts


@pytest.mark.peers
def test_an_export_is_the_engines_own(spark, large_store, tmp_path):
    from rmqcore.spark import export

    parts = export(spark, large_store, tmp_path / "ours")
    theirs = export_store(large_store, tmp_path / "theirs")
    assert parts == theirs
    for part in parts:
        ours = (tmp_path / "ours" / part.file).read_bytes()
        assert ours == (tmp_path / "theirs" / part.file).read_bytes()
    columns = ["phy_offset", "topic", "body"]
    exported, in_log = (
        reader.load(str(path)).select(columns).toArrow().sort_by("phy_offset")
        for reader, path in (
            (spark.read.format("parquet"), tmp_path / "ours"),
            (spark.read.format("rmq"), large_store),
        )
    )
    assert exported.num_rows == 60_000
    assert exported.to_pydict() == in_log.to_pydict()


@pytest.mark.peers
def test_an_export_to_delta(spark, large_store, tmp_path):
    deltalake = pytest.importorskip("deltalake")
    from rmqcore.spark import export

    for _ in range(2):
        parts = export(spark, large_store, tmp_path, table_format="delta", columns=("topic",))
        table = deltalake.DeltaTable(str(tmp_path))
        assert len(table.file_uris()) == len(parts)
        assert table.to_pyarrow_table().num_rows == 60_000


@pytest.mark.peers
def test_an_export_to_iceberg(spark, large_store, tmp_path):
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    from rmqcore.scan.tables import ICEBERG_CATALOG, ICEBERG_TABLE, iceberg_properties
    from rmqcore.spark import export

    for _ in range(2):
        parts = export(spark, large_store, tmp_path, table_format="iceberg", topics=["Topic1"])
        catalog = sql.SqlCatalog(ICEBERG_CATALOG, **iceberg_properties(tmp_path))
        found = catalog.load_table(ICEBERG_TABLE).scan()
        assert {task.file.file_path for task in found.plan_files()} == {
            (tmp_path / part.file).as_uri() for part in parts if part.rows
        }
        topics = found.to_arrow()["topic"].to_pylist()
        assert topics == ["Topic1"] * 15_000
        catalog.close()
    assert spark.read.parquet(str(tmp_path)).count() == 15_000


def test_traffic(spark, large_store, messages):
    from rmqcore.spark import traffic

    rows = traffic(spark, large_store).collect()
    by_minute = collections.defaultdict(list)
    for topic, _, _, size, stored, born, _, _ in messages:
        by_minute[topic, stored // 60_000].append((size, stored - born))
    assert len(rows) == len(by_minute)
    for row in rows:
        found = by_minute[row["topic"], int(row["minute"].timestamp()) // 60]
        late = sorted(latency for _, latency in found)
        assert (row["messages"], row["bytes"]) == (len(found), sum(size for size, _ in found))
        assert row["largest"] == max(size for size, _ in found)
        assert row["max_ms"] == late[-1]
        assert row["p50_ms"] == pytest.approx(
            (late[(len(late) - 1) // 2] + late[len(late) // 2]) / 2
        )


def test_hottest_keys(spark, large_store):
    from rmqcore.spark import hottest_keys

    rows = hottest_keys(spark, large_store, topics=["Topic0"], count=3).collect()
    assert [(row["key"], row["messages"]) for row in rows] == [
        ("G0", 150),
        ("G1", 150),
        ("G10", 150),
    ]


def test_trace(spark, large_store, messages):
    from rmqcore.spark import trace

    topic, _, offset, _, _, _, unique_key, message_id = messages[12_345]

    def found(**asked):
        return [row["phy_offset"] for row in trace(spark, large_store, **asked).collect()]

    number = int(unique_key[8:], 16)
    assert found(key=f"K{number}") == [offset]
    assert found(unique_key=unique_key) == [offset]
    assert found(message_id=message_id) == [offset]
    assert found(body=f"0{number}$", topics=[topic]) == [offset]
    assert found(key="K") == []
    keys = [f"K{number}", "K17", f"K{number + 1}", "nothing"]
    offsets = {row["phy_offset"] for row in trace(spark, large_store, key=keys).collect()}
    assert offset in offsets
    assert len(offsets) == 3
    assert sorted(found(key=keys, index=True)) == sorted(offsets)
    assert sorted(found(key=keys, topics=[topic])) == sorted(
        found(key=keys, topics=[topic], index=True)
    )
    assert found(key=unique_key) == [offset]
    with pytest.raises(ValueError, match="give keys"):
        trace(spark, large_store, topics=[topic], index=True)
    assert found(key=f"K{number}", begin_ms=1, end_ms=2) == []
    with pytest.raises(ValueError, match="give a key"):
        trace(spark, large_store)


def test_compact_keeps_the_latest_of_each_key(spark, store_path):
    from rmqcore.spark import compact

    with open_store(store_path, mapped_file_size_commit_log=64 << 10) as store:
        for number in range(2000):
            keys = [] if number % 10 == 0 else [f"k{number % 7}"]
            store.put(f"T{number % 2}", b"%d" % number, keys=keys)
    last = {(n % 2, f"k{n % 7}" if n % 10 else n): n for n in range(2000)}
    found = sorted(int(row["body"]) for row in compact(spark, store_path).collect())
    assert found == sorted(last.values())
    only = compact(spark, store_path, topics=["T1"], columns=("body", "topic")).collect()
    assert {row["topic"] for row in only} == {"T1"}
    assert len(only) == 7


def test_a_frame_whose_partitions_fit_the_session(spark, large_store):
    from rmqcore.spark import read

    frame = read(spark, large_store, columns=["topic"], topics=["Topic1"], verifyCrc="fail")
    assert frame.columns == ["topic"]
    assert frame.count() == 15_000


def test_an_empty_store(spark, store_path, tmp_path):
    from rmqcore.spark import audit, compact, export, rebuild_consume_queues, traffic

    open_store(store_path).close()
    assert audit(spark, store_path).clean
    assert rebuild_consume_queues(spark, store_path).records == 0
    assert traffic(spark, store_path).collect() == []
    assert compact(spark, store_path).collect() == []
    assert export(spark, store_path, tmp_path / "out") == []
    assert json.loads((tmp_path / "out" / "_manifest.json").read_text())["parts"] == []
