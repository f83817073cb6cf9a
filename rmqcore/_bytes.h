/* Big-endian load and store, and ordered publication: the only byte-order code of the package.
 *
 * Every function takes a pointer that the caller has checked against the end of its buffer.
 * `publish` stores with release order, `observe` loads with acquire order: a reader that sees the
 * published word also sees every byte that was stored before it.
 */
#ifndef RMQ_BYTES_H
#define RMQ_BYTES_H

#include <assert.h>
#include <stdint.h>
#include <string.h>

#ifdef RMQ_DEBUG
#define RMQ_ASSERT(condition) assert(condition)
#else
#define RMQ_ASSERT(condition) ((void)0)
#endif

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define RMQ_BE16(x) __builtin_bswap16(x)
#define RMQ_BE32(x) __builtin_bswap32(x)
#define RMQ_BE64(x) __builtin_bswap64(x)
#else
#define RMQ_BE16(x) (x)
#define RMQ_BE32(x) (x)
#define RMQ_BE64(x) (x)
#endif

static inline int16_t load_i16(const uint8_t *at) {
    uint16_t word;
    memcpy(&word, at, sizeof word);
    return (int16_t)RMQ_BE16(word);
}

static inline int32_t load_i32(const uint8_t *at) {
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return (int32_t)RMQ_BE32(word);
}

static inline int64_t load_i64(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return (int64_t)RMQ_BE64(word);
}

static inline void store_i16(uint8_t *at, int16_t value) {
    uint16_t word = RMQ_BE16((uint16_t)value);
    memcpy(at, &word, sizeof word);
}

static inline void store_i32(uint8_t *at, int32_t value) {
    uint32_t word = RMQ_BE32((uint32_t)value);
    memcpy(at, &word, sizeof word);
}

static inline void store_i64(uint8_t *at, int64_t value) {
    uint64_t word = RMQ_BE64((uint64_t)value);
    memcpy(at, &word, sizeof word);
}

/* A record may start at any byte. Where the word straddles an alignment boundary the hardware
 * store is not one step, so readers near the tail also check offset and CRC of what they see. */
static inline void publish_i32(uint8_t *at, int32_t value) {
    __atomic_thread_fence(__ATOMIC_RELEASE);
    store_i32(at, value);
}

static inline int32_t observe_i32(const uint8_t *at) {
    int32_t value = load_i32(at);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return value;
}

/* Have the next bytes to be written, eight cache lines, on their way from memory. */
static inline void expect_write(const uint8_t *at) {
    for (int line = 0; line < 8; line++) __builtin_prefetch(at + 64 * line, 1);
}

/* Have bytes that will be read on their way from memory: `size` of them, at most 1 KiB. */
static inline void expect_read(const uint8_t *at, int64_t size) {
    if (size > 1024) size = 1024;
    for (int64_t line = 0; line < size; line += 64) __builtin_prefetch(at + line);
}

static inline void publish_word(int64_t *at, int64_t value) {
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

static inline int64_t observe_word(const int64_t *at) {
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

#endif
