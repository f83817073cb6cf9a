"""Tables that follow a topic: each message is a row once, and commits say how far they are."""

import importlib
import io
import json
import os
import threading
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rmqcore
from rmqcore.errors import ConfigError, RecordsGoneError, RmqCoreError
from rmqcore.lake import BatchTable, Bodies, Round, TableFollower, follower
from rmqcore.lake.bodies import Field
from rmqcore.lake.target import (
    OFFSETS,
    MissedMessagesError,
    TableChangedError,
    TopicMadeAnewError,
)
from rmqcore.scan import DEFAULT_COLUMNS, read_store

deltalake = pytest.importorskip("deltalake")
catalogs = pytest.importorskip("pyiceberg.catalog.sql")
from rmqcore.lake.iceberg_files import forgotten  # noqa: E402 - behind the packages it is for
from rmqcore.scan.tables import iceberg_properties  # noqa: E402 - behind the packages it is for

pytestmark = pytest.mark.engine

SIZES = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 2000}


def put(path, *bodies, topic="T"):
    with rmqcore.open_store(path, **SIZES) as store:
        for number, body in enumerate(bodies):
            store.put(topic, body, queue_id=number % 2, keys=f"K{number}", properties={"p": "q"})


def rows_of(table, table_format, name="T"):
    if table_format == "delta":
        found = deltalake.DeltaTable(str(table)).to_pyarrow_table()
    else:
        catalog = catalogs.SqlCatalog("rmqcore", **iceberg_properties(table))
        found = catalog.load_table(f"rmq.{name}").scan().to_arrow()
        catalog.close()
    return sorted(found.to_pylist(), key=lambda row: (row["queue_id"], row["queue_offset"]))


@pytest.fixture(params=["delta", "iceberg"])
def following(request, tmp_path):
    """Makes followers of the topic T of a store, all of one table."""
    made = partial(
        TableFollower,
        tmp_path / "store",
        tmp_path / "table",
        topic="T",
        table_format=request.param,
    )
    made.rows = lambda: rows_of(tmp_path / "table", request.param)
    made.refused = lambda: rows_of(tmp_path / "table~dlq", request.param, "refused")
    made.store = tmp_path / "store"
    return made


def test_each_message_is_a_row_once_whoever_goes_on(following):
    put(following.store, b"a", b"b", b"\xff")
    assert following().run_once().rows == 3
    assert following().run_once().rows == 0
    put(following.store, b"c")
    assert following().run_once().rows == 1
    rows = following.rows()
    assert [(row["queue_id"], row["queue_offset"], row["body"]) for row in rows] == [
        (0, 0, b"a"),
        (0, 1, b"\xff"),
        (0, 2, b"c"),
        (1, 0, b"b"),
    ]
    assert rows[0]["keys"] == "K0"
    assert ("p", "q") in rows[0]["properties"]
    assert rows[0]["day"] == rows[0]["store_timestamp"].strftime("%Y-%m-%d")


@pytest.mark.parametrize("dies_in", ["good", "refused"])
def test_a_follower_that_dies_between_two_commits_has_each_row_once(
    following, monkeypatch, dies_in
):
    bodies = Bodies("text")
    put(following.store, b"a", b"\xff")
    first = following(bodies=bodies)
    target = first._tables.good if dies_in == "good" else first._tables.refused

    def die(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(target, "append", die)
    with pytest.raises(KeyboardInterrupt):
        first.run_once()
    put(following.store, b"b", b"\xfe")
    following(bodies=bodies).run_once()
    assert [row["body"] for row in following.rows()] == ["a", "b"]
    assert [row["body"] for row in following.refused()] == [b"\xff", b"\xfe"]


def test_a_round_with_less_of_a_queue_than_one_that_died_puts_nothing_aside_twice(
    following, monkeypatch
):
    bodies = Bodies("text")
    put(following.store, *[b"\xff"] * 4)
    first = following(bodies=bodies)
    monkeypatch.setattr(first._tables.good, "append", lambda *_: None)
    monkeypatch.setattr(first._tables.good, "compact", lambda _: 0)
    first.run_once()
    with rmqcore.open_store(following.store, **SIZES) as store:
        for _ in range(20):
            store.put("T", b"\xfe")
    monkeypatch.setattr(follower, "ROWS_MAX", 6)
    while following(bodies=bodies).run_once().behind:
        pass
    assert [row["body"] for row in following.refused()].count(b"\xff") == 4


def test_the_table_beside_lies_beside_whatever_the_table_is_called(tmp_path):
    put(tmp_path / "store", b"\xff")
    one = TableFollower(tmp_path / "store", f"{tmp_path}/table/", topic="T", bodies=Bodies("text"))
    assert one.run_once().refused == 1
    assert len(rows_of(tmp_path / "table~dlq", "delta")) == 1


def test_a_topic_with_a_long_past_comes_in_many_commits(following, monkeypatch):
    monkeypatch.setattr(follower, "ROWS_MAX", 4)
    put(following.store, *(b"%d" % number for number in range(11)))
    rounds = [following().run_once() for _ in range(4)]
    assert [one.behind for one in rounds][-1] == 0
    assert max(one.rows for one in rounds) <= 4
    assert sum(one.rows for one in rounds) == 11
    assert len(following.rows()) == 11


def test_a_commit_has_no_more_bytes_than_memory_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(follower, "BYTES_MAX", 1)
    with rmqcore.open_store(tmp_path / "store", mapped_file_size_commit_log=64 << 20) as store:
        for number in range(6):
            store.put("T", bytes([number]) * (4 << 20 if number else 1), queue_id=number % 2)
    one = TableFollower(tmp_path / "store", tmp_path / "table", topic="T")
    rounds = [one.run_once()]
    while rounds[-1].behind:
        rounds.append(one.run_once())
    assert len(rounds) > 1
    rows = rows_of(tmp_path / "table", "delta")
    assert [row["body"][0] for row in rows] == [0, 2, 4, 1, 3, 5]


def test_bodies_become_columns_and_what_does_not_fit_is_put_aside(following, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"id": "long!", "name": "string", "at": "timestamp-millis", "more": "json"}')
    put(
        following.store,
        b'{"id": 1, "name": "n", "at": 1000, "more": {"x": [1]}, "unknown": 2}',
        b'{"name": "without id"}',
        b'{"id": "2"}',
        b'{"id": 9223372036854775808}',
        b"\xff",
        b"[]",
    )
    done = following(bodies=Bodies.of_schema(schema)).run_once()
    assert (done.rows, done.refused) == (1, 5)
    (row,) = following.rows()
    assert (row["id"], row["name"], row["more"]) == (1, "n", '{"x":[1]}')
    assert row["at"].timestamp() == 1
    assert {row["error"] for row in following.refused()} == {
        "id is missing",
        "id is no long: str",
        "id is no long: 9223372036854775808",
        "no UTF-8: invalid start byte at byte 0",
        "no JSON object",
    }


@pytest.mark.parametrize(
    "body",
    [
        b'{"at": 9223372036854775807}',
        b'{"at": 253402300800000}',
        b'{"more": {"x": "\\ud800"}}',
        b'{"more": NaN}',
        b'{"more": 1e999}',
        b'{"long": 1e999}',
        b'{"short": 1e39}',
        b'{"short": -3.5e38}',
    ],
)
def test_a_body_that_no_column_takes_does_not_fit(body):
    numbers = Field("long", "double"), Field("short", "float")
    fields = (Field("at", "timestamp-millis"), Field("more", "json"), *numbers)
    # a field that has no column keeps no row away
    table = pa.table({"body": pa.array([b'{"other": 1e999}', body], pa.binary())})
    good, rest = Bodies("json", fields).apply(table)
    assert (good.num_rows, rest.column("body").to_pylist()) == (1, [body])


def test_a_schema_may_grow(following, tmp_path):
    put(following.store, b'{"id": 1}')
    schema = tmp_path / "schema.json"
    schema.write_text('{"id": "long"}')
    following(bodies=Bodies.of_schema(schema)).run_once()
    put(following.store, b'{"id": 2, "name": "n"}')
    schema.write_text('{"id": "long", "name": "string"}')
    following(bodies=Bodies.of_schema(schema)).run_once()
    assert [(row["id"], row["name"]) for row in following.rows()] == [(1, None), (2, "n")]


def test_a_column_of_another_type_is_refused(following):
    put(following.store, b'{"id": 1}')
    following(bodies=Bodies("json", (Field("id", "int"),))).run_once()
    put(following.store, b'{"id": 1.5}')
    with pytest.raises(RmqCoreError, match="the column id has the type int32, and not double"):
        following(bodies=Bodies("json", (Field("id", "double"),))).run_once()


def test_a_table_that_cannot_be_read_is_told_as_such(tmp_path):
    put(tmp_path / "store", b"a")
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    (tmp_path / "table" / "_delta_log" / f"{0:020}.json").write_text("nothing")
    with pytest.raises(RmqCoreError, match="table"):
        TableFollower(tmp_path / "store", tmp_path / "table", topic="T").run_once()


def test_small_files_are_made_one_and_progress_stays(following, monkeypatch):
    monkeypatch.setattr(f"rmqcore.lake.{following.keywords['table_format']}_target.SMALL_COUNT", 3)
    for number in range(3):
        put(following.store, b"%d" % number)
        done = following().run_once()
    assert done.compacted == 3
    following().expire(0)
    assert following().run_once().rows == 0
    assert len(following.rows()) == 3


def test_what_does_not_fit_is_made_one_file_too(following, monkeypatch, tmp_path):
    monkeypatch.setattr(f"rmqcore.lake.{following.keywords['table_format']}_target.SMALL_COUNT", 3)
    bodies = Bodies("text")
    for _ in range(3):
        put(following.store, b"\xff")
        done = following(bodies=bodies).run_once()
    assert done.compacted == 3
    sizes = [pq.read_metadata(one).num_rows for one in (tmp_path / "table~dlq").rglob("*.parquet")]
    assert sorted(sizes) == [1, 1, 1, 3]
    assert len(following.refused()) == 3


def test_a_file_that_a_killed_delta_commit_has_left_goes_when_it_is_old(tmp_path):
    put(tmp_path / "store", b"a")
    one = TableFollower(tmp_path / "store", tmp_path / "table", topic="T")
    one.run_once()
    stray = next((tmp_path / "table").rglob("*.parquet")).with_name("of-a-kill.parquet")
    stray.write_bytes(b"")
    one.expire(3600)
    assert stray.exists()
    for path in (tmp_path / "table").rglob("*.parquet"):
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 7200))
    one.expire(3600)
    assert not stray.exists()
    assert len(rows_of(tmp_path / "table", "delta")) == 1
    assert one.run_once() == Round(0, 0, 0, 0)


def test_files_of_forgotten_iceberg_states_go_when_nobody_can_be_about_to_name_them(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("rmqcore.lake.iceberg_target.SMALL_COUNT", 3)
    one = TableFollower(tmp_path / "store", tmp_path / "table", topic="T", table_format="iceberg")
    for number in range(3):
        put(tmp_path / "store", b"%d" % number)
        one.run_once()

    def files():
        return sorted((tmp_path / "table" / "_iceberg").rglob("*.*"))

    stray = next(path for path in files() if path.suffix == ".parquet").with_name("of-a-kill.tmp")
    stray.write_bytes(b"")
    hint = next(path for path in files() if path.suffix == ".avro").with_name("version-hint.text")
    hint.write_bytes(b"3")
    one.expire(3600)
    before = files()
    assert stray in before
    for path in before:
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 7200))
    one.expire(3600)
    assert [path for path in before if not path.exists()] == [stray]
    one.expire(0)
    assert hint.exists()
    kinds = [path.suffix for path in before if path.exists()]
    # the newest state: one file, the list of manifests, that which has the file and that of others
    assert (kinds.count(".parquet"), kinds.count(".avro")) == (1, 3)
    assert len(rows_of(tmp_path / "table", "iceberg")) == 3
    assert one.run_once() == Round(0, 0, 0, 0)


def test_a_compaction_that_is_overtaken_brings_no_row_again(tmp_path, monkeypatch):
    one = TableFollower(tmp_path / "store", tmp_path / "table", topic="T")
    for body in (b"a", b"b"):
        put(tmp_path / "store", body)
        behind = one._tables.good.offsets()
        monkeypatch.setattr(one._tables.good, "compact", lambda _: 0)
        one.run_once()
    monkeypatch.undo()
    monkeypatch.setattr("rmqcore.lake.delta_target.SMALL_COUNT", 2)
    overtaken = TableFollower(tmp_path / "store", tmp_path / "table", topic="T")._tables.good
    monkeypatch.setattr(overtaken, "offsets", lambda: behind)
    assert overtaken.compact(0) == 2
    assert one.run_once().rows == 0
    assert [row["body"] for row in rows_of(tmp_path / "table", "delta")] == [b"a", b"b"]


def test_iceberg_files_that_memory_does_not_hold_together_are_left(tmp_path, monkeypatch):
    monkeypatch.setattr("rmqcore.lake.iceberg_target.SMALL_COUNT", 3)
    one = TableFollower(tmp_path / "store", tmp_path / "table", topic="T", table_format="iceberg")
    made = []
    for number in range(4):
        put(tmp_path / "store", b"%d" % number)
        if not number:
            one.run_once()
            file = next((tmp_path / "table").rglob("*.parquet"))
            size = file.stat().st_size * 5 // 2
            monkeypatch.setattr("rmqcore.lake.iceberg_target.MERGED_SIZE", size)
        else:
            made.append(one.run_once().compacted)
    assert made == [0, 2, 2]
    rows = rows_of(tmp_path / "table", "iceberg")
    assert [row["body"] for row in rows] == [b"0", b"1", b"2", b"3"]


def test_states_grow_rarer_as_they_grow_old():
    minute, hour, day = 60_000, 3_600_000, 86_400_000
    now = 1000 * day - 1
    states = {number: now - number * minute for number in range(10_080)}
    kept = sorted(states.keys() - forgotten(states, now, 7 * day))
    assert kept[:61] == list(range(61))
    ages = [(now - states[number]) // hour for number in kept[61:]]
    assert ages[:24] == list(range(1, 25))
    assert len(kept) == 61 + 24 + 6
    assert forgotten(states, now, 0) == list(range(1, 10_080))


def test_a_state_that_says_how_far_the_table_is_outlives_those_of_others(tmp_path):
    put(tmp_path / "store", b"a")
    one = TableFollower(tmp_path / "store", tmp_path / "table", topic="T", table_format="iceberg")
    one.run_once()
    catalog = catalogs.SqlCatalog("rmqcore", **iceberg_properties(tmp_path / "table"))
    for _ in range(2):
        catalog.load_table("rmq.T").append(catalog.load_table("rmq.T").scan().to_arrow())
    catalog.close()
    one.expire(0)
    assert one.run_once() == Round(0, 0, 0, 0)


def test_of_two_followers_one_is_refused(following, monkeypatch):
    put(following.store, b"a", b"b")
    slow = following()
    offsets = slow._tables.good.offsets()
    following().run_once()
    monkeypatch.setattr(slow._tables.good, "offsets", lambda: offsets)
    with pytest.raises(TableChangedError):
        slow.run_once()
    assert len(following.rows()) == 2


def test_of_two_commits_at_once_one_is_refused(following, monkeypatch):
    target = importlib.import_module(f"rmqcore.lake.{following.keywords['table_format']}_target")
    put(following.store, b"a", b"b")
    following().run_once()
    put(following.store, b"c")
    # behind the question how far the table is, in front of the commit
    with_day = target.with_day

    def another_first(rows):
        monkeypatch.setattr(target, "with_day", with_day)
        following().run_once()
        return with_day(rows)

    monkeypatch.setattr(target, "with_day", another_first)
    with pytest.raises(TableChangedError, match="faster; what is written again"):
        following().run_once()
    assert [row["body"] for row in following.rows()] == [b"a", b"c", b"b"]


def test_what_was_deleted_before_it_was_read_is_an_error_until_it_is_allowed(following):
    put(following.store, b"a", b"b")
    one = following()
    one.run_once()
    there = one._source.spans()
    later = {
        queue: span._replace(first=span.stop + 2, stop=span.stop + 2)
        for queue, span in there.items()
    }
    one._source.spans = lambda: later
    with pytest.raises(MissedMessagesError, match="were deleted"):
        one.run_once()
    allowing = following(allow_loss=True)
    allowing._source.spans = lambda: later
    assert allowing.run_once() == Round(0, 0, 0, 0)


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(following, count):
    put(following.store, b"a", b"b", b"c")
    following().run_once()
    with rmqcore.open_store(following.store, **SIZES) as store:
        store.delete_topic("T")
    put(following.store, *[b"new"] * count)
    for _ in range(2):
        with pytest.raises(TopicMadeAnewError, match="made anew"):
            following(allow_loss=True).run_once()
    assert [row["body"] for row in following.rows()] == [b"a", b"c", b"b"]


def test_progress_of_before_there_were_marks_is_taken_up(following, monkeypatch):
    put(following.store, b"a", b"b", b"c")
    target = importlib.import_module(f"rmqcore.lake.{following.keywords['table_format']}_target")
    monkeypatch.setattr(target, "commit_facts", lambda *_: {OFFSETS: '{"/0":2,"/1":1}'})
    following().run_once()
    monkeypatch.undo()
    put(following.store, b"d")
    assert following().run_once().rows == 1
    assert [row["body"] for row in following.rows()] == [b"a", b"c", b"d", b"b"]


def test_a_table_of_somebody_else_is_left_alone(tmp_path):
    put(tmp_path / "store", b"a")
    deltalake.write_deltalake(str(tmp_path / "table"), pa.table({"a": [1]}))
    with pytest.raises(RmqCoreError, match="directory of its own"):
        TableFollower(tmp_path / "store", tmp_path / "table", topic="T").run_once()


@pytest.mark.parametrize(
    "failure", [TableChangedError("another was faster"), RecordsGoneError("commitlog/0", 7)]
)
def test_rounds_come_until_they_are_ended_and_failures_are_told(tmp_path, failure):
    put(tmp_path / "store", b"a")
    one, stop, told, failed = (
        TableFollower(tmp_path / "store", tmp_path / "table", topic="T"),
        threading.Event(),
        [],
        [],
    )
    whole = one.run_once

    def first_fails():
        if not failed:
            raise failure
        return whole()

    def end(done):
        told.append(done)
        stop.set()

    one.run_once = first_fails
    one.run(0.001, stop, end, failed.append)
    assert failed == [failure]
    assert [done.rows for done in told] == [1]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[]", "an object"),
        ('{"a": "money"}', "one of"),
        ('{"body": "string"}', "no other column"),
        ('{"a": "long", "A": "string"}', "no other column"),
        ("nothing", "Expecting value"),
    ],
)
def test_a_schema_that_is_none_is_refused(tmp_path, text, what):
    path = tmp_path / "schema.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=what):
        Bodies.of_schema(path)


def test_an_avro_record_names_columns(tmp_path):
    path = tmp_path / "schema.avsc"
    kinds = [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "parts", "type": {"type": "array", "items": "string"}, "default": []},
    ]
    path.write_text(json.dumps({"type": "record", "name": "Order", "fields": kinds}))
    found = [(one.name, one.kind, one.required) for one in Bodies.of_schema(path).fields]
    assert found == [
        ("id", "long", True),
        ("name", "string", False),
        ("at", "timestamp-millis", True),
        ("parts", "json", False),
    ]


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"]},
        {"name": "parts", "type": {"type": "array", "items": "bytes"}},
    ],
}


def test_avro_bodies_become_columns(following, tmp_path):
    fastavro = pytest.importorskip("fastavro")
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(AVRO))
    out = io.BytesIO()
    order = {"id": 7, "at": 1000, "note": None, "parts": [b"a\xff"]}
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(path.read_text())), order)
    bare = out.getvalue()
    canonical = fastavro.schema.to_parsing_canonical_form(AVRO)
    code = bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))
    put(following.store, bare, b"\xc3\x01" + code + bare, bare + b"\0", bare[:-1])
    done = following(bodies=Bodies.of_schema(path, "avro")).run_once()
    assert (done.rows, done.refused) == (2, 2)
    for row in following.rows():
        assert (row["id"], row["note"], row["parts"]) == (7, None, '["a\xff"]')
        assert row["at"].timestamp() == 1
    longer, shorter = (row["error"] for row in following.refused())
    assert longer == "no datum of the Avro schema: 1 bytes are left behind it"
    assert shorter.startswith("no datum of the Avro schema: ")


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        ({"id": "long"}, "an Avro record"),
        ({**AVRO, "fields": [{"name": "id", "type": "money"}]}, "a schema of Avro's"),
        (
            {**AVRO, "fields": [{"name": "id", "type": {"type": "array", "items": "null"}}]},
            "takes no bytes",
        ),
    ],
)
def test_a_schema_that_no_avro_body_can_have_is_refused(tmp_path, schema, what):
    pytest.importorskip("fastavro")
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(schema))
    with pytest.raises(ConfigError, match=what):
        Bodies.of_schema(path, "avro")


# ---- batches of a stream


def batch(path, first, stop, *, queues=(0, 1)):
    """Rows of two queues as a stream over a store has them, in no order."""
    offsets = {"T": dict.fromkeys(queues, (first, stop))}
    table = pa.table(read_store(path, DEFAULT_COLUMNS, queue_offsets=offsets))
    return table.take(list(reversed(range(table.num_rows))))


def test_a_batch_that_comes_again_has_no_row_twice_and_a_follower_goes_on(following, tmp_path):
    settings = {**following.keywords, "bodies": Bodies("text")}
    put(following.store, *[b"%d" % number for number in range(7)], b"\xff")
    for first, stop in ((0, 2), (0, 3), (1, 3)):
        BatchTable(tmp_path / "table", **settings).write(batch(following.store, first, stop), 7)
    assert [row["body"] for row in following.rows()] == ["0", "2", "4", "1", "3", "5"]
    assert following(bodies=Bodies("text")).run_once() == Round(1, 1, 0, 0)
    BatchTable(tmp_path / "table", **settings).write(batch(following.store, 0, 4))
    assert (len(following.rows()), len(following.refused())) == (7, 1)


def test_a_batch_of_another_topic_of_the_name_is_refused(tmp_path):
    put(tmp_path / "store", b"a", b"b", b"c")
    table = BatchTable(tmp_path / "table", topic="T")
    table.write(batch(tmp_path / "store", 0, 9))
    with rmqcore.open_store(tmp_path / "store", **SIZES) as store:
        store.delete_topic("T")
    put(tmp_path / "store", *[b"new"] * 9)
    with pytest.raises(TopicMadeAnewError, match="another message"):
        table.write(batch(tmp_path / "store", 0, 9))
    rows = batch(tmp_path / "store", 0, 9)
    with pytest.raises(ConfigError, match="phy_offset among them"):
        table.write(rows.drop_columns(["phy_offset"]))
    with pytest.raises(ConfigError, match="rows of U only"):
        BatchTable(tmp_path / "table", topic="U").write(rows)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"table_format": "hudi"}, "delta, iceberg"),
        ({"topic": None}, "the topic whose messages"),
        ({"topic": "%LMQ%phone"}, "light queue"),
    ],
)
def test_a_follower_that_cannot_be_is_refused(tmp_path, settings, what):
    with pytest.raises(ConfigError, match=what):
        TableFollower(tmp_path, tmp_path / "table", **{"topic": "T", **settings})
