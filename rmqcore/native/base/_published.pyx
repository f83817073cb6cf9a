"""An offset that one side moves on and any other sees, without a lock between them."""

from libc.stdint cimport int64_t
cimport cython


@cython.final
cdef class PublishedOffset:
    """How far something has come, for those who must not know who brings it there.

    Whoever sees an offset also sees every byte that was stored before it was published.

    Threads: one publishes at a time, any see it.
    """

    def move_to(self, int64_t offset) -> None:
        """Publish an offset."""
        self.publish(offset)

    @property
    def offset(self) -> int:
        """The offset as it stands now; 0 at first."""
        return self.observe()
