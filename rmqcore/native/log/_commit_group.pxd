# Waiting for the disk, for the leaf that puts.
from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport int64_t

from rmqcore.native.log._log_end cimport pthread_mutex_t
from rmqcore.native.base._lock cimport ReentrantLock


# What a caller that waits is doing, or is to do.
cdef enum Role:
    WAITS  # its record is not on the disk
    GUARDS  # as before, and when the moment is over it leads
    COVERED  # its record is on the disk; to be told
    TOLD  # it goes on, and tells the next one
    LEADS  # it flushes


cdef struct Caller:
    PyThread_type_lock woken
    int64_t offset
    Role role
    Caller* next


cdef struct Callers:
    Caller* first
    Caller* last
    int64_t count


# The mutex protects everything but `flushed`, which only the leader moves.
cdef class CommitGroup:
    cdef ReentrantLock lead_lock  # held by the leader, whose signal handlers may put again
    cdef object lead
    cdef int64_t flushed
    cdef pthread_mutex_t mutex
    cdef bint leading  # somebody flushes
    cdef bint telling  # somebody was told and has not told the next one yet
    cdef Callers waiting
    cdef Callers covered
    cdef Caller* spare
    cdef int64_t expected  # callers when the last flush ended, its leader included
    cdef int64_t missing  # those of them who have to come back
    cdef double moment_ends  # until then they are waited for
    cdef int pause  # flushes still to begin at once
    cdef int pause_next  # as many after the last moment that was in vain
    cdef int hurried  # those still to be woken who do not give way
    cpdef bint wait(self, int64_t offset, double seconds) except -1
    cdef int flush(self, int64_t offset) except -1
    cdef bint enter(self) noexcept nogil
    cdef bint all_came(self, int64_t callers) noexcept nogil
    cdef Caller* new_caller(self, int64_t offset) except NULL
    cdef Role join(self, Caller* me, double until) noexcept nogil
    cdef bint sleep(self, Caller* me, double until) noexcept nogil
    cdef void give_way(self) noexcept nogil
    cdef void lead_late(self, Caller* caller) noexcept nogil
    cdef void take_lead(self, Caller* caller) noexcept nogil
    cdef void cover(self, Caller* caller) noexcept nogil
    cdef void tell(self) noexcept nogil
    cdef Caller* next_told(self) noexcept nogil
    cdef void end(self, double seconds) noexcept nogil
