"""The native codec against the oracle: the same result, and the same refusal, on any bytes."""

import re
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from golden.vectors import vector, vectors
from reference import records, values
from reference.strategies import (
    BODIES,
    HOSTS,
    INT32,
    INT64,
    LETTERS,
    OFFSETS,
    PROPERTIES,
    TIMES,
    VALUES,
    damaged,
    messages,
    record_bytes,
    record_of,
)
from rmqcore import _codec, _index
from rmqcore.errors import CorruptRecordError, MessageIllegalError
from rmqcore.native.format._message import Message

pytestmark = pytest.mark.logic

CRC_PROPERTY = "__CRC32#"
RAW = st.binary(max_size=300)
FILLED_IN = {"queue_offset": OFFSETS, "phy_offset": OFFSETS, "store_timestamp_ms": TIMES}
BATCHES = st.lists(
    st.builds(
        records.BatchElement,
        body=BODIES,
        flag=INT32,
        properties_data=PROPERTIES.map(values.encode_properties),
    ),
    min_size=1,
    max_size=5,
).map(records.encode_batch)


def same_text(text):
    """Forget how many replacement characters stand for one malformed part."""
    return re.sub("\ufffd+", "\ufffd", text)


def same_properties(properties):
    return {same_text(name): same_text(value) for name, value in properties.items()}


def facts(record):
    """What a reader sees of a record, from either side."""
    return {
        "topic": same_text(record.topic),
        "body": bytes(record.body),
        "born_host": str(record.born_host),
        "store_host": str(record.store_host),
        "message_id": record.message_id,
        **{
            name: getattr(record, name)
            for name in (
                "queue_id",
                "flag",
                "queue_offset",
                "phy_offset",
                "sys_flag",
                "born_timestamp_ms",
                "store_timestamp_ms",
                "reconsume_times",
                "prepared_transaction_offset",
                "body_crc",
                "store_size",
            )
        },
    }


def is_plain(properties):
    """Tell whether no two names could be one after malformed text was replaced."""
    return not any("\ufffd" in name for name in properties)


def by_engine(data, at, **options):
    try:
        message = _codec.decode_record(data, at, **options)
    except CorruptRecordError as error:
        return "refused", error.phy_offset
    assert bytes(message.record) == data[at : at + message.store_size]
    return "read", facts(message)


def by_oracle(data, at, **options):
    try:
        return "read", facts(records.decode_record(data, at, **options))
    except records.RecordRejected as rejected:
        return "refused", rejected.at


# ---- records -----------------------------------------------------------------------------------


@given(messages(), st.fixed_dictionaries(FILLED_IN), st.booleans())
def test_records_are_encoded_alike(message, filled_in, append_crc):
    expected = record_of(message, **filled_in)
    if not expected.is_queued:
        expected = record_of(message, **(filled_in | {"queue_offset": 0}))
    encoded = _codec.encode_record(Message(**message), append_crc=append_crc, **filled_in)
    assert encoded == records.encode_record(expected, append_crc=append_crc)


@given(messages(), st.fixed_dictionaries(FILLED_IN), st.booleans())
def test_what_was_encoded_is_read_back(message, filled_in, append_crc):
    data = _codec.encode_record(Message(**message), append_crc=append_crc, **filled_in)
    read = _codec.decode_record(data)
    crc = {"__CRC32#"} if append_crc else set()
    given_properties = dict(message["properties"])
    if message["keys"]:
        given_properties["KEYS"] = " ".join(message["keys"])
    if message["tags"] is not None:
        given_properties["TAGS"] = message["tags"]
    assert {n: v for n, v in read.properties.items() if n not in crc} == given_properties
    assert read.keys == message["keys"]
    assert read.tags == message["tags"]
    assert read.topic == message["topic"]
    assert bytes(read.body) == message["body"]
    assert read.check_crc()


@pytest.mark.parametrize("name", vectors("record-"))
def test_vectors_are_read_alike(name):
    assert by_engine(vector(name), 0) == by_oracle(vector(name), 0)
    assert by_engine(vector(name), 0)[0] == "read"


@given(damaged(record_bytes()), st.booleans())
def test_damaged_records_are_judged_alike(data, check_crc):
    assert by_engine(data, 0, check_crc=check_crc) == by_oracle(data, 0, verify_body=check_crc)


@pytest.mark.engine
@given(record_bytes(), st.binary(max_size=20), st.binary(max_size=20), st.integers(-2, 60))
def test_a_record_inside_other_bytes(data, before, behind, at):
    buffer = before + data + behind
    assert by_engine(buffer, len(before)) == by_oracle(buffer, len(before))
    assert by_engine(buffer, at) == by_oracle(buffer, at)


@given(RAW, st.integers(-1, 310))
@example(b"\x00\x00\x00\x08\xcb\xd4\x31\x94", 0)
@example(b"\x7f\xff\xff\xff\xda\xa3\x20\xa7", 0)
def test_raw_bytes_are_judged_alike(data, at):
    assert by_engine(data, at) == by_oracle(data, at)


@given(record_bytes(), st.data())
def test_every_cut_is_refused(data, draw):
    cut = draw.draw(st.integers(0, len(data) - 1))
    assert by_engine(data[:cut], 0) == ("refused", 0)


@pytest.mark.engine
@given(damaged(record_bytes(append_crc=True)) | record_bytes(append_crc=True))
def test_the_crc_property_is_judged_alike(data):
    try:
        size = _codec.check_record(data, 0, verify_crc=False, verify_crc_property=True)
    except CorruptRecordError as error:
        size = error.phy_offset
    try:
        expected = records.decode_record(data, verify_body=False, verify_record=True).store_size
    except records.RecordRejected as rejected:
        blank = records.is_blank(data, 0, len(data))
        expected = -int.from_bytes(data[:4], "big") if blank else rejected.at
    assert size == expected


@given(record_bytes())
def test_keys_and_tags_without_decoding_the_rest(data):
    read, expected = _codec.decode_record(data), records.decode_record(data)
    assert read.keys == tuple(expected.keys)
    assert read.tags == expected.tags
    assert read.unique_key == expected.unique_key
    assert read.properties == expected.properties
    assert read.keys == tuple(expected.keys)


# ---- properties, batches -----------------------------------------------------------------------


@given(st.dictionaries(VALUES, VALUES, max_size=5))
def test_properties_are_encoded_alike(properties):
    properties.pop("__CRC32#", None)
    encoded = _codec.encode_properties(properties)
    assert encoded == values.encode_properties(properties)
    assert _codec.decode_properties(encoded) == properties


@given(st.text("ab\x01\x02é😀", max_size=24) | st.text(max_size=20))
def test_properties_are_decoded_alike(text):
    data = text.encode()
    assert _codec.decode_properties(data) == values.decode_properties(data)


@given(
    st.lists(st.sampled_from([b"a", b"b", b"\x01", b"\x02", b"\xed\xa0", b"\xff"])).map(b"".join)
)
def test_malformed_properties_are_decoded_alike(data):
    expected = values.decode_properties(data)
    read = _codec.decode_properties(data)
    if is_plain(expected):
        assert same_properties(read) == same_properties(expected)


@given(st.sampled_from(["name", "value"]), VALUES, st.sampled_from(["", "\x01", "\x02"]), VALUES)
@example("value", CRC_PROPERTY, "", "")
def test_what_would_not_come_back_is_refused(where, left, bad, right):
    text = bad and left + bad + right
    properties = {text: right} if where == "name" else {left: text}
    if CRC_PROPERTY in properties:
        # the store's own: a record ends in it where the settings say so
        assert _codec.encode_properties(properties) == b""
        return
    with pytest.raises(MessageIllegalError):
        _codec.encode_properties(properties)


@pytest.mark.parametrize(
    "message",
    [
        Message("T", keys=("a b",)),
        Message("T", keys=("",)),
        Message("T", tags=""),
        Message("T", tags="a\x02b"),
        Message("T", properties={"a": 1}),
        Message("T", properties={"a": "\ud800"}),
        Message("T", properties={"a": "b" * 32768}),
        Message("T", keys=("a",), properties={"KEYS": "b"}),
        Message("T", tags="a", properties={"TAGS": "b"}),
    ],
    ids=lambda message: repr(message)[:60],
)
def test_a_message_that_breaks_the_format_is_refused(message):
    with pytest.raises(MessageIllegalError):
        _codec.encode_record(message, queue_offset=0, phy_offset=0, store_timestamp_ms=0)
    with pytest.raises(MessageIllegalError):
        _codec.encode_batch([message])


def test_properties_made_on_the_fly_stay_alive():
    encoded = _codec.encode_properties((f"name-{i}" * 5, f"value-{i}" * 7) for i in range(50))
    expected = {f"name-{i}" * 5: f"value-{i}" * 7 for i in range(50)}
    assert encoded == values.encode_properties(expected)


def batch_by_engine(data):
    try:
        read = _codec.decode_batch(data, topic="T")
    except MessageIllegalError as error:
        return "refused", int(re.search(r"byte (\d+)", str(error))[1])
    return "read", [(m.body, m.flag, same_properties(m.properties)) for m in read]


def batch_by_oracle(data):
    try:
        elements = list(records.decode_batch(data))
    except records.RecordRejected as rejected:
        return "refused", rejected.at
    return "read", [(e.body, e.flag, same_properties(e.properties)) for e in elements]


@given(st.lists(messages(), min_size=1, max_size=4))
def test_batches_are_encoded_alike(given_messages):
    elements = [
        records.BatchElement(
            body=m["body"], flag=m["flag"], properties_data=record_of(m).properties_data
        )
        for m in given_messages
    ]
    encoded = _codec.encode_batch(Message(**m) for m in given_messages)
    assert encoded == records.encode_batch(elements)
    assert batch_by_engine(encoded) == batch_by_oracle(encoded)


@given(BATCHES | damaged(BATCHES) | RAW)
@example(vector("batch-body"))
@example(b"\x00\x00\x00\x16" + bytes(12) + b"\xff\xff\xff\xff" + bytes(2))
@example(b"\x7f\xff\xff\xff" + bytes(18))
def test_batches_are_judged_alike(data):
    engine, oracle = batch_by_engine(data), batch_by_oracle(data)
    assert engine == oracle


# ---- small values ------------------------------------------------------------------------------


@given(st.text(max_size=40))
@example("polygenelubricants")
@example("a😀")
def test_string_hashes(text):
    assert _index.java_string_hash(text) == values.java_string_hash(text)
    assert _index.index_hash(text) == values.index_hash(text)
    assert _codec.tags_code(text) == values.java_string_hash(text)


@given(HOSTS)
def test_hosts(host):
    assert _codec.encode_host(str(host)) == host.encode()
    assert _codec.decode_host(host.encode()) == str(host)


def test_a_mapped_address_is_stored_as_ipv4():
    assert _codec.encode_host("[::ffff:10.1.2.3]:10911") == _codec.encode_host("10.1.2.3:10911")


@given(st.binary(max_size=24))
def test_host_lengths(data):
    if len(data) in (8, 20):
        assert _codec.decode_host(data) == str(values.Host.decode(data))
    else:
        with pytest.raises(ValueError, match="8 or 20"):
            _codec.decode_host(data)


NO_HOSTS = """
10.1.2.3
10.1.2.3:
10.1.2:1
10.1.2.3:65536
10.1.2.3:-1
::1:5
[::1]
localhost:1
[10.1.2.3]:1
10.1.2.3:1x
[fe80::1
10.1.2.3 :1
"""


@pytest.mark.parametrize("text", NO_HOSTS.split("\n"))
def test_a_text_that_is_no_host_is_refused(text):
    with pytest.raises(MessageIllegalError):
        _codec.encode_host(text)


@given(HOSTS, INT64)
def test_message_ids(host, phy_offset):
    message_id = values.encode_message_id(host, phy_offset)
    assert _codec.encode_message_id(str(host), phy_offset) == message_id
    assert _codec.decode_message_id(message_id) == (str(host), phy_offset)
    assert _codec.decode_message_id(message_id.lower()) == (str(host), phy_offset)


@given(
    st.text("0123456789abcdefABCDEF g", max_size=60)
    | st.text("0 ", min_size=56, max_size=56)
    | st.just("00 " * 16 + " " * 8)
)
def test_texts_are_judged_alike_as_message_ids(text):
    def outcome(decode):
        try:
            host, phy_offset = decode(text)
        except ValueError:
            return "refused"
        return str(host), phy_offset

    assert outcome(_codec.decode_message_id) == outcome(values.decode_message_id)


@given(st.binary(max_size=2000), st.integers(0, 2**32 - 1), st.integers(0, 63))
def test_crc32(data, value, start):
    assert _codec.crc32(data, value) == zlib.crc32(data, value)
    assert _codec.crc32(data, value, by_table=True) == zlib.crc32(data, value)
    assert _codec.crc32(memoryview(data)[start:]) == zlib.crc32(data[start:])
    assert _codec.record_crc(data) == records.masked_crc(data)


def test_crc32_of_a_large_buffer():
    data = bytes(range(256)) * 1024
    for size in (65535, 65536, 65537, len(data)):
        assert _codec.crc32(data[:size]) == zlib.crc32(data[:size])


def test_blank_record():
    assert _codec.blank_record(8) == records.encode_blank(8) == vector("blank-at-the-limit")
    assert _codec.check_record(vector("blank-108")) == -108


@given(st.text(LETTERS, min_size=1, max_size=10), st.integers(0, 2))
def test_views_are_read_like_bytes(text, kind):
    data = vector("record-v1")
    buffer = [bytearray(data), memoryview(data), memoryview(bytearray(b"xx" + data))[2:]][kind]
    assert by_engine(bytes(buffer), 0) == by_oracle(data, 0)
    assert facts(_codec.decode_record(buffer)) == facts(records.decode_record(data))
