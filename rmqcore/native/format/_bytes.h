/* Big-endian load and store, and ordered publication: the only byte-order code of the package.
 *
 * Every function takes a pointer that the caller has checked against the end of its buffer.
 * `publish` stores with release order, `observe` loads with acquire order: a reader that sees the
 * published word also sees every byte that was stored before it.
 */
#ifndef RMQ_BYTES_H
#define RMQ_BYTES_H

#include <stdint.h>
#include <string.h>

/* What the caller guarantees, or the code before it: `make debug` ends the process where it is not
 * so. In any other build the condition is not evaluated, so it must not do anything. Not `assert`,
 * which Python's own flags turn off (-DNDEBUG). */
#ifdef RMQ_DEBUG
#include <stdio.h>
#include <stdlib.h>
static inline void rmq_broken(const char *condition, const char *file, int line) {
    fprintf(stderr, "%s:%d: RMQ_ASSERT(%s) does not hold\n", file, line, condition);
    abort();
}
#define RMQ_ASSERT(condition) \
    ((condition) ? (void)0 : rmq_broken(#condition, __FILE__, __LINE__))
#else
#define RMQ_ASSERT(condition) ((void)sizeof(condition))
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

/* Copy a text, of a size that only the data knows: mostly a few words, for which a call of memcpy
 * would cost more than the copy. The last bytes are copied by a word that ends with them. */
static inline void copy_text(uint8_t *to, const uint8_t *from, int64_t size) {
    uint64_t word, last, two[2];
    uint32_t half, last_half;
    if (size > 64) {
        memcpy(to, from, (size_t)size);
    } else if (size >= 16) {
        for (int64_t i = 0; i < size - 16; i += 16) {
            memcpy(two, from + i, 16);
            memcpy(to + i, two, 16);
        }
        memcpy(two, from + size - 16, 16);
        memcpy(to + size - 16, two, 16);
    } else if (size >= 8) {
        memcpy(&word, from, 8);
        memcpy(&last, from + size - 8, 8);
        memcpy(to, &word, 8);
        memcpy(to + size - 8, &last, 8);
    } else if (size >= 4) {
        memcpy(&half, from, 4);
        memcpy(&last_half, from + size - 4, 4);
        memcpy(to, &half, 4);
        memcpy(to + size - 4, &last_half, 4);
    } else {
        for (int64_t i = 0; i < size; i++) to[i] = from[i];
    }
}

/* Whether two texts of the same size are the same, without a call as above. */
static inline int same_text(const uint8_t *one, const uint8_t *other, int64_t size) {
    uint64_t a, b, differs = 0;
    uint32_t c, d;
    if (size < 4) {
        for (int64_t i = 0; i < size; i++) differs |= one[i] ^ other[i];
        return differs == 0;
    }
    if (size < 8) {
        memcpy(&c, one, 4);
        memcpy(&d, other, 4);
        differs = c ^ d;
        memcpy(&c, one + size - 4, 4);
        memcpy(&d, other + size - 4, 4);
        return (differs | (c ^ d)) == 0;
    }
    for (int64_t i = 0; i < size; i += 8) {
        int64_t at = i + 8 <= size ? i : size - 8;
        memcpy(&a, one + at, 8);
        memcpy(&b, other + at, 8);
        differs |= a ^ b;
    }
    return differs == 0;
}

typedef uint8_t rmq_16 __attribute__((vector_size(16)));

static inline uint64_t separators_of_16(const uint8_t *at) {
    const rmq_16 bits = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint64_t sum = 0x0101010101010101;
    rmq_16 text;
    uint64_t half[2];
    memcpy(&text, at, sizeof text);
    text = (rmq_16)(text - 1 < 2) & bits;
    memcpy(half, &text, sizeof half);
    return half[0] * sum >> 56 | half[1] * sum >> 56 << 8;
}

/* Which of at most 64 bytes are 1 or 2, what separates properties: bit 0 speaks of the first. */
static inline uint64_t separators(const uint8_t *at, int64_t size) {
    uint64_t found = 0;
    uint8_t few[16] = {0};
    if (size < 16) {
        memcpy(few, at, (size_t)size);
        return separators_of_16(few);
    }
    for (int64_t i = 0; i + 16 <= size; i += 16)
        found |= separators_of_16(at + i) << i;
    return found | separators_of_16(at + size - 16) << (size - 16);
}

static inline rmq_16 rmq_load_16(const uint8_t *at) {
    rmq_16 text;
    memcpy(&text, at, sizeof text);
    return text;
}

static inline rmq_16 no_bytes(void) {
    return (rmq_16){0};
}

/* Note in `found` whether one of `size` bytes, 16 or more, is `wanted`. */
static inline void look_for_byte(rmq_16 *found, const uint8_t *at, int64_t size, uint8_t wanted) {
    *found |= (rmq_16)(rmq_load_16(at) == wanted) | (rmq_16)(rmq_load_16(at + size - 16) == wanted);
    for (int64_t i = 16; i + 16 < size; i += 16)
        *found |= (rmq_16)(rmq_load_16(at + i) == wanted);
}

static inline int was_found(const rmq_16 *found) {
    uint64_t half[2];
    memcpy(half, found, sizeof half);
    return (half[0] | half[1]) != 0;
}

/* True when a properties string of `size` bytes, 16 or more, has the layout of `known`: the bytes
 * that are `fixed` (0xFF, others 0) are the same, and no other byte is a separator. */
static inline int same_layout(const uint8_t *text, const uint8_t *known, const uint8_t *fixed,
                              int64_t size) {
    rmq_16 differs = {0};
    uint64_t half[2];
    for (int64_t i = 0; i < size; i += 16) {
        int64_t at = i + 16 <= size ? i : size - 16;
        rmq_16 here, there, same;
        memcpy(&here, text + at, sizeof here);
        memcpy(&there, known + at, sizeof there);
        memcpy(&same, fixed + at, sizeof same);
        differs |= ((here ^ there) & same) | ((rmq_16)(here - 1 < 2) & ~same);
    }
    memcpy(half, &differs, sizeof half);
    return (half[0] | half[1]) == 0;
}

static inline int lowest_bit(uint64_t bits) {
    return __builtin_ctzll(bits);
}

#endif
