# The log tail, for `_putter`, which appends through it.
from libc.stdint cimport int32_t, int64_t, uint8_t

from rmqcore.native.format._encoder cimport RecordEncoder
from rmqcore.native.log._log_end cimport LogEnd
from rmqcore.native.format._message cimport Message
from rmqcore.native.log._queue_offsets cimport Numbering, TopicEntry, TopicTable
from rmqcore.native.format._record cimport RecordFields, bytes_t


cdef class LogTail(LogEnd):
    cdef TopicTable topics
    cdef dict hosts
    cdef RecordEncoder encoder
    cdef bytes store_host
    cdef bytes born_host
    cdef public int64_t max_message_size
    cdef readonly bint append_crc
    cdef readonly bint multi_dispatch
    cdef public object durability
    cdef public object took
    cdef int64_t calls
    cdef double begin_sample(self) noexcept
    cdef object host_bytes(self, object host, bytes default)
    cdef object put_fields(
        self, RecordFields* fields, object body, object topic, object tags, object keys,
        object properties, object born_host, object store_host,
    )
    cdef object put_one(self, Message message)
    cdef object put_batch(
        self, RecordFields* fields, object batch_body, object topic, object born_host,
        object store_host,
    )
    cdef object append(
        self, RecordFields* fields, object topic, object tags, object keys, object properties,
        object born_host, object store_host,
    )
    cdef int append_locked(
        self, RecordFields* fields, TopicEntry entry, Numbering numbering, object tags,
        object keys, object properties,
    ) except? -1
    cdef object refusal(self, int answer, RecordFields* fields)
    cdef void write(self, RecordFields* fields, int64_t total) noexcept
    cdef void seal_record(self, uint8_t* at, int64_t total) noexcept nogil
    cdef object append_batch(
        self, bytes_t body, RecordFields* fields, TopicEntry entry, int64_t total, int32_t count,
        bytes stored_by,
    )
