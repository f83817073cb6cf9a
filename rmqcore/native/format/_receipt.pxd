# The receipt of a put, for the other native modules.
from libc.stdint cimport int32_t, int64_t


cdef class PutMessageResult:
    cdef readonly object status
    cdef readonly object durability
    cdef readonly int64_t phy_offset
    cdef readonly int64_t queue_offset
    cdef readonly int64_t store_size
    cdef readonly int64_t store_timestamp_ms
    cdef readonly int32_t message_count
    cdef readonly str reason
    cdef bytes store_host
    cdef object phy_offsets              # int64 array of a batch, else None
