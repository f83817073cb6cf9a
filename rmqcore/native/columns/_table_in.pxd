# Batches that another Arrow library hands over, for `_encode_columns`.
from libc.stdint cimport int64_t

from rmqcore.native.columns._arrow cimport ArrowArray, ArrowArrayStream, ArrowSchema
from rmqcore.native.columns._source cimport Source


# What a column of a message is.
cdef enum Shape:
    AS_TEXT
    AS_BYTES
    AS_NUMBER
    AS_TIME
    AS_KEYS              # text, or a list of it
    AS_PAIRS             # a map of text, or a list of structures of two texts

# The unit of a column of times.
cdef enum Unit:
    MILLISECONDS
    SECONDS
    MICROSECONDS
    NANOSECONDS


# One function for each unit, so that the divisor is a constant: dividing by a variable would take
# as long as the rest of the column.
cdef inline int64_t to_ms(int64_t time, Unit unit) noexcept nogil:
    """Milliseconds, rounded down, before 1970, too."""
    if unit == MILLISECONDS:
        return time
    if unit == MICROSECONDS:
        return time // 1000 - (time % 1000 < 0)
    if unit == NANOSECONDS:
        return time // 1000000 - (time % 1000000 < 0)
    return time * 1000


cdef class BatchIn:
    cdef ArrowArray array


cdef class TableIn:
    cdef ArrowSchema schema
    cdef ArrowArrayStream stream
    cdef ArrowArray only
    cdef readonly tuple names
    cdef Source* pool            # room for the sources of the nested columns
    cdef int pool_size
    cdef int pool_used
    cdef str bound               # name of the column that is being bound
    cdef int take_schema(self, ArrowSchema* schema) except -1
    cdef int take_stream(self, object capsule) except -1
    cdef object failure(self, int code)
    cdef Source* new_source(self) except NULL
    cdef int bind_column(
        self, Source* source, BatchIn batch, int index, Shape shape, Unit* unit
    ) except -1
    cdef object refused(self, const ArrowSchema* schema, Shape shape)
    cdef int bind(
        self, Source* source, const ArrowSchema* schema, const ArrowArray* array, Shape shape,
        Unit* unit
    ) except -1
    cdef int bind_leaf(
        self, Source* source, const ArrowSchema* schema, const ArrowArray* array, Shape shape,
        Unit* unit
    ) except -1
    cdef int bind_items(
        self, Source* source, const ArrowSchema* schema, const ArrowArray* array, Shape shape
    ) except -1
