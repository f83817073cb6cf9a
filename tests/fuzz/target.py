"""One target over every decoder: whatever the bytes, a result or a typed refusal.

`run` feeds one input to all of them and tells what each said; an exception of any other type is a
bug, and so is touching a byte outside the input (see `guard`).
"""

import pyarrow
from fuzz.files import FILE_DECODERS
from fuzz.guard import GuardedMemory

from rmqcore import _codec, _index
from rmqcore.broker.pull._direct_pulls import DirectPulls
from rmqcore.broker.send._direct_sends import DirectSends
from rmqcore.errors import CorruptStoreError, MessageIllegalError, RmqCoreError
from rmqcore.message import GetMessageResult, Message
from rmqcore.metaq import decode_locations, decode_messages
from rmqcore.metaq._message_set import checksum, scan
from rmqcore.metaq._puts import scan_puts
from rmqcore.metaq.protocol import parse_command
from rmqcore.native.columns._columns import COLUMNS, ColumnDecoder
from rmqcore.native.derive._dispatch import DispatchBatch
from rmqcore.native.format._message_ext import message_from
from rmqcore.native.format._next_record import ScanStatus
from rmqcore.native.format._receipt import PutMessageResult
from rmqcore.native.log._tail import END_OF_FILE, LogTail
from rmqcore.remoting import FrameDecoder, FrameLimits
from rmqcore.remoting._json_header import read_json
from rmqcore.status import GetMessageStatus, PutMessageStatus

INPUT_MAX = 64 * 1024
SLOT_NUM, ENTRY_NUM = 10, 8
INDEX_SIZE = 40 + 4 * SLOT_NUM + 20 * ENTRY_NUM
KEYS = ("TopicTest#K1", "polygenelubricants", "T#Aa")
LIMITS = FrameLimits(frame_size=INPUT_MAX, header_size=4096, field_count=32)

MEMORY = GuardedMemory(INPUT_MAX)
WORK = GuardedMemory(INPUT_MAX)


def read_record(data):
    """Decode a record and look at every attribute of it."""
    message = message_from(MEMORY.place(data), check_crc=False)
    seen = [getattr(message, name) for name in dir(message) if name[:1] != "_"]
    assert len(seen) > 20
    assert len(message.record) == message.store_size <= len(data)
    message.check_crc()
    if not message.sys_flag & 1:
        message.decompressed_body()


def check_record(data):
    _codec.check_record(MEMORY.place(data))


def check_record_crc(data):
    _codec.check_record(MEMORY.place(data), verify_crc=False, verify_crc_property=True)


def scan_region(data):
    batch = DispatchBatch(delays_ms=[1000, 5000], multi_dispatch=True)
    buffer = MEMORY.place(data)
    end, status = batch.scan(buffer, 0, len(buffer), base_offset=0)
    assert 0 <= end <= len(data)
    for stretch in batch.stretches():
        stretch.plain()
        len(stretch.batch_units)
    if status < 0:
        raise CorruptStoreError("region", end, f"status {status}")


def read_columns(data):
    """Every column of the records there are, three rows a batch, then one column of them all."""
    buffer, base = MEMORY.place(data), int.from_bytes(data[28:36], "big")
    place = {"base_offset": base if base < 1 << 62 else 0}
    decoder = ColumnDecoder(COLUMNS, row_max=3, plain_bodies=True)
    at, status, sizes = 0, ScanStatus.CAPACITY, []
    while status == ScanStatus.CAPACITY:
        at, status = decoder.decode(buffer, at, len(buffer), **place)
        batch = pyarrow.record_batch(decoder.take())
        batch.validate(full=True)
        sizes += batch.column("store_size").to_pylist()
        assert [len(row) for row in batch.column("record").to_pylist()] == (
            sizes[len(sizes) - batch.num_rows :]
        )
    assert sum(sizes) == at <= len(data)
    bare = ColumnDecoder(["phy_offset"], row_max=len(sizes) + 1)
    assert bare.decode(buffer, 0, len(buffer), **place) == (at, status)
    assert len(bare.take()) == len(sizes)
    anywhere = ColumnDecoder(COLUMNS, row_max=len(data) + 1)
    reached, _ = anywhere.decode(buffer, 0, len(buffer), base_offset=None)
    pyarrow.record_batch(anywhere.take()).validate(full=True)
    assert at <= reached <= len(data)
    if status < 0:
        raise CorruptStoreError("columns", at, f"status {status}")


def read_batch(data):
    messages = _codec.decode_batch(bytes(data), topic="T")
    assert sum(len(message.body) for message in messages) <= len(data)


def put_batch(data):
    tail = LogTail("10.1.2.3:10911", INPUT_MAX)
    file = WORK.place(bytes(INPUT_MAX))
    tail.attach(file, 0, 0)
    tail.writable = True
    answer = tail.put_encoded(Message("T", MEMORY.place(data), born_timestamp_ms=1))
    assert answer != END_OF_FILE
    at = 0
    while at < answer.store_size:
        at += _codec.check_record(file, at)
    assert at == answer.store_size


def read_properties(data):
    properties = _codec.decode_properties(bytes(data))
    assert all(name and value for name, value in properties.items())


def read_host(data):
    text = _codec.decode_host(bytes(data))
    assert text.count(":")


def read_message_id(data):
    _codec.decode_message_id(bytes(data).decode("latin-1"))


def hash_text(data):
    text = bytes(data).decode("utf-8", "replace")
    assert -(2**31) <= _index.java_string_hash(text) < 2**31
    assert 0 <= _index.index_hash(text) < 2**31


def sized(data):
    """Cut or fill an input to the length of the small index file."""
    return bytes(data[:INDEX_SIZE]).ljust(INDEX_SIZE, b"\0")


def walk_index(data):
    buffer = MEMORY.place(sized(data))
    for key in KEYS:
        found, steps, broken = _index.walk_chain(
            buffer, SLOT_NUM, ENTRY_NUM, _index.index_hash(key), max_offsets=1000
        )
        assert len(found) <= steps <= ENTRY_NUM
        if broken:
            raise CorruptStoreError("index", -1, "broken chain")


def put_index(data):
    buffer = MEMORY.place(sized(data))
    for key in KEYS * 3:
        _index.put_key(buffer, SLOT_NUM, ENTRY_NUM, key, 5, 1_700_000_000_000)
    _index.read_header(buffer)


def index_of_any_size(data):
    _index.walk_chain(MEMORY.place(data), SLOT_NUM, ENTRY_NUM, 1)


def scan_metaq(data):
    buffer = MEMORY.place(data)
    rows, end, verdict = scan(buffer)
    assert end == sum(20 + length for _, length, _, _ in rows) <= len(data)
    assert 0 <= checksum(buffer) < 2**31
    if verdict:
        raise CorruptStoreError("segment", end, "not whole")


def read_metaq(data):
    for message in decode_messages("t", MEMORY.place(data)):
        assert message.offset + message.stored_size <= len(data)


def read_transaction(data):
    decode_locations(bytes(data))


def read_command(data):
    parse_command(bytes(data))


def cut_puts(data):
    buffer = MEMORY.place(data)
    rows, used = scan_puts(buffer, 8192, 1 << 20)
    assert sum(len(row[-1]) for row in rows) <= used <= len(data)


def commands(data):
    """The commands of the frames that an input begins with."""
    decoder = FrameDecoder(LIMITS)
    decoder.feed(bytes(data))
    while (command := decoder.next()) is not None:
        yield command


def read_frames(data):
    """The same commands, however the bytes arrive."""
    whole = list(commands(data))
    decoder, pieces = FrameDecoder(LIMITS), []
    for at in range(0, len(data), 7):
        decoder.feed(bytes(data[at : at + 7]))
        while (command := decoder.next()) is not None:
            pieces.append(command)
    assert pieces == whole
    assert sum(len(command.body) for command in whole) <= len(data)


def read_json_header(data):
    if read_json(MEMORY.place(data), 0, len(data), LIMITS.field_count) is None:
        raise ValueError("left to the general reader")


class Appended:
    """Stands where the store does; takes everything, and waits for nothing."""

    waits = False

    def append_now(self, message):
        return PutMessageResult(
            PutMessageStatus.PUT_OK, phy_offset=1, queue_offset=2, store_host=bytes(8)
        )


def answer_sends(data):
    """Each plain send is answered once, in the order they came."""
    facts = (4, 0, b"CLUSTER\1c\2", b'{"code":0,"extFields":{"msgId":"', b"}")
    stored = []
    sends = DirectSends(Appended(), lambda _: facts, lambda *told: stored.append(told), None)
    assert answered_one_by_one(sends, data) == len(stored)
    if not stored:
        raise ValueError("no plain send")


def answer_pulls(data):
    """Each plain pull is answered once, in the order they came."""
    found = []

    def find(*values):
        found.append(values)
        return GetMessageResult(GetMessageStatus.FOUND, 2**63 - 1, 0, 2**63 - 1)

    assert answered_one_by_one(DirectPulls(find, 1024), data) == len(found)
    if not found:
        raise ValueError("no plain pull")


def answered_one_by_one(requests, data):
    """How many requests were answered, of those that come first."""
    at, answers = requests.answer(MEMORY.place(data), 0, LIMITS, "10.1.2.3:5000")
    asked, replies = list(commands(data[:at])), list(commands(answers))
    assert [reply.opaque for reply in replies] == [request.opaque for request in asked]
    return len(replies)


DECODERS = (
    read_record,
    check_record,
    check_record_crc,
    scan_region,
    read_columns,
    read_batch,
    put_batch,
    read_properties,
    read_host,
    read_message_id,
    hash_text,
    walk_index,
    put_index,
    index_of_any_size,
    scan_metaq,
    read_metaq,
    read_transaction,
    read_command,
    cut_puts,
    read_frames,
    read_json_header,
    answer_sends,
    answer_pulls,
    *FILE_DECODERS,
)


def run(data):
    """Feed one input to every decoder; name -> "ok" or "refused"."""
    said = {}
    for decode in DECODERS:
        try:
            decode(data[:INPUT_MAX])
        except (CorruptStoreError, MessageIllegalError, ValueError):
            said[decode.__name__] = "refused"
        except RmqCoreError as error:
            # a body compressed by a library that is not installed
            if not str(error).endswith(("install lz4", "install zstandard")):
                raise
            said[decode.__name__] = "refused"
        else:
            said[decode.__name__] = "ok"
    return said
