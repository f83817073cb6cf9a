# One column in the making: growing memory, and what puts one row's value into it. Inlined where it
# is used; False means that there is no memory. No objects, no exceptions, no GIL.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport realloc
from libc.string cimport memcmp, memcpy

from rmqcore._bytes cimport load_i32, store_i64
from rmqcore._layout cimport HOST_V4_SIZE
from rmqcore._record cimport RecordHead, Slice, bytes_t, named

cdef extern from "<arpa/inet.h>" nogil:
    const char* inet_ntop(int family, const void* address, char* text, unsigned int size) noexcept
    enum:
        AF_INET6

cdef extern from "_utf8.h" nogil:
    int64_t rmq_utf8_copy(uint8_t* to, const uint8_t* text, int64_t size) noexcept

cdef struct Store:
    uint8_t* values
    int64_t size             # bytes in values
    int64_t capacity
    int32_t* offsets
    int64_t offset_capacity
    uint8_t* validity
    int64_t null_count

cdef struct Pair:
    Slice name
    Slice value
    uint64_t print

cdef struct HostText:
    uint8_t raw[20]
    int32_t raw_size
    char text[72]
    int32_t size

cdef inline bint room(Store* store, int64_t more) noexcept nogil:
    """Make room for `more` bytes behind those there are; False without memory."""
    cdef int64_t wanted = store.size + more
    cdef uint8_t* grown
    if wanted <= store.capacity:
        return True
    wanted += wanted // 2 + 4096
    grown = <uint8_t*>realloc(store.values, wanted)
    if grown == NULL:
        return False
    store.values = grown
    store.capacity = wanted
    return True

cdef inline bint end_value(Store* store, int64_t row) noexcept nogil:
    """Note that the value of `row` ends here."""
    cdef int32_t* grown
    if row + 1 >= store.offset_capacity:
        grown = <int32_t*>realloc(store.offsets, 2 * (row + 2) * sizeof(int32_t))
        if grown == NULL:
            return False
        store.offsets = grown
        store.offset_capacity = 2 * (row + 2)
    if row == 0:
        store.offsets[0] = 0
    store.offsets[row + 1] = <int32_t>store.size
    return True

cdef inline bint put_text(Store* store, int64_t row, bytes_t at, int32_t size) noexcept nogil:
    if not room(store, 3 * <int64_t>size):
        return False
    store.size += rmq_utf8_copy(store.values + store.size, at, size)
    return end_value(store, row)

cdef inline bint put_bytes(Store* store, int64_t row, const void* at, int64_t size) noexcept nogil:
    if not room(store, size):
        return False
    memcpy(store.values + store.size, at, size)
    store.size += size
    return end_value(store, row)

cdef inline void put_null(Store* store, int64_t row) noexcept nogil:
    store.validity[row >> 3] &= <uint8_t>~(1 << (row & 7))
    store.null_count += 1

cdef inline bint put_optional(Store* store, int64_t row, const Slice* text) noexcept nogil:
    if text.at == NULL:
        put_null(store, row)
        return end_value(store, row)
    return put_text(store, row, text.at, text.size)

cdef inline void put_time(Store* store, int64_t row, int64_t milliseconds) noexcept nogil:
    # times beyond this many milliseconds have no microseconds
    cdef int64_t milliseconds_max = 9223372036854775
    cdef bint fits = -milliseconds_max <= milliseconds <= milliseconds_max
    (<int64_t*>store.values)[row] = milliseconds * 1000 if fits else 0
    if not fits:
        put_null(store, row)

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
    cdef uint8_t* into
    memcpy(raw, record + head.store_host_at, head.store_host_size)
    store_i64(raw + head.store_host_size, head.phy_offset)
    if not room(store, 56):
        return False
    into = store.values + store.size
    for index in range(head.store_host_size + 8):
        into[2 * index] = digits[raw[index] >> 4]
        into[2 * index + 1] = digits[raw[index] & 15]
    store.size += 2 * (head.store_host_size + 8)
    return end_value(store, row)

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
