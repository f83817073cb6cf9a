"""Batches of a Spark stream in a table: which rows it has already, and which are of another log."""

import os
from datetime import UTC, datetime

import pyarrow as pa
import pytest

import rmqcore
from rmqcore.errors import ConfigError, RmqCoreError
from rmqcore.lake import BatchTable
from rmqcore.lake.bodies import Bodies
from rmqcore.lake.target import OFFSETS, TopicMadeAnewError
from rmqcore.scan import read_store

deltalake = pytest.importorskip("deltalake")

pytestmark = pytest.mark.engine

FILE_SIZE = 1 << 16
SIZES = {"mapped_file_size_commit_log": FILE_SIZE}


def put(path, *bodies):
    with rmqcore.open_store(path, **SIZES) as store:
        for body in bodies:
            store.put("T", body)


def cut(path, queue_offset):
    """A log whose end a power cut took, from a message on."""
    with rmqcore.open_store(path, mode="r") as store:
        end = store.get_message("T", 0, queue_offset).messages[0].phy_offset
    with (path / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(end)
        log.write(bytes(FILE_SIZE - end))
    with rmqcore.open_store(path, **SIZES, on_corruption="truncate"):
        pass


def batch(path, first=0, stop=1 << 40):
    return pa.table(read_store(path, topics=["T"], queue_offsets={"T": {0: (first, stop)}}))


def bodies_of(path):
    return sorted(deltalake.DeltaTable(str(path)).to_pyarrow_table()["body"].to_pylist())


@pytest.fixture
def store(tmp_path):
    put(tmp_path / "store", b"a", b"b", b"c", b"d", b"e")
    return tmp_path / "store"


@pytest.fixture
def table(tmp_path, store):
    found = BatchTable(tmp_path / "table", topic="T")
    found.write(batch(store))
    return found


@pytest.mark.parametrize("first", [0, 4, 5], ids=["from the first on", "the last", "behind it"])
def test_a_batch_of_a_log_that_was_cut_and_has_gone_on_is_refused(store, table, tmp_path, first):
    cut(store, 1)
    put(store, *[b"n"] * 9)
    rows = batch(store, first)
    if first == 5:
        # which in the log that the table knows lie behind its last one
        rows = rows.slice(0, 1).set_column(
            rows.schema.get_field_index("phy_offset"), "phy_offset", pa.array([1], pa.int64())
        )
    with pytest.raises(TopicMadeAnewError, match="queue /0 has another message"):
        table.write(rows)
    assert bodies_of(tmp_path / "table") == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_batch_in_front_of_the_last_row_is_refused_when_the_log_has_lost_its_own(
    store, tmp_path, table_format
):
    """The next one would have told it, and these would have been passed over."""
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[table_format])
    table = BatchTable(tmp_path / "table", topic="T", table_format=table_format)
    table.write(batch(store))
    table.write(batch(store, 1, 4))
    cut(store, 2)
    put(store, b"n", b"n")
    table.write(batch(store, 0, 2))
    with pytest.raises(TopicMadeAnewError, match="queue /0 has another message 2 than the table"):
        table.write(batch(store, 1, 4))


def test_a_batch_in_front_of_the_last_row_is_refused_beside_rows_that_do_not_fit(tmp_path):
    store = tmp_path / "store"
    put(store, *[b"\xff"] * 3)
    table = BatchTable(tmp_path / "table", topic="T", bodies=Bodies("text"))
    table.write(batch(store))
    cut(store, 1)
    put(store, b"new")
    with pytest.raises(TopicMadeAnewError, match="another message 1"):
        table.write(batch(store))


def test_a_batch_in_which_rows_come_twice_has_each_of_them_once(store, table, tmp_path):
    put(store, b"f", b"g")
    rows = batch(store, 3)
    table.write(pa.concat_tables([rows, rows.slice(1), rows]))
    assert bodies_of(tmp_path / "table") == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]


def test_a_batch_with_two_messages_of_one_number_is_refused(store, tmp_path):
    rows = batch(store)
    other = pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 5, pa.timestamp("us", "UTC"))
    others = rows.set_column(
        rows.schema.get_field_index("store_timestamp"), "store_timestamp", other
    )
    table = BatchTable(tmp_path / "table", topic="T")
    with pytest.raises(TopicMadeAnewError, match="two messages 0"):
        table.write(pa.concat_tables([rows, others.cast(rows.schema)]))


@pytest.mark.parametrize("name", ["queue_id", "queue_offset", "phy_offset", "store_timestamp"])
def test_a_row_that_does_not_say_which_message_it_is_is_refused(store, tmp_path, name):
    rows = batch(store)
    at = rows.schema.get_field_index(name)
    nulls = pa.nulls(rows.num_rows, rows.schema.field(at).type)
    with pytest.raises(ConfigError, match=f"column {name}"):
        BatchTable(tmp_path / "table", topic="T").write(rows.set_column(at, name, nulls))


def test_rows_are_told_from_those_of_an_iceberg_table_whose_columns_were_moved(store, tmp_path):
    pytest.importorskip("pyiceberg")
    table = BatchTable(tmp_path / "table", topic="T", table_format="iceberg")
    table.write(batch(store))
    with table._tables.good._table().update_schema() as update:
        update.move_first("store_timestamp")
    table.write(batch(store))
    cut(store, 3)
    put(store, b"n")
    with pytest.raises(TopicMadeAnewError, match="another message 3"):
        table.write(batch(store, 3))


def clean_up_log_of(path):
    """As others do whose commits come when no message does: only the newest state is left."""
    table = deltalake.DeltaTable(str(path))
    table.alter.set_table_description("another's commit")
    for file in (path / "_delta_log").iterdir():
        os.utime(file, (0, 0))
    table.create_checkpoint()
    table.cleanup_metadata()
    assert not [commit for commit in table.history() if OFFSETS in commit]


def test_a_table_goes_on_when_others_have_cleaned_up_its_log(store, table, tmp_path):
    clean_up_log_of(tmp_path / "table")
    with pytest.raises(RmqCoreError, match="which messages they are"):
        BatchTable(tmp_path / "table", topic="U").write(batch(store).slice(0, 0))
    put(store, b"f")
    for again in (table, BatchTable(tmp_path / "table", topic="T")):
        again.write(batch(store))
        assert bodies_of(tmp_path / "table") == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_where_rows_do_not_say_how_far_queues_were_read_the_cleaned_up_log_is_named(
    store, table, tmp_path
):
    deltalake.DeltaTable(str(tmp_path / "table")).delete("queue_offset = 4")
    clean_up_log_of(tmp_path / "table")
    with pytest.raises(RmqCoreError, match="others have committed since and its history was"):
        table.write(batch(store))
    assert bodies_of(tmp_path / "table") == [b"a", b"b", b"c", b"d"]
