"""The active end of the commit log: the one place where records are appended.

A `LogTail` is pointed at the mapped bytes of the last file (`attach`), takes messages and answers
each with a receipt, or with a number that says why Python has to decide first: the file is full,
or the store refuses writes. It owns the next queue offsets; bytes, positions and lock are those of
the `LogEnd` that it is. It never rolls, flushes, opens or recovers.

A record's size word is stored last: from then on other processes see the record. Readers of this
process see it when `advance` publishes its end.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_FromObject
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset
cimport cython

from rmqcore.native.base._world cimport read_monotonic_s
from rmqcore.native.format._batch cimport (
    ASKS_FOR_TIMER, NAMES_LIGHT_QUEUES, NUMBERS_LIGHT_QUEUES, batch_asks, measure_batch,
    write_batch,
)
from rmqcore.native.format._bytes cimport RMQ_ASSERT, load_i32, publish_i32
from rmqcore.native.format._encoder cimport NO_PROBLEM, RecordEncoder
from rmqcore.native.format._layout cimport (
    BLANK_SIZE_MIN, INNER_BATCH, TRANSACTION_COMMIT, TRANSACTION_MASK,
)
from rmqcore.native.log._log_end cimport ANSWER_END_OF_FILE, ANSWER_REFUSED, LogEnd
from rmqcore.native.format._message cimport Message, fill_numbers, keys_read_once
from rmqcore.native.format._receipt cimport PutMessageResult
from rmqcore.native.log._queue_offsets cimport Numbering, TopicEntry, TopicTable
from rmqcore.native.format._record cimport (
    RecordFields, bytes_t, record_size, rmq_crc32_init, write_crc_property, write_fields,
)

from rmqcore.arguments import body_view, keys_of, properties_of
from rmqcore.native.format._host import encode_host
from rmqcore.native.format._message import StoredCopy
from rmqcore.errors import MessageIllegalError
from rmqcore.status import Durability, PutMessageStatus

rmq_crc32_init()

cdef object PUT_OK = PutMessageStatus.PUT_OK
cdef object PAGE_CACHE = Durability.PAGE_CACHE

# Answers of `LogTail.put_message` and its kin that are not receipts.
END_OF_FILE = ANSWER_END_OF_FILE
REFUSED = ANSWER_REFUSED
# What `append_locked` answers besides; below these, a `Problem` of the encoder, negated.
cdef enum:
    WRITTEN = 0
    FILE_TOO_SMALL = 3
    TIMER_ASKED = 4

# Bodies and batches from this size are copied without the GIL.
cdef int32_t LARGE_SIZE = 65536
cdef int HOSTS_CACHED_MAX = 4096
# One put in this many is timed: to read the clock twice for each would take a tenth of its time.
cdef int SAMPLED_EVERY = 64


@cython.final
@cython.no_gc_clear
cdef class LogTail(LogEnd):
    """Appends records to the mapped bytes of the last commit-log file.

    Args:
        store_host: ``address:port`` written into every record.
        max_message_size: largest body in bytes; a record may take 64 KiB more.
        append_crc: end each record in its ``__CRC32#`` property.
        multi_dispatch: fill in the offsets of light queues (LMQ).

    Attributes:
        took: called with the milliseconds of one put of 64, from before the lock to after it; None
            calls nobody. A thread that waits for a put keeps it, so it must not keep the store.

    Threads: any number of writers; one at a time holds the lock. A put that waits for that lock
    does not hold the GIL, and what has 64 KiB or more is copied without it.

    Source: RocketMQ store/CommitLog.java, asyncPutMessage and DefaultAppendMessageCallback.
    """

    def __cinit__(self, str store_host not None, int64_t max_message_size, *,
                  bint append_crc=False, bint multi_dispatch=False):
        self.topics = TopicTable()
        self.hosts = {}
        self.encoder = RecordEncoder()
        self.store_host = encode_host(store_host)
        self.born_host = encode_host("127.0.0.1:0")
        self.max_message_size = max_message_size
        self.append_crc = append_crc
        self.multi_dispatch = multi_dispatch
        self.durability = PAGE_CACHE

    # ---- what Python decides -------------------------------------------------------------------

    def next_queue_offset(self, str topic not None, int32_t queue_id) -> int:
        """The offset that the queue's next message will get."""
        entry = self.topics.entries.get(topic)
        return 0 if entry is None else (<TopicEntry>entry).next_offset(queue_id)

    def set_next_queue_offset(self, str topic not None, int32_t queue_id, int64_t offset) -> None:
        """Set the next offset of a queue, as recovery found it."""
        self.topics.entry(topic).set_next(queue_id, offset)

    def set_batch_queue(self, str topic not None, bint batch_queue) -> None:
        """Say that the topic's queues are batch consume queues (``queue.type=BatchCQ``)."""
        self.topics.entry(topic).batch_queue = batch_queue

    def begin_topic_anew(self, str topic not None, dict ends not None) -> None:
        """Let the queues of a topic that is deleted begin with 0 again.

        Args:
            ends: gets the end of the log at that moment, by topic: what was put before lies below
                it. In the same native call, so that no signal handler comes in between.
        """
        cdef object entry = self.topics.entries.get(topic)
        cdef int64_t end
        self.acquire()
        try:
            if entry is not None:
                (<TopicEntry>entry).begin_anew()
            end = self.file_from_offset + self.wrote
        finally:
            self.release()
        ends[topic] = end

    cdef object host_bytes(self, object host, bytes default):
        cdef PyObject* found
        if host is None:
            return default
        if not isinstance(host, str):
            raise MessageIllegalError(f"host {host!r}: expected a str such as '10.1.2.3:10911'")
        host = PyUnicode_FromObject(host)
        found = PyDict_GetItem(self.hosts, host)
        if found != NULL:
            return <object>found
        if len(self.hosts) >= HOSTS_CACHED_MAX:
            self.hosts.clear()
        return self.hosts.setdefault(host, encode_host(host))

    # ---- one message ---------------------------------------------------------------------------

    cdef object put_fields(
        self, RecordFields* fields, object body, object topic, object tags, object keys,
        object properties, object born_host, object store_host,
    ):
        """Append one message whose numbers are in `fields`; answers as `put_message`.

        The properties may be a text as clients send it, in bytes.
        """
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
        """Append one `Message`.

        Returns:
            PutMessageResult, or END_OF_FILE (roll and try again), or REFUSED (not writable).

        Raises:
            MessageIllegalError: the message breaks a limit; nothing was written.

        Durability: `self.durability`, the page cache unless the transient pool is in use.
        """
        return self.put_one(message)

    cdef object put_one(self, Message message):
        cdef RecordFields fields
        fill_numbers(&fields, message)
        # another thread may replace a field of the message meanwhile; its old value must stay alive
        body, topic, tags, keys = message.body, message.topic, message.tags, keys_read_once(message)
        properties, born, stored_by = message.properties, message.born_host, message.store_host
        if type(message) is not Message and isinstance(message, StoredCopy):
            body = bytes(body)
            fields.body, fields.body_size = <bytes_t>PyBytes_AS_STRING(body), <int32_t>len(body)
            return self.append(&fields, topic, tags, keys, properties, born, stored_by)
        return self.put_fields(&fields, body, topic, tags, keys, properties, born, stored_by)

    cdef object append(
        self, RecordFields* fields, object topic, object tags, object keys, object properties,
        object born_host, object store_host,
    ):
        cdef TopicEntry entry = self.topics.entry(topic)
        cdef bytes born = self.host_bytes(born_host, self.born_host)
        cdef bytes stored_by = self.host_bytes(store_host, self.store_host)
        cdef Numbering numbering = None
        cdef PutMessageResult receipt
        cdef double began
        cdef int answer
        if not self.writable:
            # before the lock is tried: in a forked child the copied lock may never be released
            return ANSWER_REFUSED
        if fields.queue_id < 0:
            raise MessageIllegalError(f"queue_id {fields.queue_id}: expected 0 or more")
        if keys is not None and type(keys) is not str and type(keys) is not tuple:
            keys = keys_of(keys)
        if properties is not None and not PyBytes_CheckExact(properties):
            if type(properties) is not dict:
                properties = properties_of(properties)
            if fields.sys_flag & INNER_BATCH or "INNER_MULTI_QUEUE_OFFSET" in properties or (
                self.multi_dispatch and "INNER_MULTI_DISPATCH" in properties
            ):
                numbering = self.topics.numbering_of(
                    fields, topic, entry, properties, self.multi_dispatch
                )
                properties = numbering.properties
        elif fields.sys_flag & INNER_BATCH:
            raise MessageIllegalError("an inner batch needs the property INNER_NUM")
        fill_hosts(fields, entry, born, stored_by)
        entry.set_next(fields.queue_id, entry.next_offset(fields.queue_id))
        # here, not under the lock: the garbage collector may run, and a finalizer may put
        receipt = PutMessageResult.__new__(PutMessageResult)
        began = self.begin_sample()
        self.acquire()
        try:
            answer = self.append_locked(fields, entry, numbering, tags, keys, properties)
        finally:
            self.release()
        if answer != WRITTEN:
            return self.refusal(answer, fields)
        if began > 0:
            self.took(1000 * (read_monotonic_s() - began))
        receipt.status = PUT_OK
        receipt.durability = self.durability
        receipt.phy_offset = fields.phy_offset
        receipt.queue_offset = fields.queue_offset
        receipt.store_size = record_size(fields)
        receipt.store_timestamp_ms = fields.store_timestamp
        receipt.message_count = 1 if numbering is None else numbering.message_count
        receipt.reason = ""
        receipt.store_host = stored_by
        return receipt

    cdef double begin_sample(self) noexcept:
        """The time of now for one put of so many, in seconds; 0 for the others."""
        cdef bint due = self.calls % SAMPLED_EVERY == 0
        self.calls += 1
        return read_monotonic_s() if due and self.took is not None else 0

    cdef int append_locked(
        self, RecordFields* fields, TopicEntry entry, Numbering numbering, object tags,
        object keys, object properties,
    ) except? -1:
        """Give one record its queue offset, measure it and write it; WRITTEN, or why not."""
        cdef bint numbered = (fields.sys_flag & TRANSACTION_MASK) in (0, TRANSACTION_COMMIT)
        cdef int64_t total
        cdef int problem
        if not self.writable or self.base == NULL:
            return ANSWER_REFUSED
        fields.queue_offset = entry.next_offset(fields.queue_id) if numbered else 0
        problem = self.encoder.gather(tags, keys, properties, self.append_crc)
        if problem == NO_PROBLEM and numbering is not None:
            problem = numbering.add_to(self.encoder, fields.queue_offset)
        if problem != NO_PROBLEM:
            return -problem
        if self.encoder.timed and not self.encoder.had_timer and numbered:
            if entry.name != b"rmq_sys_wheel_timer":
                return TIMER_ASKED
        fields.properties_size = <int32_t>self.encoder.properties_size
        total = record_size(fields)
        if total > self.file_size - BLANK_SIZE_MIN:
            return FILE_TOO_SMALL
        if total > self.file_size - self.wrote - BLANK_SIZE_MIN:
            return ANSWER_END_OF_FILE
        self.write(fields, total)
        publish_i32(self.base + self.wrote, <int32_t>total)
        self.advance(total, 1)
        RMQ_ASSERT(fields.queue_offset <= entry.next_offset(fields.queue_id))
        if numbering is not None:
            if numbered:
                entry.set_next(fields.queue_id, fields.queue_offset + numbering.message_count)
                numbering.advance()
        elif numbered:
            entry.set_next(fields.queue_id, fields.queue_offset + 1)
        return WRITTEN

    cdef object refusal(self, int answer, RecordFields* fields):
        """Return an answer of `append_locked` that is for the caller, raise the others."""
        if answer < 0:
            raise MessageIllegalError(self.encoder.describe(-answer))
        if answer == TIMER_ASKED:
            raise MessageIllegalError(
                "TIMER_DELIVER_MS, TIMER_DELAY_SEC or TIMER_DELAY_MS: no timer wheel here, so the "
                "message could be read at once; give a delay_level instead"
            )
        if answer == FILE_TOO_SMALL:
            raise MessageIllegalError(
                f"the record takes {record_size(fields)} bytes, "
                f"a log file holds {self.file_size - BLANK_SIZE_MIN}"
            )
        return answer

    cdef void write(self, RecordFields* fields, int64_t total) noexcept:
        """Write the record whose properties were gathered; its size word stays zero."""
        cdef uint8_t* at = self.base + self.wrote
        cdef int32_t size_word = load_i32(at)
        RMQ_ASSERT(self.wrote + total <= self.file_size - BLANK_SIZE_MIN)
        fields.phy_offset = self.file_from_offset + self.wrote
        fields.store_timestamp = self.timestamp()
        if fields.born_timestamp == 0:
            fields.born_timestamp = fields.store_timestamp
        self.encoder.write_properties(at + total - fields.properties_size)
        if fields.body_size < LARGE_SIZE:
            write_fields(at, fields)
        else:
            with nogil:
                write_fields(at, fields)
        if self.append_crc:
            self.seal_record(at, total)
        RMQ_ASSERT(load_i32(at) == size_word)

    cdef void seal_record(self, uint8_t* at, int64_t total) noexcept nogil:
        write_crc_property(at, <int32_t>total)

    # ---- many messages -------------------------------------------------------------------------

    def put_encoded(self, Message batch not None):
        """Append every message of an encoded batch body back to back in one file, all or none.

        Args:
            batch: its body is the wire form of a batch, docs/format/batch-body.md; its topic,
                queue, hosts, times and system flag hold for every message of it.

        Returns:
            as `put_message`; the receipt's ``message_id`` lists all ids.

        Raises:
            MessageIllegalError: the body is malformed (position named), larger than the maximum
                message size or than a file, or asks for a timer wheel; nothing was written.

        Source: RocketMQ store/CommitLog.java, asyncPutMessages; MessageExtEncoder.java.
        """
        cdef RecordFields fields
        memset(&fields, 0, sizeof(fields))
        fill_numbers(&fields, batch)
        return self.put_batch(&fields, batch.body, batch.topic, batch.born_host, batch.store_host)

    cdef object put_batch(
        self, RecordFields* fields, object batch_body, object topic, object born_host,
        object store_host,
    ):
        cdef TopicEntry entry = self.topics.entry(topic)
        cdef bytes born = self.host_bytes(born_host, self.born_host)
        cdef bytes stored_by = self.host_bytes(store_host, self.store_host)
        cdef Py_buffer held
        cdef int64_t total = 0
        cdef int32_t count = 0
        cdef bint may_ask = False
        cdef int asked = 0
        cdef int64_t problem_at, size
        if not self.writable:
            return ANSWER_REFUSED
        if fields.queue_id < 0:
            raise MessageIllegalError(f"queue_id {fields.queue_id}: expected 0 or more")
        if fields.sys_flag & (TRANSACTION_MASK | INNER_BATCH):
            raise MessageIllegalError("a batch is neither transactional nor an inner batch")
        fill_hosts(fields, entry, born, stored_by)
        entry.set_next(fields.queue_id, entry.next_offset(fields.queue_id))
        if not PyBytes_CheckExact(batch_body):
            # a buffer that another thread may change between measuring and writing
            batch_body = bytes(batch_body)
        size = hold_body(batch_body, &held, self.max_message_size)
        try:
            problem_at = measure_batch(
                <bytes_t>held.buf, size, fields, self.append_crc, &total, &count, &may_ask
            )
            if problem_at >= 0:
                raise MessageIllegalError(f"the batch body is malformed at byte {problem_at}")
            if may_ask:
                asked = batch_asks(<bytes_t>held.buf, count)
            if asked & ASKS_FOR_TIMER and entry.name != b"rmq_sys_wheel_timer":
                return self.refusal(TIMER_ASKED, fields)
            if asked & NUMBERS_LIGHT_QUEUES or asked & NAMES_LIGHT_QUEUES and self.multi_dispatch:
                raise MessageIllegalError(
                    "INNER_MULTI_DISPATCH or INNER_MULTI_QUEUE_OFFSET in a batch: its messages get "
                    "no numbers in light queues; put such a message by itself, without the numbers"
                )
            if total > self.file_size - BLANK_SIZE_MIN:
                raise MessageIllegalError(
                    f"the batch takes {total} bytes, a log file holds {self.file_size - 8}"
                )
            return self.append_batch(<bytes_t>held.buf, fields, entry, total, count, stored_by)
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
        cdef double began = self.begin_sample()
        self.acquire()
        if not self.writable or self.base == NULL:
            self.release()
            return ANSWER_REFUSED
        if total > self.file_size - self.wrote - BLANK_SIZE_MIN:
            self.release()
            return ANSWER_END_OF_FILE
        start = self.base + self.wrote
        fields.queue_offset = entry.next_offset(fields.queue_id)
        fields.phy_offset = self.file_from_offset + self.wrote
        fields.store_timestamp = self.timestamp()
        if fields.born_timestamp == 0:
            fields.born_timestamp = fields.store_timestamp
        if total < LARGE_SIZE:
            first_size = write_batch(start, body, fields, self.append_crc, offset_at, count)
        else:
            with nogil:
                first_size = write_batch(start, body, fields, self.append_crc, offset_at, count)
        publish_i32(start, first_size)
        self.advance(total, count)
        entry.set_next(fields.queue_id, entry.next_offset(fields.queue_id) + count)
        self.release()
        if began > 0:
            self.took(1000 * (read_monotonic_s() - began))
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
    if not isinstance(body, (bytes, bytearray, memoryview)):
        body = body_view(body)
    try:
        PyObject_GetBuffer(body, held, PyBUF_SIMPLE)
    except (TypeError, BufferError) as error:
        raise MessageIllegalError(f"the body is no contiguous buffer of bytes: {error}") from None
    if held.len > max_message_size:
        size = held.len
        PyBuffer_Release(held)
        raise too_large(size, max_message_size)
    return held.len
