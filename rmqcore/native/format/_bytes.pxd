# Declarations of _bytes.h; pointers are checked by the caller.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t

cdef extern from "_bytes.h" nogil:
    # one condition without a side effect: only `make debug` evaluates it
    void RMQ_ASSERT(bint condition) noexcept
    int16_t load_i16(const uint8_t* at) noexcept
    int32_t load_i32(const uint8_t* at) noexcept
    int64_t load_i64(const uint8_t* at) noexcept
    void store_i16(uint8_t* at, int16_t value) noexcept
    void store_i32(uint8_t* at, int32_t value) noexcept
    void store_i64(uint8_t* at, int64_t value) noexcept
    void publish_i32(uint8_t* at, int32_t value) noexcept
    int32_t observe_i32(const uint8_t* at) noexcept
    void copy_text(uint8_t* to, const uint8_t* from_, int64_t size) noexcept
    bint same_text(const uint8_t* one, const uint8_t* other, int64_t size) noexcept
    void expect_write(const uint8_t* at) noexcept
    void expect_read(const uint8_t* at, int64_t size) noexcept
    uint64_t separators(const uint8_t* at, int64_t size) noexcept
    ctypedef struct rmq_16:
        pass
    rmq_16 no_bytes() noexcept
    void look_for_byte(
        rmq_16* found, const uint8_t* at, int64_t size, uint8_t wanted
    ) noexcept
    bint was_found(const rmq_16* found) noexcept
    bint same_layout(
        const uint8_t* text, const uint8_t* known, const uint8_t* fixed, int64_t size
    ) noexcept
    int lowest_bit(uint64_t bits) noexcept
