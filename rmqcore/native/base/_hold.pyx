"""Held buffers: as long as one is held, the mapping whose bytes it shows stays mapped.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport int64_t
cimport cython


@cython.final
@cython.no_gc
cdef class BufferHold:
    """One export of a buffer, held for as long as this object lives.

    The garbage collector does not look through it: else it would clear a memoryview that this one
    still holds, of which CPython's own release then crashes.

    Args:
        buffer: any C-contiguous buffer.
        path: its file, for error messages; None when there is none.
        base_offset: physical offset of its first byte.
    """

    def __cinit__(self, buffer, path=None, int64_t base_offset=0):
        PyObject_GetBuffer(buffer, &self.view, PyBUF_SIMPLE)
        self.path = path
        self.base_offset = base_offset

    def __dealloc__(self):
        if <void*>self.view.obj != NULL:
            PyBuffer_Release(&self.view)


@cython.final
cdef class HeldBytes:
    """A read-only part of a held buffer; the buffer lives as long as a view of this does.

    Raises:
        IndexError: the part lies outside the buffer.
    """

    def __cinit__(self, BufferHold hold not None, Py_ssize_t start, Py_ssize_t size):
        if start < 0 or size < 0 or start > hold.view.len - size:
            raise IndexError("the part lies outside the buffer")
        self.hold = hold
        self.start = start
        self.size = size

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(
            buffer, self, <char*>self.hold.view.buf + self.start, self.size, 1, flags
        )
