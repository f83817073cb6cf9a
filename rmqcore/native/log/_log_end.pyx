"""The mapped end of the log: its bytes, its positions, and the lock of the threads that write it.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.pythread cimport PyThread_allocate_lock, PyThread_free_lock
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec
cimport cython

from rmqcore.native.base._published cimport PublishedOffset
from rmqcore.native.base._lock cimport PyThread_acquire_lock_timed
from rmqcore.native.format._bytes cimport publish_i32, store_i32
from rmqcore.native.format._layout cimport BLANK_SIZE_MIN, MAGIC_AT, MAGIC_BLANK

from rmqcore.errors import MessageIllegalError

# Store times do not step back when the clock does, up to this much.
cdef int64_t CLOCK_STEP_BACK_MAX_MS = 10000


cdef int64_t wall_clock_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000


@cython.no_gc_clear
cdef class LogEnd:
    """Where the last commit-log file is written, and how far it is.

    Attributes:
        end: physical offset behind the last byte written, published for readers.
        writable: False while nothing may be put.
        follows: True for a slave: a master's bytes may be appended although nothing may be put.
        fixed_time_ms: store time of every record; 0 for the clock's.

    Threads: any; writers hold one lock, and wait for it without the GIL.
    """

    def __cinit__(self):
        self.end = PublishedOffset()
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

    cdef int64_t timestamp(self) noexcept nogil:
        cdef int64_t now = self.fixed_time_ms if self.fixed_time_ms else wall_clock_ms()
        if now < self.last_timestamp and self.last_timestamp - now < CLOCK_STEP_BACK_MAX_MS:
            now = self.last_timestamp
        self.last_timestamp = now
        return now

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
        self.end.publish(file_from_offset + wrote_position)
        self.release()
        if <void*>view.obj != NULL:
            PyBuffer_Release(&view)

    def detach(self) -> None:
        """Refuse every further put and release the buffer."""
        cdef Py_buffer view
        self.acquire()
        view = self.view
        memset(&self.view, 0, sizeof(Py_buffer))
        self.base = NULL
        self.writable = self.follows = False
        self.release()
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
        self.awaited = self.end.observe() <= offset
        if not self.awaited:
            self.release()
            return True
        self.release()
        with nogil:
            PyThread_acquire_lock_timed(self.woken, microseconds, 0)
        self.acquire()
        self.awaited = False
        self.release()
        return self.end.observe() > offset

    def end_wait(self) -> None:
        """Wake the thread that sleeps in `wait_for_put`."""
        self.acquire()
        if self.awaited:
            self.wake()
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
        if not (self.writable or self.follows) or self.base == NULL:
            answer = ANSWER_REFUSED
        elif phy_offset != self.file_from_offset + self.wrote:
            answer = -1
        elif held.len > self.file_size - self.wrote:
            answer = ANSWER_END_OF_FILE
        else:
            with nogil:
                memcpy(self.base + self.wrote, held.buf, held.len)
            self.advance(held.len, 0)
        self.release()
        PyBuffer_Release(&held)
        if answer == -1:
            raise MessageIllegalError(f"data of {phy_offset} does not follow {self.max_offset}")
        return answer or True
