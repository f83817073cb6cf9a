"""What a scan of the log notes of each record and each queue, and the units made of it."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp

from rmqcore.native.format._bytes cimport store_i16, store_i32, store_i64
from rmqcore.native.format._layout cimport *
from rmqcore.native.format._record cimport bytes_t, java_hash_step

cdef enum:
    NOT_COMPACTED = -1


cdef struct Row:
    int64_t phy_offset
    int64_t tags_code
    int64_t store_timestamp
    int64_t queue_offset
    int32_t size
    int32_t group
    int32_t message_count


cdef struct Group:
    bytes_t topic
    int32_t topic_size
    int32_t queue_id
    uint32_t bucket
    int32_t count
    int32_t first_row        # position of the group's first unit among the sorted units
    int64_t first_queue_offset
    int64_t next_queue_offset
    bint contiguous
    bint inner_batch


cdef inline object new_column(Py_ssize_t count, str kind, void** first):
    """A read-only view of ``count`` values that nothing has been written to yet.

    Args:
        kind: of the values, as `struct` names it.
        first: where they lie; they live as long as the view.
    """
    cdef Py_ssize_t width = {"B": 1, "i": 4, "q": 8}[kind]
    cdef bytearray data = PyByteArray_FromStringAndSize(NULL, count * width)
    first[0] = PyByteArray_AS_STRING(data)
    return memoryview(data).toreadonly().cast(kind)


cdef inline int32_t java_hash_of(bytes_t text, int32_t size) noexcept nogil:
    return java_hash_step(0, text, size)


cdef inline void store_unit(uint8_t* unit, const Row* row) noexcept nogil:
    store_i64(unit, row.phy_offset)
    store_i32(unit + UNIT_SIZE_AT, row.size)
    store_i64(unit + UNIT_TAGS_CODE_AT, row.tags_code)


cdef inline void store_batch_unit(uint8_t* unit, const Row* row) noexcept nogil:
    store_unit(unit, row)
    store_i64(unit + BATCH_UNIT_TIMESTAMP_AT, row.store_timestamp)
    store_i64(unit + BATCH_UNIT_BASE_AT, row.queue_offset)
    store_i16(unit + BATCH_UNIT_COUNT_AT, <int16_t>row.message_count)
    store_i32(unit + BATCH_UNIT_COMPACTED_AT, NOT_COMPACTED)
    store_i32(unit + BATCH_UNIT_RESERVED_AT, 0)


cdef inline bint addressable(
    bytes_t topic, int32_t topic_size, int32_t queue_id, int64_t queue_offset
) noexcept nogil:
    """True when a queue of this name can have a directory, and the offset a place in it."""
    if topic_size < 1 or topic_size > TOPIC_SIZE_MAX or queue_id < 0:
        return False
    if memchr(topic, 0, topic_size) != NULL or memchr(topic, 47, topic_size) != NULL:
        return False
    if topic[0] == 46 and (topic_size == 1 or (topic_size == 2 and topic[1] == 46)):
        return False
    # a unit has 20 bytes, and a position in a queue fits into an int64
    return 0 <= queue_offset < <int64_t>1 << 58


cdef inline bint dispatches_to_many(bytes_t topic, int32_t size) noexcept nogil:
    """Source: RocketMQ store/MultiDispatchUtils.java, checkMultiDispatchQueue."""
    return not (
        (size >= 7 and memcmp(topic, b"%RETRY%", 7) == 0)
        or (size >= 8 and memcmp(topic, b"rmq_sys_", 8) == 0)
        or (size == 19 and memcmp(topic, b"SCHEDULE_TOPIC_XXXX", 19) == 0)
    )
