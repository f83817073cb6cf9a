# The mapped end of the log, for the tail that puts messages there; what every put does is inlined.
from cpython.pythread cimport (
    NOWAIT_LOCK, PyThread_acquire_lock, PyThread_type_lock, WAIT_LOCK,
)
from libc.stdint cimport int64_t, uint8_t
cimport cython

from rmqcore._bytes cimport publish_word


# Answers of a put that are not receipts.
cdef enum:
    ANSWER_END_OF_FILE = 1
    ANSWER_REFUSED = 2


cdef class LogEnd:
    cdef PyThread_type_lock lock
    cdef Py_buffer view
    cdef uint8_t* base
    cdef int64_t file_from_offset
    cdef int64_t file_size
    cdef int64_t wrote
    cdef int64_t end
    cdef int64_t last_timestamp
    cdef public bint writable
    cdef public int64_t fixed_time_ms
    cdef int64_t put_count
    cdef int64_t put_size
    cdef int64_t timestamp(self) noexcept nogil

    @cython.final
    cdef inline void acquire(self) noexcept:
        if not PyThread_acquire_lock(self.lock, NOWAIT_LOCK):
            with nogil:
                PyThread_acquire_lock(self.lock, WAIT_LOCK)

    @cython.final
    cdef inline void advance(self, int64_t size, int64_t messages) noexcept:
        self.wrote += size
        self.put_count += messages
        self.put_size += size
        publish_word(&self.end, self.file_from_offset + self.wrote)
