"""The next queue offset of each queue, and the offsets that a message carries as properties.

A `TopicTable` has one `TopicEntry` for each topic of the log, light queues (RocketMQ's LMQ)
included; a `Numbering` is made for a message whose own properties name offsets.
"""

import re

from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_FromObject
from libc.stdint cimport int32_t, int64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset
cimport cython

from rmqcore.native.format._encoder cimport NO_PROBLEM, TOO_LONG, RecordEncoder
from rmqcore.native.format._layout cimport INNER_BATCH, PROPERTIES_SIZE_MAX, TOPIC_SIZE_MAX
from rmqcore.native.format._record cimport RecordFields

from rmqcore.errors import MessageIllegalError

#: bytes of INNER_MULTI_QUEUE_OFFSET with its two separators, and of one number at most
cdef enum:
    NUMBERS_NAME_SIZE = 26
    NUMBER_SIZE_MAX = 20

cdef object TOPIC_GRAMMAR = re.compile(r"[%|a-zA-Z0-9_-]+")


@cython.final
cdef class TopicEntry:
    """One topic: its encoded name and the next offset of each of its queues."""

    def __cinit__(self, bytes name):
        self.name = name
        self.far = {}

    def __dealloc__(self):
        free(self.near)

    cdef int begin_anew(self) except -1:
        """Set the next offset of every queue to 0; in place, for a running put holds this entry."""
        self.far.clear()
        if self.near != NULL:
            memset(self.near, 0, self.near_count * sizeof(int64_t))
        return 0

    cdef int set_far(self, int32_t queue_id, int64_t offset) except -1:
        cdef int64_t* grown
        cdef int32_t count
        if queue_id < 0:
            raise ValueError(f"queue id {queue_id}: expected 0 or more")
        if queue_id >= ARRAY_QUEUES:
            self.far[queue_id] = offset
            return 0
        count = max(min(max(8, 2 * queue_id), ARRAY_QUEUES), queue_id + 1)
        grown = <int64_t*>realloc(self.near, count * sizeof(int64_t))
        if grown == NULL:
            raise MemoryError
        memset(grown + self.near_count, 0, (count - self.near_count) * sizeof(int64_t))
        self.near = grown
        self.near_count = count
        self.near[queue_id] = offset
        return 0


@cython.final
cdef class TopicTable:
    """All topics of a log by name."""

    def __cinit__(self):
        self.entries = {}

    cdef TopicEntry find(self, object topic):
        cdef PyObject* found
        if not isinstance(topic, str):
            raise MessageIllegalError(f"topic {topic!r}: expected a str")
        # a subclass of str, such as an enum, may have another hash: its letters count
        topic = PyUnicode_FromObject(topic)
        found = PyDict_GetItem(self.entries, topic)
        if found != NULL:
            self.last_name, self.last = topic, <TopicEntry><object>found
            return self.last
        expect_topic_name(topic)
        return self.entries.setdefault(topic, TopicEntry(topic.encode()))

    cdef Numbering numbering_of(
        self, RecordFields* fields, object topic, TopicEntry entry, dict properties,
        bint multi_dispatch,
    ):
        cdef Numbering numbering = Numbering()
        cdef TopicEntry light
        numbering.properties = dict(properties)
        numbering.message_count = 1
        if fields.sys_flag & INNER_BATCH:
            if not entry.batch_queue:
                raise MessageIllegalError(
                    f"topic {topic} has no batch consume queue, so it takes no inner batch"
                )
            numbering.inner_batch = True
            numbering.message_count = inner_batch_size(properties)
            numbering.properties.pop("INNER_BASE", None)
        # numbers of light queues that are not this store's: another store gave them, or the caller
        numbering.properties.pop("INNER_MULTI_QUEUE_OFFSET", None)
        names = properties.get("INNER_MULTI_DISPATCH")
        if multi_dispatch and names and waits_for_its_topic(topic):
            # it gets its numbers when it comes to its topic, and has to be taken there
            count = len(light_queues(names))
            numbering.reserved_size = NUMBERS_NAME_SIZE + count * NUMBER_SIZE_MAX
        elif multi_dispatch and names and dispatches_to_many(topic):
            named = []
            numbering.queues = []
            # a queue has a message once, however often it is named, and its own one anyhow
            for name in light_queues(names):
                if name == topic and fields.queue_id == 0:
                    continue
                light = self.entry(name)
                light.set_next(0, light.next_offset(0))
                named.append(name)
                numbering.queues.append(light)
            if named:
                numbering.properties["INNER_MULTI_DISPATCH"] = ",".join(named)
                numbering.make_room()
            else:
                numbering.queues = None
                del numbering.properties["INNER_MULTI_DISPATCH"]
        return numbering


@cython.final
cdef class Numbering:
    """Offsets that a message carries in its own properties, written while the tail is locked.

    The text is made in C, so that nothing under the lock can run Python code.
    """

    def __dealloc__(self):
        free(self.digits)

    cdef make_room(self):
        self.digits = <char*>calloc(len(self.queues), 24)
        if self.digits == NULL:
            raise MemoryError

    cdef int add_to(self, RecordEncoder encoder, int64_t queue_offset) noexcept:
        cdef Py_ssize_t index
        cdef int size, problem = NO_PROBLEM
        cdef bint last
        if self.inner_batch:
            size = snprintf(self.base_digits, 24, b"%lld", <long long>queue_offset)
            encoder.add(<const char*>b"INNER_BASE", 10, 1)
            problem = encoder.add(self.base_digits, size, 2)
        if self.queues is not None:
            encoder.add(<const char*>b"INNER_MULTI_QUEUE_OFFSET", 24, 1)
            for index in range(len(self.queues)):
                size = snprintf(
                    self.digits + 24 * index, 24, b"%lld",
                    <long long>(<TopicEntry>self.queues[index]).next_offset(0),
                )
                last = index == len(self.queues) - 1
                problem = encoder.add(self.digits + 24 * index, size, 2 if last else 44)
        if (
            problem == NO_PROBLEM
            and encoder.properties_size + self.reserved_size > PROPERTIES_SIZE_MAX
        ):
            problem = TOO_LONG
        return problem

    cdef int advance(self) except -1:
        cdef TopicEntry light
        if self.queues is not None:
            for light in self.queues:
                light.set_next(0, light.next_offset(0) + 1)
        return 0


cdef int32_t inner_batch_size(dict properties) except -1:
    text = properties.get("INNER_NUM", "")
    if isinstance(text, str) and text.isascii() and text.isdigit() and 0 < int(text) <= 32767:
        return int(text)
    raise MessageIllegalError(f"INNER_NUM={text!r}: expected the number of messages, 1 to 32767")


cdef list light_queues(str names):
    """The light queues that INNER_MULTI_DISPATCH names, each once."""
    cdef list found = list(dict.fromkeys(names.split(",")))
    for name in found:
        if not name.startswith("%LMQ%"):
            raise MessageIllegalError(
                f"INNER_MULTI_DISPATCH names {name!r}: a light queue begins with '%LMQ%'"
            )
        expect_topic_name(name)
    return found


cdef int expect_topic_name(str topic) except -1:
    """Raise where no topic can have a name."""
    if TOPIC_GRAMMAR.fullmatch(topic) is None:
        raise MessageIllegalError(
            f"topic {topic[:80]!r}: expected 1 to {TOPIC_SIZE_MAX} characters of "
            "letters, digits, '%', '|', '_' and '-'"
        )
    if len(topic) > TOPIC_SIZE_MAX:
        raise MessageIllegalError(
            f"topic {topic[:80]!r}… has {len(topic)} characters, more than {TOPIC_SIZE_MAX}"
        )
    return 0


cdef bint waits_for_its_topic(str topic):
    """True where a message waits for its time, or for the end of its transaction."""
    return topic in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer") or topic.startswith("RMQ_SYS_")


cdef bint dispatches_to_many(str topic):
    """False for what comes again, and for copies of what has, or never had, its light queues."""
    return topic != "TRANS_CHECK_MAX_TIME_TOPIC" and not topic.startswith(
        ("%RETRY%", "%DLQ%", "rmq_sys_")
    )
