# The mapped end of the log, for `_tail`, which appends there; what every put does is inlined.
from cpython.pythread cimport PyThread_release_lock, PyThread_type_lock
from libc.stdint cimport int64_t, uint8_t
cimport cython

from rmqcore.native.base._published cimport PublishedOffset
from rmqcore.native.format._bytes cimport RMQ_ASSERT, expect_write, load_i32
from rmqcore.native.format._record cimport bytes_t

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* mutex, const void* attributes)
    int pthread_mutex_destroy(pthread_mutex_t* mutex)
    int pthread_mutex_trylock(pthread_mutex_t* mutex)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)


# Answers of a put that are not receipts.
cdef enum:
    ANSWER_END_OF_FILE = 1
    ANSWER_REFUSED = 2


cdef class LogEnd:
    cdef pthread_mutex_t lock
    cdef Py_buffer view
    cdef uint8_t* base
    cdef readonly int64_t file_from_offset
    cdef int64_t file_size
    cdef int64_t wrote
    # the file that `base` maps, where large pieces are written to it by a system call; else -1
    cdef int through
    cdef object held_descriptor
    # in a slave the first bytes of a record whose rest has not come, and how many; in a master 0
    cdef uint8_t* part
    cdef int64_t part_room
    cdef int64_t partial
    cdef readonly PublishedOffset end
    cdef int64_t last_timestamp
    cdef public bint writable
    cdef public bint follows
    cdef public int64_t fixed_time_ms
    cdef int64_t put_count
    cdef int64_t put_size
    # under the lock: a thread sleeps in `wait_for_put`, and releasing `woken` wakes it
    cdef bint awaited
    # under the lock: `end_wait` came while nobody slept, so the next wait ends at once
    cdef bint wait_ended
    cdef PyThread_type_lock woken
    cdef int64_t timestamp(self) noexcept nogil
    cdef int append_records(self, bytes_t data, int64_t size, int64_t* whole) noexcept nogil
    cdef int64_t complete(self, bytes_t data, int64_t size) noexcept nogil
    cdef bint has_room_for(self, int64_t size) noexcept nogil
    cdef void let_go_of_room(self) noexcept nogil
    cdef void store_record(self, int64_t position, bytes_t record, int64_t size) noexcept nogil
    cdef int check_records(
        self, bytes_t data, int64_t stop, int64_t* whole, int64_t* count, int64_t* store_timestamp
    ) noexcept nogil

    @cython.final
    cdef inline void acquire(self) noexcept:
        if pthread_mutex_trylock(&self.lock) != 0:
            with nogil:
                pthread_mutex_lock(&self.lock)

    @cython.final
    cdef inline void release(self) noexcept:
        pthread_mutex_unlock(&self.lock)

    @cython.final
    cdef inline void advance(self, int64_t size, int64_t messages) noexcept:
        RMQ_ASSERT(load_i32(self.base + self.wrote) > 0)
        RMQ_ASSERT(size > 0)
        self.wrote += size
        RMQ_ASSERT(self.wrote <= self.file_size)
        RMQ_ASSERT(self.end.word <= self.file_from_offset + self.wrote)
        self.put_count += messages
        self.put_size += size
        self.end.publish(self.file_from_offset + self.wrote)
        expect_write(self.base + self.wrote)
        if self.awaited:
            self.wake()

    @cython.final
    cdef inline void wake(self) noexcept:
        self.awaited = False
        PyThread_release_lock(self.woken)
