from rmqcore.native.format._record cimport RecordFields


cdef class WireMessage:
    # those of a record that do not depend on its place; the sizes and addresses are not set
    cdef RecordFields fields
    cdef readonly str topic
    cdef readonly object body
    cdef readonly object properties
    cdef readonly str born_host
