# One column while it is filled: its growing memory, and functions that append the values of some
# rows. Inlined where used; False means out of memory. No objects, no exceptions, no GIL.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcmp, memcpy

from rmqcore.native.columns._arrow cimport rmq_block, rmq_block_grow
from rmqcore.native.format._bytes cimport RMQ_ASSERT, load_i32, store_i64
from rmqcore.native.format._layout cimport HOST_V4_SIZE
from rmqcore.native.format._record cimport (
    PropertyWalk, RecordHead, Slice, bytes_t, named, next_property, walk_properties,
)

cdef extern from "<arpa/inet.h>" nogil:
    const char* inet_ntop(int family, const void* address, char* text, unsigned int size) noexcept
    enum:
        AF_INET6

cdef extern from "_utf8.h" nogil:
    int64_t rmq_utf8_copy(uint8_t* to, const uint8_t* text, int64_t size) noexcept

# The columns in the order of `COLUMNS`.
cdef enum:
    TOPIC, QUEUE_ID, QUEUE_OFFSET, PHY_OFFSET, STORE_SIZE, STORE_TIMESTAMP, TAGS_CODE
    BORN_TIMESTAMP, KEYS, TAGS, UNIQUE_KEY, BODY, PROPERTIES, FLAG, SYS_FLAG, BODY_CRC
    RECONSUME_TIMES, PREPARED_TRANSACTION_OFFSET, BORN_HOST, STORE_HOST, MESSAGE_ID, CRC_OK, RECORD
    COLUMN_COUNT
    # what the map of properties consists of
    NAMES = COLUMN_COUNT
    VALUES
    STORE_COUNT
    # records that are looked at together, column by column
    ROWS_AT_ONCE = 32
    # pairs that fit into PROPERTIES_SIZE_MAX
    PAIRS_MAX = 16384

cdef struct Kind:
    const char* name
    const char* format
    int width                # bytes a row; 0 for text and bytes, -1 for bits, -2 for the map
    bint nullable
    int field                # where the head of a record has the number, or the place of the text
    int size_field           # where it has the size of the text

# Its memory is in blocks of the batch.
cdef struct Store:
    rmq_block* values
    rmq_block* offsets       # int32, one more than rows
    rmq_block* validity      # a bit a row
    int64_t size             # bytes in values
    int64_t null_count

ctypedef fused number_t:
    int32_t
    int64_t

# A record that is to be a row.
cdef struct Row:
    bytes_t at
    RecordHead head

cdef struct Pair:
    Slice name
    Slice value
    uint64_t print

cdef struct HostText:
    uint8_t raw[20]
    int32_t raw_size
    char text[72]
    int32_t size

cdef inline bint room(rmq_block* block, int64_t size) noexcept nogil:
    """Have `size` bytes in a block that may grow further; False without memory."""
    return size <= block.size or rmq_block_grow(block, size + size // 2 + 4096)

cdef inline void put_numbers(
    number_t* values, const Row* rows, int count, int field
) noexcept nogil:
    """The number that is `field` bytes behind the begin of each head."""
    cdef int index
    for index in range(count):
        values[index] = (<number_t*>(<const char*>&rows[index].head + field))[0]

cdef inline void put_null(Store* store, int64_t row) noexcept nogil:
    (<uint8_t*>store.validity.at)[row >> 3] &= <uint8_t>~(1 << (row & 7))
    store.null_count += 1

cdef inline void put_times(
    Store* store, int64_t first, const Row* rows, int count, int field
) noexcept nogil:
    """Milliseconds as microseconds; those that do not fit are missing."""
    cdef int64_t milliseconds_max = 9223372036854775
    cdef int64_t* values = <int64_t*>store.values.at + first
    cdef int index
    put_numbers(values, rows, count, field)
    for index in range(count):
        if -milliseconds_max <= values[index] <= milliseconds_max:
            values[index] *= 1000
        else:
            values[index] = 0
            put_null(store, first + index)

cdef inline bint put_slices(
    Store* store, int64_t first, const Slice* slices, int count, bint text
) noexcept nogil:
    """Bytes as they are, or text, mended where it is no UTF-8; none where a slice has no place."""
    cdef int32_t* ends = <int32_t*>store.offsets.at + first + 1
    cdef int64_t end = store.size, most = 0
    cdef uint8_t* values
    cdef int index
    for index in range(count):
        most += slices[index].size
    if not room(store.values, end + (3 * most if text else most)):
        return False
    values = <uint8_t*>store.values.at
    for index in range(count):
        if slices[index].at == NULL:
            put_null(store, first + index)
        elif text:
            end += rmq_utf8_copy(values + end, slices[index].at, slices[index].size)
        else:
            memcpy(values + end, slices[index].at, slices[index].size)
            end += slices[index].size
        ends[index] = <int32_t>end
    RMQ_ASSERT(end <= store.values.size)
    store.size = end
    return True

cdef inline bint put_bytes(Store* store, int64_t row, const void* at, int64_t size) noexcept nogil:
    cdef Slice value
    value.at = <bytes_t>at
    value.size = <int32_t>size
    return put_slices(store, row, &value, 1, False)

cdef inline void find_slices(
    Slice* slices, const Row* rows, int count, int field, int size_field
) noexcept nogil:
    """Where texts lie whose places and sizes are so many bytes behind the begin of each head."""
    cdef int index
    cdef const char* head
    for index in range(count):
        head = <const char*>&rows[index].head
        slices[index].at = rows[index].at + (<const int32_t*>(head + field))[0]
        slices[index].size = (<const int32_t*>(head + size_field))[0]

cdef inline bint put_host(
    Store* store, int64_t row, HostText* last, bytes_t at, int32_t size
) noexcept nogil:
    """The text of a host; most rows have the host of the row before."""
    cdef char address[64]
    if last.raw_size != size or memcmp(last.raw, at, size) != 0:
        last.raw_size = size
        memcpy(last.raw, at, size)
        if size == HOST_V4_SIZE:
            last.size = snprintf(last.text, sizeof(last.text), b"%d.%d.%d.%d:%d", <int>at[0],
                                 <int>at[1], <int>at[2], <int>at[3], <int>load_i32(at + 4))
        else:
            inet_ntop(AF_INET6, at, address, sizeof(address))
            last.size = snprintf(last.text, sizeof(last.text), b"[%s]:%d", address,
                                 <int>load_i32(at + 16))
    return put_bytes(store, row, last.text, last.size)

cdef inline bint put_message_id(
    Store* store, int64_t row, bytes_t record, const RecordHead* head
) noexcept nogil:
    cdef uint8_t raw[28]
    cdef int32_t index
    cdef const char* digits = b"0123456789ABCDEF"
    cdef char text[56]
    memcpy(raw, record + head.store_host_at, head.store_host_size)
    store_i64(raw + head.store_host_size, head.phy_offset)
    for index in range(head.store_host_size + 8):
        text[2 * index] = digits[raw[index] >> 4]
        text[2 * index + 1] = digits[raw[index] & 15]
    return put_bytes(store, row, text, 2 * (head.store_host_size + 8))

cdef inline int32_t add_pair(
    Pair* pairs, int32_t count, const Slice* name, const Slice* value
) noexcept nogil:
    """Add a pair, or give the pair of this name its later value; how many there are then."""
    cdef uint64_t print = 0xCBF29CE484222325u
    cdef int32_t index
    for index in range(name.size):
        print = (print ^ name.at[index]) * 0x100000001B3u
    for index in range(count):
        if pairs[index].print == print and named(
            &pairs[index].name, <const char*>name.at, name.size
        ):
            pairs[index].value = value[0]
            return count
    pairs[count].name = name[0]
    pairs[count].value = value[0]
    pairs[count].print = print
    return count + 1

cdef inline bint put_map(
    Store* entries, int64_t row, Store* names, Store* values, Pair* pairs, bytes_t at, int32_t size
) noexcept nogil:
    """The pairs of a properties string; what the offsets of the map count are pairs."""
    cdef PropertyWalk walk = walk_properties(at, size)
    cdef Slice name, value
    cdef int32_t count = 0, index
    cdef int64_t ends_size
    while next_property(&walk, &name, &value):
        count = add_pair(pairs, count, &name, &value)
    ends_size = (entries.size + count + 1) * sizeof(int32_t)
    if not (room(names.offsets, ends_size) and room(values.offsets, ends_size)):
        return False
    for index in range(count):
        if not (put_slices(names, entries.size, &pairs[index].name, 1, True)
                and put_slices(values, entries.size, &pairs[index].value, 1, True)):
            return False
        entries.size += 1
    (<int32_t*>entries.offsets.at)[row + 1] = <int32_t>entries.size
    return True
