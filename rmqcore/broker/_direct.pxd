# Requests that are answered natively: what the classes below `DirectRequests` build on.
from libc.stdint cimport int64_t, uint8_t

from rmqcore.remoting._json_header cimport Out

cdef enum:
    SLOTS = 14      # fields of a header that one kind of request can know


cdef struct Part:
    const uint8_t* at
    Py_ssize_t size     # -1: there is none


cdef struct Header:
    int64_t code
    int64_t opaque
    Part fields[SLOTS]


cdef struct Kind:
    int64_t[2] codes
    int (*slot_of)(const Part* name) noexcept nogil     # of a field; SLOTS for one without meaning
    int escaped     # the slot whose text may hold escapes; -1: none


cdef int64_t number_in(const Part* part, int64_t most) noexcept nogil


cdef class DirectRequests:
    cdef Kind kind
    cdef Out out
    cdef uint8_t* scratch
    cdef Py_ssize_t scratch_room
    cdef Py_ssize_t frame_most
    cdef Py_ssize_t header_most
    cdef Py_ssize_t field_most
    cdef int begin_run(self, str peer) except -1
    cdef object end_run(self, bytes answers)
    cdef bint answer_request(
        self, Header* header, const uint8_t* body, Py_ssize_t body_size
    ) except -1
    cdef Py_ssize_t answer_one(self, const uint8_t* frame, Py_ssize_t room) except -1
    cdef uint8_t* room_for(self, Py_ssize_t size) except NULL
    cdef Py_ssize_t begin_answer(self) except -1
    cdef void end_header(self, Py_ssize_t frame, Py_ssize_t body_size) noexcept
