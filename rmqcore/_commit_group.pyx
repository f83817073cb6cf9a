"""Many callers wait for the disk, one of them flushes for all.

A caller whose record is not on the disk yet leads when nobody does: it flushes what all have put so
far. The others wait without the GIL; when a flush ends, those whose record it covered go on, and
one of the rest leads the next. Nobody else wakes the interpreter.

Floor: F1; imports _turn.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t
cimport cython

from rmqcore._bytes cimport observe_word, publish_word
from rmqcore._turn cimport PY_LOCK_ACQUIRED, PyThread_acquire_lock_timed, Turn, monotonic_s

cdef extern from *:
    int rmq_ended_init(rmq_ended* ended) nogil
    void rmq_ended_add(rmq_ended* ended) noexcept nogil
    long long rmq_ended_seen(rmq_ended* ended) noexcept nogil
    void rmq_ended_wait(rmq_ended* ended, long long seen, double until) noexcept nogil

# Signals are looked for so often while a thread waits.
cdef double SIGNALS_EVERY_S = 0.05


@cython.final
cdef class CommitGroup:
    """Callers that wait until their record is on the disk.

    Args:
        lead: called with the caller's offset; flushes for all who have put by now and returns the
            flushed offset. What it raises, its caller gets; the next in line leads then.

    Threads: any. A signal handler or a finalizer that waits inside ``lead`` leads by itself.
    """

    def __cinit__(self, lead):
        self.turn = Turn()
        self.lead = lead
        if rmq_ended_init(&self.ended) != 0:
            raise MemoryError

    cpdef bint wait(self, int64_t offset, double seconds) except -1:
        """Return when everything below ``offset`` is on the disk.

        Args:
            offset: physical offset behind the caller's record.
            seconds: how long to wait for others; one's own flush is always waited for.

        Returns:
            False when the disk did not confirm it in time.
        """
        cdef double end = monotonic_s() + seconds
        cdef long long seen
        cdef int64_t reached
        cdef bint mine
        while observe_word(&self.flushed) < offset:
            seen = rmq_ended_seen(&self.ended)
            mine = self.turn.take()
            if not mine:
                with nogil:
                    mine = self.follow(offset, seen, min(end, monotonic_s() + SIGNALS_EVERY_S))
                if mine:
                    self.turn.taken()
            if mine:
                try:
                    if observe_word(&self.flushed) < offset:
                        reached = self.lead(offset)
                        publish_word(&self.flushed, max(reached, self.flushed))
                finally:
                    self.turn.give_back()
                    rmq_ended_add(&self.ended)
            elif observe_word(&self.flushed) < offset:
                PyErr_CheckSignals()
                if monotonic_s() >= end:
                    return False
        return True

    cdef bint follow(self, int64_t offset, long long seen, double until) noexcept nogil:
        """Wait for others; True when this thread has got the turn's lock and is to lead."""
        while monotonic_s() < until:
            rmq_ended_wait(&self.ended, seen, until)
            if observe_word(&self.flushed) >= offset:
                return False
            seen = rmq_ended_seen(&self.ended)
            if PyThread_acquire_lock_timed(self.turn.lock, 0, 0) == PY_LOCK_ACQUIRED:
                return True
        return False
