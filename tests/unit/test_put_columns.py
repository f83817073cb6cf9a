"""Tables are put whole: in order, as durably as asked for, and all or nothing a batch."""

import asyncio

import pyarrow as pa
import pytest

import rmqcore
from rmqcore import Durability, PutMessageStatus, RowIllegalError, StoreClosedError, open_store
from rmqcore.doctor import verify
from rmqcore.store.parts.column_puts import PIECE_SIZE
from rmqcore.store.parts.put_columns_result import QueueSpan

pytestmark = pytest.mark.engine

SMALL = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 2000}


def table_of(count, start=0, size=100, rows=1 << 20):
    numbers = range(start, start + count)
    whole = pa.table(
        {
            "topic": [f"Topic{number % 3}" for number in numbers],
            "queue_id": [number % 2 for number in numbers],
            "body": [f"{number:0{size}d}" for number in numbers],
            "keys": [f"K{number}" for number in numbers],
            "tags": [f"Tag{number % 5}" for number in numbers],
        }
    )
    return pa.Table.from_batches(whole.to_batches(max_chunksize=rows))


@pytest.mark.parametrize("rows", [7, 1000])
def test_rows_are_read_back_through_queue_key_and_place(store_path, rows):
    with open_store(store_path, **SMALL) as store:
        store.put("Topic0", b"before")
        result = store.put_columns(table_of(1000, rows=rows))
        assert result.ok
        assert (result.row_count, result.durability) == (1000, Durability.PAGE_CACHE)
        found = list(store.messages())[1:]
        assert [int(message.body) for message in found] == list(range(1000))
        assert (found[0].phy_offset, found[-1].phy_offset) == (
            result.phy_offset,
            result.last_phy_offset,
        )
        assert result.store_size == sum(message.store_size for message in found)
        counts = {}
        for message in found:
            queue = message.topic, message.queue_id
            counts[queue] = counts.get(queue, 0) + 1
            first = int(queue == ("Topic0", 0))
            assert message.queue_offset == first + counts[queue] - 1
        assert result.queue_offsets == {
            queue: QueueSpan(
                int(queue == ("Topic0", 0)), int(queue == ("Topic0", 0)) + count - 1, count
            )
            for queue, count in counts.items()
        }
        assert store.get_message("Topic2", 0, 5, max_messages=1).messages[0].body == b"%0100d" % 32
        assert [m.body for m in store.query_message("Topic1", "K997").messages] == [b"%0100d" % 997]
        assert store.put("Topic1", b"after", queue_id=0).queue_offset == counts["Topic1", 0]
    assert verify(store_path).clean


def test_a_batch_with_one_bad_row_leaves_nothing_and_names_the_row(store_path):
    bad = table_of(5000).set_column(4, "tags", pa.array(["a"] * 4999 + [""]))
    with open_store(store_path, **SMALL) as store:
        with pytest.raises(
            RowIllegalError, match="row 4999, column tags: a text is empty"
        ) as caught:
            store.put_columns(bad)
        assert caught.value.stored_count == 0
        assert store.max_phy_offset == 0
        both = pa.concat_tables([table_of(10), bad])
        with pytest.raises(
            RowIllegalError, match=r"row 5009.*\(10 rows of the batches before"
        ) as caught:
            store.put_columns(both)
        assert caught.value.stored_count == len(list(store.messages())) == 10


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_table_reaches_the_durability_that_was_asked_for(store_path, flush):
    usual = Durability.DISK if flush == "SYNC_FLUSH" else Durability.PAGE_CACHE

    async def later(store):
        return await store.put_columns_async(table_of(10), durability="disk")

    with open_store(store_path, flush_disk_type=flush) as store:
        assert store.put_columns(table_of(10)).durability is usual
        result = store.put_columns(table_of(10), durability="disk")
        assert result.durability is Durability.DISK
        assert store.parts.files.writer.flushed_offset >= result.phy_offset + result.store_size
        assert asyncio.run(later(store)).durability is Durability.DISK
        cached = store.put_columns(table_of(10), durability="page_cache")
        assert cached.durability is Durability.PAGE_CACHE
        assert len(list(store.messages())) == 40


def test_a_table_without_rows_stores_nothing(store_path):
    with open_store(store_path) as store:
        for table in (table_of(3).slice(3), pa.table({"body": pa.nulls(0)})):
            result = store.put_columns(table, topic="T")
            assert (result.ok, result.row_count, result.phy_offset) == (True, 0, -1)
            assert (result.durability, result.queue_offsets) == (None, {})


def test_a_large_batch_and_a_large_row_go_over_many_files(store_path):
    with open_store(store_path, **SMALL) as store:
        rows = 3 * PIECE_SIZE // 100
        assert store.put_columns(table_of(rows)).row_count == rows
        large = pa.table({"body": ["x" * 60000] * 5})
        assert store.put_columns(large, topic="T", queue_count=2).queue_offsets == {
            ("T", 0): QueueSpan(0, 2, 3),
            ("T", 1): QueueSpan(0, 1, 2),
        }
        assert len(store.log.queue.files) > 20
        assert len(list(store.messages())) == rows + 5
    assert verify(store_path).clean


def test_a_store_whose_records_end_in_their_crc_writes_it(store_path):
    settings = {"enabled_append_prop_crc": True, "force_verify_prop_crc": True}
    with open_store(store_path, **settings) as store:
        store.put_columns(table_of(100))
        assert all("__CRC32#" in message.properties for message in store.messages())
        assert len(store.get_message("Topic0", 0, 0).messages) == 17
    assert verify(store_path).clean


def test_a_full_disk_is_a_status_and_says_how_many_rows_are_stored(store_path, monkeypatch):
    with open_store(store_path, **SMALL) as store:
        make, made = store.parts.files.allocate.ready_file, []

        def full(path, offset):
            if len(made) == 2:
                raise rmqcore.DiskFullError(path, "no room")
            made.append(offset)
            return make(path, offset)

        monkeypatch.setattr(store.parts.files.allocate, "ready_file", full)
        result = store.put_columns(table_of(2000))
        assert result.status is PutMessageStatus.CREATE_MAPPED_FILE_FAILED
        assert not result.ok
        assert "no room" in result.reason
        assert result.durability is Durability.PAGE_CACHE
        monkeypatch.undo()
        found = [int(message.body) for message in store.messages()]
        assert found == list(range(result.row_count))
        assert 0 < result.row_count < 2000


def test_a_closed_store_and_a_copy_of_one(store_path):
    delayed = pa.table(
        {
            "body": ["a"],
            "properties": pa.array([[("DELAY", "2")]], pa.map_(pa.string(), pa.string())),
        }
    )
    with open_store(store_path) as store:
        with pytest.raises(RowIllegalError, match="copy=True"):
            store.put_columns(delayed, topic="T")
        assert store.put_columns(delayed, topic="T", copy=True).ok
    with pytest.raises(StoreClosedError):
        store.put_columns(delayed, topic="T")


def test_light_queues_take_no_rows_of_tables(store_path):
    named = pa.array([[("INNER_MULTI_DISPATCH", "%LMQ%a")]], pa.map_(pa.string(), pa.string()))
    table = pa.table({"body": ["a"], "properties": named})
    settings = {"enable_lmq": True, "enable_multi_dispatch": True}
    with (
        open_store(store_path, **settings) as store,
        pytest.raises(RowIllegalError, match="light queues"),
    ):
        store.put_columns(table, topic="T")


@pytest.mark.parametrize("library", ["pandas", "polars", "duckdb"])
def test_results_of_other_libraries_go_in_as_they_are(store_path, library):
    module = pytest.importorskip(library)
    values = {"topic": ["A", "B"], "queue_id": [1, 2], "body": ["one", "two"], "tags": ["t", None]}
    if library == "duckdb":
        query = "SELECT * FROM (VALUES ('A', 1, 'one', 't'), ('B', 2, 'two', NULL)) x"
        table = module.sql(f"{query}({', '.join(values)})")
    else:
        table = module.DataFrame(values)
    with open_store(store_path) as store:
        assert store.put_columns(table).row_count == 2
        if library == "pandas":
            assert store.put_columns(table[table.queue_id == 2]).row_count == 1
        found = [(m.topic, m.queue_id, m.body, m.tags) for m in store.messages()][:2]
    assert found == [("A", 1, b"one", "t"), ("B", 2, b"two", None)]


def test_a_scan_goes_into_another_store_as_it_is(store_path, tmp_path):
    from rmqcore import scan

    with open_store(store_path) as store:
        store.put_columns(table_of(50))
        store.put("Topic0", b"named", properties={"a": "b"}, born_host="[::1]:5", flag=7)
    with open_store(tmp_path / "copy") as copy:
        result = copy.put_columns(scan.read_store(store_path, columns=scan.FULL_COLUMNS))
        assert result.row_count == 51
        with open_store(store_path, mode="r") as store:
            for before, after in zip(store.messages(), copy.messages(), strict=True):
                for name in ("topic", "queue_id", "body", "properties", "flag", "born_host"):
                    assert getattr(before, name) == getattr(after, name)


def test_the_first_bad_row_of_many_is_named_whatever_its_column(store_path):
    rows = 300
    delays = [[] if row != 145 else [("DELAY", "1")] for row in range(rows)]
    text_map = pa.map_(pa.string(), pa.string())
    columns = {
        "topic": pa.array(["T" if row != 150 else "no topic" for row in range(rows)]),
        "body": pa.array(["x" * row for row in range(rows)]),
        "tags": pa.array(["TagA" if row != 140 else "" for row in range(rows)]),
        "properties": pa.array(delays, text_map),
    }
    good = {"topic": ["T"] * rows, "tags": ["TagA"] * rows, "properties": [[]] * rows}
    with rmqcore.open_store(store_path) as store:
        for column, row in (("tags", 140), ("properties", 145), ("topic", 150)):
            with pytest.raises(RowIllegalError) as told:
                store.put_columns(pa.table(columns))
            assert (told.value.row, told.value.column) == (row, column)
            columns[column] = pa.array(good[column], columns[column].type)
        assert store.put_columns(pa.table(columns)).row_count == rows
        assert [one.body for one in store.messages()] == [b"x" * row for row in range(rows)]
