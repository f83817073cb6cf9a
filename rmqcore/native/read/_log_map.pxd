# The mapped files of the log, for native code that reads records in them.
from libc.stdint cimport int64_t

from rmqcore.native.base._hold cimport BufferHold
from rmqcore.native.base._published cimport PublishedOffset
from rmqcore.native.format._record cimport bytes_t


cdef class LogMap:
    cdef PublishedOffset end
    cdef readonly int64_t file_size
    cdef int64_t first_base
    cdef list holds
    cdef Py_ssize_t held_count
    cdef Py_ssize_t held_max
    cdef BufferHold find(self, int64_t offset, bytes_t* at, int64_t* readable)
    cdef object look_at(self, int64_t offset, bint check_crc)
