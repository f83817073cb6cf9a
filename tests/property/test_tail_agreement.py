"""What the native log tail writes against what the oracle encodes, byte for byte, in one file."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import records
from reference.records import BLANK_SIZE, BatchElement, Record
from reference.strategies import BODIES, INT32, PROPERTIES, messages, record_of
from reference.values import Host, encode_properties
from rmqcore.errors import MessageIllegalError
from rmqcore.message import BatchSettings, Message
from rmqcore.native.log._tail import END_OF_FILE, REFUSED, LogTail

pytestmark = pytest.mark.logic

BASE = 1 << 41
NOW = 1_795_219_234_933
FILE_SIZE = 4096
ELEMENTS = st.lists(
    st.builds(
        BatchElement,
        body=BODIES,
        flag=INT32,
        properties_data=PROPERTIES.map(encode_properties),
    ),
    min_size=1,
    max_size=4,
)


class Model:
    """The same file, written by the oracle."""

    def __init__(self, *, append_crc):
        self.data = b""
        self.offsets = {}
        self.append_crc = append_crc

    def next_offset(self, record):
        return self.offsets.get((record.topic, record.queue_id), 0)

    def append(self, batch):
        """Append records as one; tell whether they fit."""
        encoded = b""
        for number, record in enumerate(batch):
            offset = self.next_offset(record) + number if record.is_queued else 0
            placed = replace(
                record, queue_offset=offset, phy_offset=BASE + len(self.data) + len(encoded)
            )
            encoded += records.encode_record(placed, append_crc=self.append_crc)
        if len(encoded) > FILE_SIZE - BLANK_SIZE:
            raise records.RecordRejected(0, "longer than a file")
        if not records.fits(len(encoded), FILE_SIZE - len(self.data)):
            return False
        self.data += encoded
        if batch[0].is_queued:
            key = batch[0].topic, batch[0].queue_id
            self.offsets[key] = self.offsets.get(key, 0) + len(batch)
        return True


def attached(*, append_crc):
    file = bytearray(FILE_SIZE)
    tail = LogTail("10.1.2.3:10911", 1 << 20, append_crc=append_crc)
    tail.attach(file, BASE, 0)
    tail.writable = True
    tail.fixed_time_ms = NOW
    return tail, file


def envelope_of(message):
    """The record without body that a batch's messages share."""
    bare = message | {"tags": None, "keys": (), "properties": {}, "body": b"", "sys_flag": 0}
    return record_of(bare, store_timestamp_ms=NOW)


def put(tail, message, elements):
    if elements is None:
        return tail.put_message(Message(**message))
    shared = {name: message[name] for name in BatchSettings.__annotations__}
    body = records.encode_batch(elements)
    return tail.put_encoded(Message(**(shared | {"body": body, "sys_flag": 0})))


def batch_of(message, elements):
    if elements is None:
        return [record_of(message, store_timestamp_ms=NOW)]
    shared = replace(envelope_of(message), prepared_transaction_offset=0)
    return [
        replace(shared, body=e.body, flag=e.flag, properties_data=e.properties_data)
        for e in elements
    ]


@given(st.lists(st.tuples(messages(), st.none() | ELEMENTS), max_size=8), st.booleans())
def test_the_tail_writes_what_the_oracle_encodes(puts, append_crc):
    tail, file = attached(append_crc=append_crc)
    model = Model(append_crc=append_crc)
    for message, elements in puts:
        message["queue_id"] %= 3
        message["born_timestamp_ms"] = message["born_timestamp_ms"] or 1
        batch = batch_of(message, elements)
        start = len(model.data)
        first_offset = model.next_offset(batch[0]) if batch[0].is_queued else 0
        try:
            fits = model.append(batch)
        except records.RecordRejected:
            with pytest.raises(MessageIllegalError):
                put(tail, message, elements)
            continue
        answer = put(tail, message, elements)
        if not fits:
            assert answer == END_OF_FILE
            continue
        assert answer.phy_offset == BASE + start
        assert answer.store_size == len(model.data) - start
        assert answer.queue_offset == first_offset
        assert answer.message_count == len(batch)
        assert answer.store_timestamp_ms == NOW
    assert bytes(file) == model.data.ljust(FILE_SIZE, b"\0")
    assert tail.max_offset == BASE + len(model.data)
    tail.seal()
    remaining = FILE_SIZE - len(model.data)
    assert file[: len(model.data) + 8] == model.data + records.encode_blank(remaining)
    assert not any(file[len(model.data) + 8 :])
    assert tail.max_offset == BASE + FILE_SIZE


def test_the_last_byte_that_fits():
    record = Record(topic="T", store_timestamp_ms=NOW, store_host=Host.parse("10.1.2.3:10911"))
    head = len(records.encode_record(record))
    for spare, answer in ((0, None), (-1, END_OF_FILE)):
        tail, _ = attached(append_crc=False)
        tail.put_message(Message("T", b"x" * 1000))
        room = FILE_SIZE - (head + 1000) - BLANK_SIZE
        got = tail.put_message(Message("T", b"y" * (room - head - spare)))
        assert (got if answer else None) == answer
    tail, _ = attached(append_crc=False)
    with pytest.raises(MessageIllegalError):
        tail.put_message(Message("T", b"z" * (FILE_SIZE - BLANK_SIZE - head + 1)))


def test_a_refused_put_writes_nothing():
    tail, file = attached(append_crc=False)
    tail.writable = False
    assert tail.put_message(Message("T", b"body")) == REFUSED
    assert not any(file)
    tail.detach()
    assert tail.put_message(Message("T", b"body")) == REFUSED


@pytest.mark.parametrize(
    "message",
    [
        Message("", b""),
        Message("a b", b""),
        Message("../x", b""),
        Message("t" * 256, b""),
        Message("T", "text"),
        Message("T", 5),
        Message("T", None),
        Message("T", b"", queue_id=-1),
        Message("T", b"", properties={"": "x"}),
        Message("T", b"", properties={"a": ""}),
        Message("T", b"", keys=("a b",)),
        Message("T", b"x" * (1 << 20) + b"x"),
        Message("T", b"", born_host="nowhere"),
        Message("T", b"", sys_flag=0x80),
    ],
)
def test_an_illegal_message_is_refused_and_leaves_no_trace(message):
    tail, file = attached(append_crc=False)
    with pytest.raises(MessageIllegalError):
        tail.put_message(message)
    assert not any(file)
    assert tail.put_message(Message("T", b"body")).queue_offset == 0


def test_light_queues_get_their_own_offsets():
    tail = LogTail("10.1.2.3:10911", 1 << 20, multi_dispatch=True)
    file = bytearray(FILE_SIZE)
    tail.attach(file, BASE, 0)
    tail.writable = True
    for names in ("%LMQ%a", "%LMQ%a,%LMQ%b", "%LMQ%b", "%LMQ%a"):
        tail.put_message(Message("T", b"", properties={"INNER_MULTI_DISPATCH": names}))
    at, offsets = 0, []
    while file[at : at + 4] != bytes(4):
        record = records.decode_record(bytes(file), at)
        offsets.append(record.properties["INNER_MULTI_QUEUE_OFFSET"])
        at += record.store_size
    assert offsets == ["0", "1,0", "1", "2"]


def test_store_times_do_not_step_back_with_the_clock():
    tail, _ = attached(append_crc=False)
    times = []
    for now in (NOW, NOW - 1, NOW - 9_999, NOW + 5, NOW - 60_000):
        tail.fixed_time_ms = now
        times.append(tail.put_message(Message("T", b"")).store_timestamp_ms)
    assert times == [NOW, NOW, NOW, NOW + 5, NOW - 60_000]


def test_a_name_that_is_no_light_queue_is_refused():
    tail = LogTail("10.1.2.3:10911", 1 << 20, multi_dispatch=True)
    file = bytearray(FILE_SIZE)
    tail.attach(file, BASE, 0)
    tail.writable = True
    for names in ("other", "%LMQ%a,other", "%LMQ%a,", ","):
        with pytest.raises(MessageIllegalError):
            tail.put_message(Message("T", b"", properties={"INNER_MULTI_DISPATCH": names}))
    assert not any(file)


def put_one(tail, properties_data):
    body = records.encode_batch([BatchElement(body=b"x", properties_data=properties_data)])
    return tail.put_encoded(Message("T", body, born_timestamp_ms=1))


def test_a_batch_without_room_for_its_crc_is_refused():
    tail = LogTail("10.1.2.3:10911", 1 << 20, append_crc=True)
    file = bytearray(1 << 17)
    tail.attach(file, BASE, 0)
    tail.writable = True
    longest = b"a\x01" + b"b" * (32767 - 20 - 3) + b"\x02"
    assert put_one(tail, longest).message_count == 1
    at = records.decode_record(bytes(file), verify_record=True).store_size
    with pytest.raises(MessageIllegalError):
        put_one(tail, b"c" + longest)
    assert not any(file[at:])


def test_a_batch_of_an_older_producer_gets_its_last_separator():
    tail, file = attached(append_crc=True)
    put_one(tail, b"TAGS\x01a")
    record = records.decode_record(bytes(file), verify_record=True)
    assert record.tags == "a"
    assert set(record.properties) == {"TAGS", "__CRC32#"}
