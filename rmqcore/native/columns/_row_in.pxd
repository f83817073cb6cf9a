# One row of a table on its way to become a record. Inlined where it is used. No objects, no
# exceptions, no GIL.
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memchr, memcmp, memcpy

from rmqcore.native.format._bytes cimport copy_text, store_i32
from rmqcore.native.format._layout cimport HOST_V4_SIZE, HOST_V6_SIZE
from rmqcore.native.format._record cimport Slice, bytes_t, named

cdef extern from "<arpa/inet.h>" nogil:
    int inet_pton(int family, const char* text, void* address) noexcept
    enum:
        AF_INET
        AF_INET6

cdef extern from "_property_text.h" nogil:
    enum:
        RMQ_TEXT_GOOD
        RMQ_TEXT_SEPARATOR
        RMQ_TEXT_SPACE
        RMQ_TEXT_MALFORMED
    int rmq_text_problem(const uint8_t* at, int64_t size) noexcept

cdef extern from "_slots.h" nogil:
    cdef struct rmq_topic:
        uint8_t* name
        int32_t size

    cdef struct rmq_slot:
        int32_t topic
        int32_t queue_id

    cdef struct rmq_slots:
        rmq_topic* topics
        rmq_slot* slots
        int32_t topic_count
        int32_t slot_count
        int32_t last_topic

    enum:
        RMQ_NO_SLOT
        RMQ_NO_MEMORY
    int32_t rmq_topic_find(rmq_slots* all, const uint8_t* name, int32_t size) noexcept
    int32_t rmq_topic_add(rmq_slots* all, const uint8_t* name, int32_t size) noexcept
    int32_t rmq_slot_of(rmq_slots* all, int32_t topic, int32_t queue_id) noexcept
    void rmq_slots_free(rmq_slots* all) noexcept

# The columns of a message, in the order of `_table_rows.WRITTEN`.
cdef enum:
    IN_TOPIC
    IN_QUEUE_ID
    IN_BODY
    IN_TAGS
    IN_KEYS
    IN_UNIQUE_KEY
    IN_PROPERTIES
    IN_FLAG
    IN_SYS_FLAG
    IN_BORN_TIMESTAMP
    IN_RECONSUME_TIMES
    IN_BORN_HOST
    IN_COUNT
    UNIQUE_PREFIX_SIZE = 16
    # texts with a zero behind them for `inet_pton`
    HOST_TEXT_MAX = 64

# Why a row is no message.
cdef enum RowProblem:
    GOOD = 0
    NO_VALUE
    EMPTY_VALUE
    DAMAGED_VALUE
    NOT_UTF8
    HAS_SEPARATOR
    HAS_SPACE
    NO_TOPIC_NAME
    OUT_OF_RANGE
    IS_INNER_BATCH
    NOT_COMMITTED
    ASKS_DELAY
    ASKS_TIMER
    ASKS_LIGHT_QUEUES
    NO_HOST
    NO_TIME
    BODY_TOO_LONG
    PROPERTIES_TOO_LONG
    RECORD_TOO_LONG
    CHANGED
    OUT_OF_MEMORY

# Rows that are looked at together, column by column, so that what a column is like is asked once.
cdef enum:
    STRIP_SIZE = 64

# The parts of some rows. Where a text's `at` is NULL, there is none.
cdef struct Strip:
    int32_t slot[STRIP_SIZE]                # the number of topic and queue id; of the first look
    int32_t flag[STRIP_SIZE]
    int32_t sys_flag[STRIP_SIZE]
    int32_t reconsume_times[STRIP_SIZE]
    int32_t born_host_size[STRIP_SIZE]
    int32_t properties_size[STRIP_SIZE]     # more than a record can hold counts as that
    bint own_unique_key[STRIP_SIZE]         # made here, as the row has none
    int64_t born_timestamp[STRIP_SIZE]
    uint8_t born_host[STRIP_SIZE][20]
    Slice body[STRIP_SIZE]
    Slice tags[STRIP_SIZE]
    Slice keys[STRIP_SIZE]
    Slice unique_key[STRIP_SIZE]
    int64_t first_key[STRIP_SIZE]           # of a list of keys
    int64_t stop_key[STRIP_SIZE]
    int64_t keys_size[STRIP_SIZE]
    int64_t first_pair[STRIP_SIZE]
    int64_t stop_pair[STRIP_SIZE]

cdef inline RowProblem text_problem(const Slice* text, bint is_key) noexcept nogil:
    cdef int problem
    if text.size == 0:
        return EMPTY_VALUE
    problem = rmq_text_problem(text.at, text.size)
    if problem == RMQ_TEXT_GOOD or (problem == RMQ_TEXT_SPACE and not is_key):
        return GOOD
    if problem == RMQ_TEXT_SPACE:
        return HAS_SPACE
    return HAS_SEPARATOR if problem == RMQ_TEXT_SEPARATOR else NOT_UTF8

cdef inline bint is_topic(const Slice* name) noexcept nogil:
    """Letters, digits, %, |, _ and -; 1 to 255 of them."""
    cdef int32_t index
    cdef uint8_t one
    if not 1 <= name.size <= 255:
        return False
    for index in range(name.size):
        one = name.at[index]
        if not (
            97 <= one <= 122 or 65 <= one <= 90 or 48 <= one <= 57
            or one == 37 or one == 124 or one == 95 or one == 45
        ):
            return False
    return True

cdef inline int32_t parse_host(const Slice* text, uint8_t* into) noexcept nogil:
    """Write the 8 or 20 bytes of ``address:port``; how many, 0 where it is none."""
    cdef char address[HOST_TEXT_MAX]
    cdef int32_t split = text.size - 1, size, index, port = 0, start = 0, stop
    while split >= 0 and text.at[split] != 58:
        split -= 1
    if split < 1 or split > HOST_TEXT_MAX - 1 or not 1 <= text.size - 1 - split <= 5:
        return 0
    for index in range(split + 1, text.size):
        if not 48 <= text.at[index] <= 57:
            return 0
        port = 10 * port + text.at[index] - 48
    stop = split
    if text.at[0] == 91 and text.at[split - 1] == 93:
        start, stop = 1, split - 1
        for index in range(start, stop):
            if text.at[index] == 37:
                stop = index
                break
    memcpy(address, text.at + start, stop - start)
    address[stop - start] = 0
    if memchr(address, 0, stop - start) != NULL:
        # behind which no more would be looked at
        return 0
    if port > 65535 or inet_pton(AF_INET6 if start else AF_INET, address, into) != 1:
        return 0
    size = 16 if start else 4
    if start and memcmp(into, b"\0\0\0\0\0\0\0\0\0\0\xff\xff", 12) == 0:
        # an IPv4 address that is mapped into IPv6 becomes IPv4, as in Java
        memcpy(into, into + 12, 4)
        size = 4
    store_i32(into + size, port)
    return size + 4

cdef inline uint8_t* put_bytes(uint8_t* to, const void* at, int32_t size) noexcept nogil:
    """Copy a name or a separator, whose size the compiler knows."""
    memcpy(to, at, size)
    return to + size

cdef inline uint8_t* put_pair(
    uint8_t* to, const char* name, int32_t name_size, const Slice* value
) noexcept nogil:
    """Write a property."""
    to = put_bytes(to, name, name_size)
    to[0] = 1
    copy_text(to + 1, value.at, value.size)
    to += 1 + value.size
    to[0] = 2
    return to + 1

cdef inline bint is_dropped(const Slice* name) noexcept nogil:
    """True for what the owner of a log writes itself: a record's CRC, numbers in light queues."""
    return named(name, b"__CRC32#", 8) or named(name, b"INNER_MULTI_QUEUE_OFFSET", 24)
