"""Columns hold what message objects say, on every store; hostile bytes are refused, not misread."""

import os
import struct

import numpy as np
import pytest

import rmqcore
from golden.stores import packed_stores
from reference.records import Record, encode_record
from reference.values import encode_properties
from rmqcore.native.columns._arrow import ColumnBatches
from rmqcore.native.columns._columns import COLUMNS, ColumnDecoder
from rmqcore.native.columns._row_filter import RowFilter
from rmqcore.native.format._message_ext import message_from
from rmqcore.native.format._next_record import ScanStatus

pytestmark = pytest.mark.logic

pyarrow = pytest.importorskip("pyarrow")
TIMES = ("store_timestamp", "born_timestamp")


def wanted(message, column):
    """What a column says of a message, by the message object."""
    if column == "keys":
        return message.properties.get("KEYS")
    if column == "properties":
        return list(message.properties.items())
    if column == "crc_ok":
        return message.check_crc()
    if column == "record":
        return bytes(message.record)
    if column in TIMES:
        return getattr(message, f"{column}_ms") * 1000
    return getattr(message, column)


def decoded(data, base_offset=0, columns=COLUMNS, **settings):
    """All rows of a buffer, times as microseconds, and why the decoder stopped."""
    decoder = ColumnDecoder(columns, **settings)
    rows, at, status = [], 0, ScanStatus.CAPACITY
    while status is ScanStatus.CAPACITY:
        at, code = decoder.decode(data, at, len(data), base_offset=base_offset)
        status = ScanStatus(code)
        rows += table_rows(decoder.take())
    return rows, at, status


def table_rows(batch):
    arrow = batch.to_arrow()
    arrow.validate(full=True)
    for name in set(TIMES) & set(batch.names):
        number = arrow.schema.get_field_index(name)
        arrow = arrow.set_column(number, name, arrow.column(number).cast("int64"))
    return arrow.to_pylist()


@pytest.mark.parametrize("store", packed_stores(), ids="-".join)
def test_columns_of_a_golden_store_are_what_its_messages_say(golden_store, store):
    golden = golden_store(*store)
    count = 0
    for path in sorted((golden.path / "commitlog").iterdir()):
        data, base = path.read_bytes(), int(path.name)
        rows, end, status = decoded(data, base, row_max=50)
        assert status in (ScanStatus.BLANK, ScanStatus.EMPTY) or golden.name == "crashed"
        at = 0
        for row in rows:
            message = message_from(data, at)
            names = [name for name in COLUMNS if name != "tags_code"]
            assert {n: row[n] for n in names} == {n: wanted(message, n) for n in names}
            at += message.store_size
        assert at == end
        count += len(rows)
    assert count == len(list(rmqcore.open_store(golden.path, mode="r").messages()))


def test_only_the_columns_asked_for_are_there_in_their_order():
    data = encode_record(Record(topic="T", body=b"b"))
    rows, _, _ = decoded(data, columns=("body", "phy_offset"))
    assert [list(row.items()) for row in rows] == [[("body", b"b"), ("phy_offset", 0)]]


@pytest.mark.parametrize("columns", [("nothing",), ("body", "body")])
def test_unknown_or_repeated_columns_are_refused(columns):
    with pytest.raises(ValueError, match="expected different names"):
        ColumnDecoder(columns)


def test_the_selection_keeps_what_fits_and_nothing_else():
    data, records = b"", []
    for number in range(60):
        record = Record(
            topic=f"T{number % 3}",
            queue_id=number % 5,
            phy_offset=len(data),
            store_timestamp_ms=1000 + number,
            sys_flag=(0, 4, 8, 12)[number % 4],
        )
        records.append(record)
        data += encode_record(record)
    settings = {"topics": ["T1", "T2"], "queue_ids": [0, 3], "begin_ms": 1010, "end_ms": 1050}
    rows, _, _ = decoded(data, columns=["phy_offset"], rows=RowFilter(**settings))
    assert [row["phy_offset"] for row in rows] == [
        r.phy_offset
        for r in records
        if r.topic in ("T1", "T2")
        and r.queue_id in (0, 3)
        and 1010 <= r.store_timestamp_ms <= 1050
        and r.sys_flag in (0, 8)
    ]
    assert rows


def test_batches_end_at_rows_and_at_bytes():
    data = b""
    for _ in range(10):
        data += encode_record(Record(topic="T", body=b"x" * 100, phy_offset=len(data)))
    decoder = ColumnDecoder(["body"], row_max=4)
    at, code = decoder.decode(data, 0, len(data), base_offset=0)
    assert (code, len(decoder.take())) == (ScanStatus.CAPACITY, 4)
    size = len(data) // 10
    decoder = ColumnDecoder(["body"], byte_max=3 * size)
    at, code = decoder.decode(data, 0, len(data), base_offset=0)
    assert (code, at, len(decoder.take())) == (ScanStatus.CAPACITY, 3 * size, 3)


def test_malformed_text_becomes_valid_and_the_same_as_in_message_objects():
    names = [b"\xff\xfe", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"a\xc3(", b"\xc0\x80"]
    properties = b"".join(b"n%d\1%s\2" % (i, n) for i, n in enumerate(names)) + b"TAGS\1\xf5x\2"
    data = encode_record(Record(topic="T", properties_data=properties))
    rows, _, _ = decoded(data)
    message = message_from(data)
    assert rows[0]["properties"] == list(message.properties.items())
    assert rows[0]["tags"] == message.tags == "\ufffdx"


def test_of_two_properties_of_one_name_the_later_value_is_there_once():
    many = b"".join(b"k%d\1%d\2" % (i % 300, i) for i in range(2000))
    data = encode_record(Record(topic="T", properties_data=b"TAGS\1a\2" + many + b"TAGS\1b\2"))
    rows, _, _ = decoded(data)
    message = message_from(data)
    assert rows[0]["tags"] == "b"
    assert rows[0]["properties"] == list(message.properties.items())
    assert len(rows[0]["properties"]) == 301


def test_times_that_have_no_microseconds_are_null():
    record = Record(topic="T", store_timestamp_ms=2**63 - 1, born_timestamp_ms=-(2**63))
    rows, _, _ = decoded(encode_record(record), columns=TIMES)
    assert rows == [{"store_timestamp": None, "born_timestamp": None}]


def test_a_body_with_a_wrong_crc_is_told_or_refused():
    data = bytearray(encode_record(Record(topic="T", body=b"body")))
    data[data.index(b"body")] ^= 1
    rows, _, status = decoded(data, columns=["crc_ok"])
    assert (rows, status) == ([{"crc_ok": False}], ScanStatus.OK)
    rows, at, status = decoded(data, columns=["crc_ok"], verify_crc=True)
    assert (rows, at, status) == ([], 0, ScanStatus.BAD_CRC)


def test_records_from_anywhere_are_rows_where_places_are_not_compared():
    records = [Record(topic="T", phy_offset=place, body=b"b") for place in (500, 7, 500)]
    data = b"".join(map(encode_record, records))
    rows, at, status = decoded(data, base_offset=None, columns=["phy_offset"])
    assert [row["phy_offset"] for row in rows] == [500, 7, 500]
    assert (at, status) == (len(data), ScanStatus.OK)
    rows, at, status = decoded(data[:-1], base_offset=None, columns=["phy_offset"])
    assert (len(rows), status) == (2, ScanStatus.TRUNCATED)
    wrong = data.replace(b"\0\0\0\1b", b"\0\0\0\1c", 1)
    _, at, status = decoded(wrong, base_offset=None, columns=["phy_offset"], verify_crc=True)
    assert (at, status) == (0, ScanStatus.BAD_CRC)


def test_a_record_that_lies_elsewhere_is_no_row():
    data = encode_record(Record(topic="T", phy_offset=500))
    assert decoded(data, base_offset=0)[2] is ScanStatus.BAD_OFFSET
    assert len(decoded(data, base_offset=500)[0]) == 1


def test_every_flipped_byte_gives_right_rows_or_a_reason(rng):
    properties = encode_properties({"TAGS": "a", "KEYS": "k1 k2", "x": "y"})
    data = b""
    for number in range(3):
        data += encode_record(
            Record(
                topic="T" * (1 + 200 * (number == 1)),
                body=b"b" * number,
                phy_offset=len(data),
                properties_data=properties,
            )
        )
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 1 << rng.randrange(8)
        rows, at, status = decoded(bytes(broken), row_max=8)
        assert 0 <= at <= len(data)
        assert (status is ScanStatus.OK) == (at == len(data))
        start = 0
        for row in rows:
            message = message_from(bytes(broken), start, check_crc=False)
            assert row["body"] == message.body
            assert row["properties"] == list(message.properties.items())
            start += message.store_size


def test_compressed_bodies_are_given_back_as_they_were(store_path):
    plain = [b"a" * 5000, b"", b"short"]
    import zlib

    data = b""
    for number, body in enumerate(plain):
        packed = zlib.compress(body) if number != 2 else body
        record = Record(
            topic="T", body=packed, sys_flag=1 if number != 2 else 0, phy_offset=len(data)
        )
        data += encode_record(record)
    rows, _, _ = decoded(data, columns=["body", "flag"], plain_bodies=True)
    assert [row["body"] for row in rows] == plain
    broken = encode_record(Record(topic="T", body=b"no zlib", sys_flag=1))
    with pytest.raises(rmqcore.CorruptRecordError, match="does not decompress") as caught:
        decoded(broken, columns=["body"], plain_bodies=True)
    assert caught.value.phy_offset == 0


def test_memory_lives_as_long_as_its_importers():
    data = encode_record(Record(topic="T", body=b"kept", phy_offset=0))
    decoder = ColumnDecoder(["body", "phy_offset", "properties"])
    decoder.decode(data, 0, len(data), base_offset=0)
    batch = decoder.take()
    column = batch.to_arrow().column(0)
    numbers = batch.numbers("phy_offset")
    again = pyarrow.table(batch)
    del batch, decoder
    assert column.to_pylist() == [b"kept"]
    assert numbers.tolist() == [0]
    assert again.num_rows == 1
    with pytest.raises(ValueError, match="read-only"):
        numbers[0] = 1


def test_an_export_that_nobody_imports_is_freed():
    batch = ColumnDecoder(COLUMNS, row_max=4).take()
    for _ in range(100):
        batch.__arrow_c_array__()
        batch.__arrow_c_stream__()
    assert batch.num_rows == 0


@pytest.mark.engine
def test_an_error_in_the_middle_of_a_stream_reaches_the_importer(store_path):
    with rmqcore.open_store(store_path) as store:
        store.put("T", b"good")
        store.put("T", b"bad!")
        store.put("T", b"more")
    path = store_path / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"bad!", b"evil"))
    with rmqcore.open_store(store_path, mode="r") as store:
        result = store.get_message("T", 0, 0)
        with pytest.raises(rmqcore.CorruptRecordError):
            list(result.batches())
        with pytest.raises(OSError, match="CorruptRecordError"):
            pyarrow.table(result)


def no_text():
    raise rmqcore.CorruptRecordError(os.fsdecode(b"caf\xe9"), 7, "the size is wrong")
    yield


def silent():
    class Mute(Exception):
        def __str__(self):
            raise ValueError

    raise Mute
    yield


@pytest.mark.parametrize(
    ("source", "told"), [(no_text, "CorruptRecordError.*caf"), (silent, "source of the batches")]
)
def test_an_error_that_is_no_text_ends_no_stream(source, told):
    empty = ColumnDecoder(COLUMNS, row_max=4).take()
    stream = pyarrow.RecordBatchReader.from_stream(ColumnBatches(empty, source))
    for _ in range(2):
        with pytest.raises(OSError, match=told):
            stream.read_next_batch()


def test_a_get_result_is_a_table(golden_store):
    golden = golden_store("5.5.0", "basic")
    with rmqcore.open_store(golden.path, mode="r") as store:
        result = store.get_message("TopicA", 0, 0, max_messages=40)
        table = result.to_arrow()
        assert table["body"].to_pylist() == [message.body for message in result.messages]
        assert table["message_id"].to_pylist() == [m.message_id for m in result.messages]
        assert pyarrow.table(result) == table
        assert store.get_message("unknown", 0, 0).to_arrow().num_rows == 0


def test_numbers_are_what_the_records_hold():
    data = b""
    for number in range(5):
        data += encode_record(Record(topic="T", queue_offset=number, phy_offset=len(data)))
    decoder = ColumnDecoder(["queue_offset", "queue_id", "topic"])
    decoder.decode(data, 0, len(data), base_offset=0)
    batch = decoder.take()
    assert batch.numbers("queue_offset").dtype == np.int64
    assert batch.numbers("queue_offset").tolist() == list(range(5))
    with pytest.raises(KeyError, match="no column of whole numbers"):
        batch.numbers("topic")
    with pytest.raises(KeyError, match="this batch has"):
        batch.numbers("body")


def test_positions_outside_the_buffer_are_refused():
    decoder = ColumnDecoder(["topic"])
    for at, stop in ((-1, 0), (0, 9), (5, 4)):
        with pytest.raises(IndexError):
            decoder.decode(struct.pack(">q", 0), at, stop, base_offset=0)


def test_a_get_result_is_read_as_often_as_is_wanted(golden_store):
    golden = golden_store("5.5.0", "basic")
    with rmqcore.open_store(golden.path, mode="r") as store:
        batches = store.get_message("TopicA", 0, 0, max_messages=40).batches()
        first = batches.to_arrow()
        assert first.num_rows > 0
        assert batches.to_arrow() == first
        assert sum(len(batch) for batch in batches) == first.num_rows
