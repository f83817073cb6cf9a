from libc.stdint cimport int32_t, int64_t

from rmqcore.native.columns._column_store cimport Store

cdef int decompress_bodies(
    Store* bodies, int64_t rows, const int32_t* sys_flags, const int64_t* phy_offsets
) except -1
