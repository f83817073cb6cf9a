"""A lock that no signal can leave behind, with a limit of time and a count for one thread.

Python code that takes a lock with a time limit can be interrupted (KeyboardInterrupt) between the
taking and the ``try`` that would give it back. Here both happen inside one native call, which a
``with`` statement pairs without a gap.

Floor: F0; imports nothing of rmqcore.
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport (
    PyThread_allocate_lock, PyThread_free_lock, PyThread_get_thread_ident, PyThread_release_lock,
    PyThread_type_lock,
)
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
cimport cython

cdef extern from "pythread.h" nogil:
    int PY_LOCK_ACQUIRED, PY_LOCK_INTR
    int PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int intr_flag)

cdef extern from *:
    """
    static __thread int rmq_turns_held = 0;
    static inline int rmq_count_turns(int change) { return rmq_turns_held += change; }
    """
    int rmq_count_turns(int change) noexcept nogil

cdef extern from *:
    """
    #include <pthread.h>
    #include <time.h>

    /* Counts how often a turn was given back, for those who wait for the next time. */
    typedef struct {
        pthread_mutex_t mutex;
        pthread_cond_t changed;
        long long count;
    } rmq_releases;

    static int rmq_releases_init(rmq_releases *releases) {
        pthread_condattr_t attributes;
        int failed = pthread_mutex_init(&releases->mutex, NULL);
        failed |= pthread_condattr_init(&attributes);
    #ifdef __linux__
        failed |= pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    #endif
        failed |= pthread_cond_init(&releases->changed, &attributes);
        pthread_condattr_destroy(&attributes);
        releases->count = 0;
        return failed;
    }

    static void rmq_releases_add(rmq_releases *releases) {
        pthread_mutex_lock(&releases->mutex);
        releases->count++;
        pthread_cond_broadcast(&releases->changed);
        pthread_mutex_unlock(&releases->mutex);
    }

    static void rmq_releases_wait(rmq_releases *releases, long long seen, double until) {
        struct timespec at;
        at.tv_sec = (time_t)until;
        at.tv_nsec = (long)((until - (double)at.tv_sec) * 1e9);
        pthread_mutex_lock(&releases->mutex);
        while (releases->count == seen &&
               pthread_cond_timedwait(&releases->changed, &releases->mutex, &at) == 0) {
        }
        pthread_mutex_unlock(&releases->mutex);
    }
    """
    ctypedef struct rmq_releases:
        long long count
    int rmq_releases_init(rmq_releases* releases) nogil
    void rmq_releases_add(rmq_releases* releases) noexcept nogil
    void rmq_releases_wait(rmq_releases* releases, long long seen, double until) noexcept nogil

cdef double LONGEST_S = 1e6
# Signals are looked for so often while a thread waits for the next release.
cdef double SIGNALS_EVERY_S = 0.05


def turns_held() -> int:
    """How many turns, of whatever kind, this thread has: 0 outside of any.

    Whoever is called inside may be a signal handler or a finalizer, and must not wait for another
    turn: the thread that has it may be waiting for one of ours.
    """
    return rmq_count_turns(0)


cdef double monotonic() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + now.tv_nsec * 1e-9


@cython.final
cdef class Turn:
    """Who may go on alone.

    - The thread that has the turn gets it again at once: a signal handler or a finalizer that runs
      inside does not wait for itself. `depth` tells how often it has it.
    - Signal handlers run while a thread waits; what they raise ends the wait.

    Threads: any.
    """

    cdef PyThread_type_lock lock
    cdef long owner
    cdef readonly int depth
    cdef rmq_releases given_back

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL or rmq_releases_init(&self.given_back) != 0:
            raise MemoryError

    @property
    def releases(self) -> int:
        """How often the turn has been given back."""
        return self.given_back.count

    def wait_for_release(self, long long seen, double seconds) -> None:
        """Return when the turn was given back since `releases` was ``seen``, or time ran out.

        All who wait go on at once, whether or not one of them takes the turn.
        """
        cdef double end = monotonic() + max(0.0, min(seconds, LONGEST_S))
        cdef double now = monotonic()
        while self.given_back.count == seen and now < end:
            with nogil:
                rmq_releases_wait(&self.given_back, seen, min(end, now + SIGNALS_EVERY_S))
            PyErr_CheckSignals()
            now = monotonic()

    def __dealloc__(self):
        if self.lock != NULL:
            PyThread_free_lock(self.lock)

    def within(self, double seconds=1e6) -> Attempt:
        """``with turn.within(seconds) as mine``: ``mine`` is False when the time ran out."""
        cdef Attempt attempt = Attempt.__new__(Attempt)
        attempt.turn = self
        attempt.seconds = max(0.0, min(seconds, LONGEST_S))
        return attempt


@cython.final
cdef class Attempt:
    """One wait for the turn, made by `Turn.within`; a context manager."""

    cdef Turn turn
    cdef double seconds
    cdef bint taken

    def __enter__(self) -> bool:
        cdef long me = PyThread_get_thread_ident()
        cdef Turn turn = self.turn
        cdef double end
        cdef long long left
        cdef int answer
        if turn.depth == 0 or turn.owner != me:
            answer = PyThread_acquire_lock_timed(turn.lock, 0, 0)
            end = monotonic() + self.seconds
            while answer != PY_LOCK_ACQUIRED:
                left = <long long>((end - monotonic()) * 1e6)
                if left <= 0:
                    return False
                with nogil:
                    answer = PyThread_acquire_lock_timed(turn.lock, left, 1)
                if answer == PY_LOCK_INTR:
                    PyErr_CheckSignals()
            turn.owner = me
        turn.depth += 1
        rmq_count_turns(1)
        self.taken = True
        return True

    def __exit__(self, kind, error, trace) -> None:
        if self.taken:
            self.taken = False
            self.turn.depth -= 1
            rmq_count_turns(-1)
            if self.turn.depth == 0:
                self.turn.owner = 0
                PyThread_release_lock(self.turn.lock)
                rmq_releases_add(&self.turn.given_back)
