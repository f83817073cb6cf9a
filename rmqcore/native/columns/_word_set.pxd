# A set of byte strings, each with a number; looked into without objects, exceptions or the GIL.
# The strings belong to the caller, who keeps them.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from rmqcore.native.format._record cimport bytes_t

cdef struct Word:
    bytes_t at               # NULL: nothing is here
    int32_t size
    int32_t number
    uint64_t print

cdef struct WordSet:
    Word* words              # NULL while there are none
    int64_t mask             # how many there is room for, less one
    int64_t count
    # words of other sizes are not there
    int32_t size_min
    int32_t size_max

cdef inline uint64_t print_of(bytes_t at, int32_t size) noexcept nogil:
    """Sizes and bytes as one number; eight bytes a step."""
    cdef uint64_t print = 0x9E3779B97F4A7C15u ^ <uint64_t>size
    cdef uint64_t part
    while size >= 8:
        memcpy(&part, at, 8)
        print = (print ^ part) * 0xD6E8FEB86659FD93u
        print ^= print >> 32
        at += 8
        size -= 8
    part = 0
    memcpy(&part, at, size)
    print = (print ^ part) * 0xD6E8FEB86659FD93u
    print ^= print >> 32
    return (print * 0xD6E8FEB86659FD93u) ^ (print >> 29)

cdef inline Word* find_word(const WordSet* words, bytes_t at, int32_t size) noexcept nogil:
    """The word, NULL when it is not there."""
    cdef uint64_t print
    cdef int64_t place
    cdef Word* word
    if words.words == NULL or size < words.size_min or size > words.size_max:
        return NULL
    print = print_of(at, size)
    place = <int64_t>(print & <uint64_t>words.mask)
    while True:
        word = &words.words[place]
        if word.at == NULL:
            return NULL
        if word.print == print and word.size == size and memcmp(word.at, at, size) == 0:
            return word
        place = (place + 1) & words.mask

cdef inline void place_word(WordSet* words, const Word* new) noexcept nogil:
    cdef int64_t place = <int64_t>(new.print & <uint64_t>words.mask)
    while words.words[place].at != NULL:
        place = (place + 1) & words.mask
    words.words[place] = new[0]

cdef inline bint grow_words(WordSet* words) noexcept nogil:
    """Have room for one word more; False without memory."""
    cdef WordSet larger = words[0]
    cdef int64_t place
    if words.words != NULL and words.count <= words.mask // 2:
        return True
    larger.mask = 15 if words.words == NULL else 4 * (words.mask + 1) - 1
    larger.words = <Word*>calloc(larger.mask + 1, sizeof(Word))
    if larger.words == NULL:
        return False
    if words.words != NULL:
        for place in range(words.mask + 1):
            if words.words[place].at != NULL:
                place_word(&larger, &words.words[place])
        free(words.words)
    words[0] = larger
    return True

cdef inline bint add_word(WordSet* words, bytes_t at, int32_t size, int32_t number) noexcept nogil:
    """Add a word, or give one that is there its number; False without memory."""
    cdef Word* there = find_word(words, at, size)
    cdef Word new
    if there != NULL:
        there.number = number
        return True
    if not grow_words(words):
        return False
    new.at = at
    new.size = size
    new.number = number
    new.print = print_of(at, size)
    place_word(words, &new)
    words.size_min = size if words.count == 0 else min(words.size_min, size)
    words.size_max = max(words.size_max, size)
    words.count += 1
    return True

cdef inline void drop_words(WordSet* words) noexcept nogil:
    free(words.words)
    words.words = NULL
    words.mask = words.count = 0
    words.size_min = words.size_max = 0
