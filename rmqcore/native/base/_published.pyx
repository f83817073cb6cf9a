"""An offset that one thread publishes and any other reads, without a lock."""

from libc.stdint cimport int64_t
cimport cython


@cython.final
cdef class PublishedOffset:
    """How far something has come: the writer publishes it, readers need not know the writer.

    A thread that reads an offset also sees every byte that was stored before it was published.

    Threads: one publishes at a time, any read.
    """

    def move_to(self, int64_t offset) -> None:
        """Publish an offset."""
        self.publish(offset)

    @property
    def offset(self) -> int:
        """The offset as it stands now; 0 at first."""
        return self.observe()
