# Waiting for the disk, for the leaf that puts.
from libc.stdint cimport int64_t

from rmqcore._turn cimport Turn

cdef extern from *:
    """
    #ifndef RMQ_ENDED
    #define RMQ_ENDED
    #include <pthread.h>
    #include <time.h>

    /* Counts the flushes that have ended, for those who wait for the next one to end. */
    typedef struct {
        pthread_mutex_t mutex;
        pthread_cond_t changed;
        long long count;
    } rmq_ended;

    static int rmq_ended_init(rmq_ended *ended) {
        pthread_condattr_t attributes;
        int failed = pthread_mutex_init(&ended->mutex, NULL);
        failed |= pthread_condattr_init(&attributes);
    #ifdef __linux__
        failed |= pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    #endif
        failed |= pthread_cond_init(&ended->changed, &attributes);
        pthread_condattr_destroy(&attributes);
        ended->count = 0;
        return failed;
    }

    static void rmq_ended_add(rmq_ended *ended) {
        pthread_mutex_lock(&ended->mutex);
        ended->count++;
        pthread_cond_broadcast(&ended->changed);
        pthread_mutex_unlock(&ended->mutex);
    }

    static long long rmq_ended_seen(rmq_ended *ended) {
        return __atomic_load_n(&ended->count, __ATOMIC_ACQUIRE);
    }

    static void rmq_ended_wait(rmq_ended *ended, long long seen, double until) {
        struct timespec at;
        at.tv_sec = (time_t)until;
        at.tv_nsec = (long)((until - (double)at.tv_sec) * 1e9);
        pthread_mutex_lock(&ended->mutex);
        while (ended->count == seen &&
               pthread_cond_timedwait(&ended->changed, &ended->mutex, &at) == 0) {
        }
        pthread_mutex_unlock(&ended->mutex);
    }
    #endif
    """
    ctypedef struct rmq_ended:
        pass


cdef class CommitGroup:
    cdef Turn turn
    cdef object lead
    cdef int64_t flushed
    cdef rmq_ended ended
    cpdef bint wait(self, int64_t offset, double seconds) except -1
    cdef bint follow(self, int64_t offset, long long seen, double until) noexcept nogil
