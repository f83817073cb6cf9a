"""A reentrant lock with a time limit that a signal cannot leave locked.

Python code that acquires a lock with a time limit can be interrupted (KeyboardInterrupt) between
the acquiring and the ``try`` that would release it. Here the lock is acquired inside one native
call, and an `Attempt` that is dropped without ``__exit__`` releases what it acquired: the ``with``
of Python 3.14 lets signal handlers run before it sees to it that ``__exit__`` is called
(python/cpython#148874).
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport (
    PyThread_allocate_lock, PyThread_free_lock, PyThread_get_thread_ident, PyThread_release_lock,
)
cimport cython

from rmqcore.native.base._world cimport read_monotonic_s

cdef extern from *:
    """
    static __thread int rmq_locks_held = 0;
    static inline int rmq_count_locks(int change) { return rmq_locks_held += change; }
    """
    int rmq_count_locks(int change) noexcept nogil

cdef double LONGEST_S = 1e6


def locks_held() -> int:
    """How many counted `ReentrantLock` this thread holds; one held twice counts twice.

    Code that finds it above 0 may be a signal handler or a finalizer that interrupted the holder.
    It must not wait for another lock: the thread that holds that one may be waiting for one held
    here.
    """
    return rmq_count_locks(0)


@cython.final
cdef class ReentrantLock:
    """A lock that its holder may acquire again, with a time limit for everyone else.

    - The thread that holds the lock acquires it again at once: a signal handler or a finalizer
      that interrupts the holder does not deadlock. `depth` tells how often it is held.
    - Signal handlers run while a thread waits; what they raise ends the wait.
    - It is not fair: the system chooses which of the waiting threads comes next.

    Args:
        counted: whether it is one of `locks_held`; False where its holder waits for other locks.

    Threads: any.
    """

    def __cinit__(self, bint counted=True):
        self.counted = counted
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.lock != NULL:
            PyThread_free_lock(self.lock)

    cdef void note_acquired(self) noexcept:
        """Count one more acquiring by this thread, which holds the lock already."""
        self.owner = PyThread_get_thread_ident()
        self.depth += 1
        if self.counted:
            rmq_count_locks(1)

    cdef bint held(self) noexcept:
        """True when this thread holds the lock."""
        return self.depth != 0 and self.owner == <long>PyThread_get_thread_ident()

    @property
    def mine(self) -> bool:
        """Whether this thread holds the lock."""
        return self.held()

    cdef bint try_acquire(self) noexcept:
        """Acquire the lock without waiting; False when another thread holds it."""
        if not self.held():
            if PyThread_acquire_lock_timed(self.lock, 0, 0) != PY_LOCK_ACQUIRED:
                return False
        self.note_acquired()
        return True

    cdef void release(self) noexcept:
        self.depth -= 1
        if self.counted:
            rmq_count_locks(-1)
        if self.depth == 0:
            self.owner = 0
            PyThread_release_lock(self.lock)

    def within(self, double seconds=1e6) -> Attempt:
        """``with lock.within(seconds) as mine``: ``mine`` is False when the time ran out."""
        cdef Attempt attempt = Attempt.__new__(Attempt)
        attempt.target = self
        attempt.seconds = max(0.0, min(seconds, LONGEST_S))
        return attempt


@cython.final
@cython.no_gc
cdef class Attempt:
    """One attempt to acquire the lock, made by `ReentrantLock.within`; a context manager."""

    cdef ReentrantLock target
    cdef double seconds
    cdef bint acquired

    def __enter__(self) -> bool:
        cdef ReentrantLock target = self.target
        cdef double end
        cdef long long left
        cdef int answer
        if target.try_acquire():
            self.acquired = True
            return True
        end = read_monotonic_s() + self.seconds
        while True:
            left = <long long>((end - read_monotonic_s()) * 1e6)
            if left <= 0:
                return False
            with nogil:
                answer = PyThread_acquire_lock_timed(target.lock, left, 1)
            if answer == PY_LOCK_ACQUIRED:
                target.note_acquired()
                self.acquired = True
                return True
            if answer == PY_LOCK_INTR:
                PyErr_CheckSignals()

    def __exit__(self, kind, error, trace) -> None:
        self.leave()

    def __dealloc__(self):
        self.leave()

    cdef void leave(self) noexcept:
        if self.acquired:
            self.acquired = False
            self.target.release()
