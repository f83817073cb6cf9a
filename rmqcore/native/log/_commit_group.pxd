# Group commit, for `_putter`, which waits in it without a Python call.
from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport int64_t

from rmqcore.native.log._log_end cimport pthread_mutex_t
from rmqcore.native.base._lock cimport ReentrantLock


# What a waiting thread is doing, or is woken to do.
cdef enum Role:
    WAITS  # a follower: its record is not on the disk yet
    GUARDS  # a follower that becomes the leader when the gathering time is over
    COVERED  # its record is on the disk, but nobody has woken it yet
    TOLD  # woken: it returns, and wakes the next covered one
    LEADS  # the leader: it flushes for all


cdef struct Caller:
    PyThread_type_lock woken
    int64_t offset
    Role role
    Caller* next


cdef struct Callers:
    Caller* first
    Caller* last
    int64_t count


# The mutex protects everything but `flushed`, which only the leader changes.
cdef class CommitGroup:
    cdef ReentrantLock lead_lock  # held by the leader, whose signal handlers may put again
    cdef object lead
    cdef int64_t flushed
    cdef pthread_mutex_t mutex
    cdef bint leading  # there is a leader
    cdef bint telling  # a woken thread has not woken the next covered one yet
    cdef Callers waiting
    cdef Callers covered
    cdef Caller* spare
    cdef int64_t expected  # threads in the group when the last flush ended, its leader included
    cdef int64_t missing  # those of them that were released, and may put and wait again
    cdef double moment_ends  # until then the next leader waits for them: the gathering time
    cdef int pause  # flushes still to begin without a gathering time
    cdef int pause_next  # how many such flushes the last vain gathering time led to
    cdef int hurried  # woken threads that still skip `give_way`
    cpdef bint wait(self, int64_t offset, double seconds) except -1
    cdef int flush(self, int64_t offset) except -1
    cdef bint enter(self) noexcept nogil
    cdef bint all_came(self, int64_t callers) noexcept nogil
    cdef Caller* new_caller(self, int64_t offset) except NULL
    cdef Role join(self, Caller* me, double until) noexcept nogil
    cdef bint sleep(self, Caller* me, double until) noexcept nogil
    cdef void give_way(self) noexcept nogil
    cdef void lead_late(self, Caller* caller) noexcept nogil
    cdef void become_leader(self, Caller* caller) noexcept nogil
    cdef void cover(self, Caller* caller) noexcept nogil
    cdef void wake_next(self) noexcept nogil
    cdef Caller* next_told(self) noexcept nogil
    cdef void end(self, double seconds) noexcept nogil
