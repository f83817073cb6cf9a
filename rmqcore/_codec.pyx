"""The codec: records, properties, batch bodies, message ids and CRC-32 as bytes.

Pure functions over buffers; nothing here knows a file. The hot paths that append or dispatch are
in `_tail` and `_dispatch`; they share the kernels of `_record.pxd` with this module.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize,
)
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from rmqcore.native.format._bytes cimport load_i16, load_i32, store_i16, store_i32
from rmqcore.native.format._encoder cimport NO_PROBLEM, RecordEncoder
from rmqcore.native.format._layout cimport *
from rmqcore.native.format._message cimport Message, fill_numbers, keys_read_once
from rmqcore.native.format._record cimport (
    PropertyWalk, RecordFields, RecordHead, Slice, bytes_t, check_body_crc, check_crc_property,
    java_hash_step, next_property, read_head, record_size, rmq_crc32, rmq_crc32_by_table,
    rmq_crc32_init, rmq_crc32_name, walk_properties, write_crc_property, write_fields,
)

from rmqcore.native.format._host import decode_host, encode_host
from rmqcore.native.format._message_ext import message_from, status_text
from rmqcore.arguments import body_view
from rmqcore.errors import CorruptRecordError, MessageIllegalError

rmq_crc32_init()

# Buffers from this size are summed without the GIL (bench/bench_codec.py measures the threshold).
cdef Py_ssize_t RELEASE_GIL_SIZE = 65536

# A record's size is an int32, and what is not body takes less than 64 KiB.
cdef Py_ssize_t BODY_SIZE_MAX = 0x7FFFFFFF - RECORD_OVERHEAD_MAX

LAYOUT = {
    "record_head": {
        "total_size": (TOTAL_SIZE_AT, 4), "magic": (MAGIC_AT, 4), "body_crc": (BODY_CRC_AT, 4),
        "queue_id": (QUEUE_ID_AT, 4), "flag": (FLAG_AT, 4),
        "queue_offset": (QUEUE_OFFSET_AT, 8), "phy_offset": (PHY_OFFSET_AT, 8),
        "sys_flag": (SYS_FLAG_AT, 4), "born_timestamp": (BORN_TIMESTAMP_AT, 8),
    },
    "blank": {"total_size": (TOTAL_SIZE_AT, 4), "magic": (MAGIC_AT, 4)},
    "consume_queue_unit": {
        "phy_offset": (UNIT_PHY_OFFSET_AT, 8), "size": (UNIT_SIZE_AT, 4),
        "tags_code": (UNIT_TAGS_CODE_AT, 8),
    },
    "batch_consume_queue_unit": {
        "phy_offset": (UNIT_PHY_OFFSET_AT, 8), "size": (UNIT_SIZE_AT, 4),
        "tags_code": (UNIT_TAGS_CODE_AT, 8), "store_timestamp": (BATCH_UNIT_TIMESTAMP_AT, 8),
        "base_offset": (BATCH_UNIT_BASE_AT, 8), "batch_size": (BATCH_UNIT_COUNT_AT, 2),
        "compacted_offset": (BATCH_UNIT_COMPACTED_AT, 4), "reserved": (BATCH_UNIT_RESERVED_AT, 4),
    },
    "consume_queue_ext_unit": {
        "size": (EXT_SIZE_AT, 2), "tags_code": (EXT_TAGS_CODE_AT, 8),
        "store_timestamp": (EXT_TIMESTAMP_AT, 8), "bit_map_size": (EXT_BIT_MAP_SIZE_AT, 2),
    },
    "index_header": {
        "begin_timestamp": (INDEX_BEGIN_TIMESTAMP_AT, 8),
        "end_timestamp": (INDEX_END_TIMESTAMP_AT, 8),
        "begin_phy_offset": (INDEX_BEGIN_PHY_OFFSET_AT, 8),
        "end_phy_offset": (INDEX_END_PHY_OFFSET_AT, 8),
        "hash_slot_count": (INDEX_SLOT_COUNT_AT, 4), "index_count": (INDEX_COUNT_AT, 4),
    },
    "index_slot": {"newest_entry": (0, SLOT_SIZE)},
    "index_entry": {
        "key_hash": (ENTRY_HASH_AT, 4), "phy_offset": (ENTRY_PHY_OFFSET_AT, 8),
        "time_diff": (ENTRY_TIME_DIFF_AT, 4), "previous_entry": (ENTRY_PREVIOUS_AT, 4),
    },
    "checkpoint": {
        "physic_msg_timestamp": (CHECKPOINT_PHYSIC_AT, 8),
        "logics_msg_timestamp": (CHECKPOINT_LOGICS_AT, 8),
        "index_msg_timestamp": (CHECKPOINT_INDEX_AT, 8),
        "master_flushed_offset": (CHECKPOINT_MASTER_FLUSHED_AT, 8),
        "confirm_phy_offset": (CHECKPOINT_CONFIRM_AT, 8),
    },
}

BLANK_SIZE = BLANK_SIZE_MIN


def crc32_implementation() -> str:
    """How this processor computes CRC-32: chosen once, at import."""
    return rmq_crc32_name.decode()


def crc32(buffer, uint32_t value=0, *, bint by_table=False) -> int:
    """CRC-32 as zlib computes it, 0 to 2**32 - 1.

    Args:
        buffer: any C-contiguous buffer; from 64 KiB on it is read without the GIL.
        value: the CRC of what came before.
        by_table: use the portable tables, for comparison.
    """
    cdef Py_buffer view
    cdef uint32_t crc
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    if by_table:
        crc = rmq_crc32_by_table(value, <bytes_t>view.buf, view.len)
    elif view.len < RELEASE_GIL_SIZE:
        crc = rmq_crc32(value, <bytes_t>view.buf, view.len)
    else:
        with nogil:
            crc = rmq_crc32(value, <bytes_t>view.buf, view.len)
    PyBuffer_Release(&view)
    return crc


def record_crc(buffer) -> int:
    """The CRC as RocketMQ stores it: CRC-32 without its top bit.

    Source: RocketMQ common/UtilAll.java, crc32.
    """
    return crc32(buffer) & 0x7FFFFFFF


def encode_record(
    Message message not None, *, int64_t queue_offset, int64_t phy_offset,
    int64_t store_timestamp_ms, bint append_crc=False,
) -> bytes:
    """One whole record.

    Args:
        message: what to encode; ``store_host`` None becomes 127.0.0.1:10911.
        queue_offset, phy_offset, store_timestamp_ms: written as given; the queue offset of a
            prepared or rolled-back message is written as 0.
        append_crc: end in the ``__CRC32#`` property.

    Raises:
        MessageIllegalError: a property breaks the format.

    Layout: docs/format/commit-log.md.
    Source: RocketMQ store/MessageExtEncoder.java.
    """
    cdef RecordFields fields
    cdef RecordEncoder encoder = RecordEncoder()
    cdef bytes topic = message.topic.encode()
    cdef bytes body = body_of(message)
    cdef bytes born_host = encode_host(message.born_host or "127.0.0.1:0")
    cdef bytes store_host = encode_host(message.store_host or "127.0.0.1:10911")
    cdef bytes record
    cdef uint8_t* at
    cdef int64_t total
    if not 0 < len(topic) <= TOPIC_SIZE_MAX:
        raise MessageIllegalError(f"topic {message.topic[:80]!r}: expected 1 to 255 bytes")
    gather(encoder, message, append_crc)
    fields.topic = <bytes_t>PyBytes_AS_STRING(topic)
    fields.topic_size = <int32_t>len(topic)
    fields.body = <bytes_t>PyBytes_AS_STRING(body)
    fields.body_size = <int32_t>len(body)
    fields.born_host = <bytes_t>PyBytes_AS_STRING(born_host)
    fields.born_host_size = <int32_t>len(born_host)
    fields.store_host = <bytes_t>PyBytes_AS_STRING(store_host)
    fields.store_host_size = <int32_t>len(store_host)
    fields.properties_size = <int32_t>encoder.properties_size
    fill_numbers(&fields, message)
    fields.queue_offset = queue_offset
    if (message.sys_flag & TRANSACTION_MASK) not in (0, TRANSACTION_COMMIT):
        fields.queue_offset = 0
    fields.phy_offset = phy_offset
    fields.store_timestamp = store_timestamp_ms
    total = record_size(&fields)
    record = PyBytes_FromStringAndSize(NULL, total)
    at = <uint8_t*>PyBytes_AS_STRING(record)
    encoder.write_properties(write_fields(at, &fields))
    store_i32(at, <int32_t>total)
    if append_crc:
        write_crc_property(at, <int32_t>total)
    return record


cdef bytes body_of(Message message):
    """The body as bytes.

    Raises:
        MessageIllegalError: it is no buffer of bytes, or larger than any record can be.
    """
    if PyBytes_CheckExact(message.body) and PyBytes_GET_SIZE(message.body) <= BODY_SIZE_MAX:
        return message.body
    makes_bytes = hasattr(type(message.body), "__bytes__")
    body = bytes(message.body if makes_bytes else body_view(message.body))
    if len(body) > BODY_SIZE_MAX:
        raise MessageIllegalError(f"the body has {len(body)} bytes, a record holds {BODY_SIZE_MAX}")
    return body


cdef int gather(RecordEncoder encoder, Message message, bint append_crc) except -1:
    cdef int problem
    keys, properties = keys_read_once(message), message.properties
    encoder.kept = (keys, properties)
    problem = encoder.gather(message.tags, keys, properties, append_crc)
    if problem != NO_PROBLEM:
        raise MessageIllegalError(encoder.describe(problem))
    return 0


def decode_record(buffer, int64_t at=0, *, bint check_crc=True):
    """The message whose record begins at byte ``at``; it keeps the buffer exported.

    Raises:
        CorruptRecordError: no whole record with a right CRC is there.
    """
    return message_from(buffer, at, check_crc=check_crc)


def check_record(buffer, int64_t at=0, *, bint verify_crc=True, bint verify_crc_property=False):
    """Size in bytes of the record at ``at``, negative for an end-of-file record.

    Args:
        verify_crc: compare the stored body with its CRC.
        verify_crc_property: demand a right ``__CRC32#`` property.

    Raises:
        CorruptRecordError: anything else is there.

    Source: RocketMQ store/CommitLog.java, checkMessageAndReturnSize.
    """
    cdef Py_buffer view
    cdef RecordHead head
    cdef int status = OUT_OF_BOUNDS
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if 0 <= at <= view.len:
            status = read_head(<bytes_t>view.buf + at, view.len - at, &head)
            if status == OK and verify_crc:
                status = check_body_crc(<bytes_t>view.buf + at, &head)
            if status == OK and verify_crc_property:
                status = BAD_CRC if check_crc_property(<bytes_t>view.buf + at, &head) != OK else OK
    finally:
        PyBuffer_Release(&view)
    if status == OK:
        return head.total_size
    if status == BLANK:
        return -head.total_size
    raise CorruptRecordError("buffer", at, status_text(status))


def record_layout(buffer, int64_t at=0) -> dict:
    """(position, size) in bytes of each field of the record at ``at``, in its order, by name.

    Positions count from the record's first byte; names are those of docs/format/commit-log.md.

    Raises:
        CorruptRecordError: no whole record is there; its CRC is not looked at.
    """
    cdef Py_buffer view
    cdef RecordHead head
    cdef int status = OUT_OF_BOUNDS
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    if 0 <= at <= view.len:
        status = read_head(<bytes_t>view.buf + at, view.len - at, &head)
    PyBuffer_Release(&view)
    if status != OK:
        raise CorruptRecordError("buffer", at, status_text(status))
    sizes = {
        "born_host": head.born_host_size, "store_timestamp": 8, "store_host": head.store_host_size,
        "reconsume_times": 4, "prepared_transaction_offset": 8, "body_length": 4,
        "body": head.body_size, "topic_length": head.topic_at - head.body_at - head.body_size,
        "topic": head.topic_size, "properties_length": 2, "properties": head.properties_size,
    }
    fields = dict(LAYOUT["record_head"])
    place = BORN_HOST_AT
    for name, size in sizes.items():
        fields[name] = (place, size)
        place += size
    return fields


def blank_record(int32_t size) -> bytes:
    """The 8 bytes of the end-of-file record that stands for the last ``size`` bytes of a file."""
    cdef uint8_t blank[8]
    store_i32(blank, size)
    store_i32(blank + MAGIC_AT, MAGIC_BLANK)
    return blank[:8]


def encode_properties(properties) -> bytes:
    """The properties string of a mapping of str to str, in the mapping's order.

    Raises:
        MessageIllegalError: an empty name or value, a separator in one, or more than 32,767 bytes.

    Source: RocketMQ common/message/MessageDecoder.java, messageProperties2String.
    """
    cdef RecordEncoder encoder = RecordEncoder()
    cdef bytes encoded
    cdef int problem
    pairs = dict(properties)
    problem = encoder.gather(None, None, pairs, False)
    if problem != NO_PROBLEM:
        raise MessageIllegalError(encoder.describe(problem))
    encoded = PyBytes_FromStringAndSize(NULL, encoder.properties_size)
    encoder.write_properties(<uint8_t*>PyBytes_AS_STRING(encoded))
    return encoded


def decode_properties(bytes encoded not None) -> dict:
    """The pairs of a properties string; later ones win, malformed ones are dropped.

    Raises:
        MessageIllegalError: it has 1 GiB or more.

    Source: RocketMQ common/message/MessageDecoder.java, string2messageProperties.
    """
    cdef PropertyWalk walk
    cdef Slice name, value
    properties = {}
    if PyBytes_GET_SIZE(encoded) >= 1 << 30:
        raise MessageIllegalError(f"properties of {len(encoded)} bytes")
    walk = walk_properties(
        <bytes_t>PyBytes_AS_STRING(encoded), <int32_t>PyBytes_GET_SIZE(encoded)
    )
    while next_property(&walk, &name, &value):
        properties[name.at[:name.size].decode("utf-8", "replace")] = (
            value.at[:value.size].decode("utf-8", "replace")
        )
    return properties


def encode_batch(messages) -> bytes:
    """The wire form of a batch: flag, body and properties of each `Message`.

    Raises:
        MessageIllegalError: a property breaks the format.

    Layout: docs/format/batch-body.md.
    Source: RocketMQ common/message/MessageDecoder.java, encodeMessages.
    """
    cdef RecordEncoder encoder = RecordEncoder()
    cdef Message message
    cdef bytes body
    cdef bytearray items = bytearray()
    cdef uint8_t* at
    cdef int64_t size
    cdef Py_ssize_t end = 0
    for message in messages:
        # first: it may run Python code, and the encoder points into what the message holds
        body = body_of(message)
        gather(encoder, message, False)
        if encoder.timed and not encoder.had_timer:
            raise MessageIllegalError("a batch has no delayed messages: leave TIMER_* out")
        size = BATCH_ITEM_SIZE_MIN + PyBytes_GET_SIZE(body) + encoder.properties_size
        if end + size > PyByteArray_GET_SIZE(items):
            PyByteArray_Resize(items, 2 * (end + size))
        at = <uint8_t*>PyByteArray_AS_STRING(items) + end
        store_i32(at, <int32_t>size)
        store_i32(at + 4, 0)
        store_i32(at + 8, 0)
        store_i32(at + 12, message.flag)
        store_i32(at + 16, <int32_t>PyBytes_GET_SIZE(body))
        memcpy(at + 20, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
        at += 20 + PyBytes_GET_SIZE(body)
        store_i16(at, <short>encoder.properties_size)
        encoder.write_properties(at + 2)
        end += size
    return PyBytes_FromStringAndSize(PyByteArray_AS_STRING(items), end)


def shares_queue(list messages not None) -> bool:
    """True when all are `Message` objects of one queue, none of them delayed or transactional."""
    cdef Message first, message
    for one in messages:
        if not isinstance(one, Message):
            return False
        message = <Message>one
        first = <Message>messages[0]
        if message.queue_id != first.queue_id or (
            message.topic is not first.topic and message.topic != first.topic
        ):
            return False
        if message.delay_level or message.sys_flag & TRANSACTION_MASK or (
            message.properties is not None and "DELAY" in message.properties
        ):
            return False
    return True


def decode_batch(bytes body not None, *, str topic="") -> list:
    """The messages of a batch body, as `Message` objects of the given topic.

    Raises:
        MessageIllegalError: lengths that do not add up, with the position.

    Source: RocketMQ common/message/MessageDecoder.java, decodeMessages.
    """
    cdef bytes_t base = <bytes_t>PyBytes_AS_STRING(body)
    cdef int64_t at = 0, size = PyBytes_GET_SIZE(body), available
    cdef int32_t item_size, body_size
    messages = []
    while at < size:
        available = size - at
        item_size = load_i32(base + at) if available >= BATCH_ITEM_SIZE_MIN else 0
        if item_size < BATCH_ITEM_SIZE_MIN or item_size > available:
            raise MessageIllegalError(f"the batch body is malformed at byte {at}")
        body_size = load_i32(base + at + 16)
        if body_size < 0 or body_size > item_size - BATCH_ITEM_SIZE_MIN or (
            load_i16(base + at + 20 + body_size) != item_size - BATCH_ITEM_SIZE_MIN - body_size
        ):
            raise MessageIllegalError(f"the batch body is malformed at byte {at}")
        messages.append(Message(
            topic, body[at + 20:at + 20 + body_size], flag=load_i32(base + at + 12),
            properties=decode_properties(body[at + 22 + body_size:at + item_size]),
        ))
        at += item_size
    return messages


def encode_message_id(str store_host not None, int64_t phy_offset) -> str:
    """The offset message id: 32 hex digits (IPv4) or 56 (IPv6), upper case.

    Source: RocketMQ common/message/MessageDecoder.java, createMessageId.
    """
    offset = (<object>phy_offset).to_bytes(8, "big", signed=True)
    return (encode_host(store_host) + offset).hex().upper()


def decode_message_id(str message_id not None) -> tuple:
    """(store host, physical offset) of an offset message id.

    Raises:
        ValueError: not 32 or 56 hex digits.

    Source: RocketMQ common/message/MessageDecoder.java, decodeMessageId.
    """
    raw = bytes.fromhex(message_id) if len(message_id) in (32, 56) else b""
    host_size = len(raw) - 8
    if host_size not in (HOST_V4_SIZE, HOST_V6_SIZE) or 2 * len(raw) != len(message_id):
        raise ValueError(f"message id {message_id!r}: expected 32 or 56 hex digits")
    return decode_host(raw[:host_size]), int.from_bytes(raw[host_size:], "big", signed=True)


def tags_code(tags) -> int:
    """The tagsCode of a tag string: Java's hash of it, 0 for none.

    Source: RocketMQ common/message/MessageExtBrokerInner.java, tagsString2tagsCode.
    """
    if not tags:
        return 0
    encoded = tags.encode("utf-8", "replace")
    return java_hash_step(0, <bytes_t>PyBytes_AS_STRING(encoded), <int32_t>len(encoded))
