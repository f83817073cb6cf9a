"""The engine gives the bytes that RocketMQ's own classes gave, bit for bit."""

import struct

import pytest

from golden.vectors import vector, vectors
from reference.records import decode_batch, decode_record
from rmqcore import _codec, _index
from rmqcore.native.derive._dispatch import DispatchBatch
from rmqcore.native.format._message import Message

pytestmark = pytest.mark.logic


def message_of(record):
    """The message that becomes a record; properties keep their order."""
    properties = record.properties
    properties.pop("__CRC32#", None)
    return Message(
        record.topic,
        record.body,
        queue_id=record.queue_id,
        properties=properties,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=str(record.born_host),
        store_host=str(record.store_host),
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
    )


def is_like_ours(name):
    """Release 4.9 leaves out the separator behind the last property."""
    properties = decode_record(vector(name)).properties_data
    return not properties or properties.endswith(b"\x02")


@pytest.mark.parametrize("name", [*filter(is_like_ours, vectors("record-"))])
def test_records(name):
    record = decode_record(vector(name))
    encoded = _codec.encode_record(
        message_of(record),
        queue_offset=record.queue_offset,
        phy_offset=record.phy_offset,
        store_timestamp_ms=record.store_timestamp_ms,
        append_crc=name.endswith("-crc"),
    )
    assert encoded == vector(name)


def test_plain_record_by_its_arguments():
    message = Message(
        "TopicTest",
        b"hello",
        queue_id=3,
        tags="TagA",
        keys=("K1", "K2"),
        born_timestamp_ms=1700000000000,
        born_host="127.0.0.1:12345",
        store_host="10.1.2.3:10911",
    )
    encoded = _codec.encode_record(
        message, queue_offset=0, phy_offset=0, store_timestamp_ms=1795219234933
    )
    assert encoded == vector("record-v1")


def test_batch_body():
    messages = [
        Message("T", element.body, flag=element.flag, properties=element.properties)
        for element in decode_batch(vector("batch-body"))
    ]
    assert _codec.encode_batch(messages) == vector("batch-body")


def test_consume_queue_units():
    data = b""
    for number, (tags, body) in enumerate([("TagA", b"hello"), ("TagB", b"hello" + bytes(32))]):
        message = Message("TopicTest", body, tags=tags, keys=("K1", "K2"))
        data += _codec.encode_record(
            message, queue_offset=number, phy_offset=len(data), store_timestamp_ms=1
        )
    batch = DispatchBatch()
    batch.scan(data, 0, len(data), base_offset=0)
    assert bytes(batch.stretches()[0].units) == vector("consume-queue-units")


def test_index_file():
    stored = vector("index-file")
    begin, end = struct.unpack_from(">qq", stored)
    file = bytearray(len(stored))
    offsets = [struct.unpack_from(">q", stored, 40 + 40 + 20 * n + 4)[0] for n in range(1, 8)]
    for number, key in enumerate(["K1", "K2", "K0", "K1", "K2", "K3", "K4"]):
        time_ms = end if number == 6 else begin
        assert _index.put_key(file, 10, 8, f"TopicTest#{key}", offsets[number], time_ms)
    assert bytes(file) == stored
    assert not _index.put_key(file, 10, 8, "TopicTest#K5", 1000, end)
