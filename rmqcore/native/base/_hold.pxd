# `BufferHold`, which keeps a mapping alive, for the other native modules.
from libc.stdint cimport int64_t


cdef class BufferHold:
    cdef Py_buffer view
    cdef readonly object path            # the file, for error messages; None when there is none
    cdef readonly int64_t base_offset    # physical offset of the buffer's first byte


cdef class HeldBytes:
    cdef BufferHold hold
    cdef Py_ssize_t start
    cdef Py_ssize_t size
