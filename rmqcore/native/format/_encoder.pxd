# Gathers the parts of one record without copying them, then writes them out.
from libc.stdint cimport int32_t, int64_t, uint8_t

from rmqcore.native.format._record cimport Slice, bytes_t


# A piece of the caller's bytes, and the separator written behind it; 0 for none.
cdef struct Piece:
    bytes_t at
    int32_t size
    uint8_t end


cdef enum Problem:
    NO_PROBLEM = 0
    NOT_TEXT = 1
    EMPTY_TEXT = 2
    SEPARATOR_INSIDE = 3
    SPACE_IN_KEY = 4
    GIVEN_TWICE = 5
    TOO_LONG = 6
    NO_MEMORY = 7


cdef class RecordEncoder:
    cdef Piece* pieces
    cdef Py_ssize_t capacity
    cdef Py_ssize_t count
    cdef int64_t properties_size
    cdef bint append_crc
    # a property asks for timed delivery, and none says that it has taken place
    cdef bint timed
    cdef bint had_timer
    # what was refused, for the error that the caller raises
    cdef readonly object culprit
    # objects made for this record only, which the pieces point into
    cdef object kept

    cdef int add(self, const void* at, Py_ssize_t size, uint8_t end) noexcept
    cdef bint grow(self) noexcept
    cdef int add_text(self, object value, bint is_key, uint8_t end) noexcept
    cdef int add_property(self, object name, object value) noexcept
    cdef int gather(self, object tags, object keys, object properties, bint append_crc) noexcept
    cdef int add_pairs(self, bytes_t text, Py_ssize_t size) noexcept
    cdef void note_timer(self, const Slice* name) noexcept
    cdef void write_properties(self, uint8_t* at) noexcept nogil
    cdef str describe(self, int problem)
