# Stored messages, for the other native modules.
from libc.stdint cimport int32_t, int64_t

from rmqcore.native.base._hold cimport BufferHold
from rmqcore.native.format._record cimport RecordHead, Slice, bytes_t


cdef class MessageExt:
    cdef BufferHold hold
    cdef bytes_t record_at
    cdef RecordHead head
    cdef dict _properties
    cdef object _topic
    cdef object _body
    cdef bint found
    cdef Slice keys_slice
    cdef Slice tags_slice
    cdef Slice unique_key_slice
    cdef void find_properties(self) noexcept
    cdef object property_text(self, str name, const Slice* value)
    cpdef bint has_key(self, str topic, str key) except -1
    cdef bint is_of(self, bytes_t topic, int32_t size) noexcept
    cdef bint has_word(self, bytes_t key, int32_t size) noexcept


cdef object find_in_hold(BufferHold hold, bytes_t record, int64_t readable, bint check_crc)
cdef MessageExt make_message(BufferHold hold, bytes_t at, const RecordHead* head)
