"""Reading many stretches of one file at once, without the interpreter's lock."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_SetFromErrno
from libc.stdint cimport int64_t, uint8_t

from rmqcore.native.base._hold cimport BufferHold

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void* into, size_t size, int64_t at)


def read_stretches(int fd, int64_t file_start, stretches, into) -> int:
    """Read stretches of a file one behind the other into a buffer.

    Args:
        fd: the file.
        file_start: physical offset of its first byte.
        stretches: physical offsets (begin, end) of each, as int64; none before the file begins.
        into: room for all of them.

    Returns:
        how many were read whole; fewer than all when the file ends before.

    Raises:
        OSError: the system refused to read.
        IndexError: there is not room for them.
    """
    cdef BufferHold places = BufferHold(stretches)
    cdef const int64_t* place = <const int64_t*>places.view.buf
    cdef Py_ssize_t index, count = places.view.len // 16
    cdef int64_t total = 0, size
    cdef ssize_t got = 1
    cdef uint8_t* at
    cdef Py_buffer room
    PyObject_GetBuffer(into, &room, PyBUF_WRITABLE)
    try:
        for index in range(count):
            size = place[2 * index + 1] - place[2 * index]
            if place[2 * index] < file_start or not 0 <= size <= room.len - total:
                raise IndexError(f"stretch {index} does not fit")
            total += size
        at = <uint8_t*>room.buf
        with nogil:
            for index in range(count):
                size = place[2 * index + 1] - place[2 * index]
                total = 0
                while total < size:
                    got = pread(
                        fd, at + total, size - total, place[2 * index] - file_start + total
                    )
                    if got <= 0:
                        break
                    total += got
                if total < size:
                    count = index
                    break
                at += size
        if got < 0:
            PyErr_SetFromErrno(OSError)
    finally:
        PyBuffer_Release(&room)
    return count
