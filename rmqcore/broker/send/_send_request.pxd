# What the properties of a send say, for what answers sends natively.


cdef struct Properties:
    bint plain              # nothing in them asks the broker to act
    bint waits
    bint ordered
    const char* unique_key  # NULL without
    Py_ssize_t unique_key_size


cdef Properties look_over(const char* at, Py_ssize_t size) noexcept nogil
