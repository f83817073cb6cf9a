# Kernels over an encoded batch body, inlined where they are used: docs/format/batch-body.md.
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from rmqcore.native.format._bytes cimport (
    RMQ_ASSERT, expect_read, load_i16, load_i32, look_for_byte, no_bytes, publish_i32, rmq_16,
    was_found,
)
from rmqcore.native.format._layout cimport *
from rmqcore.native.format._properties cimport asks_for_timer
from rmqcore.native.format._record cimport (
    PropertyWalk, RecordFields, Slice, bytes_t, named, next_property, record_size, walk_properties,
    write_crc_property, write_fields,
)


# Prefetch distance: bytes ahead of the item that is being read.
cdef enum:
    READ_AHEAD = 2048
    # the shortest name of what `batch_asks` looks for has 14 bytes; a separator and a digit
    ASKING_PROPERTY_SIZE_MIN = 16

# What a message of a batch asks for that only a put of its own could give.
cdef enum BatchNeed:
    ASKS_FOR_TIMER = 1
    NAMES_LIGHT_QUEUES = 2
    NUMBERS_LIGHT_QUEUES = 4


cdef inline int32_t missing_separator(bytes_t properties, int32_t size) noexcept nogil:
    return 1 if size > 0 and properties[size - 1] != 2 else 0

cdef inline bint batch_item(
    bytes_t item, int64_t available, RecordFields* fields, bint append_crc
) noexcept nogil:
    """Take flag, body and properties size from one item; False when its lengths do not add up."""
    cdef int32_t size, body_size, properties_size
    if available < BATCH_ITEM_SIZE_MIN:
        return False
    size = load_i32(item)
    body_size = load_i32(item + 16)
    if size < BATCH_ITEM_SIZE_MIN or size > available:
        return False
    if body_size < 0 or body_size > size - BATCH_ITEM_SIZE_MIN:
        return False
    properties_size = load_i16(item + 20 + body_size)
    if properties_size < 0 or properties_size != size - BATCH_ITEM_SIZE_MIN - body_size:
        return False
    fields.flag = load_i32(item + 12)
    fields.body = item + 20
    fields.body_size = body_size
    fields.properties_size = properties_size
    if append_crc:
        fields.properties_size += CRC_PROPERTY_SIZE
        fields.properties_size += missing_separator(item + 22 + body_size, properties_size)
        if fields.properties_size > PROPERTIES_SIZE_MAX:
            return False
    return True

cdef inline int64_t measure_batch(
    bytes_t body, int64_t size, RecordFields* fields, bint append_crc, int64_t* total,
    int32_t* count, bint* may_ask,
) noexcept nogil:
    """Check a batch body and sum up the records it becomes; -1, or where it is malformed.

    ``may_ask`` is left False when `batch_asks` surely finds nothing: the names that it looks for
    have an M, which is rare in others.

    Prefetches: each item's size is known only from its first bytes, so without a hint to the
    processor every item would wait for memory by itself.
    """
    cdef int64_t at = 0
    cdef int32_t properties_size
    cdef rmq_16 found = no_bytes()
    while at < size or count[0] == 0:
        if not batch_item(body + at, size - at, fields, append_crc):
            return at
        total[0] += record_size(fields)
        count[0] += 1
        properties_size = load_i32(body + at) - BATCH_ITEM_SIZE_MIN - fields.body_size
        if properties_size >= ASKING_PROPERTY_SIZE_MIN:
            look_for_byte(&found, fields.body + fields.body_size + 2, properties_size, c"M")
        expect_read(body + at + READ_AHEAD, load_i32(body + at))
        at += load_i32(body + at)
    may_ask[0] = was_found(&found)
    return -1

cdef inline int batch_asks(bytes_t body, int32_t count) noexcept nogil:
    """What the messages of a checked batch body ask for: bits of `BatchNeed`."""
    cdef int asked = 0
    cdef bytes_t properties
    cdef PropertyWalk walk
    cdef Slice name, value
    for _ in range(count):
        properties = body + 20 + load_i32(body + 16)
        if asks_for_timer(properties + 2, load_i16(properties)):
            asked |= ASKS_FOR_TIMER
        walk = walk_properties(properties + 2, load_i16(properties))
        while next_property(&walk, &name, &value):
            if named(&name, b"INNER_MULTI_DISPATCH", 20):
                asked |= NAMES_LIGHT_QUEUES
            elif named(&name, b"INNER_MULTI_QUEUE_OFFSET", 24):
                asked |= NUMBERS_LIGHT_QUEUES
        body += load_i32(body)
    return asked

cdef inline int32_t write_batch(
    uint8_t* start, bytes_t body, RecordFields* fields, bint append_crc, int64_t* offsets,
    int32_t count,
) noexcept nogil:
    """Write all records of a checked batch body; the first one's size word is left to publish."""
    cdef uint8_t* at = start
    cdef uint8_t* properties_at
    cdef int64_t total
    cdef int32_t index, properties_size, first_size = 0
    cdef bint good
    for index in range(count):
        good = batch_item(body, load_i32(body), fields, append_crc)
        RMQ_ASSERT(good)
        total = record_size(fields)
        offsets[index] = fields.phy_offset
        properties_at = write_fields(at, fields)
        properties_size = load_i16(body + 20 + fields.body_size)
        memcpy(properties_at, body + 22 + fields.body_size, properties_size)
        if append_crc:
            if missing_separator(properties_at, properties_size):
                properties_at[properties_size] = 2
            write_crc_property(at, <int32_t>total)
        if index == 0:
            first_size = <int32_t>total
        else:
            publish_i32(at, <int32_t>total)
        body += load_i32(body)
        at += total
        fields.phy_offset += total
        fields.queue_offset += 1
    return first_size
