# The rows of a table as parts of messages, for `_encode_columns`.
from libc.stdint cimport int32_t, int64_t, uint8_t

from rmqcore.native.columns._row_in cimport HOST_TEXT_MAX, IN_COUNT, Strip, rmq_slots
from rmqcore.native.columns._source cimport Source
from rmqcore.native.columns._table_in cimport BatchIn, TableIn, Unit
from rmqcore.native.format._record cimport Slice


cdef class TableRows:
    cdef TableIn table
    cdef BatchIn batch
    cdef Source sources[IN_COUNT]
    cdef Source rows             # whether a row is one
    cdef int place[IN_COUNT]     # of each column in the table, -1 where it has none
    cdef rmq_slots slots
    cdef Unit unit               # of the times
    cdef readonly int64_t row_count
    cdef readonly bint names_light_queues
    cdef bint copies
    cdef bint refuses_light_queues
    cdef bint append_crc
    cdef bytes topic_text
    cdef bytes prefix_text
    cdef Slice topic
    cdef Slice unique_prefix
    cdef int32_t queue_count
    cdef int64_t body_max
    cdef Strip strip             # what was looked at last
    cdef uint8_t host[20]        # of the text that was parsed last
    cdef uint8_t default_host[8]
    cdef char host_text[HOST_TEXT_MAX]
    cdef int32_t host_text_size
    cdef int32_t host_size
    cdef int column              # that was refused
    cdef list known
    cdef int place_columns(self) except -1
    cdef int bind(self) except -1
    cdef int wrong(self, int column, int problem) noexcept nogil
    cdef int look_at(self, int64_t first, int32_t count, bint checks) noexcept nogil
    cdef int find_numbers(
        self, int64_t first, int32_t count, int column, int32_t* numbers
    ) noexcept nogil
    cdef int find_flags(self, int64_t first, int32_t count) noexcept nogil
    cdef int find_slots(self, int64_t first, int32_t count) noexcept nogil
    cdef int find_topic(self, int64_t row, int32_t* topic) noexcept nogil
    cdef int find_bodies(self, int64_t first, int32_t count) noexcept nogil
    cdef int find_births(self, int64_t first, int32_t count) noexcept nogil
    cdef bint find_host(self, int32_t row, const Slice* text) noexcept nogil
    cdef int find_properties(self, int64_t first, int32_t count, bint checks) noexcept nogil
    cdef int find_texts(
        self, int64_t first, int32_t count, int column, bint checks, int64_t* sizes
    ) noexcept nogil
    cdef int find_keys(
        self, int64_t first, int32_t count, bint checks, int64_t* sizes
    ) noexcept nogil
    cdef int find_listed_keys(
        self, int64_t first, int32_t row, bint checks, int64_t* size
    ) noexcept nogil
    cdef bint is_given(self, int32_t row, const Slice* name) noexcept nogil
    cdef int find_pairs(
        self, int64_t first, int32_t row, bint checks, int64_t* size
    ) noexcept nogil
    cdef bint is_timers(self, int32_t slot) noexcept nogil
