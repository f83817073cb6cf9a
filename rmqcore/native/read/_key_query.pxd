# Key queries over mapped files, for `_fast_reads`, which answers them without a Python call.
from libc.stdint cimport int32_t, int64_t

from rmqcore.native.format._chain cimport Geometry
from rmqcore.native.base._hold cimport BufferHold
from rmqcore.native.read._log_map cimport LogMap


cdef class MappedIndex:
    cdef BufferHold hold
    cdef Geometry shape


cdef class QueryMessageResult:
    cdef list found
    cdef bint checked
    cdef readonly int64_t buffer_total_size
    cdef readonly object next_page
    cdef readonly object explanation


cdef QueryMessageResult find_by_key(
    list files, LogMap log, int64_t min_offset, str topic, str key, int64_t begin_ms,
    int64_t end_ms, Py_ssize_t max_messages,
)
