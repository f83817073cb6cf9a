# A column that another Arrow library made, read row by row. Inlined where it is used. No objects,
# no exceptions, no GIL.
#
# The Arrow C data interface hands over pointers without the sizes of what they point to: that a
# buffer is as long as its column says is the maker's word. What lies in the buffers is not
# believed: offsets that step back, indices outside a dictionary and views outside their buffers are
# DAMAGED.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdint cimport INT32_MAX, INT64_MAX
from libc.string cimport memcpy

from rmqcore.native.format._record cimport Slice, bytes_t


cdef enum SourceKind:
    MISSING              # there is no such column, or none of its rows has a value
    TEXT                 # text or bytes, by offsets of 32 bits
    LARGE_TEXT           # the same by offsets of 64 bits
    VIEWS                # the same by views
    FIXED                # bytes, in each row as many
    NUMBERS
    LIST                 # by offsets of 32 bits
    LARGE_LIST

# What a row has.
cdef enum Found:
    NULL_VALUE = 0
    VALUE = 1
    DAMAGED = -1

cdef struct Source:
    SourceKind kind
    int32_t width                # bytes of a number, of an index, of a fixed value
    bint unsigned
    bytes_t validity             # NULL: every row has a value
    int64_t offset
    int64_t length
    bytes_t values               # offsets, views, numbers, or indices
    bytes_t data                 # the text that offsets speak of
    const void** views           # what the long views point into
    int64_t view_count
    const int64_t* view_sizes
    Source* dictionary           # of what the numbers are indices; NULL: they are values
    Source* first                # items of a list; names of a map
    Source* second               # values of a map
    bytes_t pair_validity        # of a map's pairs, and where they begin in there
    int64_t pair_offset


cdef inline bint has_value(const Source* source, int64_t row) noexcept nogil:
    cdef int64_t at = source.offset + row
    return source.validity == NULL or (source.validity[at >> 3] >> (at & 7)) & 1

cdef inline int64_t word_at(bytes_t values, int64_t index, int32_t width) noexcept nogil:
    """A signed number of four or eight bytes; a buffer need not be aligned."""
    cdef int32_t small
    cdef int64_t wide
    if width == 4:
        memcpy(&small, values + 4 * index, 4)
        return small
    memcpy(&wide, values + 8 * index, 8)
    return wide

cdef inline int64_t plain_number(const Source* source, int64_t row) noexcept nogil:
    """The number in a row that has one; what is above the range of int64 counts as its end."""
    cdef int64_t at = source.offset + row
    cdef bytes_t value = source.values + at * source.width
    cdef int16_t half
    cdef uint16_t unsigned_half
    cdef uint32_t unsigned_word
    cdef uint64_t unsigned_wide
    if source.width == 1:
        return value[0] if source.unsigned else <int8_t>value[0]
    if source.width == 2:
        if source.unsigned:
            memcpy(&unsigned_half, value, 2)
            return unsigned_half
        memcpy(&half, value, 2)
        return half
    if not source.unsigned:
        return word_at(source.values, at, source.width)
    if source.width == 4:
        memcpy(&unsigned_word, value, 4)
        return unsigned_word
    memcpy(&unsigned_wide, value, 8)
    return INT64_MAX if unsigned_wide > <uint64_t>INT64_MAX else <int64_t>unsigned_wide

cdef inline Found plain_row(const Source** source, int64_t* row) noexcept nogil:
    """Step from an index into its dictionary."""
    cdef int64_t index
    if source[0].kind == MISSING or not has_value(source[0], row[0]):
        return NULL_VALUE
    if source[0].dictionary == NULL:
        return VALUE
    index = plain_number(source[0], row[0])
    source[0] = source[0].dictionary
    row[0] = index
    if index < 0 or index >= source[0].length:
        return DAMAGED
    if source[0].kind == MISSING or not has_value(source[0], index):
        return NULL_VALUE
    return VALUE

cdef inline Found number_at(const Source* source, int64_t row, int64_t* number) noexcept nogil:
    cdef Found found = plain_row(&source, &row)
    if found == VALUE:
        number[0] = plain_number(source, row)
    return found

cdef inline Found view_at(const Source* source, int64_t at, Slice* text) noexcept nogil:
    cdef bytes_t view = source.values + 16 * at
    cdef int64_t size = word_at(view, 0, 4), buffer, start
    if size < 0:
        return DAMAGED
    text.size = <int32_t>size
    if size <= 12:
        text.at = view + 4
        return VALUE
    buffer, start = word_at(view, 2, 4), word_at(view, 3, 4)
    if buffer < 0 or buffer >= source.view_count or start < 0:
        return DAMAGED
    if start + size > source.view_sizes[buffer]:
        return DAMAGED
    text.at = <bytes_t>source.views[buffer] + start
    return VALUE

cdef inline Found text_at(const Source* source, int64_t row, Slice* text) noexcept nogil:
    """The text or the bytes of a row; what is longer than any message counts as INT32_MAX."""
    cdef Found found = plain_row(&source, &row)
    cdef int64_t at, start, stop
    cdef int32_t width
    if found != VALUE:
        return found
    at = source.offset + row
    if source.kind == VIEWS:
        return view_at(source, at, text)
    if source.kind == FIXED:
        text.at, text.size = source.values + at * source.width, source.width
        return VALUE
    width = 4 if source.kind == TEXT else 8
    start, stop = word_at(source.values, at, width), word_at(source.values, at + 1, width)
    if start < 0 or stop < start:
        return DAMAGED
    text.at, text.size = source.data + start, <int32_t>min(stop - start, INT32_MAX)
    return VALUE

cdef inline bint texts_at(
    const Source* source, int64_t first, int32_t count, Slice* texts
) noexcept nogil:
    """The texts of some rows; `at` is NULL where there is no value. False: one is damaged."""
    cdef bytes_t offsets
    cdef int64_t start, stop
    cdef int32_t row
    cdef Found found
    if source.kind == TEXT and source.dictionary == NULL and source.validity == NULL:
        # what most columns are: each offset is read once
        offsets = source.values + 4 * (source.offset + first)
        start = word_at(offsets, 0, 4)
        if start < 0:
            return False
        for row in range(count):
            stop = word_at(offsets, row + 1, 4)
            if stop < start:
                return False
            texts[row].at, texts[row].size = source.data + start, <int32_t>(stop - start)
            start = stop
        return True
    for row in range(count):
        found = text_at(source, first + row, &texts[row])
        if found == DAMAGED:
            return False
        if found == NULL_VALUE:
            texts[row].at, texts[row].size = NULL, 0
    return True

cdef inline bint has_pair(const Source* source, int64_t item) noexcept nogil:
    cdef int64_t at = source.pair_offset + item
    return source.pair_validity == NULL or (source.pair_validity[at >> 3] >> (at & 7)) & 1

cdef inline Found items_at(
    const Source* source, int64_t row, int64_t* start, int64_t* stop
) noexcept nogil:
    """Where the items of a row lie in the list's own column."""
    cdef int32_t width = 4 if source.kind == LIST else 8
    if source.kind == MISSING or not has_value(source, row):
        return NULL_VALUE
    start[0] = word_at(source.values, source.offset + row, width)
    stop[0] = word_at(source.values, source.offset + row + 1, width)
    if start[0] < 0 or stop[0] < start[0] or stop[0] > source.first.length:
        return DAMAGED
    if source.second != NULL and stop[0] > source.second.length:
        return DAMAGED
    return VALUE
