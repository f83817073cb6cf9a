"""Which records become rows: decided where the records lie, before any column is filled.

What only Python knows, as whether a topic was deleted, is asked once a topic and kept.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t
from libc.stdlib cimport free, malloc, realloc
cimport cython

from rmqcore.native.columns._word_set cimport WordSet, add_word, drop_words, find_word
from rmqcore.native.format._layout cimport *
from rmqcore.native.format._properties cimport Properties, next_item, read_properties
from rmqcore.native.format._record cimport RecordHead, Slice, bytes_t

# The physical offset that no record has.
HIDDEN = INT64_MAX
# Topics that a filter remembers before it forgets all and asks anew.
cdef int64_t RULES_MAX = 1 << 16


@cython.final
cdef class RowFilter:
    """A record is a row when all of this holds; what is not given always does.

    Args:
        topics: it is of one of these.
        queue_ids: it is of a queue with one of these ids.
        begin_ms, end_ms: it was stored at or between these times.
        begin_phy_offset, end_phy_offset: it begins at or behind the one, and before the other.
        tags: it has one of these as its tag.
        keys: one of these is among its keys, or is its unique key.
        unique_keys: one of these is its unique key.
        queue_offsets: by topic and queue id, (first, end): it is of another queue, or its queue
            offset is at or above the first and below the end.
        queue_times: by topic and queue id, (begin, end): it is of another queue, or was stored at
            or between these times.
        uncommitted: whether prepared and rolled-back transactional records, which are in no queue,
            are rows, too.
        topic_rule: called with a topic, once: (physical offset from which on its records are
            rows, the same by queue id where it is another); `HIDDEN` for none.

    Attributes:
        of_topics_count: records that were of the topics and queues, whatever else they are.
    """

    def __cinit__(
        self, *, topics=None, queue_ids=None, int64_t begin_ms=INT64_MIN, int64_t end_ms=INT64_MAX,
        int64_t begin_phy_offset=INT64_MIN, int64_t end_phy_offset=INT64_MAX, tags=None, keys=None,
        unique_keys=None, queue_offsets=None, queue_times=None, bint uncommitted=False,
        topic_rule=None,
    ):
        cdef int32_t index
        self.begin_ms, self.end_ms = begin_ms, end_ms
        self.begin_phy_offset, self.end_phy_offset = begin_phy_offset, end_phy_offset
        self.uncommitted = uncommitted
        self.kept = []
        self.topic_rule = topic_rule
        self.queue_offsets = {} if queue_offsets is None else dict(queue_offsets)
        self.queue_times = {} if queue_times is None else dict(queue_times)
        self.chosen = None if topics is None else frozenset(topics)
        self.by_topic = (
            topics is not None or topic_rule is not None or bool(self.queue_offsets)
            or bool(self.queue_times)
        )
        self.by_tag = tags is not None
        self.by_key = keys is not None
        self.by_unique_key = unique_keys is not None
        self.add_all(&self.tags, tags)
        self.add_all(&self.keys, keys)
        self.add_all(&self.unique_keys, unique_keys)
        ids = [] if queue_ids is None else list(queue_ids)
        self.queue_id_count = -1 if queue_ids is None else <int32_t>len(ids)
        self.queue_ids = <int32_t*>malloc((len(ids) + 1) * sizeof(int32_t))
        if self.queue_ids == NULL:
            raise MemoryError
        for index in range(len(ids)):
            self.queue_ids[index] = ids[index]

    def __dealloc__(self):
        drop_words(&self.topics)
        drop_words(&self.tags)
        drop_words(&self.keys)
        drop_words(&self.unique_keys)
        free(self.rules)
        free(self.queues)
        free(self.queue_ids)

    cdef int add_all(self, WordSet* words, texts) except -1:
        cdef bytes text
        for one in () if texts is None else texts:
            text = one.encode()
            self.kept.append(text)
            if not add_word(
                words, <bytes_t>PyBytes_AS_STRING(text), <int32_t>PyBytes_GET_SIZE(text), 0
            ):
                raise MemoryError
        return 0

    cdef int learn(self, bytes_t topic, int32_t size) except -1:
        """Ask for the rule of a topic, and keep it."""
        cdef bytes text = PyBytes_FromStringAndSize(<const char*>topic, size)
        if self.rule_count >= RULES_MAX:
            drop_words(&self.topics)
            self.rule_count = self.queue_count = 0
        return self.add_rule(text.decode("utf-8", "replace"), text)

    cdef int add_rule(self, str topic, bytes text) except -1:
        cdef TopicRule* rule
        cdef QueueRule* queue
        cdef dict offsets = self.queue_offsets.get(topic, {})
        cdef dict times = self.queue_times.get(topic, {})
        cdef dict places = {}
        cdef object first = 0
        if self.chosen is not None and topic not in self.chosen:
            first, offsets, times = INT64_MAX, {}, {}
        elif self.topic_rule is not None:
            first, places = self.topic_rule(topic)
        if self.rule_count == self.rule_room:
            self.rule_room = 2 * self.rule_room + 16
            rule = <TopicRule*>realloc(self.rules, self.rule_room * sizeof(TopicRule))
            if rule == NULL:
                raise MemoryError
            self.rules = rule
        ids = sorted(places.keys() | offsets.keys() | times.keys())
        if self.queue_count + <int64_t>len(ids) > self.queue_room:
            self.queue_room = 2 * self.queue_room + <int64_t>len(ids)
            queue = <QueueRule*>realloc(self.queues, self.queue_room * sizeof(QueueRule))
            if queue == NULL:
                raise MemoryError
            self.queues = queue
        rule = &self.rules[self.rule_count]
        rule.first_phy_offset = first
        rule.first_queue = <int32_t>self.queue_count
        rule.queue_count = <int32_t>len(ids)
        for queue_id in ids:
            queue = &self.queues[self.queue_count]
            queue.queue_id = queue_id
            queue.first_phy_offset = places.get(queue_id, first)
            queue.first_offset, queue.end_offset = offsets.get(queue_id, (INT64_MIN, INT64_MAX))
            queue.begin_ms, queue.end_ms = times.get(queue_id, (INT64_MIN, INT64_MAX))
            self.queue_count += 1
        self.kept.append(text)
        if not add_word(
            &self.topics, <bytes_t>PyBytes_AS_STRING(text), <int32_t>PyBytes_GET_SIZE(text),
            <int32_t>self.rule_count,
        ):
            raise MemoryError
        self.rule_count += 1
        return 0

    cdef Verdict judge(self, bytes_t record, const RecordHead* head) noexcept nogil:
        """Whether a record is a row; the cheapest questions first."""
        cdef int32_t transaction = head.sys_flag & TRANSACTION_MASK
        cdef int32_t index
        cdef Verdict verdict
        cdef const QueueRule* queue = NULL
        if not self.uncommitted and transaction != 0 and transaction != TRANSACTION_COMMIT:
            return NO_ROW
        if self.queue_id_count >= 0:
            for index in range(self.queue_id_count):
                if self.queue_ids[index] == head.queue_id:
                    break
            else:
                return NO_ROW
        if self.by_topic:
            verdict = self.judge_topic(record, head, &queue)
            if verdict != IS_ROW:
                return verdict
        self.of_topics_count += 1
        if queue != NULL and not queue.begin_ms <= head.store_timestamp <= queue.end_ms:
            return NO_ROW
        if not self.begin_ms <= head.store_timestamp <= self.end_ms:
            return NO_ROW
        if not self.begin_phy_offset <= head.phy_offset < self.end_phy_offset:
            return NO_ROW
        if self.by_tag or self.by_key or self.by_unique_key:
            return IS_ROW if self.judge_properties(record, head) else NO_ROW
        return IS_ROW

    cdef Verdict judge_topic(
        self, bytes_t record, const RecordHead* head, const QueueRule** of_queue
    ) noexcept nogil:
        """Whether topic, queue and offsets are those of a row; also the rule of its queue."""
        cdef const TopicRule* rule
        cdef const QueueRule* queue
        cdef int32_t low, high, middle
        word = find_word(&self.topics, record + head.topic_at, head.topic_size)
        if word == NULL:
            return UNKNOWN_TOPIC
        rule = &self.rules[word.number]
        low, high = rule.first_queue, rule.first_queue + rule.queue_count
        while low < high:
            middle = low + (high - low) // 2
            queue = &self.queues[middle]
            if queue.queue_id == head.queue_id:
                of_queue[0] = queue
                return IS_ROW if (
                    head.phy_offset >= queue.first_phy_offset
                    and queue.first_offset <= head.queue_offset < queue.end_offset
                ) else NO_ROW
            if queue.queue_id < head.queue_id:
                low = middle + 1
            else:
                high = middle
        return IS_ROW if head.phy_offset >= rule.first_phy_offset else NO_ROW

    cdef bint judge_properties(self, bytes_t record, const RecordHead* head) noexcept nogil:
        cdef Properties found
        cdef Slice rest, word
        read_properties(
            &self.layout, record + head.properties_at, head.properties_size, &found
        )
        if self.by_tag and (
            found.tags.at == NULL
            or find_word(&self.tags, found.tags.at, found.tags.size) == NULL
        ):
            return False
        if self.by_unique_key and (
            found.unique_key.at == NULL
            or find_word(&self.unique_keys, found.unique_key.at, found.unique_key.size) == NULL
        ):
            return False
        if not self.by_key:
            return True
        if found.unique_key.at != NULL and (
            find_word(&self.keys, found.unique_key.at, found.unique_key.size) != NULL
        ):
            return True
        rest = found.keys
        while next_item(&rest, 32, &word):
            if word.size and find_word(&self.keys, word.at, word.size) != NULL:
                return True
        return False
