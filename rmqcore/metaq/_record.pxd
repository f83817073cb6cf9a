# The MetaQ record: offsets, limits and the kernels that the native modules here share.
# Layout: docs/metaq.md, "Record". Pointers are checked by the caller.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from rmqcore.native.format._bytes cimport store_i32, store_i64

cdef extern from "_crc32.h" nogil:
    void rmq_crc32_init() noexcept
    uint32_t rmq_crc32(uint32_t crc, const uint8_t* at, size_t size) noexcept

cdef enum:
    LENGTH_AT = 0
    CHECKSUM_AT = 4
    MESSAGE_ID_AT = 8
    FLAG_AT = 16
    DATA_AT = 20
    HEADER_SIZE = 20
    CHECKSUM_MASK = 0x7FFFFFFF
    MAX_DATA_SIZE = 0x7FFFFFFF - 20  # a whole record has a 31-bit size in Java


cdef inline int32_t checksum_of(const uint8_t* data, int64_t size) noexcept nogil:
    return <int32_t>(rmq_crc32(0, data, <size_t>size) & CHECKSUM_MASK)


cdef inline void store_header(
    uint8_t* to, int32_t length, int32_t checksum, int64_t message_id, int32_t flag
) noexcept nogil:
    store_i32(to + LENGTH_AT, length)
    store_i32(to + CHECKSUM_AT, checksum)
    store_i64(to + MESSAGE_ID_AT, message_id)
    store_i32(to + FLAG_AT, flag)


cdef inline bint storable(int64_t size) noexcept nogil:
    """False for what is too large, and for no data: that has the length and checksum of zeros."""
    return 0 < size <= MAX_DATA_SIZE
