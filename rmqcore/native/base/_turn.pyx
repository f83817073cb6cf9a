"""A lock that no signal can leave behind, with a limit of time and a count for one thread.

Python code that takes a lock with a time limit can be interrupted (KeyboardInterrupt) between the
taking and the ``try`` that would give it back. Here the taking is inside one native call, and an
attempt that is let go gives back what it took: the ``with`` of Python 3.14 lets handlers run before
it sees to it that ``__exit__`` is called (python/cpython#148874).
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport (
    PyThread_allocate_lock, PyThread_free_lock, PyThread_get_thread_ident, PyThread_release_lock,
)
cimport cython

cdef extern from *:
    """
    static __thread int rmq_turns_held = 0;
    static inline int rmq_count_turns(int change) { return rmq_turns_held += change; }
    """
    int rmq_count_turns(int change) noexcept nogil

cdef double LONGEST_S = 1e6


def turns_held() -> int:
    """How many turns, of whatever kind, this thread has: 0 outside of any.

    Whoever is called inside may be a signal handler or a finalizer, and must not wait for another
    turn: the thread that has it may be waiting for one of ours.
    """
    return rmq_count_turns(0)


@cython.final
cdef class Turn:
    """Who may go on alone.

    - The thread that has the turn gets it again at once: a signal handler or a finalizer that runs
      inside does not wait for itself. `depth` tells how often it has it.
    - Signal handlers run while a thread waits; what they raise ends the wait.

    Threads: any.
    """

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.lock != NULL:
            PyThread_free_lock(self.lock)

    cdef void taken(self) noexcept:
        """Note that this thread, which holds the lock, has the turn once more."""
        self.owner = PyThread_get_thread_ident()
        self.depth += 1
        rmq_count_turns(1)

    cdef bint held(self) noexcept:
        """True when this thread has the turn."""
        return self.depth != 0 and self.owner == <long>PyThread_get_thread_ident()

    cdef bint take(self) noexcept:
        """Take the turn when that needs no waiting; False when another thread has it."""
        if not self.held():
            if PyThread_acquire_lock_timed(self.lock, 0, 0) != PY_LOCK_ACQUIRED:
                return False
        self.taken()
        return True

    cdef void give_back(self) noexcept:
        self.depth -= 1
        rmq_count_turns(-1)
        if self.depth == 0:
            self.owner = 0
            PyThread_release_lock(self.lock)

    def within(self, double seconds=1e6) -> Attempt:
        """``with turn.within(seconds) as mine``: ``mine`` is False when the time ran out."""
        cdef Attempt attempt = Attempt.__new__(Attempt)
        attempt.turn = self
        attempt.seconds = max(0.0, min(seconds, LONGEST_S))
        return attempt


@cython.final
@cython.no_gc
cdef class Attempt:
    """One wait for the turn, made by `Turn.within`; a context manager."""

    cdef Turn turn
    cdef double seconds
    cdef bint taken

    def __enter__(self) -> bool:
        cdef Turn turn = self.turn
        cdef double end
        cdef long long left
        cdef int answer
        if turn.take():
            self.taken = True
            return True
        end = monotonic_s() + self.seconds
        while True:
            left = <long long>((end - monotonic_s()) * 1e6)
            if left <= 0:
                return False
            with nogil:
                answer = PyThread_acquire_lock_timed(turn.lock, left, 1)
            if answer == PY_LOCK_ACQUIRED:
                turn.taken()
                self.taken = True
                return True
            if answer == PY_LOCK_INTR:
                PyErr_CheckSignals()

    def __exit__(self, kind, error, trace) -> None:
        self.leave()

    def __dealloc__(self):
        self.leave()

    cdef void leave(self) noexcept:
        if self.taken:
            self.taken = False
            self.turn.give_back()
