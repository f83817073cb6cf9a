/* Text that another program may take as valid UTF-8, whatever the bytes were.
 *
 * A malformed sequence becomes U+FFFD for each maximal part of it, as Python's "replace" and Java's
 * decoder have it.
 */
#ifndef RMQ_UTF8_H
#define RMQ_UTF8_H

#include <stdint.h>
#include <string.h>

static inline int rmq_is_ascii(const uint8_t *at, int64_t size) {
    uint64_t seen = 0, word;
    int64_t i = 0;
    for (; i + 8 <= size; i += 8) {
        memcpy(&word, at + i, 8);
        seen |= word;
    }
    for (; i < size; i++)
        seen |= (uint64_t)at[i] << 56;
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
    if (rmq_is_ascii(from, size)) {
        memcpy(to, from, (size_t)size);
        return size;
    }
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
