"""A buffer is held exactly as long as something that was read from it, garbage cycles included."""

import gc

import pytest

from rmqcore import _codec
from rmqcore.native.derive._dispatch import DispatchBatch
from rmqcore.native.format._message import Message
from rmqcore.native.format._message_ext import message_from
from rmqcore.native.log._tail import LogTail

pytestmark = pytest.mark.engine


def encoded(body=b"body"):
    message = Message("T", body, tags="tag", keys=("key",))
    return bytearray(
        _codec.encode_record(message, queue_offset=0, phy_offset=0, store_timestamp_ms=1)
    )


def message_of(buffer):
    return message_from(buffer)


def record_of(buffer):
    return message_from(buffer).record


def body_view_of(buffer):
    return message_from(buffer).body_view


def slice_of(buffer):
    return message_from(buffer).record[4:8]


def tail_over(buffer):
    tail = LogTail("10.1.2.3:10911", 1000)
    tail.attach(buffer, 0, 0)
    return tail


def scan_of(buffer):
    batch = DispatchBatch()
    batch.scan(buffer, 0, len(buffer), base_offset=0)
    return batch


HOLDERS = [message_of, record_of, body_view_of, slice_of, tail_over, scan_of]


def is_held(buffer):
    try:
        buffer.append(0)
    except BufferError:
        return True
    return False


@pytest.mark.parametrize("hold", HOLDERS)
def test_a_reader_holds_the_buffer_and_lets_it_go(hold):
    buffer = encoded()
    reader = hold(buffer)
    assert is_held(buffer)
    del reader
    assert not is_held(buffer)


@pytest.mark.parametrize("hold", HOLDERS)
def test_a_reader_in_a_garbage_cycle_lets_the_buffer_go(hold):
    buffer = encoded()
    cycle = [hold(buffer)]
    cycle.append(cycle)
    assert is_held(buffer)
    del cycle
    gc.collect()
    assert not is_held(buffer)


def test_a_view_outlives_its_message():
    buffer = encoded(b"long enough to be seen")
    view = message_from(buffer).body_view
    gc.collect()
    assert bytes(view) == b"long enough to be seen"


def test_a_refused_buffer_is_let_go():
    buffer = bytearray(200)
    with pytest.raises(_codec.CorruptRecordError):
        message_from(buffer)
    assert not is_held(buffer)


def test_a_detached_tail_lets_its_file_go():
    first, second = bytearray(4096), bytearray(4096)
    tail = tail_over(first)
    tail.attach(second, 4096, 0)
    assert not is_held(first)
    assert is_held(second)
    tail.detach()
    assert not is_held(second)
