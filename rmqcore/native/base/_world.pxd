# The clocks and the syncs of native code: the system's, unless time is held or syncs are watched.
from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec

from rmqcore.native.base._published cimport observe_word

# what `hold_time` has set, in nanoseconds; 0 while the system's clocks are asked
cdef int64_t held_wall_ns
cdef int64_t held_monotonic_ns


cdef inline int64_t read_wall_clock_ns() noexcept nogil:
    cdef timespec now
    cdef int64_t held = observe_word(&held_wall_ns)
    if held:
        return held
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef inline int64_t read_wall_clock_ms() noexcept nogil:
    return read_wall_clock_ns() // 1000000


cdef inline double read_monotonic_s() noexcept nogil:
    cdef timespec now
    cdef int64_t held = observe_word(&held_monotonic_ns)
    if held:
        return held * 1e-9
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + now.tv_nsec * 1e-9


# each answers with 0, or with the errno of the refusal; only who watches it can make it raise
cdef int sync_range(void* at, int64_t size) except -1 nogil
cdef int sync_descriptor(int fd, bint data_only) except -1 nogil
