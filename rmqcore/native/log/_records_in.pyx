"""Records that were made before: copied to the end of the log, where they get place and number.

`_encode_columns` makes them, in this process or in another. Nothing in them is believed: each is
checked before the lock is taken.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset
cimport cython

from rmqcore.native.base._world cimport read_monotonic_s
from rmqcore.native.format._bytes cimport RMQ_ASSERT, load_i32, load_i64, publish_i32, store_i64
from rmqcore.native.format._layout cimport (
    BLANK_SIZE_MIN, BORN_HOST_AT, BORN_HOST_V6, BORN_TIMESTAMP_AT, CRC_PROPERTY_SIZE, EMPTY,
    HOST_V4_SIZE, HOST_V6_SIZE, INNER_BATCH, NEED_UNWRAP, OK, PHY_OFFSET_AT, QUEUE_OFFSET_AT,
    SYS_FLAG_AT, TRANSACTION_MASK,
)
from rmqcore.native.format._receipt cimport PutMessageResult
from rmqcore.native.format._record cimport (
    RecordHead, bytes_t, read_head, rmq_crc32_init, write_crc_property,
)
from rmqcore.native.log._log_end cimport ANSWER_END_OF_FILE, ANSWER_REFUSED
from rmqcore.native.log._queue_offsets cimport TopicEntry
from rmqcore.native.log._tail cimport LogTail

from rmqcore.errors import StoreError
from rmqcore.native.format._message_ext import status_text
from rmqcore.status import PutMessageStatus

rmq_crc32_init()

cdef object PUT_OK = PutMessageStatus.PUT_OK

# Pieces from this size are copied without the GIL.
cdef int64_t LARGE_SIZE = 65536
# Pieces from this size are written by a system call, where the log is one file's mapping: a store
# through the mapping would fill up to 2 MiB with zeros first, for those behind it, too.
cdef int64_t THROUGH_SIZE = 4096

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t pwrite(int fd, const void* bytes, size_t size, int64_t at) noexcept

# Why records are refused; positive, as `read_head` answers with negatives.
cdef enum Refusal:
    NO_SUCH_QUEUE = 100
    OTHER_QUEUE
    OTHER_HOST
    OTHER_CRC
    NOT_PLAIN
    TOO_LONG

_WHY = {
    NO_SUCH_QUEUE: "its queue is not in the table",
    OTHER_QUEUE: "its topic or queue is not what the table says",
    OTHER_HOST: "its store host is of another kind of address than the store's",
    OTHER_CRC: "it has a CRC property and the store writes none, or the other way round",
    NOT_PLAIN: "it is an inner batch, or of a transaction",
    TOO_LONG: "it is longer than the store's log files",
}

cdef struct Queue:
    bytes_t topic
    int32_t topic_size
    int32_t queue_id
    bint noted                   # some record of the piece is for it
    int64_t first_offset         # what the first one of them got
    int64_t count


@cython.final
cdef class RecordAppender:
    """Appends staged records to a log, piece by piece.

    Args:
        tail: the log's end.
        queues: (topic, queue id) by the number that stands in the records; it may grow.

    Attributes:
        last_phy_offset: of the record that was appended last.

    Threads: one at a time.
    """

    cdef LogTail tail
    cdef list names
    cdef list entries
    cdef Queue* queues
    cdef int32_t* touched
    cdef int32_t known, room, touched_count, host_size
    cdef bytes_t host
    cdef int64_t problem_at, record_count
    cdef readonly int64_t last_phy_offset

    def __cinit__(self, LogTail tail not None, list queues not None):
        self.tail = tail
        self.names = queues
        self.entries = []
        self.host = <bytes_t>PyBytes_AS_STRING(tail.store_host)
        self.host_size = <int32_t>PyBytes_GET_SIZE(tail.store_host)

    def __dealloc__(self):
        free(self.queues)
        free(self.touched)

    def append(self, bytes records not None, int64_t at):
        """Append the records from a position on, as many as the log file has room for.

        They are seen all at once, or after a kill none of them.

        Returns:
            PutMessageResult, whose ``store_size`` says how many bytes were taken; or END_OF_FILE
            (roll and try again), or REFUSED (not writable).

        Raises:
            StoreError: the bytes are no records for this log; nothing was appended.
            MessageIllegalError: a topic in the table of queues is none.
        """
        cdef bytes_t data = <bytes_t>PyBytes_AS_STRING(records)
        cdef int64_t size = PyBytes_GET_SIZE(records), stop = 0, count = 0, timestamp, start
        cdef int status
        cdef double began
        cdef LogTail tail = self.tail
        cdef PutMessageResult receipt
        if not tail.writable:
            return ANSWER_REFUSED
        if at < 0 or at >= size:
            raise StoreError(f"no records begin at {at} of {size} bytes")
        self.learn_queues()
        self.forget_piece()
        with nogil:
            status = self.check(data, at, size)
        if status != OK:
            raise StoreError(f"the staged record at byte {self.problem_at}: {why(status)}")
        self.reserve()
        receipt = PutMessageResult.__new__(PutMessageResult)
        began = tail.begin_sample()
        tail.acquire()
        if not tail.writable or tail.base == NULL:
            tail.release()
            return ANSWER_REFUSED
        stop = self.fitting(data, at, size, &count)
        if stop == at:
            tail.release()
            return ANSWER_END_OF_FILE
        self.assign_offsets()
        timestamp, start = tail.timestamp(), tail.wrote
        if stop - at < (LARGE_SIZE if tail.through < 0 else THROUGH_SIZE):
            self.copy(tail.base + start, data + at, stop - at, timestamp)
        else:
            with nogil:
                self.copy_large(data + at, stop - at, timestamp)
        publish_i32(tail.base + start, load_i32(data + at))
        tail.advance(stop - at, count)
        self.give_offsets()
        tail.release()
        if began > 0:
            tail.took(1000 * (read_monotonic_s() - began))
        receipt.status = PUT_OK
        receipt.durability = tail.durability
        receipt.phy_offset = tail.file_from_offset + start
        receipt.queue_offset = self.queues[self.touched[0]].first_offset
        receipt.store_size = stop - at
        receipt.store_timestamp_ms = timestamp
        receipt.message_count = <int32_t>count
        receipt.reason = ""
        receipt.store_host = tail.store_host
        return receipt

    def placed(self) -> list:
        """(number of the queue, first queue offset, messages) of what was appended last."""
        cdef int32_t index
        cdef Queue* queue
        found = []
        for index in range(self.touched_count):
            queue = &self.queues[self.touched[index]]
            if queue.count:
                found.append((self.touched[index], queue.first_offset, queue.count))
        return found

    cdef int learn_queues(self) except -1:
        """Look up the topics of queues that the table has got since."""
        cdef TopicEntry entry
        cdef int32_t count = <int32_t>len(self.names)
        cdef void* grown
        if count > self.room:
            grown = realloc(self.queues, 2 * count * sizeof(Queue))
            if grown == NULL:
                raise MemoryError
            self.queues = <Queue*>grown
            grown = realloc(self.touched, 2 * count * sizeof(int32_t))
            if grown == NULL:
                raise MemoryError
            self.touched, self.room = <int32_t*>grown, 2 * count
        while self.known < count:
            topic, queue_id = self.names[self.known]
            entry = self.tail.topics.entry(topic)
            self.queues[self.known] = Queue(
                <bytes_t>PyBytes_AS_STRING(entry.name), <int32_t>PyBytes_GET_SIZE(entry.name),
                queue_id, False, 0, 0,
            )
            self.entries.append(entry)
            self.known += 1
        return 0

    cdef int check(self, bytes_t data, int64_t at, int64_t size) noexcept nogil:
        """Look at every record, and note which queues they go to."""
        cdef RecordHead head
        cdef Queue* queue
        cdef int status
        cdef int64_t count = 0
        while at < size:
            self.problem_at = at
            status = read_head(data + at, size - at, &head)
            if status != OK:
                return status if status < 0 else EMPTY
            if head.queue_offset < 0 or head.queue_offset >= self.known:
                return NO_SUCH_QUEUE
            queue = &self.queues[head.queue_offset]
            if queue.queue_id != head.queue_id or queue.topic_size != head.topic_size or memcmp(
                queue.topic, data + at + head.topic_at, head.topic_size
            ) != 0:
                return OTHER_QUEUE
            if head.store_host_size != self.host_size:
                return OTHER_HOST
            if head.sys_flag & (TRANSACTION_MASK | INNER_BATCH | NEED_UNWRAP):
                return NOT_PLAIN
            if has_crc_property(data + at, &head) != self.tail.append_crc:
                return OTHER_CRC
            if head.total_size > self.tail.file_size - BLANK_SIZE_MIN:
                return TOO_LONG
            if not queue.noted:
                queue.noted = True
                self.touched[self.touched_count] = <int32_t>head.queue_offset
                self.touched_count += 1
            at += head.total_size
            count += 1
        self.record_count = count
        return OK

    cdef int forget_piece(self) noexcept:
        cdef int32_t index
        for index in range(self.touched_count):
            self.queues[self.touched[index]].noted = False
        self.touched_count = 0
        return 0

    cdef int reserve(self) except -1:
        """Make room for the next offsets; here, not under the lock."""
        cdef int32_t index
        cdef Queue* queue
        cdef TopicEntry entry
        for index in range(self.touched_count):
            queue = &self.queues[self.touched[index]]
            entry = <TopicEntry>self.entries[self.touched[index]]
            entry.set_next(queue.queue_id, entry.next_offset(queue.queue_id))
        return 0

    cdef int64_t fitting(self, bytes_t data, int64_t at, int64_t size, int64_t* count) noexcept:
        """Where the records end that the file has room for, and how many those are."""
        cdef int64_t room = self.tail.file_size - self.tail.wrote - BLANK_SIZE_MIN
        count[0] = self.record_count
        if size - at <= room:
            return size
        size = at + room
        count[0] = 0
        while at + load_i32(data + at) <= size:
            at += load_i32(data + at)
            count[0] += 1
        return at

    cdef int assign_offsets(self) noexcept:
        cdef int32_t index
        cdef Queue* queue
        for index in range(self.touched_count):
            queue = &self.queues[self.touched[index]]
            queue.first_offset = (<TopicEntry>self.entries[self.touched[index]]).next_offset(
                queue.queue_id
            )
            queue.count = 0
        return 0

    cdef int give_offsets(self) except -1:
        cdef int32_t index
        cdef Queue* queue
        for index in range(self.touched_count):
            queue = &self.queues[self.touched[index]]
            (<TopicEntry>self.entries[self.touched[index]]).set_next(
                queue.queue_id, queue.first_offset + queue.count
            )
        return 0

    cdef void copy_large(self, bytes_t data, int64_t size, int64_t timestamp) noexcept nogil:
        """Write records into the log by a system call where it is one file's mapping.

        Pages that are not in memory yet are then made of the records, not of zeros at first.
        """
        cdef uint8_t* to = self.tail.base + self.tail.wrote
        cdef uint8_t* made = <uint8_t*>malloc(size) if self.tail.through >= 0 else NULL
        cdef int64_t done = 0
        cdef Py_ssize_t step = 1
        if made == NULL:
            self.copy(to, data, size, timestamp)
            return
        memset(made, 0, 4)
        self.copy(made, data, size, timestamp)
        while step > 0 and done < size:
            step = pwrite(self.tail.through, made + done, size - done, self.tail.wrote + done)
            done += max(step, 0)
        # what the system has not taken goes the other way; the size word of the first stays zero
        if done < size:
            memcpy(to + done, made + done, size - done)
        free(made)

    cdef void copy(
        self, uint8_t* to, bytes_t data, int64_t size, int64_t timestamp
    ) noexcept nogil:
        """Make the records that stand in the log; the size word of the first one stays zero."""
        cdef int64_t phy_offset = self.tail.file_from_offset + self.tail.wrote, at = 0
        cdef int32_t total, host_size
        cdef Queue* queue
        RMQ_ASSERT(self.tail.wrote + size <= self.tail.file_size - BLANK_SIZE_MIN)
        while at < size:
            total = load_i32(data + at)
            queue = &self.queues[load_i64(data + at + QUEUE_OFFSET_AT)]
            memcpy(to + at + 4, data + at + 4, total - 4)
            store_i64(to + at + QUEUE_OFFSET_AT, queue.first_offset + queue.count)
            store_i64(to + at + PHY_OFFSET_AT, phy_offset + at)
            if load_i64(to + at + BORN_TIMESTAMP_AT) == 0:
                store_i64(to + at + BORN_TIMESTAMP_AT, timestamp)
            host_size = born_host_size(to + at)
            store_i64(to + at + BORN_HOST_AT + host_size, timestamp)
            memcpy(to + at + BORN_HOST_AT + host_size + 8, self.host, self.host_size)
            if self.tail.append_crc:
                write_crc_property(to + at, total)
            if at > 0:
                publish_i32(to + at, total)
            queue.count += 1
            self.last_phy_offset = phy_offset + at
            at += total


cdef inline int32_t born_host_size(bytes_t record) noexcept nogil:
    return HOST_V6_SIZE if load_i32(record + SYS_FLAG_AT) & BORN_HOST_V6 else HOST_V4_SIZE


cdef inline bint has_crc_property(bytes_t record, const RecordHead* head) noexcept nogil:
    return head.properties_size >= CRC_PROPERTY_SIZE and memcmp(
        record + head.total_size - CRC_PROPERTY_SIZE, b"__CRC32#\x01", 9
    ) == 0


cdef str why(int status):
    return _WHY[status] if status > 0 and status != EMPTY else status_text(status)
