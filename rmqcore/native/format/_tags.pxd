# The tags code of a record: what a consume queue keeps of its TAGS, or the delivery time of a
# delayed message. Inlined where it is used. No objects, no exceptions, no GIL.
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcmp

from rmqcore.native.format._record cimport RecordHead, Slice, bytes_t, java_hash_step

cdef enum:
    UNKNOWN_LEVEL_DELAY_MS = 1000

# The delay of level 1, 2, ... in milliseconds.
cdef struct DelayLevels:
    const int64_t* delays
    int32_t count

cdef inline int64_t decimal(const Slice* digits) noexcept nogil:
    """Value of a decimal number, -1 when it is none or has more than 18 digits."""
    cdef int64_t value = 0
    cdef int32_t index
    if digits.at == NULL or digits.size == 0 or digits.size > 18:
        return -1
    for index in range(digits.size):
        if digits.at[index] < 48 or digits.at[index] > 57:
            return -1
        value = value * 10 + (digits.at[index] - 48)
    return value

cdef inline bint named_topic(
    bytes_t record, const RecordHead* head, const char* name, int32_t size
) noexcept nogil:
    return head.topic_size == size and memcmp(record + head.topic_at, name, size) == 0

cdef inline int64_t tags_code_of(
    const DelayLevels* levels, bytes_t record, const RecordHead* head, const Slice* tags,
    const Slice* delay
) noexcept nogil:
    """Source: RocketMQ store/CommitLog.java, checkMessageAndReturnSize."""
    cdef int64_t level
    if delay.at != NULL and named_topic(record, head, b"SCHEDULE_TOPIC_XXXX", 19):
        level = min(decimal(delay), levels.count)
        if level > 0:
            return head.store_timestamp + levels.delays[level - 1]
        if decimal(delay) > 0:
            return head.store_timestamp + UNKNOWN_LEVEL_DELAY_MS
    if tags.at == NULL:
        return 0
    return java_hash_step(0, tags.at, tags.size)
