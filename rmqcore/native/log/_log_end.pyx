"""The mapped end of the log: its bytes, its positions, and the lock of the threads that write it.

A `LogEnd` owns the wrote position, and publishes the offset up to which the log may be read.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.pythread cimport PyThread_allocate_lock, PyThread_free_lock
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset
cimport cython

from rmqcore.native.base._published cimport PublishedOffset
from rmqcore.native.base._lock cimport PyThread_acquire_lock_timed
from rmqcore.native.base._world cimport read_wall_clock_ms
from rmqcore.native.format._bytes cimport RMQ_ASSERT, load_i32, publish_i32, store_i32
from rmqcore.native.format._layout cimport (
    BLANK, BLANK_SIZE_MIN, MAGIC_AT, MAGIC_BLANK, OK, PARTIAL,
)
from rmqcore.native.format._record cimport (
    CHECK_BODY, RecordHead, bytes_t, next_record, rmq_crc32_init,
)

from rmqcore.errors import CorruptRecordError, MessageIllegalError
from rmqcore.native.format._message_ext import status_text

rmq_crc32_init()

# Store times do not step back when the clock does, up to this much.
cdef int64_t CLOCK_STEP_BACK_MAX_MS = 10000
# Beside the statuses of `next_record`.
cdef int NO_MEMORY = -1000
# Room that is kept from one part of a record to the next.
cdef int64_t PART_ROOM_KEPT = 1 << 20


@cython.no_gc_clear
cdef class LogEnd:
    """Where the last commit-log file is written, and how far it is.

    Attributes:
        end: physical offset behind the last byte written, published for readers.
        file_from_offset: physical offset of the first byte of the file that was attached last.
        writable: False while nothing may be put.
        follows: True for a slave: a master's bytes may be appended although nothing may be put.
        fixed_time_ms: store time of every record; 0 for the clock's.

    Threads: any; writers hold one lock, and wait for it without the GIL.
    """

    def __cinit__(self):
        self.end = PublishedOffset()
        self.through = -1
        self.woken = PyThread_allocate_lock()
        if self.woken == NULL or pthread_mutex_init(&self.lock, NULL) != 0:
            raise MemoryError
        PyThread_acquire_lock_timed(self.woken, 0, 0)

    def __dealloc__(self):
        if <void*>self.view.obj != NULL:
            PyBuffer_Release(&self.view)
        pthread_mutex_destroy(&self.lock)
        if self.woken != NULL:
            PyThread_free_lock(self.woken)
        free(self.part)

    def __sizeof__(self):
        """What it takes in memory: with the room for a part of a record."""
        return object.__sizeof__(self) + self.part_room

    cdef int64_t timestamp(self) noexcept nogil:
        cdef int64_t now = self.fixed_time_ms if self.fixed_time_ms else read_wall_clock_ms()
        if now < self.last_timestamp and self.last_timestamp - now < CLOCK_STEP_BACK_MAX_MS:
            now = self.last_timestamp
        self.last_timestamp = now
        return now

    def attach(
        self, buffer, int64_t file_from_offset, int64_t wrote_position, descriptor=None
    ) -> None:
        """Append to ``buffer`` from now on, behind its first ``wrote_position`` bytes.

        Args:
            buffer: writable bytes of one whole log file; held until the next attach or detach.
            file_from_offset: physical offset of its first byte.
            descriptor: `Descriptor` of the file that the buffer maps; large pieces are written by
                it, which spares pages that are not in memory yet being filled with zeros first.
        """
        cdef int through = -1 if descriptor is None else descriptor.fd
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
        self.partial = 0
        self.through, self.held_descriptor = through, descriptor
        self.end.publish(file_from_offset + wrote_position)
        self.release()
        if <void*>view.obj != NULL:
            PyBuffer_Release(&view)

    def detach(self) -> None:
        """Refuse every further put and release the buffer; a part of a record goes."""
        cdef Py_buffer view
        self.drop_partial()
        self.acquire()
        view = self.view
        memset(&self.view, 0, sizeof(Py_buffer))
        self.base = NULL
        self.through, self.held_descriptor = -1, None
        self.writable = self.follows = False
        self.release()
        if <void*>view.obj != NULL:
            PyBuffer_Release(&view)

    def seal(self) -> None:
        """Fill the rest of the file with the end-of-file record; idempotent.

        Source: RocketMQ store/CommitLog.java, DefaultAppendMessageCallback (END_OF_FILE).
        """
        self.acquire()
        RMQ_ASSERT(self.wrote <= self.file_size)
        if self.base != NULL and self.wrote < self.file_size:
            if self.file_size - self.wrote >= BLANK_SIZE_MIN:
                store_i32(self.base + self.wrote + MAGIC_AT, MAGIC_BLANK)
                publish_i32(self.base + self.wrote, <int32_t>(self.file_size - self.wrote))
            self.wrote = self.file_size
            self.end.publish(self.file_from_offset + self.wrote)
        self.release()

    def wait_for_put(self, int64_t offset, double seconds) -> bool:
        """Sleep, without the GIL, until something was put behind an offset; for one thread only.

        Costs a put nothing while no thread sleeps here.

        Args:
            offset: physical offset up to which the caller knows the log.
            seconds: how long to wait.

        Returns:
            True when there is something.
        """
        cdef long long microseconds = <long long>(max(0.0, min(seconds, 3600.0)) * 1e6)
        self.acquire()
        self.awaited = not self.wait_ended and self.end.observe() <= offset
        self.wait_ended = False
        if not self.awaited:
            self.release()
            return self.end.observe() > offset
        self.release()
        with nogil:
            PyThread_acquire_lock_timed(self.woken, microseconds, 0)
        self.acquire()
        self.awaited = False
        self.release()
        return self.end.observe() > offset

    def end_wait(self) -> None:
        """Wake the thread that sleeps in `wait_for_put`, or is about to."""
        self.acquire()
        if self.awaited:
            self.wake()
        else:
            self.wait_ended = True
        self.release()

    @property
    def max_offset(self) -> int:
        """Physical offset behind the last byte written."""
        return self.end.observe()

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

    # ---- a slave

    @property
    def appended_offset(self) -> int:
        """Physical offset behind the last byte appended, be it in the middle of a record."""
        cdef int64_t offset
        self.acquire()
        offset = self.file_from_offset + self.wrote + self.partial
        self.release()
        return offset

    def append_data(self, data, int64_t phy_offset):
        """Append bytes that a master has already encoded; `max_offset` moves by whole records.

        A part of a record is kept apart until the rest has come: in the log it could pass for a
        whole one whose properties are zeros.

        Args:
            data: bytes of the master's log, which may begin and end inside a record; they must not
                change meanwhile.
            phy_offset: where they lie there; must be `appended_offset`.

        Returns:
            True; or END_OF_FILE or REFUSED.

        Raises:
            MessageIllegalError: ``phy_offset`` is not where this log ends.
            CorruptRecordError: the bytes are no records of this place; nothing was appended.
            MemoryError: a part of a record cannot be kept; nothing was appended.

        Source: RocketMQ store/CommitLog.java, appendData.
        Differs: RocketMQ appends whatever comes.
        """
        cdef Py_buffer held
        cdef int answer = 0
        cdef int status = OK
        cdef int64_t whole = 0
        PyObject_GetBuffer(data, &held, PyBUF_SIMPLE)
        self.acquire()
        if not self.follows or self.base == NULL:
            answer = ANSWER_REFUSED
        elif phy_offset != self.file_from_offset + self.wrote + self.partial:
            answer = -1
        elif held.len > self.file_size - self.wrote - self.partial:
            answer = ANSWER_END_OF_FILE
        else:
            with nogil:
                status = self.append_records(<bytes_t>held.buf, held.len, &whole)
            if self.awaited and status == OK:
                self.wake()
        self.release()
        PyBuffer_Release(&held)
        if answer == -1:
            raise MessageIllegalError(
                f"data of {phy_offset} does not follow {self.appended_offset}"
            )
        if status == NO_MEMORY:
            raise MemoryError
        if status != OK:
            at = self.file_from_offset + whole
            raise CorruptRecordError("the master's data", at, status_text(status))
        return answer or True

    cdef int append_records(self, bytes_t data, int64_t size, int64_t* whole) noexcept nogil:
        """Check all records, then store the whole ones; OK, or what lies at ``whole``.

        They are stored one behind the other, and each one's size word last: of a copy that a kill
        breaks off, any bytes may be missing, its first ones, too (`memcpy` may store them last). In
        front of good records that would be damage; behind the last one it is nothing.
        """
        cdef int64_t count = 0, store_timestamp = 0, at = 0, step
        cdef int64_t stop = self.wrote + self.partial + size
        cdef int64_t position = self.wrote
        cdef int status = OK
        whole[0] = position
        if self.partial:
            at = self.complete(data, size)
            if at < 0:
                return NO_MEMORY
            status = self.check_records(
                self.part, position + self.partial + at, whole, &count, &store_timestamp
            )
        if status == OK and at < size:
            status = self.check_records(data + at, stop, whole, &count, &store_timestamp)
        if status != OK:
            return status
        if not self.has_room_for(stop - whole[0]):
            return NO_MEMORY
        if self.partial and position < whole[0]:
            step = self.partial + at
            self.store_record(position, self.part, step)
            position += step
        while position < whole[0]:
            step = min(max(load_i32(data + at), BLANK_SIZE_MIN), whole[0] - position)
            self.store_record(position, data + at, step)
            position += step
            at += step
        RMQ_ASSERT(position == whole[0])
        RMQ_ASSERT(size - at <= self.part_room)
        if at < size:
            memcpy(self.part, data + at, size - at)
        if stop == whole[0]:
            self.let_go_of_room()
        self.put_count += count
        self.put_size += size
        RMQ_ASSERT(whole[0] >= self.wrote)
        RMQ_ASSERT(stop <= self.file_size)
        self.wrote = whole[0]
        self.partial = stop - whole[0]
        if store_timestamp:
            self.last_timestamp = store_timestamp
        self.end.publish(self.file_from_offset + self.wrote)
        return OK

    cdef int64_t complete(self, bytes_t data, int64_t size) noexcept nogil:
        """Copy what ``data`` has of the record whose first bytes are kept; how much that is.

        Returns:
            that; -1 when there is no memory.
        """
        cdef RecordHead head
        cdef int64_t at = 0, step
        cdef int status
        while at < size:
            status = next_record(
                self.part, self.partial + at, self.file_from_offset + self.wrote,
                self.file_from_offset + self.file_size, 0, &head,
            )
            if status == PARTIAL:
                step = min(size - at, head.total_size - self.partial - at)
            elif status == BLANK:
                step = size - at
            else:
                break
            if not self.has_room_for(self.partial + at + step):
                return -1
            RMQ_ASSERT(step > 0)
            memcpy(self.part + self.partial + at, data + at, step)
            at += step
        return at

    cdef bint has_room_for(self, int64_t size) noexcept nogil:
        """Make room for a part of so many bytes; False when there is no memory."""
        cdef uint8_t* grown
        if size > self.part_room:
            grown = <uint8_t*>realloc(self.part, 2 * size)
            if grown == NULL:
                return False
            self.part, self.part_room = grown, 2 * size
        return True

    cdef void let_go_of_room(self) noexcept nogil:
        """Give back what a long part of a record took."""
        if self.part_room > PART_ROOM_KEPT:
            free(self.part)
            self.part, self.part_room = NULL, 0

    cdef void store_record(self, int64_t position, bytes_t record, int64_t size) noexcept nogil:
        RMQ_ASSERT(size >= BLANK_SIZE_MIN)
        RMQ_ASSERT(position + size <= self.file_size)
        memcpy(self.base + position + 4, record + 4, size - 4)
        publish_i32(self.base + position, load_i32(record))

    cdef int check_records(
        self, bytes_t data, int64_t stop, int64_t* whole, int64_t* count, int64_t* store_timestamp
    ) noexcept nogil:
        """Move ``whole``, where ``data`` begins, over the whole records below ``stop``.

        Returns:
            OK, or what is no record there.
        """
        cdef RecordHead head
        cdef int64_t begin = whole[0]
        cdef int status
        while whole[0] < stop:
            status = next_record(
                data + whole[0] - begin, stop - whole[0], self.file_from_offset + whole[0],
                self.file_from_offset + self.file_size, CHECK_BODY, &head,
            )
            if status == OK:
                whole[0] += head.total_size
                count[0] += 1
                store_timestamp[0] = head.store_timestamp
            elif status == BLANK and stop == self.file_size:
                whole[0] = stop
            elif status == BLANK or status == PARTIAL:
                break
            else:
                return status
        return OK

    def drop_partial(self) -> None:
        """Take back the bytes behind the last whole record."""
        self.acquire()
        self.partial = 0
        self.let_go_of_room()
        self.release()
