/* Text that another program may take as valid UTF-8, whatever the bytes were.
 *
 * A malformed sequence becomes U+FFFD for each maximal part of it, as Python's "replace" and Java's
 * decoder have it.
 */
#ifndef RMQ_UTF8_H
#define RMQ_UTF8_H

#include <stdint.h>
#include <string.h>

/* Copy text as it is; true when all of it is ASCII. */
static inline int rmq_copy_is_ascii(uint8_t *to, const uint8_t *from, int64_t size) {
    typedef uint64_t pair __attribute__((vector_size(16)));
    pair two, seen_two = {0, 0};
    uint64_t word, seen = 0;
    uint32_t half, seen_half = 0;
    if (size >= 16) {
        for (int64_t i = 0; i < size - 16; i += 16) {
            memcpy(&two, from + i, 16);
            memcpy(to + i, &two, 16);
            seen_two |= two;
        }
        memcpy(&two, from + size - 16, 16);
        memcpy(to + size - 16, &two, 16);
        seen_two |= two;
        seen = seen_two[0] | seen_two[1];
    } else if (size >= 8) {
        memcpy(&seen, from, 8);
        memcpy(to, &seen, 8);
        memcpy(&word, from + size - 8, 8);
        memcpy(to + size - 8, &word, 8);
        seen |= word;
    } else if (size >= 4) {
        memcpy(&seen_half, from, 4);
        memcpy(to, &seen_half, 4);
        memcpy(&half, from + size - 4, 4);
        memcpy(to + size - 4, &half, 4);
        seen = seen_half | half;
    } else {
        for (int64_t i = 0; i < size; i++) {
            to[i] = from[i];
            seen |= from[i];
        }
    }
    return (seen & 0x8080808080808080ULL) == 0;
}

/* Bytes of the sequence at `at` that belong together; `*valid`: they are a character. */
static inline int rmq_utf8_step(const uint8_t *at, int64_t left, int *valid) {
    uint8_t first = at[0], low = 0x80, high = 0xBF;
    int more = 0, taken = 1;
    *valid = 1;
    if (first < 0x80)
        return 1;
    if (first >= 0xC2 && first <= 0xDF)
        more = 1;
    else if (first >= 0xE0 && first <= 0xEF) {
        more = 2;
        low = first == 0xE0 ? 0xA0 : 0x80;
        high = first == 0xED ? 0x9F : 0xBF;
    } else if (first >= 0xF0 && first <= 0xF4) {
        more = 3;
        low = first == 0xF0 ? 0x90 : 0x80;
        high = first == 0xF4 ? 0x8F : 0xBF;
    } else {
        *valid = 0;
        return 1;
    }
    while (more > 0) {
        if (taken >= left || at[taken] < low || at[taken] > high) {
            *valid = 0;
            return taken;
        }
        low = 0x80;
        high = 0xBF;
        taken++;
        more--;
    }
    return taken;
}

/* Copy text; `to` has room for 3 * size bytes. Returns how many were written. */
static inline int64_t rmq_utf8_copy(uint8_t *to, const uint8_t *from, int64_t size) {
    uint8_t *end = to;
    int64_t at = 0;
    if (rmq_copy_is_ascii(to, from, size))
        return size;
    while (at < size) {
        int valid;
        int taken = rmq_utf8_step(from + at, size - at, &valid);
        if (valid) {
            memcpy(end, from + at, (size_t)taken);
            end += taken;
        } else {
            memcpy(end, "\xEF\xBF\xBD", 3);
            end += 3;
        }
        at += taken;
    }
    return end - to;
}

#endif
