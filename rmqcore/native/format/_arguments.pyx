"""Integer arguments to C integers; what does not fit is an error that names the argument."""

from libc.stdint cimport int64_t

from rmqcore.arguments import whole_number


cdef int64_t number_of(object value, str name, int64_t least, int64_t most) except? -1:
    return whole_number(name, value, least, most)
