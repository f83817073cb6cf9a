"""Group commit: many threads wait for the disk, and one of them, the leader, flushes for all.

A thread whose record is not on the disk yet becomes the leader when there is none: it flushes what
all threads have put so far. The others are followers; they wait without the GIL, first come first
served. When a flush ends,

- the followers whose record it covered return one after the other: each wakes the next one as soon
  as it has the GIL. Woken all at once, they would only queue for the GIL.
- the next leader waits a moment, the gathering time, until the threads that have just returned have
  put again; the last of them to arrive leads. Otherwise two groups would form that flush in
  alternation, each for about half of the threads.

The gathering time is no longer than the last flush took: more could not be saved. When fewer than
half of the threads came in it, the next flush begins at once; each time that happens again, twice
as many flushes do.
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport PyThread_allocate_lock, PyThread_free_lock, PyThread_release_lock
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
cimport cython

from rmqcore.native.base._published cimport observe_word, publish_word
from rmqcore.native.format._bytes cimport RMQ_ASSERT
from rmqcore.native.log._log_end cimport (
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
)
from rmqcore.native.base._lock cimport PyThread_acquire_lock_timed, ReentrantLock
from rmqcore.native.base._world cimport read_monotonic_s

cdef extern from "<sched.h>" nogil:
    int sched_yield()

# A waiting thread looks for signals this often.
cdef double SIGNALS_EVERY_S = 0.05
# The longest gathering time.
cdef double MOMENT_MAX_S = 0.001
# After a gathering time that was in vain at most this many flushes go without one.
cdef int PAUSE_MAX = 31
# A yield that takes longer than this shows that the processor has other work; then this many woken
# threads do not yield.
cdef double GIVE_WAY_MAX_S = 0.0005
cdef int HURRIED_COUNT = 1000


@cython.final
cdef class CommitGroup:
    """Threads that wait until their record is on the disk.

    Args:
        lead: called by the leader with its own offset; flushes all that was put by now and returns
            the flushed offset. What it raises, the leader's caller gets; the next follower becomes
            the leader then.

    Threads: any. A signal handler or a finalizer that waits inside ``lead`` flushes by itself.
    """

    def __cinit__(self, lead):
        self.lead_lock = ReentrantLock()
        self.lead = lead
        if pthread_mutex_init(&self.mutex, NULL) != 0:
            raise MemoryError

    def __dealloc__(self):
        cdef Caller* caller
        while self.spare != NULL:
            caller = self.spare
            self.spare = caller.next
            PyThread_free_lock(caller.woken)
            free(caller)
        pthread_mutex_destroy(&self.mutex)

    cpdef bint wait(self, int64_t offset, double seconds) except -1:
        """Return when everything below ``offset`` is on the disk.

        Args:
            offset: physical offset behind the caller's record.
            seconds: how long to follow another leader; a flush of its own is always finished.

        Returns:
            False when the disk did not confirm it in time.
        """
        cdef double end = read_monotonic_s() + seconds
        cdef Caller* me
        cdef Role role
        while observe_word(&self.flushed) < offset:
            if self.lead_lock.held() or self.enter():
                self.flush(offset)
                continue
            me = self.new_caller(offset)
            with nogil:
                role = self.join(me, min(end, read_monotonic_s() + SIGNALS_EVERY_S))
            if role == TOLD:
                self.wake_next()
            elif role == LEADS:
                self.flush(offset)
            elif observe_word(&self.flushed) < offset:
                PyErr_CheckSignals()
                if read_monotonic_s() >= end:
                    return False
        return True

    cdef int flush(self, int64_t offset) except -1:
        """Flush as the leader, or once more in what interrupted the leader."""
        cdef bint inside = self.lead_lock.held()
        cdef double began = read_monotonic_s()
        cdef double seconds = 0
        cdef int64_t reached
        self.lead_lock.try_acquire()
        try:
            reached = self.lead(offset)
            publish_word(&self.flushed, max(reached, self.flushed))
            seconds = read_monotonic_s() - began
        finally:
            self.lead_lock.release()
            if not inside:
                self.end(seconds)
        return 0

    cdef bint enter(self) noexcept nogil:
        """Become the leader when there is none, and nobody to gather; whether this thread did."""
        cdef bint leads = False
        pthread_mutex_lock(&self.mutex)
        if not self.leading:
            leads = self.all_came(self.waiting.count + 1) or read_monotonic_s() >= self.moment_ends
            self.leading = leads
        pthread_mutex_unlock(&self.mutex)
        return leads

    cdef bint all_came(self, int64_t callers) noexcept nogil:
        """True when all expected threads are there; the gathering time was not in vain then."""
        if callers < self.expected:
            return False
        self.pause_next = 0
        return True

    cdef Caller* new_caller(self, int64_t offset) except NULL:
        """A list entry for a follower; kept for reuse, as it may be woken after it has left."""
        cdef Caller* caller
        pthread_mutex_lock(&self.mutex)
        caller = self.spare
        if caller != NULL:
            self.spare = caller.next
        pthread_mutex_unlock(&self.mutex)
        if caller == NULL:
            caller = <Caller*>calloc(1, sizeof(Caller))
            if caller == NULL:
                raise MemoryError
            caller.woken = PyThread_allocate_lock()
            if caller.woken == NULL:
                free(caller)
                raise MemoryError
            PyThread_acquire_lock_timed(caller.woken, 0, 0)
        caller.offset = offset
        caller.role = WAITS
        return caller

    cdef Role join(self, Caller* me, double until) noexcept nogil:
        """Follow until woken to return or to lead; any other role: the time ran out before that."""
        cdef Role role
        cdef bint hurried
        pthread_mutex_lock(&self.mutex)
        add(&self.waiting, me)
        if observe_word(&self.flushed) >= me.offset:
            self.cover(me)
            until = 0
        elif not self.leading:
            if self.all_came(self.waiting.count):
                self.become_leader(me)
            elif self.waiting.count == 1:
                me.role = GUARDS
        while me.role < TOLD and self.sleep(me, until):
            pass
        role = me.role
        if role == COVERED:
            remove(&self.covered, me)
        elif role < TOLD:
            remove(&self.waiting, me)
        me.next = self.spare
        self.spare = me
        hurried = self.hurried > 0
        self.hurried -= hurried
        pthread_mutex_unlock(&self.mutex)
        if not hurried:
            self.give_way()
        return role

    cdef bint sleep(self, Caller* me, double until) noexcept nogil:
        """Sleep until woken, without the mutex; False when the time is over."""
        cdef double now = read_monotonic_s()
        cdef double due = until
        if me.role != COVERED and not self.leading:
            if me.role == GUARDS:
                due = min(until, self.moment_ends)
            if now >= due:
                self.lead_late(me)
                return True
        if now >= due:
            return False
        pthread_mutex_unlock(&self.mutex)
        PyThread_acquire_lock_timed(me.woken, <long long>((due - now) * 1e6) + 1, 0)
        pthread_mutex_lock(&self.mutex)
        return True

    cdef void give_way(self) noexcept nogil:
        """Yield to the thread that woke this one, often on this processor, so it frees the GIL."""
        cdef double began = read_monotonic_s()
        sched_yield()
        if read_monotonic_s() - began > GIVE_WAY_MAX_S:
            pthread_mutex_lock(&self.mutex)
            self.hurried = HURRIED_COUNT
            pthread_mutex_unlock(&self.mutex)

    cdef void lead_late(self, Caller* caller) noexcept nogil:
        """Lead although not all expected threads came; note when fewer than half did."""
        cdef int64_t came = self.waiting.count - (self.expected - self.missing)
        if self.moment_ends > 0 and 2 * came < self.missing:
            self.pause_next = min(2 * self.pause_next + 1, PAUSE_MAX)
            self.pause = self.pause_next
        self.become_leader(caller)

    cdef void become_leader(self, Caller* caller) noexcept nogil:
        RMQ_ASSERT(not self.leading)
        remove(&self.waiting, caller)
        caller.role = LEADS
        self.leading = True

    cdef void cover(self, Caller* caller) noexcept nogil:
        RMQ_ASSERT(caller.offset <= self.flushed)
        remove(&self.waiting, caller)
        caller.role = COVERED
        add(&self.covered, caller)

    cdef void wake_next(self) noexcept nogil:
        """Wake the next follower whose record is on the disk; a woken thread calls this."""
        cdef Caller* told
        pthread_mutex_lock(&self.mutex)
        told = self.next_told()
        pthread_mutex_unlock(&self.mutex)
        if told != NULL:
            PyThread_release_lock(told.woken)

    cdef Caller* next_told(self) noexcept nogil:
        cdef Caller* told = self.covered.first
        self.telling = told != NULL
        if told != NULL:
            RMQ_ASSERT(told.role == COVERED)
            remove(&self.covered, told)
            told.role = TOLD
        return told

    cdef void end(self, double seconds) noexcept nogil:
        """Lead no more, and wake who comes next; the flush took ``seconds``, 0 when it failed."""
        cdef double moment = min(seconds, MOMENT_MAX_S)
        cdef int64_t flushed = observe_word(&self.flushed)
        cdef Caller* told = NULL
        cdef Caller* caller
        cdef Caller* after
        pthread_mutex_lock(&self.mutex)
        RMQ_ASSERT(self.leading)
        self.leading = False
        self.expected = 1 + self.waiting.count
        caller = self.waiting.first
        while caller != NULL:
            after = caller.next
            if caller.offset <= flushed:
                self.cover(caller)
            caller = after
        self.missing = self.expected - self.waiting.count
        if self.pause > 0:
            self.pause -= 1
            moment = 0
        self.moment_ends = read_monotonic_s() + moment if moment > 0 else 0
        caller = self.waiting.first
        if caller != NULL:
            if moment > 0:
                caller.role = GUARDS
            else:
                self.become_leader(caller)
        if not self.telling:
            told = self.next_told()
        pthread_mutex_unlock(&self.mutex)
        if caller != NULL:
            PyThread_release_lock(caller.woken)
        if told != NULL:
            PyThread_release_lock(told.woken)


cdef void add(Callers* callers, Caller* caller) noexcept nogil:
    caller.next = NULL
    if callers.last == NULL:
        callers.first = caller
    else:
        callers.last.next = caller
    callers.last = caller
    callers.count += 1


cdef void remove(Callers* callers, Caller* caller) noexcept nogil:
    cdef Caller* before = NULL
    cdef Caller* at = callers.first
    RMQ_ASSERT(callers.count > 0)
    while at != caller:
        RMQ_ASSERT(at.next != NULL)
        before, at = at, at.next
    if before == NULL:
        callers.first = caller.next
    else:
        before.next = caller.next
    if callers.last == caller:
        callers.last = before
    callers.count -= 1
