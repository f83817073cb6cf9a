# The next offset of each queue, for the log tail; what every put asks is inlined there.
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint32_t
cimport cython

from rmqcore.native.format._encoder cimport RecordEncoder
from rmqcore.native.format._record cimport RecordFields


# Queue ids below this have their next offset in an array, the others in a dict.
cdef enum:
    ARRAY_QUEUES = 1024


@cython.final
cdef class TopicEntry:
    cdef bytes name
    cdef int64_t* near
    cdef int32_t near_count
    cdef dict far
    cdef bint batch_queue
    cdef inline int64_t next_offset(self, int32_t queue_id) noexcept:
        cdef PyObject* found
        if queue_id < ARRAY_QUEUES:
            return self.near[queue_id] if 0 <= queue_id < self.near_count else 0
        found = PyDict_GetItem(self.far, queue_id)
        return 0 if found == NULL else <int64_t><object>found

    cdef inline int set_next(self, int32_t queue_id, int64_t offset) except -1:
        if <uint32_t>queue_id >= <uint32_t>self.near_count:
            return self.set_far(queue_id, offset)
        self.near[queue_id] = offset
        return 0

    cdef int begin_anew(self) except -1
    cdef int set_far(self, int32_t queue_id, int64_t offset) except -1


cdef class TopicTable:
    cdef dict entries
    # the topic found last: a caller mostly passes the very same str object again
    cdef object last_name
    cdef TopicEntry last
    cdef TopicEntry find(self, object topic)

    @cython.final
    cdef inline TopicEntry entry(self, object topic):
        if topic is self.last_name and self.last is not None:
            return self.last
        return self.find(topic)

    cdef Numbering numbering_of(
        self, RecordFields* fields, object topic, TopicEntry entry, dict properties,
        bint multi_dispatch,
    )


cdef class Numbering:
    cdef dict properties
    cdef list queues
    cdef bint inner_batch
    cdef int32_t message_count
    # of properties that come with its next copy
    cdef Py_ssize_t reserved_size
    cdef char* digits
    cdef char base_digits[24]
    cdef make_room(self)
    cdef int add_to(self, RecordEncoder encoder, int64_t queue_offset) noexcept
    cdef int advance(self) except -1
