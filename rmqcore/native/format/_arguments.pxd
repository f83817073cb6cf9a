# Conversion of integer arguments for other native modules.
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32_t, int64_t

# The number of anything that is whole and in the range; ArgumentError names what is not.
cdef int64_t number_of(object value, str name, int64_t least, int64_t most) except? -1


cdef inline int32_t as_i32(object value, str name) except? -1:
    cdef int overflow = 0
    cdef long long wide
    if PyLong_CheckExact(value):
        wide = PyLong_AsLongLongAndOverflow(value, &overflow)
        if not overflow and INT32_MIN <= wide <= INT32_MAX:
            return <int32_t>wide
    return <int32_t>number_of(value, name, INT32_MIN, INT32_MAX)


cdef inline int64_t as_i64(object value, str name) except? -1:
    cdef int overflow = 0
    cdef long long wide
    if PyLong_CheckExact(value):
        wide = PyLong_AsLongLongAndOverflow(value, &overflow)
        if not overflow:
            return wide
    return number_of(value, name, INT64_MIN, INT64_MAX)
