# The result of a get, for `_fast_reads`, which fills it without a Python call.
from libc.stdint cimport int32_t, int64_t

from rmqcore.native.read._log_map cimport LogMap
from rmqcore.native.format._record cimport RecordHead, bytes_t


cdef struct Found:
    bytes_t at
    int32_t size
    int32_t hold


cdef class GetMessageResult:
    cdef public object status
    cdef public int64_t next_queue_offset
    cdef public int64_t min_queue_offset
    cdef public int64_t max_queue_offset
    cdef readonly int64_t buffer_total_size
    cdef list holds
    cdef Found* found
    cdef Py_ssize_t room
    cdef Py_ssize_t count
    cdef list _messages
    cdef str topic
    cdef int32_t queue_id
    cdef int64_t least_offset
    cdef bint demand_crc
    cdef int make_room(self, Py_ssize_t count) except -1
    cdef Py_ssize_t take_mapped(
        self, LogMap log, bytes_t units, Py_ssize_t unit_count, int64_t max_bytes
    ) except -2
    cdef int belongs(
        self, const Found* found, const RecordHead* head, bytes topic, int64_t least
    ) noexcept
