"""The oracle against bytes and numbers that RocketMQ's own classes gave."""

from dataclasses import replace

import pytest

from golden.vectors import vector, vectors
from reference.consume_queue import BatchUnit, ExtUnit, Unit, ext_files, is_ext_address, queue_files
from reference.index import IndexFile
from reference.records import (
    CRC_RESERVED,
    BatchElement,
    Record,
    crc_property,
    decode_batch,
    decode_record,
    encode_batch,
    encode_blank,
    encode_record,
    explode_batch,
    fits,
    is_blank,
)
from reference.values import (
    Host,
    decode_message_id,
    decode_properties,
    encode_message_id,
    encode_properties,
    index_hash,
    java_string_hash,
    java_text,
    tags_code,
)

pytestmark = pytest.mark.logic

HASHES = {
    "TagA": 2598919,
    "TopicTest#K1": 2745032,
    "订单": 1129459,
    "a😀": 1866116,
    "polygenelubricants": -2147483648,
    "": 0,
    "Aa": 2112,
    "BB": 2112,
}
MESSAGE_IDS = {
    ("10.1.2.3:10911", 0): "0A01020300002A9F0000000000000000",
    ("[2001:db8::1]:10911", 0x1234): "20010DB800000000000000000000000100002A9F0000000000001234",
}
PLAIN = Record(
    topic="TopicTest",
    queue_id=3,
    body=b"hello",
    properties_data=b"KEYS\x01K1 K2\x02TAGS\x01TagA\x02",
    born_timestamp_ms=1700000000000,
    born_host=Host.parse("127.0.0.1:12345"),
    store_timestamp_ms=1795219234933,
    store_host=Host.parse("10.1.2.3:10911"),
)


@pytest.mark.parametrize("text", HASHES)
def test_java_string_hash(text):
    assert java_string_hash(text) == HASHES[text]


def test_the_hash_without_a_positive_twin_is_filed_under_zero():
    assert index_hash("polygenelubricants") == 0


@pytest.mark.parametrize("where", MESSAGE_IDS)
def test_message_id(where):
    host, phy_offset = Host.parse(where[0]), where[1]
    assert encode_message_id(host, phy_offset) == MESSAGE_IDS[where]
    assert decode_message_id(MESSAGE_IDS[where]) == (host, phy_offset)
    assert str(host) == where[0]


def test_crc_digits_run_from_the_lowest():
    assert crc_property(1667588050) == b"__CRC32#\x010508857661\x02"
    assert len(crc_property(7)) == CRC_RESERVED


def test_plain_record():
    assert encode_record(PLAIN) == vector("record-v1")
    decoded = decode_record(vector("record-v1"))
    assert decoded == replace(PLAIN, body_crc=0x3610A686, store_size=126)
    assert decoded.properties == {"KEYS": "K1 K2", "TAGS": "TagA"}
    assert decoded.tags_code == 2598919


def test_record_with_crc():
    record = replace(
        PLAIN,
        queue_id=0,
        properties_data=b"TAGS\x01TagA\x02",
        store_timestamp_ms=0x01A1FB67A1C5,
    )
    assert encode_record(record, append_crc=True) == vector("record-v1-crc")
    decode_record(vector("record-v1-crc"), verify_record=True)


def test_the_crc_property_follows_a_separator():
    with_separator = replace(PLAIN, properties_data=b"TAGS\x01TagA\x02")
    without = replace(PLAIN, properties_data=b"TAGS\x01TagA")
    assert encode_record(without, append_crc=True) == encode_record(with_separator, append_crc=True)
    assert len(encode_record(without)) == len(encode_record(with_separator)) - 1


@pytest.mark.parametrize("name", [n for n in vectors("record-") if not n.endswith("-crc")])
def test_records_come_back_bit_for_bit(name):
    assert encode_record(decode_record(vector(name))) == vector(name)


def test_fixed_sizes():
    hosts = {True: Host(bytes(16), 0), False: Host(bytes(4), 0)}
    sizes = {
        (len(topic), born, store): len(
            encode_record(Record(topic=topic, born_host=hosts[born], store_host=hosts[store]))
        )
        - len(topic)
        for topic in ("t", "t" * 128)
        for born in hosts
        for store in hosts
    }
    assert sizes == {
        (1, False, False): 91,
        (1, True, False): 103,
        (1, False, True): 103,
        (1, True, True): 115,
        (128, False, False): 92,
        (128, True, False): 104,
        (128, False, True): 104,
        (128, True, True): 116,
    }


def test_blank_records():
    assert fits(504, 512)
    assert not fits(505, 512)
    assert encode_blank(8) == vector("blank-at-the-limit")
    rest = vector("blank-108")
    assert encode_blank(108) == rest[:8]
    assert is_blank(rest, 0, len(rest))
    assert not is_blank(rest, 0, len(rest) - 1)


def test_batch_body():
    elements = [
        BatchElement(body=b"aa", properties_data=b"KEYS\x01K1\x02WAIT\x01true\x02TAGS\x01T1\x02"),
        BatchElement(body=b"bbb", properties_data=b"KEYS\x01K2\x02WAIT\x01true\x02TAGS\x01T2\x02"),
    ]
    assert encode_batch(elements) == vector("batch-body")
    assert list(decode_batch(vector("batch-body"))) == elements


def test_a_batch_becomes_consecutive_records():
    envelope = replace(PLAIN, queue_offset=7, phy_offset=1000, prepared_transaction_offset=5)
    first, second = explode_batch(envelope, vector("batch-body"))
    assert (first.queue_offset, second.queue_offset) == (7, 8)
    assert second.phy_offset == 1000 + len(encode_record(first))
    assert (first.body, second.body) == (b"aa", b"bbb")
    assert first.prepared_transaction_offset == 0


def test_consume_queue_units():
    units = [Unit(0, 126, 2598919), Unit(126, 158, 2598920)]
    assert b"".join(unit.encode() for unit in units) == vector("consume-queue-units")
    assert Unit.decode(vector("consume-queue-units")[20:]) == units[1]


def test_a_queue_that_begins_inside_a_file():
    files = queue_files({23: Unit(0, 100, 5)}, 200)
    assert list(files) == [400]
    assert files[400][:80] == vector("consume-queue-pre-blank")
    assert files[400][80:] == bytes(120)


def test_extension_files():
    times = [0x01A1FB67B57D, 0x01A1FB67B57E, 0x01A1FB67B57F, 0x01A1FB67B57F, 0x01A1FB67B580]
    addresses, files = ext_files([ExtUnit(2598919, time) for time in times], 100)
    assert files[0] == vector("consume-queue-ext")
    assert addresses == [-(2**63) + place for place in (0, 20, 40, 60, 100)]
    assert all(is_ext_address(address) for address in addresses)
    assert not is_ext_address(-(2**31))


def test_batch_consume_queue_unit():
    unit = BatchUnit(0, 129, 2598919, 0x01A1FB67B51C, 0, 3)
    assert unit.encode() == vector("batch-consume-queue-unit")
    assert BatchUnit.decode(vector("batch-consume-queue-unit")) == unit


def test_index_file():
    stored = vector("index-file")
    file = IndexFile(10, 8, stored)
    again = IndexFile(10, 8)
    header = file.header
    for number, (key, entry) in enumerate(
        zip(["K1", "K2", "K0", "K1", "K2", "K3", "K4"], file.entries(), strict=True)
    ):
        time_ms = header.begin_timestamp if number < 6 else header.end_timestamp
        assert again.put_key(f"TopicTest#{key}", entry.phy_offset, time_ms)
    assert bytes(again.data) == stored
    assert again.is_full
    assert not again.put_key("TopicTest#K5", 1000, header.end_timestamp)
    assert list(again.walk("TopicTest#K1")) == [284, 0]


def test_properties_by_javas_rules():
    cases = {
        "a\x01b\x02": {"a": "b"},
        "a\x01b": {"a": "b"},
        "a\x01\x02c\x01d\x02": {"c": "d"},
        "\x01b\x02c\x01d\x02": {"c": "d"},
        "ab\x02c\x01d\x02": {"c": "d"},
        "a\x01b\x01c\x02": {"a": "b\x01c"},
        "a\x01b\x02a\x01c\x02": {"a": "c"},
        "\x02\x02a\x01b\x02\x02": {"a": "b"},
        "": {},
    }
    for text, pairs in cases.items():
        assert decode_properties(text.encode()) == pairs
    assert encode_properties({"a": "b", "c": "订单"}) == "a\x01b\x02c\x01订单\x02".encode()


def test_malformed_text_is_read_as_java_reads_it():
    cases = {
        "eda080": "\ufffd",
        "eda080edb080": "\ufffd\ufffd",
        "eda041": "\ufffdA",
        "41eda0": "A\ufffd",
        "f09f9841": "\ufffdA",
        "c080": "\ufffd\ufffd",
        "e228a1": "\ufffd(\ufffd",
        "f4908080": "\ufffd\ufffd\ufffd\ufffd",
        "e09f": "\ufffd\ufffd",
        "c2": "\ufffd",
    }
    for data, text in cases.items():
        assert java_text(bytes.fromhex(data)) == text


def test_tags_code():
    assert tags_code("T", {}, 5) == 0
    assert tags_code("T", {"TAGS": "polygenelubricants"}, 5) == -(2**31)
    delayed = {"TAGS": "TagA", "DELAY": "3"}
    assert tags_code("T", delayed, 5) == 2598919
    assert tags_code("SCHEDULE_TOPIC_XXXX", delayed, 5) == 10005
    assert tags_code("SCHEDULE_TOPIC_XXXX", {"DELAY": "99"}, 5) == 7_200_005
    assert tags_code("SCHEDULE_TOPIC_XXXX", {"DELAY": "0", "TAGS": "TagA"}, 5) == 2598919
