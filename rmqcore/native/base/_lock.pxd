# The reentrant lock, for native code that acquires it without a Python call.
from cpython.pythread cimport PyThread_type_lock

cdef extern from "pythread.h" nogil:
    int PY_LOCK_ACQUIRED, PY_LOCK_INTR
    int PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int intr_flag)


cdef class ReentrantLock:
    cdef PyThread_type_lock lock
    cdef long owner
    cdef readonly int depth
    # whether `locks_held` counts it
    cdef bint counted
    cdef void note_acquired(self) noexcept
    cdef bint held(self) noexcept
    cdef bint try_acquire(self) noexcept
    cdef void release(self) noexcept
