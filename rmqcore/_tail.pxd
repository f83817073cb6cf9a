# The log tail, for the leaf that puts through it.
from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport int32_t, int64_t, uint8_t

from rmqcore._encoder cimport RecordEncoder
from rmqcore._message cimport Message
from rmqcore._record cimport RecordFields, bytes_t


cdef class TopicEntry:
    cdef bytes name
    cdef int64_t* near
    cdef int32_t near_count
    cdef dict far
    cdef public bint batch_queue
    cdef int64_t next_offset(self, int32_t queue_id) noexcept
    cdef int set_next(self, int32_t queue_id, int64_t offset) except -1


cdef class LogTail:
    cdef PyThread_type_lock lock
    cdef Py_buffer view
    cdef uint8_t* base
    cdef int64_t file_from_offset
    cdef int64_t file_size
    cdef int64_t wrote
    cdef int64_t end
    cdef int64_t last_timestamp
    cdef dict topics
    cdef dict hosts
    cdef RecordEncoder encoder
    cdef bytes store_host
    cdef bytes born_host
    cdef readonly int64_t max_message_size
    cdef readonly bint append_crc
    cdef readonly bint multi_dispatch
    cdef public bint writable
    cdef public object durability
    cdef public int64_t fixed_time_ms
    cdef int64_t put_count
    cdef int64_t put_size
    cdef void acquire(self) noexcept
    cdef object topic_entry(self, object topic)
    cdef object host_bytes(self, object host, bytes default)
    cdef int64_t timestamp(self) noexcept nogil
    cdef object put_fields(
        self, RecordFields* fields, object body, object topic, object tags, object keys,
        object properties, object born_host, object store_host,
    )
    cdef object append(
        self, RecordFields* fields, object topic, object tags, object keys, object properties,
        object born_host, object store_host,
    )
    cdef void write(self, RecordFields* fields, int64_t total) noexcept
    cdef void seal_record(self, uint8_t* at, int64_t total) noexcept nogil
    cdef void advance(self, int64_t size, int64_t messages) noexcept
    cdef Numbering numbering_of(
        self, RecordFields* fields, object topic, TopicEntry entry, dict properties
    )
    cdef object append_batch(
        self, bytes_t body, RecordFields* fields, TopicEntry entry, int64_t total, int32_t count,
        bytes stored_by,
    )


cdef class Numbering:
    cdef dict properties
    cdef list queues
    cdef bint inner_batch
    cdef int32_t message_count
    cdef char* digits
    cdef char base_digits[24]
    cdef make_room(self)
    cdef int add_to(self, RecordEncoder encoder, int64_t queue_offset) noexcept
    cdef int advance(self) except -1
