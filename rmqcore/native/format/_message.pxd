# What is put, for the other native modules.
from libc.stdint cimport int32_t, int64_t

from rmqcore.native.format._record cimport RecordFields


cdef class Message:
    cdef public object topic
    cdef public object body
    cdef public object tags
    cdef public object keys
    cdef public dict properties
    cdef public int32_t queue_id
    cdef public int32_t flag
    cdef public int32_t sys_flag
    cdef public int64_t born_timestamp_ms
    cdef public object born_host
    cdef public object store_host
    cdef public int32_t reconsume_times
    cdef public int64_t prepared_transaction_offset
    cdef public int32_t delay_level
    cdef public bint wait_store_msg_ok


cdef inline void fill_numbers(RecordFields* fields, Message message) noexcept:
    """Those numbers of a record that come with the message and do not depend on its place."""
    fields.queue_id = message.queue_id
    fields.flag = message.flag
    fields.sys_flag = message.sys_flag
    fields.born_timestamp = message.born_timestamp_ms
    fields.reconsume_times = message.reconsume_times
    fields.prepared_transaction_offset = message.prepared_transaction_offset


cdef object keys_read_once(Message message)
