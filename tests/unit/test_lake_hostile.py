"""Tables under odd names, half deleted, or given what is another's: right, or a telling error."""

import json
import os
import random
import shutil
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import rmqcore
from rmqcore.errors import ConfigError
from rmqcore.files.objects import open_objects
from rmqcore.lake import BatchTable, Bodies, Round, TableFollower
from rmqcore.lake import follower as following
from rmqcore.lake.target import (
    MissedMessagesError,
    TableAccessError,
    TableChangedError,
    TopicMadeAnewError,
)
from rmqcore.scan import FULL_COLUMNS, read_store
from rmqcore.transfer.export import export_store
from rmqcore.world import wall_clock_ms

deltalake = pytest.importorskip("deltalake")
catalogs = pytest.importorskip("pyiceberg.catalog.sql")
from pyiceberg.expressions import EqualTo  # noqa: E402 - behind the packages it is for

from rmqcore.scan.tables import iceberg_properties  # noqa: E402 - behind the packages it is for

pytestmark = pytest.mark.engine

FORMATS = ("delta", "iceberg")
SIZES = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 2000}


def put(path, *bodies, topic="T", queue_id=0):
    with rmqcore.open_store(path, **SIZES) as store:
        for body in bodies:
            store.put(topic, body, queue_id=queue_id)


def rows_of(table, table_format, topic="T"):
    if table_format == "delta":
        return deltalake.DeltaTable(Path(table).absolute()).to_pyarrow_table().num_rows
    with catalog_of(table) as catalog:
        return catalog.load_table(("rmq", topic)).scan().to_arrow().num_rows


@contextmanager
def catalog_of(table):
    catalog = catalogs.SqlCatalog("rmqcore", **iceberg_properties(table))
    try:
        yield catalog
    finally:
        catalog.close()


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_table_lies_where_its_path_says_and_nowhere_else(tmp_path, monkeypatch, table_format):
    topic = "%RETRY%a|b"
    put(tmp_path / "store", b"a", topic=topic)
    monkeypatch.chdir(tmp_path)
    name = "a:b ü'\"*~日本"
    follow = partial(TableFollower, "store", name, topic=topic, table_format=table_format)
    assert [follow().run_once().rows for _ in range(2)] == [1, 0]
    assert rows_of(name, table_format, topic) == 1
    assert {path.name.removesuffix("~dlq") for path in tmp_path.iterdir()} == {"store", name}


@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize("letter", "%?#[|^\\\n")
def test_a_path_that_readers_take_for_another_is_refused_before_anything_is_written(
    tmp_path, table_format, letter
):
    put(tmp_path / "store", b"a")
    place = tmp_path / f"a{letter}20b" / "table"
    with pytest.raises(ConfigError, match="a path without"):
        TableFollower(tmp_path / "store", place, topic="T", table_format=table_format)
    with pytest.raises(ConfigError, match="a path without"):
        export_store(tmp_path / "store", place, file_format=table_format)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def born(path, *years):
    """Messages whose producers say that they were born in such years, about, behind a plain one."""
    put(path, b"plain")
    times = pa.array([(year - 1970) * 31_556_952_000 for year in years], pa.int64())
    columns = {"body": [b"%d" % year for year in years]}
    columns["born_timestamp"] = times.cast(pa.timestamp("ms", "UTC"))
    with rmqcore.open_store(path, **SIZES) as store:
        store.put_columns(pa.table(columns), topic="T")


@pytest.mark.parametrize("year", [-5, 20_000, 140_000_000])
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_time_of_birth_that_no_reader_shows_stops_no_table_and_hides_no_row(
    tmp_path, table_format, year
):
    born(tmp_path / "store", year, 1600)
    follow = partial(TableFollower, tmp_path / "store", tmp_path / "t", topic="T")
    assert follow(table_format=table_format).run_once().rows == 3
    put(tmp_path / "store", b"later")
    assert follow(table_format=table_format).run_once().rows == 1
    if table_format == "delta":
        found = deltalake.DeltaTable(tmp_path / "t")
        near = pc.field("born_timestamp") < datetime(2000, 1, 1, tzinfo=UTC)
        shown, old = found.to_pyarrow_table(), found.to_pyarrow_table(filters=near)
    else:
        with catalog_of(tmp_path / "t") as catalog:
            table = catalog.load_table("rmq.T")
            shown = table.scan().to_arrow()
            old = table.scan("born_timestamp < '2000-01-01T00:00:00+00:00'").to_arrow()
    times = {row["body"]: row["born_timestamp"] for row in shown.to_pylist()}
    assert [body for body, time in times.items() if time is None] == [b"%d" % year]
    assert old["body"].to_pylist() == [b"1600"]


ODD_TEXTS = ["\ud7ff" * 17, "\U0010ffff" * 17, "\x00" * 17, "\ufffe\uffff" * 9]


@pytest.mark.parametrize("text", ODD_TEXTS, ids=ascii)
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_text_that_has_no_short_bound_stops_no_table(tmp_path, monkeypatch, table_format, text):
    monkeypatch.setattr("rmqcore.lake.iceberg_target.SMALL_COUNT", 2)
    follow = partial(TableFollower, tmp_path / "store", tmp_path / "t", topic="T")
    compacted = 0
    for _ in range(4):
        with rmqcore.open_store(tmp_path / "store", **SIZES) as store:
            store.put("T", text.encode(), tags=text, keys=[text], properties={text: text})
            store.put("T", b"plain", tags="plain")
        done = follow(table_format=table_format, bodies=Bodies("text")).run_once()
        assert done.rows == 2
        compacted += done.compacted
    assert (compacted > 0) == (table_format == "iceberg")
    assert rows_of(tmp_path / "t", table_format) == 8
    export_store(tmp_path / "store", tmp_path / "out", file_format=table_format)
    assert rows_of(tmp_path / "out", table_format, topic="messages") == 8
    if table_format == "iceberg":
        with catalog_of(tmp_path / "t") as catalog:
            found = catalog.load_table("rmq.T").scan(EqualTo("tags", text)).to_arrow()
        assert found["body"].to_pylist() == [text] * 4


def test_a_text_without_a_short_bound_stops_no_table_whose_owner_asks_for_bounds(tmp_path):
    asked = {"write.metadata.metrics.column.tags": "truncate(16)"}
    for text in ("plain", ODD_TEXTS[0]):
        with rmqcore.open_store(tmp_path / "store", **SIZES) as store:
            store.put("T", b"x", tags=text)
        follow = TableFollower(
            tmp_path / "store", tmp_path / "t", topic="T", table_format="iceberg"
        )
        assert follow.run_once().rows == 1
        with catalog_of(tmp_path / "t") as catalog:
            table = catalog.load_table("rmq.T")
            with table.transaction() as commit:
                commit.set_properties(asked)
            assert table.properties.items() >= asked.items()


@pytest.mark.parametrize("table_format", FORMATS)
def test_an_export_has_times_of_birth_that_no_reader_shows(tmp_path, table_format):
    born(tmp_path / "store", -5, 20_000)
    export_store(tmp_path / "store", tmp_path / "out", file_format=table_format)
    assert rows_of(tmp_path / "out", table_format, topic="messages") == 3
    (file,) = (tmp_path / "out").glob("*.parquet")
    assert pq.read_table(file) == pa.table(read_store(tmp_path / "store", FULL_COLUMNS))


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_table_has_one_topic(tmp_path, table_format):
    # no queue of the one is a queue of the other
    put(tmp_path / "store", b"a", topic="A", queue_id=0)
    put(tmp_path / "store", b"b", topic="B", queue_id=1)
    follow = partial(TableFollower, tmp_path / "store", tmp_path / "t", table_format=table_format)
    follow(topic="A").run_once()
    with pytest.raises(MissedMessagesError, match=r"table.*A; give B"):
        follow(topic="B").run_once()
    assert rows_of(tmp_path / "t", table_format, "A") == 1


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_table_of_a_directory_is_not_gone_on_with_from_brokers(tmp_path, table_format):
    put(tmp_path / "store", b"a")
    follow = partial(
        TableFollower, tmp_path / "store", tmp_path / "t", topic="T", table_format=table_format
    )
    follow().run_once()
    rows = pa.table(read_store(tmp_path / "store", topics=["T"]))
    rows = rows.append_column("broker", pa.array(["broker-a"] * len(rows)))
    with pytest.raises(MissedMessagesError, match="the same messages"):
        BatchTable(tmp_path / "t", topic="T", table_format=table_format).write(rows)
    assert rows_of(tmp_path / "t", table_format) == 1


@pytest.mark.parametrize("table_format", FORMATS)
def test_what_does_not_fit_is_not_taken_for_what_an_older_topic_has_left(tmp_path, table_format):
    def follow():
        return TableFollower(
            tmp_path / "store",
            tmp_path / "t",
            topic="T",
            table_format=table_format,
            bodies=Bodies("text"),
        ).run_once()

    put(tmp_path / "store", *[b"\xff"] * 5)
    assert follow().refused == 5
    shutil.rmtree(tmp_path / "store")
    shutil.rmtree(tmp_path / "t")
    put(tmp_path / "store", *[b"\xfe"] * 3)
    with pytest.raises(TopicMadeAnewError, match="did not fit"):
        follow()
    shutil.rmtree(tmp_path / "t~dlq")
    assert follow().refused == 3


def without(pattern):
    return lambda table: max(table.glob(pattern)).unlink()


def cut(pattern):
    def half(table):
        path = max(table.glob(pattern))
        os.truncate(path, path.stat().st_size // 2)

    return half


def spoilt(table):
    (table / "_iceberg/catalog.db").write_bytes(b"no database" * 100)


@pytest.mark.parametrize(
    ("table_format", "harm"),
    [
        ("delta", without("_delta_log/*0.json")),
        ("delta", without("_delta_log/*1.json")),
        ("delta", cut("_delta_log/*.json")),
        ("iceberg", spoilt),
        ("iceberg", without("_iceberg/rmq/T/metadata/*.json")),
        ("iceberg", cut("_iceberg/rmq/T/metadata/*.json")),
    ],
)
def test_half_a_table_is_told_and_gets_nothing(tmp_path, table_format, harm):
    def follow():
        return TableFollower(
            tmp_path / "store", tmp_path / "t", topic="T", table_format=table_format
        ).run_once()

    for body in (b"a", b"b"):
        put(tmp_path / "store", body)
        follow()
    put(tmp_path / "store", b"c")
    harm(tmp_path / "t")
    files = sorted(tmp_path.glob("t/**/*.parquet"))
    with pytest.raises(TableAccessError, match=str(tmp_path) if harm is spoilt else None):
        follow()
    assert sorted(tmp_path.glob("t/**/*.parquet")) == files


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_day_is_that_of_utc_whatever_the_machine_says(tmp_path, monkeypatch, table_format):
    put(tmp_path / "store", *[b"%d" % n for n in range(4)])
    rows = pa.table(read_store(tmp_path / "store", topics=["T"]))
    hour = 3_600_000_000
    # the last microsecond of a day and the first of the next; both sides of a clock put forward
    at = [86_400_000_000 - 1, 86_400_000_000, 1_774_746_000_000_000 - hour, 1_774_746_000_000_000]
    times = pa.array(at, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    index = rows.schema.get_field_index("store_timestamp")
    for zone in ("America/Los_Angeles", "Pacific/Kiritimati"):
        monkeypatch.setenv("TZ", zone)
        place = tmp_path / zone.partition("/")[2]
        BatchTable(place, topic="T", table_format=table_format).write(
            rows.set_column(index, "store_timestamp", times)
        )
        files = list(place.glob("**/day=*"))
        assert sorted(path.name for path in files) == [
            "day=1970-01-01",
            "day=1970-01-02",
            "day=2026-03-29",
        ]


def test_bodies_that_are_meant_badly_are_put_aside_each_with_its_reason(tmp_path):
    bad = [
        b'{"n": 1e400}',
        b'{"n": %d}' % (1 << 63),
        b'{"n": true}',
        b'{"n": NaN}',
        b'\xef\xbb\xbf{"n": 1}',
        b'{"n": "\\ud800"}',
        b"[" * 60_000,
        b'{"n":' * 12_000,
        b'{"n": %s}' % (b"9" * 5000),
        b"\x00",
        b'"n"',
    ]
    put(tmp_path / "store", *bad, b'{"n": 1, "n": 2, "N": 3, "\\u0000": 4}')
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"n": "long!"}))
    follower = TableFollower(
        tmp_path / "store", tmp_path / "t", topic="T", bodies=Bodies.of_schema(schema)
    )
    assert (follower.run_once().rows, rows_of(tmp_path / "t", "delta")) == (1, 1)
    aside = deltalake.DeltaTable(f"{tmp_path}/t~dlq").to_pyarrow_table()
    assert aside["body"].to_pylist() == bad
    assert all(reason and len(reason) < 1000 for reason in aside["error"].to_pylist())


def test_a_message_is_a_row_in_the_time_that_was_asked_for(tmp_path, monkeypatch):
    faster, away = TableChangedError("t"), TableAccessError("t")
    now, took, waits = [0.0], [5.0, 20.0, 40.0, 0.0, faster, away], []
    monkeypatch.setattr(following, "monotonic_s", lambda: now[0])

    class Stop:
        def is_set(self):
            return not took

        def wait(self, seconds):
            waits.append(seconds)
            now[0] += seconds

    def look():
        if isinstance(took[0], Exception):
            raise took.pop(0)
        now[0] += took.pop(0)
        return Round(rows=0, refused=0, compacted=16 * (len(took) == 3), behind=0)

    one = TableFollower(tmp_path / "store", tmp_path / "t", topic="T")
    monkeypatch.setattr(one, "run_once", look)
    one.run(60.0, Stop(), failed=lambda _: None)
    # put behind the look of a round that takes 5 s: 5 + 50 until the next one begins, and its 5
    assert waits == [50.0, 30.0, 0.0, 60.0, 7.5, 60.0]


@pytest.mark.parametrize("prefix", ["a/../b", "..", "./a", "a/./b", "a//b", "/a", "a%2e%2e/b"])
def test_a_url_that_stores_take_for_different_places_is_refused(tmp_path, prefix):
    with pytest.raises(ConfigError, match="a URL without"):
        TableFollower(tmp_path, f"s3://bucket/{prefix}", topic="T")
    if "%" not in prefix:
        with pytest.raises(ConfigError, match="a URL without"):
            open_objects(f"s3://bucket/{prefix}")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("gs://user:secret@bucket/a", "no credentials"),
        ("abfs://container:secret@account.dfs.core.windows.net/a", "no credentials"),
        ("webhdfs://user:secret@host:1/a", "no credentials"),
        ("s3:///a", "a bucket"),
        ("abfs://@account.dfs.core.windows.net/a", "a bucket"),
    ],
)
def test_a_url_with_a_secret_or_without_a_bucket_is_refused(tmp_path, url, said):
    for refused in (
        lambda: open_objects(url),
        lambda: TableFollower(tmp_path, url, topic="T"),
    ):
        with pytest.raises(ConfigError, match=said) as caught:
            refused()
        assert "secret" not in str(caught.value)


def test_two_delta_files_that_are_nearly_whole_are_made_one_and_a_whole_one_stays(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("rmqcore.lake.delta_target.SMALL_SIZE", 50_000)
    store, table = tmp_path / "store", tmp_path / "t"
    noise = random.Random(30)
    for size in (60_000, 40_000, 40_000):
        put(store, noise.randbytes(size))
        one = TableFollower(store, table, topic="T")
        one.run_once()
    (whole, *others) = sorted(table.glob("day=*/*"), key=lambda path: -path.stat().st_size)
    assert one._tables.good.compact(wall_clock_ms() / 1000 + 3601) == 2
    files = [Path(uri) for uri in deltalake.DeltaTable(str(table)).file_uris()]
    assert whole.name in {path.name for path in files}
    assert len(files) == 2 < 1 + len(others)
    assert rows_of(table, "delta") == 3


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_messages_wait_for_the_files_of_one_day_at_most(tmp_path, monkeypatch, table_format):
    monkeypatch.setattr(f"rmqcore.lake.{table_format}_target.SMALL_COUNT", 2)
    batches = BatchTable(tmp_path / "t", topic="T", table_format=table_format)
    target, rows = batches._tables.good, []
    with monkeypatch.context() as patch:
        patch.setattr(type(target), "compact", lambda *_: 0)
        for number in range(6):
            moment = datetime(2026, 1, 1 + number % 3, tzinfo=UTC)
            row = {"topic": "T", "queue_id": 0, "queue_offset": number, "phy_offset": 100 * number}
            rows.append(row | {"store_timestamp": moment, "body": b"%d" % number})
            batches.write(pa.Table.from_pylist(rows))
    now_s = wall_clock_ms() / 1000
    assert [target.compact(now_s) for _ in range(4)] == [2, 2, 2, 0]
    assert rows_of(tmp_path / "t", table_format) == 6


@pytest.mark.parametrize("how", ["version", "moment", "iceberg"])
def test_a_table_that_was_rolled_back_gets_again_what_it_lacks(tmp_path, how):
    table_format = "iceberg" if how == "iceberg" else "delta"
    follower = TableFollower(
        tmp_path / "store", tmp_path / "t", topic="T", table_format=table_format
    )
    for body in (b"a", b"b", b"c"):
        put(tmp_path / "store", body)
        follower.run_once()
    if how == "iceberg":
        with catalog_of(tmp_path / "t") as catalog:
            table = catalog.load_table("rmq.T")
            first = table.snapshots()[0].snapshot_id
            table.manage_snapshots().rollback_to_snapshot(first).commit()
    else:
        table = deltalake.DeltaTable(tmp_path / "t")
        for path in tmp_path.glob("t/_delta_log/*.json"):
            # which says when a version was made
            os.utime(path, (1000 * int(path.stem), 1000 * int(path.stem)))
        table.restore(datetime.fromtimestamp(1500, UTC) if how == "moment" else 1)
    assert rows_of(tmp_path / "t", table_format) == 1
    put(tmp_path / "store", b"d")
    assert [follower.run_once().rows for _ in range(2)] == [3, 0]
    assert rows_of(tmp_path / "t", table_format) == 4


def test_who_makes_files_one_meanwhile_keeps_no_row_out(tmp_path, monkeypatch):
    def another_was_faster(*_):
        raise TableChangedError("t")

    follower = TableFollower(tmp_path / "store", tmp_path / "t", topic="T")
    monkeypatch.setattr(type(follower._tables.good), "compact", another_was_faster)
    put(tmp_path / "store", b"a")
    assert follower.run_once() == Round(rows=1, refused=0, compacted=0, behind=0)
    put(tmp_path / "store", b"b")
    batches = BatchTable(tmp_path / "t", topic="T", table_format="delta")
    batches.write(pa.table(read_store(tmp_path / "store", topics=["T"])))
    assert rows_of(tmp_path / "t", "delta") == 2


def test_a_topic_whose_name_is_taken_for_a_url_lies_elsewhere_under_its_name(tmp_path):
    put(tmp_path / "store", b"a", topic="%RETRY%g")
    for _ in range(2):
        TableFollower(
            tmp_path / "store", tmp_path / "t", topic="%RETRY%g", table_format="iceberg"
        ).run_once()
    assert rows_of(tmp_path / "t", "iceberg", "%RETRY%g") == 1
    assert [path for path in tmp_path.glob("t/**/*") if "%" in path.name] == []


def test_ten_commits_at_most_stand_behind_a_checkpoint(tmp_path):
    batches = BatchTable(tmp_path / "t", topic="T", table_format="delta")
    row = {"topic": "T", "queue_id": 0, "store_timestamp": datetime(2026, 1, 1, tzinfo=UTC)}
    for number in range(12):
        rows = [row | {"queue_offset": number, "phy_offset": 100 * number, "body": b"a"}]
        batches.write(pa.Table.from_pylist(rows))
    log = tmp_path / "t" / "_delta_log"
    checkpoint = json.loads((log / "_last_checkpoint").read_text())["version"]
    newest = max(int(path.stem) for path in log.glob("*.json"))
    assert 0 <= newest - checkpoint < 10 < newest


@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize("before", [0, 30], ids=["new", "begun"])
def test_a_table_gets_what_the_log_has_of_a_queue_that_lost_its_first_files(
    tmp_path, table_format, before
):
    store, table = tmp_path / "store", tmp_path / "table"
    follower = TableFollower(store, table, topic="T", table_format=table_format)
    bodies = [b"%d" % number for number in range(250)]
    put(store, *bodies[:before], b"other", topic="Other")
    put(store, *bodies[:before])
    if before:
        follower.run_once()
    put(store, *bodies[before:])
    for file in sorted((store / "consumequeue/T/0").iterdir())[:2]:
        file.unlink()
    assert follower.run_once() == Round(250 - before, 0, 0, 0)
    assert follower.run_once() == Round(0, 0, 0, 0)
    assert rows_of(table, table_format) == 250
