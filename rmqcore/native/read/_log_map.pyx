"""The map of the log: from a physical offset to mapped bytes, without a Python call.

Holds a buffer of each file that a reader has asked for, so a kernel can follow physical offsets
from file to file. A file that is not held yet is mapped by Python, and added with `add`.
"""

from libc.stdint cimport int64_t
cimport cython

from rmqcore.native.format._bytes cimport RMQ_ASSERT, expect_read
from rmqcore.native.base._hold cimport BufferHold
from rmqcore.native.base._published cimport PublishedOffset
from rmqcore.native.format._layout cimport BORN_TIMESTAMP_AT
from rmqcore.native.format._message_ext cimport find_in_hold
from rmqcore.native.format._record cimport bytes_t

cdef enum:
    BYTES_AHEAD = 512


@cython.final
cdef class LogMap:
    """Mapped log files by their number.

    Args:
        end: where the log ends; nothing behind is handed out.
        file_size: bytes of every log file.
        held_max: most files held; one more drops all, and they are added again at need.

    Threads: any; changes happen under the GIL.
    """

    def __cinit__(
        self, PublishedOffset end not None, int64_t file_size, *, Py_ssize_t held_max=1024
    ):
        self.end = end
        self.file_size = file_size
        self.held_max = held_max
        self.clear()

    def clear(self) -> None:
        """Drop every file."""
        self.holds = []
        self.held_count = 0
        self.first_base = 0

    def add(self, buffer, path, int64_t base_offset) -> None:
        """Hold a whole file that begins at ``base_offset``."""
        cdef Py_ssize_t number
        if self.held_count >= self.held_max or base_offset < self.first_base:
            self.clear()
        if not self.holds:
            self.first_base = base_offset
        number = (base_offset - self.first_base) // self.file_size
        while len(self.holds) <= number:
            self.holds.append(None)
        if self.holds[number] is None:
            self.held_count += 1
        self.holds[number] = BufferHold(buffer, path, base_offset)

    def delete_before(self, int64_t min_phy_offset) -> int:
        """Drop what is held when files before an offset were deleted; deletes nothing on disk."""
        if self.first_base < min_phy_offset:
            self.clear()
        return 0

    cdef BufferHold find(self, int64_t offset, bytes_t* at, int64_t* readable):
        """The hold of the file with the byte at ``offset``, where it lies, and how many bytes may
        be read from there; None when that file is not held."""
        cdef int64_t number = (offset - self.first_base) // self.file_size
        cdef object found
        cdef BufferHold hold
        if offset < self.first_base or number >= len(self.holds):
            return None
        found = self.holds[number]
        if found is None:
            return None
        hold = <BufferHold>found
        RMQ_ASSERT(hold.base_offset <= offset)
        RMQ_ASSERT(offset < hold.base_offset + hold.view.len)
        at[0] = <bytes_t>hold.view.buf + (offset - hold.base_offset)
        readable[0] = min(
            hold.base_offset + <int64_t>hold.view.len, self.end.observe()
        ) - offset
        return hold

    def message_at(self, int64_t offset):
        """The message whose record begins at ``offset``.

        Returns:
            MessageExt; None when no record begins there; or False when the file is not held.

        Raises:
            CorruptRecordError: a record begins there, but its bytes contradict each other.
        """
        return self.look_at(offset, True)

    cdef object look_at(self, int64_t offset, bint check_crc):
        """As `message_at`; without ``check_crc`` the caller of the message checks its CRC."""
        cdef bytes_t at
        cdef int64_t readable
        cdef BufferHold hold = self.find(offset, &at, &readable)
        if hold is None:
            return False
        if readable < BORN_TIMESTAMP_AT:
            return None
        # prefetch: topic and properties lie behind the body, and are read right after the head
        expect_read(at, min(readable, BYTES_AHEAD))
        return find_in_hold(hold, at, readable, check_crc)
