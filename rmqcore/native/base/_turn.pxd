# Turns, for the leaf whose callers take them without the interpreter.
from cpython.pythread cimport PyThread_type_lock
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

cdef extern from "pythread.h" nogil:
    int PY_LOCK_ACQUIRED, PY_LOCK_INTR
    int PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int intr_flag)


cdef inline double monotonic_s() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + now.tv_nsec * 1e-9


cdef class Turn:
    cdef PyThread_type_lock lock
    cdef long owner
    cdef readonly int depth
    cdef void taken(self) noexcept
    cdef bint held(self) noexcept
    cdef bint take(self) noexcept
    cdef void give_back(self) noexcept
