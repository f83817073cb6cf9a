from libc.stdint cimport int32_t, int64_t

from rmqcore.native.columns._word_set cimport WordSet
from rmqcore.native.format._properties cimport Layout
from rmqcore.native.format._record cimport RecordHead, bytes_t

cdef enum Verdict:
    NO_ROW
    IS_ROW
    # the filter has to `learn` the record's topic first
    UNKNOWN_TOPIC

# The rows of a topic: those that lie at or behind `first_phy_offset`; of some queues others.
cdef struct TopicRule:
    int64_t first_phy_offset
    int32_t first_queue
    int32_t queue_count

cdef struct QueueRule:
    int32_t queue_id
    int64_t first_phy_offset
    int64_t first_offset
    int64_t end_offset
    int64_t begin_ms
    int64_t end_ms

cdef class RowFilter:
    cdef WordSet topics, tags, keys, unique_keys
    cdef TopicRule* rules
    cdef QueueRule* queues
    cdef int64_t rule_count, rule_room, queue_count, queue_room
    cdef object topic_rule
    cdef dict queue_offsets, queue_times
    cdef frozenset chosen
    cdef list kept
    cdef int32_t* queue_ids
    cdef int32_t queue_id_count
    cdef int64_t begin_ms, end_ms, begin_phy_offset, end_phy_offset
    cdef readonly int64_t of_topics_count
    cdef bint uncommitted, by_topic, by_tag, by_key, by_unique_key
    cdef Layout layout

    cdef int add_all(self, WordSet* words, texts) except -1
    cdef int add_rule(self, str topic, bytes text) except -1
    cdef int learn(self, bytes_t topic, int32_t size) except -1
    cdef Verdict judge(self, bytes_t record, const RecordHead* head) noexcept nogil
    cdef Verdict judge_topic(
        self, bytes_t record, const RecordHead* head, const QueueRule** of_queue
    ) noexcept nogil
    cdef bint judge_properties(self, bytes_t record, const RecordHead* head) noexcept nogil
