# Host addresses, for the other native modules.
from libc.stdint cimport int32_t

from rmqcore.native.format._record cimport bytes_t

cdef str host_text(bytes_t at, int32_t size)
