"""The active end of the commit log: the one place where records are appended.

A `LogTail` is pointed at the mapped bytes of the last file (`attach`), takes messages and answers
each with a receipt, or with a number that says why Python has to decide first: the file is full,
or the store refuses writes. It owns the wrote position, the next queue offsets and nothing else;
it never rolls, flushes, opens or recovers.

A record becomes visible to readers when its size word is stored, after everything else of it.

Floor: F1; imports _host, _message, _encoder, errors and status.
"""

import re

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.pythread cimport (
    NOWAIT_LOCK, PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock,
    PyThread_release_lock, WAIT_LOCK,
)
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec
cimport cython

from rmqcore._batch cimport measure_batch, write_batch
from rmqcore._bytes cimport observe_word, publish_i32, publish_word, store_i32
from rmqcore._encoder cimport NO_PROBLEM, TOO_LONG, RecordEncoder
from rmqcore._layout cimport *
from rmqcore._message cimport Message, PutMessageResult
from rmqcore._record cimport (
    RecordFields, bytes_t, record_size, rmq_crc32_init, write_crc_property, write_fields,
)

from rmqcore._host import encode_host
from rmqcore.errors import MessageIllegalError
from rmqcore.status import Durability, PutMessageStatus

rmq_crc32_init()

cdef object PUT_OK = PutMessageStatus.PUT_OK
cdef object TOPIC_GRAMMAR = re.compile(r"[%|a-zA-Z0-9_-]+")
cdef object MEMORY = Durability.MEMORY
cdef object PAGE_CACHE = Durability.PAGE_CACHE

# Answers of `LogTail.put` and its kin that are not receipts.
END_OF_FILE = 1
REFUSED = 2
cdef int ANSWER_END_OF_FILE = END_OF_FILE
cdef int ANSWER_REFUSED = REFUSED

# Bodies from this size are copied without the GIL.
cdef int32_t LARGE_BODY_SIZE = 65536
# A clock that steps back by less than this does not make store times step back.
cdef int64_t CLOCK_STEP_BACK_MAX_MS = 10000
# Queue ids below this have their next offset in an array, the others in a dict.
cdef int32_t ARRAY_QUEUES = 1024
cdef int HOSTS_CACHED_MAX = 4096


cdef int64_t wall_clock_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000


@cython.final
cdef class TopicEntry:
    """One topic: its encoded name and the next offset of each of its queues."""

    def __cinit__(self, bytes name):
        self.name = name
        self.far = {}

    def __dealloc__(self):
        free(self.near)

    cdef int64_t next_offset(self, int32_t queue_id) noexcept:
        cdef PyObject* found
        if queue_id < ARRAY_QUEUES:
            return self.near[queue_id] if queue_id < self.near_count else 0
        found = PyDict_GetItem(self.far, queue_id)
        return 0 if found == NULL else <int64_t><object>found

    cdef int set_next(self, int32_t queue_id, int64_t offset) except -1:
        cdef int64_t* grown
        cdef int32_t count
        if queue_id >= ARRAY_QUEUES:
            self.far[queue_id] = offset
            return 0
        if queue_id >= self.near_count:
            count = min(max(8, 2 * queue_id), ARRAY_QUEUES)
            count = max(count, queue_id + 1)
            grown = <int64_t*>realloc(self.near, count * sizeof(int64_t))
            if grown == NULL:
                raise MemoryError
            memset(grown + self.near_count, 0, (count - self.near_count) * sizeof(int64_t))
            self.near = grown
            self.near_count = count
        self.near[queue_id] = offset
        return 0


@cython.final
@cython.no_gc_clear
cdef class LogTail:
    """Appends records to the mapped bytes of the last commit-log file.

    Args:
        store_host: ``address:port`` written into every record.
        max_message_size: largest body in bytes; a record may take 64 KiB more.
        append_crc: end each record in its ``__CRC32#`` property.
        multi_dispatch: fill in the offsets of light queues (LMQ).

    Threads: any number of writers; they take turns under one lock. A put that waits for that lock
    does not hold the GIL, and bodies of 64 KiB or more are copied without it.

    Source: RocketMQ store/CommitLog.java, asyncPutMessage and DefaultAppendMessageCallback.
    """

    def __cinit__(self, str store_host not None, int64_t max_message_size, *,
                  bint append_crc=False, bint multi_dispatch=False):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError
        self.topics = {}
        self.hosts = {}
        self.encoder = RecordEncoder()
        self.store_host = encode_host(store_host)
        self.born_host = encode_host("127.0.0.1:0")
        self.max_message_size = max_message_size
        self.append_crc = append_crc
        self.multi_dispatch = multi_dispatch
        self.durability = PAGE_CACHE

    def __dealloc__(self):
        if <void*>self.view.obj != NULL:
            PyBuffer_Release(&self.view)
        if self.lock != NULL:
            PyThread_free_lock(self.lock)

    cdef void acquire(self) noexcept:
        if not PyThread_acquire_lock(self.lock, NOWAIT_LOCK):
            with nogil:
                PyThread_acquire_lock(self.lock, WAIT_LOCK)

    # ---- what Python decides -------------------------------------------------------------------

    def attach(self, buffer, int64_t file_from_offset, int64_t wrote_position) -> None:
        """Append to ``buffer`` from now on, behind its first ``wrote_position`` bytes.

        Args:
            buffer: writable bytes of one whole log file; held until the next attach or detach.
            file_from_offset: physical offset of its first byte.
        """
        cdef Py_buffer view
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        if wrote_position < 0 or wrote_position > view.len:
            PyBuffer_Release(&view)
            raise ValueError(f"wrote position {wrote_position} lies outside the file")
        self.acquire()
        view, self.view = self.view, view
        self.base = <uint8_t*>self.view.buf
        self.file_size = self.view.len
        self.file_from_offset = file_from_offset
        self.wrote = wrote_position
        publish_word(&self.end, file_from_offset + wrote_position)
        PyThread_release_lock(self.lock)
        if <void*>view.obj != NULL:
            PyBuffer_Release(&view)

    def detach(self) -> None:
        """Refuse every further put and let the buffer go."""
        cdef Py_buffer view
        self.acquire()
        view = self.view
        memset(&self.view, 0, sizeof(Py_buffer))
        self.base = NULL
        self.writable = False
        PyThread_release_lock(self.lock)
        if <void*>view.obj != NULL:
            PyBuffer_Release(&view)

    def seal(self) -> None:
        """Fill the rest of the file with the end-of-file record; idempotent.

        Source: RocketMQ store/CommitLog.java, DefaultAppendMessageCallback (END_OF_FILE).
        """
        self.acquire()
        if self.base != NULL and self.wrote < self.file_size:
            if self.file_size - self.wrote >= BLANK_SIZE_MIN:
                store_i32(self.base + self.wrote + MAGIC_AT, MAGIC_BLANK)
                publish_i32(self.base + self.wrote, <int32_t>(self.file_size - self.wrote))
            self.wrote = self.file_size
            publish_word(&self.end, self.file_from_offset + self.wrote)
        PyThread_release_lock(self.lock)

    @property
    def max_offset(self) -> int:
        """Physical offset behind the last byte written."""
        return observe_word(&self.end)

    @property
    def wrote_position(self) -> int:
        """Bytes written in the attached file."""
        return self.wrote

    @property
    def last_store_timestamp_ms(self) -> int:
        return self.last_timestamp

    @property
    def counts(self) -> tuple:
        """(messages put, bytes put) since the start."""
        return self.put_count, self.put_size

    def next_queue_offset(self, str topic not None, int32_t queue_id) -> int:
        """The offset that the queue's next message will get."""
        entry = self.topics.get(topic)
        return 0 if entry is None else (<TopicEntry>entry).next_offset(queue_id)

    def set_next_queue_offset(self, str topic not None, int32_t queue_id, int64_t offset) -> None:
        """Set the next offset of a queue, as recovery found it."""
        (<TopicEntry>self.topic_entry(topic)).set_next(queue_id, offset)

    def set_batch_queue(self, str topic not None, bint batch_queue) -> None:
        """Say that the topic's queues are batch consume queues (``queue.type=BatchCQ``)."""
        (<TopicEntry>self.topic_entry(topic)).batch_queue = batch_queue

    def forget_topic(self, str topic not None) -> None:
        """Drop the queue offsets of a deleted topic."""
        self.topics.pop(topic, None)

    cdef object topic_entry(self, object topic):
        cdef PyObject* found
        if type(topic) is not str:
            raise MessageIllegalError(f"topic {topic!r}: expected a str")
        found = PyDict_GetItem(self.topics, topic)
        if found != NULL:
            return <object>found
        if TOPIC_GRAMMAR.fullmatch(topic) is None:
            raise MessageIllegalError(
                f"topic {topic[:80]!r}: expected 1 to {TOPIC_SIZE_MAX} characters of "
                "letters, digits, '%', '|', '_' and '-'"
            )
        if len(topic) > TOPIC_SIZE_MAX:
            raise MessageIllegalError(
                f"topic {topic[:80]!r}… has {len(topic)} characters, more than {TOPIC_SIZE_MAX}"
            )
        return self.topics.setdefault(topic, TopicEntry(topic.encode()))

    cdef object host_bytes(self, object host, bytes default):
        cdef PyObject* found
        if host is None:
            return default
        if type(host) is not str:
            raise MessageIllegalError(f"host {host!r}: expected a str such as '10.1.2.3:10911'")
        found = PyDict_GetItem(self.hosts, host)
        if found != NULL:
            return <object>found
        if len(self.hosts) >= HOSTS_CACHED_MAX:
            self.hosts.clear()
        return self.hosts.setdefault(host, encode_host(host))

    cdef int64_t timestamp(self) noexcept nogil:
        cdef int64_t now = self.fixed_time_ms if self.fixed_time_ms else wall_clock_ms()
        if now < self.last_timestamp and self.last_timestamp - now < CLOCK_STEP_BACK_MAX_MS:
            now = self.last_timestamp
        self.last_timestamp = now
        return now

    # ---- one message ---------------------------------------------------------------------------

    def put(
        self, topic, body, int32_t queue_id, tags, keys, properties, int32_t flag,
        int32_t sys_flag, int64_t born_timestamp, born_host, store_host, int32_t reconsume_times,
        int64_t prepared_transaction_offset,
    ):
        """Append one message.

        Returns:
            PutMessageResult, or END_OF_FILE (roll and try again), or REFUSED (not writable).

        Raises:
            MessageIllegalError: the message breaks a limit; nothing was written.

        Durability: `self.durability`, the page cache unless the transient pool is in use.
        """
        cdef RecordFields fields
        fields.queue_id = queue_id
        fields.flag = flag
        fields.sys_flag = sys_flag
        fields.born_timestamp = born_timestamp
        fields.reconsume_times = reconsume_times
        fields.prepared_transaction_offset = prepared_transaction_offset
        return self.put_fields(
            &fields, body, topic, tags, keys, properties, born_host, store_host
        )

    cdef object put_fields(
        self, RecordFields* fields, object body, object topic, object tags, object keys,
        object properties, object born_host, object store_host,
    ):
        cdef Py_buffer held
        if PyBytes_CheckExact(body):
            if PyBytes_GET_SIZE(body) > self.max_message_size:
                raise too_large(PyBytes_GET_SIZE(body), self.max_message_size)
            fields.body = <bytes_t>PyBytes_AS_STRING(body)
            fields.body_size = <int32_t>PyBytes_GET_SIZE(body)
            return self.append(fields, topic, tags, keys, properties, born_host, store_host)
        fields.body_size = <int32_t>hold_body(body, &held, self.max_message_size)
        fields.body = <bytes_t>held.buf
        try:
            return self.append(fields, topic, tags, keys, properties, born_host, store_host)
        finally:
            PyBuffer_Release(&held)

    def put_message(self, Message message not None):
        """Append one `Message`; answers as `put` does."""
        return self.put(
            message.topic, message.body, message.queue_id, message.tags, message.keys,
            message.properties, message.flag, message.sys_flag, message.born_timestamp_ms,
            message.born_host, message.store_host, message.reconsume_times,
            message.prepared_transaction_offset,
        )

    cdef object append(
        self, RecordFields* fields, object topic, object tags, object keys, object properties,
        object born_host, object store_host,
    ):
        cdef TopicEntry entry = self.topic_entry(topic)
        cdef bytes born = self.host_bytes(born_host, self.born_host)
        cdef bytes stored_by = self.host_bytes(store_host, self.store_host)
        cdef Numbering numbering = None
        cdef PutMessageResult receipt
        cdef int problem
        cdef int32_t message_count = 1
        cdef int64_t total
        cdef bint numbered
        if not self.writable:
            # also what a forked child meets, whose copy of the lock may never be released
            return ANSWER_REFUSED
        if fields.queue_id < 0:
            raise MessageIllegalError(f"queue_id {fields.queue_id}: expected 0 or more")
        if keys is not None and type(keys) is not str and type(keys) is not tuple:
            keys = tuple(keys)
        if properties is not None:
            if type(properties) is not dict:
                properties = dict(properties)
            if fields.sys_flag & INNER_BATCH or (
                self.multi_dispatch and "INNER_MULTI_DISPATCH" in properties
            ):
                numbering = self.numbering_of(fields, topic, entry, properties)
                properties = numbering.properties
                message_count = numbering.message_count
        elif fields.sys_flag & INNER_BATCH:
            raise MessageIllegalError("an inner batch needs the property INNER_NUM")
        fill_hosts(fields, entry, born, stored_by)
        numbered = (fields.sys_flag & TRANSACTION_MASK) in (0, TRANSACTION_COMMIT)
        entry.set_next(fields.queue_id, entry.next_offset(fields.queue_id))
        # making an object may run the garbage collector, and a finalizer may put: not under the lock
        receipt = PutMessageResult.__new__(PutMessageResult)

        self.acquire()
        if not self.writable or self.base == NULL:
            PyThread_release_lock(self.lock)
            return ANSWER_REFUSED
        fields.queue_offset = entry.next_offset(fields.queue_id) if numbered else 0
        problem = self.encoder.gather(tags, keys, properties, self.append_crc)
        if problem == NO_PROBLEM and numbering is not None:
            problem = numbering.add_to(self.encoder, fields.queue_offset)
        fields.properties_size = <int32_t>self.encoder.properties_size
        total = record_size(fields)
        if problem != NO_PROBLEM or total > self.max_message_size + RECORD_OVERHEAD_MAX:
            PyThread_release_lock(self.lock)
            if problem != NO_PROBLEM:
                raise MessageIllegalError(self.encoder.describe(problem))
            raise too_large(fields.body_size, self.max_message_size)
        if total > self.file_size - BLANK_SIZE_MIN:
            PyThread_release_lock(self.lock)
            raise MessageIllegalError(
                f"the record takes {total} bytes, a log file holds {self.file_size - 8}"
            )
        if total > self.file_size - self.wrote - BLANK_SIZE_MIN:
            PyThread_release_lock(self.lock)
            return ANSWER_END_OF_FILE
        self.write(fields, total)
        publish_i32(self.base + self.wrote, <int32_t>total)
        self.advance(total, 1)
        if numbered:
            entry.set_next(fields.queue_id, fields.queue_offset + message_count)
            if numbering is not None:
                numbering.advance()
        receipt.phy_offset = fields.phy_offset
        receipt.store_timestamp_ms = fields.store_timestamp
        PyThread_release_lock(self.lock)
        receipt.status = PUT_OK
        receipt.durability = self.durability
        receipt.queue_offset = fields.queue_offset
        receipt.store_size = total
        receipt.message_count = message_count
        receipt.reason = ""
        receipt.store_host = stored_by
        return receipt

    cdef void write(self, RecordFields* fields, int64_t total) noexcept:
        """Write the record whose properties were gathered; its size word stays zero."""
        cdef uint8_t* at = self.base + self.wrote
        fields.phy_offset = self.file_from_offset + self.wrote
        fields.store_timestamp = self.timestamp()
        if fields.born_timestamp == 0:
            fields.born_timestamp = fields.store_timestamp
        self.encoder.write_properties(at + total - fields.properties_size)
        if fields.body_size < LARGE_BODY_SIZE:
            write_fields(at, fields)
        else:
            with nogil:
                write_fields(at, fields)
        if self.append_crc:
            self.seal_record(at, total)

    cdef void seal_record(self, uint8_t* at, int64_t total) noexcept nogil:
        write_crc_property(at, <int32_t>total)

    cdef void advance(self, int64_t size, int64_t messages) noexcept:
        self.wrote += size
        self.put_count += messages
        self.put_size += size
        publish_word(&self.end, self.file_from_offset + self.wrote)

    cdef Numbering numbering_of(
        self, RecordFields* fields, object topic, TopicEntry entry, dict properties
    ):
        cdef Numbering numbering = Numbering()
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
        names = properties.get("INNER_MULTI_DISPATCH")
        if self.multi_dispatch and names and dispatches_to_many(topic):
            numbering.properties.pop("INNER_MULTI_QUEUE_OFFSET", None)
            numbering.queues = []
            for name in names.split(","):
                if not name.startswith("%LMQ%"):
                    raise MessageIllegalError(
                        f"INNER_MULTI_DISPATCH names {name!r}: a light queue begins with '%LMQ%'"
                    )
                light = self.topic_entry(name)
                (<TopicEntry>light).set_next(0, (<TopicEntry>light).next_offset(0))
                numbering.queues.append(light)
            numbering.make_room()
        return numbering

    # ---- many messages -------------------------------------------------------------------------

    def put_encoded(
        self, topic, batch_body, int32_t queue_id, int32_t sys_flag, int64_t born_timestamp,
        born_host, store_host, int32_t reconsume_times,
    ):
        """Append every message of an encoded batch body back to back in one file, all or none.

        Args:
            batch_body: the wire form of a batch, docs/format/batch-body.md; envelope values
                (topic, queue, hosts, times, system flag) hold for every message of it.

        Returns:
            as `put`; the receipt's ``message_id`` lists all ids.

        Raises:
            MessageIllegalError: the body is malformed (position named), larger than the maximum
                message size or than a file; nothing was written.

        Source: RocketMQ store/CommitLog.java, asyncPutMessages; MessageExtEncoder.java.
        """
        cdef TopicEntry entry = self.topic_entry(topic)
        cdef bytes born = self.host_bytes(born_host, self.born_host)
        cdef bytes stored_by = self.host_bytes(store_host, self.store_host)
        cdef Py_buffer held
        cdef RecordFields fields
        cdef int64_t total = 0
        cdef int32_t count = 0
        cdef int64_t problem_at
        cdef int64_t size
        if not self.writable:
            return ANSWER_REFUSED
        if queue_id < 0:
            raise MessageIllegalError(f"queue_id {queue_id}: expected 0 or more")
        if sys_flag & (TRANSACTION_MASK | INNER_BATCH):
            raise MessageIllegalError("a batch is neither transactional nor an inner batch")
        memset(&fields, 0, sizeof(fields))
        fields.queue_id = queue_id
        fields.sys_flag = sys_flag
        fields.born_timestamp = born_timestamp
        fields.reconsume_times = reconsume_times
        fill_hosts(&fields, entry, born, stored_by)
        entry.set_next(queue_id, entry.next_offset(queue_id))
        if not PyBytes_CheckExact(batch_body):
            # a buffer that another thread may change between measuring and writing
            batch_body = bytes(batch_body)
        size = hold_body(batch_body, &held, self.max_message_size)
        try:
            problem_at = measure_batch(
                <bytes_t>held.buf, size, &fields, self.append_crc, &total, &count
            )
            if problem_at >= 0:
                raise MessageIllegalError(f"the batch body is malformed at byte {problem_at}")
            if total > self.file_size - BLANK_SIZE_MIN:
                raise MessageIllegalError(
                    f"the batch takes {total} bytes, a log file holds {self.file_size - 8}"
                )
            return self.append_batch(<bytes_t>held.buf, &fields, entry, total, count, stored_by)
        finally:
            PyBuffer_Release(&held)

    cdef object append_batch(
        self, bytes_t body, RecordFields* fields, TopicEntry entry, int64_t total, int32_t count,
        bytes stored_by,
    ):
        cdef bytes offsets = PyBytes_FromStringAndSize(NULL, count * sizeof(int64_t))
        cdef int64_t* offset_at = <int64_t*>PyBytes_AS_STRING(offsets)
        cdef PutMessageResult receipt
        cdef uint8_t* start
        cdef int32_t first_size
        self.acquire()
        if not self.writable or self.base == NULL:
            PyThread_release_lock(self.lock)
            return ANSWER_REFUSED
        if total > self.file_size - self.wrote - BLANK_SIZE_MIN:
            PyThread_release_lock(self.lock)
            return ANSWER_END_OF_FILE
        start = self.base + self.wrote
        fields.queue_offset = entry.next_offset(fields.queue_id)
        fields.phy_offset = self.file_from_offset + self.wrote
        fields.store_timestamp = self.timestamp()
        if fields.born_timestamp == 0:
            fields.born_timestamp = fields.store_timestamp
        with nogil:
            first_size = write_batch(start, body, fields, self.append_crc, offset_at, count)
        publish_i32(start, first_size)
        self.advance(total, count)
        entry.set_next(fields.queue_id, entry.next_offset(fields.queue_id) + count)
        PyThread_release_lock(self.lock)
        receipt = PutMessageResult.__new__(PutMessageResult)
        receipt.status = PUT_OK
        receipt.durability = self.durability
        receipt.phy_offset = offset_at[0]
        receipt.queue_offset = fields.queue_offset - count
        receipt.store_size = total
        receipt.store_timestamp_ms = fields.store_timestamp
        receipt.message_count = count
        receipt.reason = ""
        receipt.store_host = stored_by
        receipt.phy_offsets = memoryview(offsets).cast("q")
        return receipt

    def append_data(self, data, int64_t phy_offset):
        """Append bytes that a master has already encoded.

        Args:
            data: whole records and end-of-file records, as they stand in the master's log.
            phy_offset: where they lie there; must be `max_offset`.

        Returns:
            True; or END_OF_FILE or REFUSED.

        Raises:
            MessageIllegalError: ``phy_offset`` is not the end of this log.

        Source: RocketMQ store/CommitLog.java, appendData.
        """
        cdef Py_buffer held
        cdef int answer = 0
        PyObject_GetBuffer(data, &held, PyBUF_SIMPLE)
        self.acquire()
        if not self.writable or self.base == NULL:
            answer = ANSWER_REFUSED
        elif phy_offset != self.file_from_offset + self.wrote:
            answer = -1
        elif held.len > self.file_size - self.wrote:
            answer = ANSWER_END_OF_FILE
        else:
            with nogil:
                memcpy(self.base + self.wrote, held.buf, held.len)
            self.advance(held.len, 0)
        PyThread_release_lock(self.lock)
        PyBuffer_Release(&held)
        if answer == -1:
            raise MessageIllegalError(f"data of {phy_offset} does not follow {self.max_offset}")
        return answer or True


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
        if self.inner_batch:
            size = snprintf(self.base_digits, 24, b"%lld", <long long>queue_offset)
            encoder.add(<const char*>b"INNER_BASE\x01", 11)
            encoder.add(self.base_digits, size)
            problem = encoder.add(<const char*>b"\x02", 1)
        if self.queues is not None:
            encoder.add(<const char*>b"INNER_MULTI_QUEUE_OFFSET\x01", 25)
            for index in range(len(self.queues)):
                if index:
                    encoder.add(<const char*>b",", 1)
                size = snprintf(
                    self.digits + 24 * index, 24, b"%lld",
                    <long long>(<TopicEntry>self.queues[index]).next_offset(0),
                )
                problem = encoder.add(self.digits + 24 * index, size)
            problem = encoder.add(<const char*>b"\x02", 1)
        if problem == NO_PROBLEM and encoder.properties_size > PROPERTIES_SIZE_MAX:
            problem = TOO_LONG
        return problem

    cdef int advance(self) except -1:
        cdef TopicEntry light
        if self.queues is not None:
            for light in self.queues:
                light.set_next(0, light.next_offset(0) + 1)
        return 0


cdef void fill_hosts(
    RecordFields* fields, TopicEntry entry, bytes born, bytes stored_by
) noexcept:
    fields.topic = <bytes_t>PyBytes_AS_STRING(entry.name)
    fields.topic_size = <int32_t>PyBytes_GET_SIZE(entry.name)
    fields.born_host = <bytes_t>PyBytes_AS_STRING(born)
    fields.born_host_size = <int32_t>PyBytes_GET_SIZE(born)
    fields.store_host = <bytes_t>PyBytes_AS_STRING(stored_by)
    fields.store_host_size = <int32_t>PyBytes_GET_SIZE(stored_by)


cdef object too_large(int64_t body_size, int64_t max_message_size):
    return MessageIllegalError(
        f"the message has a body of {body_size} bytes; max_message_size is {max_message_size}"
    )


cdef int64_t hold_body(object body, Py_buffer* held, int64_t max_message_size) except -1:
    if isinstance(body, str):
        raise MessageIllegalError("the body is a str; encode it to bytes first")
    try:
        PyObject_GetBuffer(body, held, PyBUF_SIMPLE)
    except (TypeError, BufferError) as error:
        raise MessageIllegalError(f"the body is no contiguous buffer of bytes: {error}") from None
    if held.len > max_message_size:
        size = held.len
        PyBuffer_Release(held)
        raise too_large(size, max_message_size)
    return held.len


cdef int32_t inner_batch_size(dict properties) except -1:
    text = properties.get("INNER_NUM", "")
    if isinstance(text, str) and text.isascii() and text.isdigit() and 0 < int(text) <= 32767:
        return int(text)
    raise MessageIllegalError(f"INNER_NUM={text!r}: expected the number of messages, 1 to 32767")


cdef bint dispatches_to_many(str topic):
    return topic != "SCHEDULE_TOPIC_XXXX" and not topic.startswith(("%RETRY%", "rmq_sys_"))
