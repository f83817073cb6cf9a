from libc.stdint cimport int64_t

from rmqcore.native.read._log_map cimport LogMap


cdef list find_many(
    list files, LogMap log, int64_t min_offset, str topic, list keys, int64_t begin_ms,
    int64_t end_ms, Py_ssize_t max_messages,
)
