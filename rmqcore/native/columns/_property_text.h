/* Whether a text may be a tag, a key, or the name or the value of a property. */
#ifndef RMQ_PROPERTY_TEXT_H
#define RMQ_PROPERTY_TEXT_H

#include "_utf8.h"

enum { RMQ_TEXT_GOOD, RMQ_TEXT_SEPARATOR, RMQ_TEXT_SPACE, RMQ_TEXT_MALFORMED };

static inline int rmq_text_slowly(const uint8_t *at, int64_t size) {
    int space = 0, valid;
    for (int64_t i = 0; i < size;) {
        if (at[i] == 1 || at[i] == 2)
            return RMQ_TEXT_SEPARATOR;
        space |= at[i] == ' ';
        i += rmq_utf8_step(at + i, size - i, &valid);
        if (!valid)
            return RMQ_TEXT_MALFORMED;
    }
    return space ? RMQ_TEXT_SPACE : RMQ_TEXT_GOOD;
}

/* Text of printable ASCII is looked at eight bytes a step, the last ones twice. */
static inline int rmq_text_problem(const uint8_t *at, int64_t size) {
    const uint64_t ones = 0x0101010101010101ULL;
    uint64_t word, found = 0;
    if (size < 8) {
        word = 'a' * ones;
        /* of constant sizes, as a call would cost more than the rest */
        if (size >= 4) {
            memcpy(&word, at, 4);
            memcpy((uint8_t *)&word + 4, at + size - 4, 4);
        } else if (size >= 2) {
            memcpy(&word, at, 2);
            memcpy((uint8_t *)&word + 2, at + size - 2, 2);
        } else if (size == 1) {
            memcpy(&word, at, 1);
        }
        found = (word - 33 * ones) | word;
    }
    for (int64_t i = 0; size >= 8 && i < size; i += 8) {
        memcpy(&word, at + (i + 8 <= size ? i : size - 8), 8);
        /* a byte of 32 or less, or of 128 or more */
        found |= (word - 33 * ones) | word;
    }
    return (found & (128 * ones)) == 0 ? RMQ_TEXT_GOOD : rmq_text_slowly(at, size);
}

#endif
