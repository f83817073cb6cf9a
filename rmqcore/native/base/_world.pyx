"""The one place that asks the system's clocks, and that makes durable what was written.

Time can be held: then every clock of the process, native or not, says what it was told. Syncs can
be watched, and refused.

Never decides when to sleep or to sync.
"""

import os

from libc.errno cimport errno
from libc.stdint cimport int64_t

from rmqcore.native.base._published cimport observe_word, publish_word

cdef extern from *:
    """
    #include <errno.h>
    #include <fcntl.h>
    #include <sys/mman.h>
    #include <unistd.h>
    static int rmq_sync_range(void *at, size_t size) { return msync(at, size, MS_SYNC); }
    static int rmq_sync_descriptor(int fd, int data_only) {
    #ifdef __linux__
        return data_only ? fdatasync(fd) : fsync(fd);
    #else
        return data_only ? fcntl(fd, F_FULLFSYNC) : fsync(fd);
    #endif
    }
    static void rmq_begin_sync(int fd, long long at, long long size) {
    #ifdef __linux__
        sync_file_range(fd, at, size, SYNC_FILE_RANGE_WRITE);
    #else
        (void)fd; (void)at; (void)size;
    #endif
    }
    """
    void rmq_begin_sync(int fd, int64_t at, int64_t size) noexcept nogil
    int rmq_sync_range(void* at, size_t size) noexcept nogil
    int rmq_sync_descriptor(int fd, int data_only) noexcept nogil

# who is asked before each sync and told after it; and the same for code without the GIL
cdef object sync_watcher = None
cdef bint watched = False


# ---- clocks

def wall_clock_ns() -> int:
    """Unix time in nanoseconds."""
    return read_wall_clock_ns()


def wall_clock_ms() -> int:
    """Unix time in milliseconds."""
    return read_wall_clock_ms()


def monotonic_s() -> float:
    """Seconds of a clock that never steps back; only differences mean something."""
    return read_monotonic_s()


def hold_time(int64_t wall_clock_ns, int64_t monotonic_ns=0) -> None:
    """Let the clocks of this process stand at a moment until the next call or `release_time`.

    Args:
        wall_clock_ns: Unix time in nanoseconds; 0 leaves it to the system.
        monotonic_ns: what the clock that never steps back says; 0 leaves it to the system.
    """
    if wall_clock_ns < 0 or monotonic_ns < 0:
        raise ValueError(f"time is held above 0, not at {wall_clock_ns} and {monotonic_ns}")
    publish_word(&held_wall_ns, wall_clock_ns)
    publish_word(&held_monotonic_ns, monotonic_ns)


def release_time() -> None:
    """Let the clocks be the system's again."""
    publish_word(&held_wall_ns, 0)
    publish_word(&held_monotonic_ns, 0)


def held_time() -> tuple[int, int]:
    """What `hold_time` was told, as far as time has passed since: each 0 where it is not held."""
    return observe_word(&held_wall_ns), observe_word(&held_monotonic_ns)


def pass_time(double seconds) -> bool:
    """Move held time on, as a sleep of that length does; False when the system's goes on."""
    cdef int64_t wall_ns = observe_word(&held_wall_ns)
    cdef int64_t monotonic_ns = observe_word(&held_monotonic_ns)
    cdef int64_t step_ns = <int64_t>(max(0.0, seconds) * 1e9)
    if not monotonic_ns:
        return False
    if wall_ns:
        publish_word(&held_wall_ns, wall_ns + step_ns)
    publish_word(&held_monotonic_ns, monotonic_ns + step_ns)
    return True


# ---- syncs

def watch_syncs(watcher) -> None:
    """Let one object hear of every sync of this process from now on; None ends it.

    Args:
        watcher: its ``before(call, fd, at, size, path)`` answers with 0 (the call is made), or
            with an errno that the call fails with; its ``after(call, fd, at, size, result)`` is
            told what came of it, 0 or -1. ``call`` is "msync" (``at`` is an address, ``fd`` is -1),
            "fsync" or "fdatasync" (``at`` and ``size`` are 0); ``path`` is None. What they raise,
            whoever syncs gets.
    """
    global sync_watcher, watched
    sync_watcher = watcher
    watched = watcher is not None


cdef int ask(str call, int fd, int64_t at, int64_t size) except -1:
    return 0 if sync_watcher is None else sync_watcher.before(call, fd, at, size, None)


cdef int notify_watcher(str call, int fd, int64_t at, int64_t size, int failed) except -1:
    if sync_watcher is not None:
        sync_watcher.after(call, fd, at, size, -1 if failed else 0)
    return failed


cdef int sync_range_watched(void* at, int64_t size) except -1 with gil:
    cdef int64_t address = <int64_t><size_t>at
    cdef int failed = ask("msync", -1, address, size)
    if not failed:
        with nogil:
            failed = errno if rmq_sync_range(at, size) != 0 else 0
    return notify_watcher("msync", -1, address, size, failed)


cdef int sync_descriptor_watched(int fd, bint data_only) except -1 with gil:
    cdef str call = "fdatasync" if data_only else "fsync"
    cdef int failed = ask(call, fd, 0, 0)
    if not failed:
        with nogil:
            failed = errno if rmq_sync_descriptor(fd, data_only) != 0 else 0
    return notify_watcher(call, fd, 0, 0, failed)


cdef int sync_range(void* at, int64_t size) except -1 nogil:
    """Write mapped bytes through to the disk; 0 or an errno."""
    if watched:
        return sync_range_watched(at, size)
    return errno if rmq_sync_range(at, size) != 0 else 0


cdef int sync_descriptor(int fd, bint data_only) except -1 nogil:
    """Write a file or a directory through to the disk; 0 or an errno."""
    if watched:
        return sync_descriptor_watched(fd, data_only)
    return errno if rmq_sync_descriptor(fd, data_only) != 0 else 0


cdef object raise_failed(int failed):
    if failed:
        raise OSError(failed, os.strerror(failed))


def sync_fd(int fd) -> None:
    """Write a file or a directory through to the disk (``fsync``), without the GIL.

    Raises:
        OSError: the disk refused; the bytes may be lost and must not be taken as stored.
    """
    cdef int failed
    with nogil:
        failed = sync_descriptor(fd, False)
    raise_failed(failed)


def begin_sync(int fd, int64_t at, int64_t size) -> None:
    """Let the disk begin with a stretch of a file, so that a later sync has less to wait for.

    It promises nothing, and is passed over where the system cannot.

    Args:
        fd: of the file.
        at: its first byte.
        size: bytes; 0 for all behind it.
    """
    with nogil:
        rmq_begin_sync(fd, at, size)


def sync_data(int fd) -> None:
    """Write a file's data and size through to the disk (``fdatasync``), without the GIL.

    Raises:
        OSError: the disk refused; the bytes may be lost and must not be taken as stored.
    """
    cdef int failed
    with nogil:
        failed = sync_descriptor(fd, True)
    raise_failed(failed)
