"""Rows of a table become the very records that puts of their messages write, or are refused."""

import ctypes
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from rmqcore.errors import ArgumentError, RmqCoreError, RowIllegalError, StoreError
from rmqcore.message import Message
from rmqcore.native.columns._encode_columns import ColumnEncoder
from rmqcore.native.log._records_in import RecordAppender
from rmqcore.native.log._tail import END_OF_FILE, REFUSED, LogTail

pytestmark = pytest.mark.logic

NOW = 1_795_219_234_933
BASE = 1 << 33
FILE_SIZE = 1 << 16
HOST = "10.1.2.3:10911"
MAP = pa.map_(pa.string(), pa.string())
LIMITS = {"body_max": 4096, "log_file_size": FILE_SIZE, "store_host": HOST}


def log_tail(*, size=FILE_SIZE, host=HOST, **settings):
    """The end of an empty log in memory, and its bytes."""
    tail = LogTail(host, 4096, **settings)
    file = bytearray(size)
    tail.attach(file, BASE, 0)
    tail.writable, tail.fixed_time_ms = True, NOW
    return tail, file


def pieces(table, *, size=1 << 20, **settings):
    """The records of a table, and the queues that their numbers stand for."""
    encoder = ColumnEncoder(table, **LIMITS | settings)
    found = []
    while encoder.next_batch() is not None:
        while (piece := encoder.next_piece(size)) is not None:
            found.append(piece)
    return found, encoder.queues


def stored(table, *, size=1 << 20, append_crc=False, host=HOST, **settings):
    """The bytes of a log into which a table was put."""
    tail, file = log_tail(append_crc=append_crc, host=host)
    found, queues = pieces(table, size=size, append_crc=append_crc, store_host=host, **settings)
    appender = RecordAppender(tail, queues)
    for piece in found:
        assert appender.append(piece, 0).store_size == len(piece)
    return bytes(file[: tail.wrote_position])


def put(messages, *, append_crc=False, host=HOST):
    """The bytes of a log into which messages were put, each by itself."""
    tail, file = log_tail(append_crc=append_crc, host=host)
    for one in messages:
        tail.put_message(Message(**({"topic": "T"} | one)))
    return bytes(file[: tail.wrote_position])


def whole_table():
    """A table with every column, and the messages that it stands for."""
    table = pa.table(
        {
            "topic": ["T", None, "Longer" * 30, "%RETRY%a|b-c_D", "T"],
            "queue_id": pa.array([0, 7, None, 5000, 0], pa.int64()),
            "body": pa.array([b"one", b"", None, b"\x00\xff" * 700, b"5"], pa.binary()),
            "tags": ["TagA", None, "Tag B", "TagA", "Grüße"],
            "keys": ["a b", None, "k", "\u20ac", "K5"],
            "unique_key": ["U1", None, None, "U4", None],
            "properties": pa.array(
                [
                    [("x", "y"), ("KEYS", "not these")],
                    None,
                    [],
                    [("WAIT", "true"), ("UNIQ_KEY", "other"), ("__CRC32#", "1234567890")],
                    [("UNIQ_KEY", "own"), ("TRACE", "z" * 300)],
                ],
                MAP,
            ),
            "flag": pa.array([1, None, -1, 2**31 - 1, 0], pa.int32()),
            "sys_flag": pa.array([0, 0x1, 0x302, 0x10, 0x8], pa.int32()),
            "born_timestamp": pa.array([NOW - 1, None, -1, 5, 0], pa.timestamp("ms", "UTC")),
            "reconsume_times": pa.array([0, 3, None, 16, 1], pa.int16()),
            "born_host": [
                "10.0.0.1:80",
                None,
                "[2001:db8::1]:65535",
                "[::ffff:1.2.3.4]:7",
                "10.0.0.1:80",
            ],
        }
    )
    messages = [
        {"topic": "T", "queue_id": 0, "body": b"one", "tags": "TagA", "keys": ("a", "b"),
         "properties": {"UNIQ_KEY": "U1", "x": "y"}, "flag": 1, "born_timestamp_ms": NOW - 1,
         "born_host": "10.0.0.1:80"},
        {"topic": "Default", "queue_id": 7, "sys_flag": 0x1, "reconsume_times": 3},
        {"topic": "Longer" * 30, "queue_id": 2, "tags": "Tag B", "keys": "k", "flag": -1,
         "sys_flag": 0x302, "born_timestamp_ms": -1, "born_host": "[2001:db8::1]:65535"},
        {"topic": "%RETRY%a|b-c_D", "queue_id": 5000, "body": b"\x00\xff" * 700, "tags": "TagA",
         "keys": "\u20ac", "properties": {"UNIQ_KEY": "U4", "WAIT": "true"}, "flag": 2**31 - 1,
         "born_timestamp_ms": 5, "reconsume_times": 16, "born_host": "1.2.3.4:7"},
        {"body": b"5", "tags": "Grüße", "keys": "K5",
         "properties": {"UNIQ_KEY": "own", "TRACE": "z" * 300}, "reconsume_times": 1,
         "born_host": "10.0.0.1:80"},
    ]  # fmt: skip
    return table, messages


@pytest.mark.parametrize("append_crc", [False, True])
@pytest.mark.parametrize("host", [HOST, "[2001:db8::9]:10911"])
def test_rows_become_the_records_that_puts_write(append_crc, host):
    table, messages = whole_table()
    settings = {"append_crc": append_crc, "host": host}
    columns = stored(table, topic="Default", queue_count=5, **settings)
    assert columns == put(messages, **settings)


@pytest.mark.parametrize("size", [1, 400, 1 << 20])
def test_pieces_of_any_size_batches_and_slices_make_the_same_log(size):
    table, messages = whole_table()
    doubled = pa.concat_tables([table, table]).combine_chunks()
    whole = put(messages + messages)
    settings = {"topic": "Default", "queue_count": 5}
    for rows in (1, 3, 10):
        cut = pa.Table.from_batches(doubled.to_batches(max_chunksize=rows))
        assert stored(cut, size=size, **settings) == whole
    sliced = pa.concat_tables([table.slice(4), table]).combine_chunks().slice(1)
    assert stored(sliced, size=size, **settings) == put(messages)


def text_forms(values):
    """One column of text in every form that it may have."""
    plain = pa.array(values, pa.string())
    return {
        "utf8": plain,
        "large": plain.cast(pa.large_string()),
        "view": plain.cast(pa.string_view()),
        "dictionary": plain.dictionary_encode(),
        "small dictionary": plain.cast(pa.dictionary(pa.uint8(), pa.large_string())),
        "sliced": pa.concat_arrays([pa.array(["front"]), plain])[1:],
    }


@pytest.mark.parametrize("form", text_forms([""]))
@pytest.mark.parametrize("column", ["topic", "tags", "keys", "unique_key", "body", "born_host"])
def test_text_is_taken_in_every_form(form, column):
    values = ["10.1.1.1:1", None, "[fe80::1]:22", "10.1.1.1:1"]
    if column == "topic":
        values = ["A", None, "TopicWithALongName", "A"]
    table = {"body": ["b"] * 4, column: pa.array(values, pa.string())}
    expected = stored(pa.table(table), topic="Default")
    table[column] = text_forms(values)[form]
    assert stored(pa.table(table), topic="Default") == expected


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(13), pa.string()]
)
def test_a_body_may_be_bytes_of_any_kind(kind):
    bodies = [b"thirteen byte", b"and some more"]
    table = pa.table({"body": pa.array(bodies, pa.binary()).cast(kind)})
    assert stored(table, topic="T") == put([{"body": body} for body in bodies])


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(),
             pa.uint64(), pa.dictionary(pa.int32(), pa.int64())]
)  # fmt: skip
def test_numbers_are_taken_in_every_width(kind):
    queue_ids = pa.array([0, 127, 3], pa.int64())
    if pa.types.is_dictionary(kind):
        queue_ids = queue_ids.dictionary_encode()
    table = pa.table({"body": ["a"] * 3, "queue_id": queue_ids.cast(kind)})
    expected = put([{"body": b"a", "queue_id": number} for number in (0, 127, 3)])
    assert stored(table, topic="T") == expected


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_are_taken_in_every_unit_and_rounded_down(unit):
    parts = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[unit]
    ticks = [5 * parts, -7 * parts, parts // 3, -parts // 3]
    table = pa.table(
        {"body": ["a"] * 4, "born_timestamp": pa.array(ticks, pa.timestamp(unit, "CET"))}
    )
    born = [tick * 1000 // parts for tick in ticks]
    expected = put([{"body": b"a", "born_timestamp_ms": time or NOW} for time in born])
    assert stored(table, topic="T") == expected


@pytest.mark.parametrize("form", [pa.list_, pa.large_list])
def test_keys_and_properties_may_be_lists(form):
    keys = pa.array([["a", "b"], [], None, ["only"]], form(pa.string_view()))
    pair = pa.struct([("key", pa.large_string()), ("value", pa.string())])
    pairs = [[{"key": "n", "value": "v"}], None, [], [{"key": "m", "value": "w"}]]
    table = {"body": ["x"] * 4, "keys": keys, "properties": pa.array(pairs, form(pair))}
    expected = put(
        [
            {"body": b"x", "keys": ("a", "b"), "properties": {"n": "v"}},
            {"body": b"x"},
            {"body": b"x"},
            {"body": b"x", "keys": "only", "properties": {"m": "w"}},
        ]
    )
    assert stored(pa.table(table), topic="T") == expected
    longer = {
        name: pa.concat_arrays([column[:2], column])
        for name, column in table.items()
        if name != "body"
    }
    longer["body"] = pa.array(["x"] * 6)
    assert stored(pa.table(longer).slice(2), topic="T") == expected


def test_columns_of_nulls_are_columns_that_are_missing():
    nulls = {name: pa.nulls(2) for name in ("tags", "keys", "properties", "flag", "born_timestamp")}
    assert stored(pa.table({"body": ["a", "b"], **nulls}), topic="T") == put(
        [{"body": b"a"}, {"body": b"b"}]
    )


def test_what_says_where_a_message_lay_is_passed_over():
    table = pa.table(
        {"body": ["a"], "phy_offset": [5], "store_timestamp": [None], "__index_level_0__": [9]}
    )
    assert stored(table, topic="T") == put([{"body": b"a"}])


def test_rows_without_a_unique_key_get_the_number_of_their_row():
    table = pa.table({"body": ["a"] * 40, "unique_key": [None, "own"] * 20})
    batches = pa.Table.from_batches(table.to_batches(max_chunksize=7))
    keys = ["own" if row % 2 else f"{'P' * 16}{row:016X}" for row in range(40)]
    expected = put([{"body": b"a", "properties": {"UNIQ_KEY": key}} for key in keys])
    assert stored(batches, topic="T", unique_prefix=b"P" * 16) == expected


def test_many_topics_and_queues_keep_their_numbers():
    rows = [(f"Topic{row * 7 % 300}", row * 31 % 211) for row in range(900)]
    topics, queue_ids = (pa.array(column) for column in zip(*rows, strict=True))
    table = pa.table({"topic": topics, "queue_id": queue_ids, "body": ["b"] * 900})
    (piece, *more), queues = pieces(table)
    assert not more
    assert sorted(queues) == sorted(set(rows))
    tail, file = log_tail(size=1 << 18)
    RecordAppender(tail, queues).append(piece, 0)
    expected, other = log_tail(size=1 << 18)
    for topic, queue_id in rows:
        expected.put_message(Message(topic, b"b", queue_id=queue_id))
    assert file == other


# ---- what is refused


def row_of(column, value, kind=None):
    """A table whose last row has a value in a column."""
    good = {"body": b"good", "topic": "T", "born_host": "10.1.1.1:1"}.get(column)
    if column in ("queue_id", "flag", "sys_flag", "reconsume_times"):
        good = 0
    columns = {"body": pa.array([b"a", b"b", b"c"])}
    columns[column] = pa.array([good, good, value], kind)
    return pa.table(columns)


@pytest.mark.parametrize(
    ("column", "value", "kind", "text"),
    [
        ("topic", "no topic", None, "letters, digits"),
        ("topic", "", None, "letters, digits"),
        ("topic", "T" * 256, None, "letters, digits"),
        ("topic", "Tä", None, "letters, digits"),
        ("queue_id", -1, pa.int64(), "0 or more"),
        ("queue_id", 2**31, pa.int64(), "out of range"),
        ("queue_id", 2**64 - 1, pa.uint64(), "out of range"),
        ("flag", -(2**31) - 1, pa.int64(), "out of range"),
        ("body", b"x" * 4097, None, "longer than 4096 bytes"),
        ("tags", "", pa.string(), "empty"),
        ("tags", "a\x01", pa.string(), "separate properties"),
        ("tags", "long enough for words \x02", pa.string(), "separate properties"),
        ("keys", "", pa.string(), "empty"),
        ("keys", ["a b"], pa.list_(pa.string()), "contains a space"),
        ("keys", [None], pa.list_(pa.string()), "no value"),
        ("unique_key", "\x02", pa.string(), "separate properties"),
        ("properties", [("a", None)], MAP, "no value"),
        ("properties", [("", "b")], MAP, "empty"),
        ("properties", [("a", "")], MAP, "empty"),
        ("properties", [("a\x01b", "c")], MAP, "separate properties"),
        ("properties", [("DELAY", "3")], MAP, "copy=True"),
        ("properties", [("TIMER_DELAY_SEC", "3")], MAP, "no timer wheel"),
        ("properties", [("a", "b" * 32767)], MAP, "more than 32767"),
        ("sys_flag", 0x4, pa.int32(), "not committed"),
        ("sys_flag", 0xC, pa.int32(), "not committed"),
        ("sys_flag", 0x80, pa.int32(), "inner batch"),
        ("born_host", "localhost:1", None, "numeric address"),
        ("born_host", "10.1.1.1:70000", None, "numeric address"),
        ("born_host", "10.1.1.1", None, "numeric address"),
        ("born_host", "[" + "1" * 90 + "]:1", None, "numeric address"),
        ("born_host", "10.1.1.1\0x:1", None, "numeric address"),
        ("born_host", "", None, "numeric address"),
        ("born_timestamp", 2**62, pa.timestamp("s", "UTC"), "out of range"),
    ],
)  # fmt: skip
def test_a_refusal_names_row_and_column(column, value, kind, text):
    encoder = ColumnEncoder(row_of(column, value, kind), topic="T", **LIMITS)
    with pytest.raises(RowIllegalError, match=text) as caught:
        encoder.next_batch()
    assert (caught.value.row, caught.value.column) == (2, column)
    assert str(caught.value).startswith(f"row 2, column {column}: ")
    # nothing of the batch is given
    assert encoder.next_piece(1 << 20) is None


def test_the_row_is_counted_over_all_batches():
    good, bad = row_of("tags", None, pa.string()), row_of("tags", "", pa.string())
    encoder = ColumnEncoder(pa.concat_tables([good, bad]), topic="T", **LIMITS)
    assert encoder.next_batch() == 3
    with pytest.raises(RowIllegalError, match="row 5,"):
        encoder.next_batch()


def test_a_record_that_no_log_file_holds_is_refused():
    with pytest.raises(RowIllegalError, match="which a log file holds"):
        pieces(pa.table({"body": ["x" * 1000]}), topic="T", log_file_size=1000)


def test_a_copy_keeps_what_asked_for_a_delay():
    table = row_of(
        "properties", [("DELAY", "3"), ("TIMER_DELAY_MS", "1"), ("TIMER_OUT_MS", "2")], MAP
    )
    properties = {"DELAY": "3", "TIMER_DELAY_MS": "1", "TIMER_OUT_MS": "2"}
    bodies = [{"body": b"a"}, {"body": b"b"}, {"body": b"c", "properties": properties}]
    assert stored(table, topic="T", copy=True) == put(bodies)


def test_light_queues_are_refused_or_told():
    table = row_of("properties", [("INNER_MULTI_DISPATCH", "%LMQ%a")], MAP)
    encoder = ColumnEncoder(table, topic="T", **LIMITS)
    encoder.next_batch()
    assert encoder.names_light_queues
    with pytest.raises(RowIllegalError, match="light queues"):
        pieces(table, topic="T", light_queues=True)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"boddy": ["a"]}, "did you mean body?"),
        ({"body": ["a"], "nothing_like_it": [1]}, "there are topic, queue_id"),
        ({"tags": ["a"]}, "column body is missing"),
        ({"body": [1]}, "column body='l': expected bytes or text"),
        ({"body": ["a"], "topic": [1]}, "column topic='l': expected text"),
        ({"body": ["a"], "tags": [b"a"]}, "column tags='z': expected text"),
        ({"body": ["a"], "queue_id": [0.5]}, "column queue_id='g': expected whole numbers"),
        ({"body": ["a"], "keys": [[1]]}, "column keys='l': expected text"),
        ({"body": ["a"], "properties": [{"a": "b"}]}, r"column properties='\+s': expected a map"),
        ({"body": ["a"], "properties": [["a"]]}, r"column properties='\+l': expected a map"),
        ({"body": ["a"], "born_timestamp": np.array([1], "M8[us]")}, "with a time zone"),
    ],
)
def test_columns_of_other_names_or_types_are_refused(columns, text):
    with pytest.raises(ArgumentError, match=text):
        pieces(pa.table(columns), topic="T")


def test_a_column_twice_or_no_topic_is_refused():
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["body", "body"])
    with pytest.raises(ArgumentError, match="twice"):
        pieces(twice, topic="T")
    with pytest.raises(ArgumentError, match="give it as an argument or as a column"):
        pieces(pa.table({"body": ["a"]}))
    with pytest.raises(RowIllegalError, match="row 1, column topic: there is no value"):
        pieces(pa.table({"body": ["a", "b"], "topic": ["T", None]}))
    with pytest.raises(ArgumentError, match="topic='a b': expected 1 to 255"):
        pieces(pa.table({"body": ["a"]}), topic="a b")


@pytest.mark.parametrize("table", [None, [{"body": "a"}], pa.array([1]), pa.schema([])])
def test_what_is_no_table_is_refused(table):
    with pytest.raises(ArgumentError, match="table"):
        pieces(table, topic="T")


def test_a_source_that_fails_says_why():
    def batches():
        yield pa.record_batch({"body": ["a"]})
        raise OSError("the file is gone")

    reader = pa.RecordBatchReader.from_batches(pa.schema({"body": pa.string()}), batches())
    encoder = ColumnEncoder(reader, topic="T", **LIMITS)
    assert encoder.next_batch() == 1
    with pytest.raises(RmqCoreError, match="the file is gone"):
        encoder.next_batch()


# ---- columns that contradict themselves


def of_buffers(kind, length, *buffers, **more):
    return pa.Array.from_buffers(kind, length, [None, *map(pa.py_buffer, buffers)], **more)


def spoiled(kind, good, bad, *buffers, **more):
    """A good column of two rows, for pyarrow looks, and what spoils it."""
    numbers = np.array(good)
    return of_buffers(kind, 2, numbers, *buffers, **more), partial(np.copyto, numbers, bad)


def hostile_columns():
    def four(*numbers):
        return np.array(numbers, "i4")

    text, hundred = pa.array(["abcdef"] * 3), b"x" * 100
    view = four((3, 0, 0, 0), (100, 0, 0, 0))
    lists = four(0, 1, 2)

    def indices(bad):
        codes, spoil = spoiled(pa.int8(), np.zeros(2, "i1"), np.array([0, bad], "i1"))
        return pa.DictionaryArray.from_arrays(codes, text), spoil

    return {
        "negative offset": spoiled(pa.string(), four(0, 1, 2), four(0, 1, -5), b"abc"),
        "offset that steps back": spoiled(pa.string(), four(0, 2, 3), four(0, 2, 1), b"abc"),
        "large offset that steps back": spoiled(
            pa.large_string(), np.array([0, 2, 3]), np.array([0, 2, 1]), b"abc"
        ),
        "view of no buffer": spoiled(
            pa.string_view(), view, four((3, 0, 0, 0), (100, 0, 7, 0)), hundred
        ),
        "view behind its buffer": spoiled(
            pa.string_view(), view, four((3, 0, 0, 0), (100, 0, 0, 50)), hundred
        ),
        "negative view": spoiled(
            pa.string_view(), view, four((3, 0, 0, 0), (-1, 0, 0, 0)), hundred
        ),
        "index outside": indices(3),
        "negative index": indices(-1),
        "list that steps back": spoiled(
            pa.list_(pa.string()), lists, four(0, 1, 0), children=[text]
        ),
        "list behind its items": spoiled(
            pa.list_(pa.string()), lists, four(0, 1, 9), children=[text]
        ),
    }


@pytest.mark.parametrize("form", hostile_columns())
def test_a_column_that_contradicts_itself_is_refused(form):
    keys, spoil = hostile_columns()[form]
    table = pa.table({"body": ["a", "b"], "keys": keys})
    spoil()
    with pytest.raises(RowIllegalError, match="row 1, column keys: the column contradicts itself"):
        pieces(table, topic="T")


def test_text_that_is_no_utf8_is_refused():
    for value in (b"\xff", b"long enough for words \xc3(", b"\xed\xa0\x80"):
        broken = of_buffers(pa.string(), 1, np.array([0, len(value)], "i4"), value)
        with pytest.raises(RowIllegalError, match="no UTF-8"):
            pieces(pa.table({"body": ["a"], "tags": broken}), topic="T")


@pytest.mark.parametrize("column", ["body", "tags", "keys"])
def test_a_table_that_changes_between_looking_and_writing_is_refused(column):
    offsets = np.array([0, 2, 4], "i4")
    columns = {"body": pa.array(["a", "b"]), "keys": pa.array([["x"], ["y"]])}
    if column == "keys":
        items = of_buffers(pa.string(), 2, offsets, b"abcdefgh")
        columns["keys"] = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), items)
    else:
        columns[column] = of_buffers(pa.string(), 2, offsets, b"abcdefgh")
    encoder = ColumnEncoder(pa.table(columns), topic="T", **LIMITS)
    encoder.next_batch()
    offsets[2] = 8
    with pytest.raises(RowIllegalError, match="row 1: the table was changed"):
        encoder.next_piece(1 << 20)


class CSchema(ctypes.Structure):
    """As the Arrow C data interface fixes it."""

    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_char_p),
        ("flags", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("children", ctypes.c_void_p),
    )


class CArray(ctypes.Structure):
    """As the Arrow C data interface fixes it."""

    _fields_ = (("length", ctypes.c_int64), ("null_count", ctypes.c_int64))


class Tampered:
    """A batch whose structures are changed when they are handed over."""

    def __init__(self, batch, change):
        self.batch, self.change = batch, change

    def __arrow_c_array__(self, requested_schema=None):
        schema, array = self.batch.__arrow_c_array__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        self.change(
            CSchema.from_address(pointer(schema, b"arrow_schema")),
            CArray.from_address(pointer(array, b"arrow_array")),
        )
        return schema, array


def test_a_batch_that_is_longer_than_its_columns_is_refused():
    def longer(_, array):
        array.length += 1

    with pytest.raises(ArgumentError, match="column body is shorter than the table"):
        pieces(Tampered(pa.record_batch({"body": ["a"]}), longer), topic="T")


def test_a_column_without_a_name_is_none_of_a_message():
    def nameless(schema, _):
        first = ctypes.c_void_p.from_address(schema.children).value
        CSchema.from_address(first).name = None

    with pytest.raises(ArgumentError, match="is none of a message"):
        pieces(Tampered(pa.record_batch({"x": ["a"], "body": ["a"]}), nameless), topic="T")


# ---- the end of the log


def test_records_that_were_damaged_on_the_way_are_refused_or_whole(rng):
    table, _ = whole_table()
    (piece,), queues = pieces(table, topic="Default")
    refused = 0
    for position in range(len(piece)):
        broken = bytearray(piece)
        broken[position] ^= 1 << rng.randrange(8)
        tail, file = log_tail()
        try:
            receipt = RecordAppender(tail, queues).append(bytes(broken), 0)
        except StoreError:
            refused += 1
            assert tail.wrote_position == 0
            assert not any(file)
        else:
            assert receipt.store_size == len(piece)
            assert tail.wrote_position == len(piece)
    assert refused


def test_records_for_another_kind_of_store_are_refused():
    (piece,), queues = pieces(pa.table({"body": ["a"]}), topic="T")
    for settings, text in (
        ({"host": "[2001:db8::1]:1"}, "another kind of address"),
        ({"append_crc": True}, "has a CRC property and the store writes none"),
        ({"size": 64}, "longer than the store's log files"),
    ):
        tail, _ = log_tail(**settings)
        with pytest.raises(StoreError, match=text):
            RecordAppender(tail, queues).append(piece, 0)
    tail, _ = log_tail()
    for others in ([], [("T", 1)], [("U", 0)]):
        with pytest.raises(StoreError, match="table"):
            RecordAppender(tail, others).append(piece, 0)
    for at in (-1, len(piece)):
        with pytest.raises(StoreError, match="no records begin"):
            RecordAppender(tail, queues).append(piece, at)


def test_a_file_takes_the_records_that_it_has_room_for():
    table = pa.table({"body": [f"{row:0100d}" for row in range(20)], "queue_id": [0, 1] * 10})
    (piece,), queues = pieces(table, topic="T")
    tail, _ = log_tail(size=1000)
    appender = RecordAppender(tail, queues)
    first = appender.append(piece, 0)
    each = len(piece) // 20
    assert first.message_count == (1000 - 8) // each
    assert appender.last_phy_offset == BASE + (first.message_count - 1) * each
    assert appender.append(piece, first.store_size) == END_OF_FILE
    tail.attach(bytearray(FILE_SIZE), BASE + 1000, 0)
    rest = appender.append(piece, first.store_size)
    assert rest.message_count == 20 - first.message_count
    assert {number: first + count for number, first, count in appender.placed()} == {0: 10, 1: 10}
    tail.detach()
    assert appender.append(piece, 0) == REFUSED
