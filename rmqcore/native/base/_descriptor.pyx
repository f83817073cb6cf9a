"""`Descriptor`: a file descriptor that is closed exactly once, whatever interrupts its owner.

Between `os.close` and forgetting the number an interrupt may come; a second `os.close` then fails,
or closes what another thread has opened under that number since. Here both are one step.

Never opens anything.
"""

cimport cython


cdef extern from "<unistd.h>":
    int c_close "close"(int fd) noexcept nogil


@cython.final
cdef class Descriptor:
    """Owns an open file descriptor; who drops it closes it.

    Args:
        fd: the number that the system gave.

    Threads: one closes, any may ask for the number.
    """

    cdef int fd

    def __cinit__(self, int fd):
        self.fd = fd

    def __dealloc__(self):
        self.shut()

    cdef void shut(self) noexcept:
        cdef int fd = self.fd
        self.fd = -1
        if fd >= 0:
            # what the system says of it is of no use: the number is free in any case
            with nogil:
                c_close(fd)

    def fileno(self) -> int:
        """The number.

        Raises:
            ValueError: it is closed.
        """
        if self.fd < 0:
            raise ValueError("the descriptor is closed")
        return self.fd

    def close(self) -> None:
        """Give the number back to the system; idempotent."""
        self.shut()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.fd < 0
