# Offsets that one thread publishes and others read, without a lock and without the GIL.
from libc.stdint cimport int64_t
cimport cython

cdef extern from *:
    """
    static inline void publish_word(int64_t *at, int64_t value) {
        __atomic_store_n(at, value, __ATOMIC_RELEASE);
    }

    static inline int64_t observe_word(const int64_t *at) {
        return __atomic_load_n(at, __ATOMIC_ACQUIRE);
    }
    """
    void publish_word(int64_t* at, int64_t value) noexcept nogil
    int64_t observe_word(const int64_t* at) noexcept nogil


cdef class PublishedOffset:
    cdef int64_t word

    @cython.final
    cdef inline void publish(self, int64_t offset) noexcept nogil:
        publish_word(&self.word, offset)

    @cython.final
    cdef inline int64_t observe(self) noexcept nogil:
        return observe_word(&self.word)
