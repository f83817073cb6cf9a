"""The append position of a MetaQ partition: one native object a newest segment.

A record goes from the caller's buffer through one copy into one positional write. Layout:
docs/metaq.md, "Record". Source: MetaQ FileMessageSet.java, append; MessageUtils.java.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.pythread cimport (
    NOWAIT_LOCK,
    WAIT_LOCK,
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_release_lock,
    PyThread_type_lock,
)
from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from rmqcore.metaq._record cimport (
    DATA_AT,
    HEADER_SIZE,
    checksum_of,
    rmq_crc32_init,
    store_header,
    storable,
)
from rmqcore.native.base._world cimport read_monotonic_s

import os

from rmqcore.errors import StoreClosedError
from rmqcore.metaq.errors import InvalidChecksumError, UnstorableRecordError

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t pwrite(int fd, const void* bytes, size_t size, int64_t at) noexcept
    int ftruncate(int fd, int64_t size) noexcept

cdef enum:
    SCRATCH_SIZE = 65536

rmq_crc32_init()


cdef int64_t now_ms() noexcept nogil:
    return <int64_t>(1000 * read_monotonic_s())


cdef int write_full(int fd, const uint8_t* bytes, int64_t size, int64_t at) noexcept nogil:
    """0, or the errno of the first failure; what was written before it stays."""
    cdef Py_ssize_t step
    while size > 0:
        step = pwrite(fd, bytes, size, at)
        if step < 0:
            if errno == EINTR:
                continue
            return errno
        if step == 0:
            return EIO
        bytes += step
        at += step
        size -= step
    return 0


@cython.final
@cython.freelist(64)
cdef class Location:
    """Where an append lies in its partition.

    Attributes:
        offset: byte position in the partition's logical log.
        length: bytes, headers included.

    Source: MetaQ Location.java.
    """

    cdef readonly int64_t offset
    cdef readonly int64_t length

    def __init__(self, int64_t offset, int64_t length):
        self.offset = offset
        self.length = length

    def __eq__(self, other):
        if not isinstance(other, Location):
            return NotImplemented
        return self.offset == (<Location>other).offset and self.length == (<Location>other).length

    def __hash__(self):
        return hash((self.offset, self.length))

    def __repr__(self):
        return f"Location(offset={self.offset}, length={self.length})"


@cython.final
cdef class SegmentTail:
    """The append position of one partition: a descriptor, a size and the counters of flushing.

    Threads: any number append; each waits for the one before it. Counters change under the GIL.

    Attributes:
        start: logical offset of the segment's first byte.
        size: bytes in the segment.
        message_count: messages since the tail was made, and what the caller set.
        unflushed: appends since the last `flushed()`.
        due: True when the caller has to look: something became unflushed that nobody noticed, or
            ``flush_due``.
        noticed: set by the caller once it knows of unflushed bytes, cleared before it flushes.
    """

    cdef readonly int64_t start
    cdef readonly int64_t size
    cdef readonly int64_t unflushed
    cdef readonly bint due
    cdef public int64_t message_count
    cdef public int64_t flush_threshold
    cdef public int64_t flush_interval_ms
    cdef public int64_t size_limit
    cdef int64_t flushed_at_ms
    cdef public bint noticed
    cdef int fd
    cdef PyThread_type_lock gate
    cdef str path
    cdef uint8_t* scratch

    def __cinit__(
        self, int fd, str path not None, int64_t start, int64_t size, *, int64_t message_count=0
    ):
        self.fd = fd
        self.path = path
        self.start = start
        self.size = size
        self.message_count = message_count
        self.flush_threshold = self.flush_interval_ms = self.size_limit = INT64_MAX
        self.flushed_at_ms = now_ms()
        self.scratch = <uint8_t*>malloc(SCRATCH_SIZE)
        self.gate = PyThread_allocate_lock()
        if self.scratch == NULL or self.gate == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.scratch)
        if self.gate != NULL:
            PyThread_free_lock(self.gate)

    cdef int begin(self) except -1:
        if self.fd >= 0:  # a forked child may find the gate held by a thread that is not there
            self.hold()
            if self.fd >= 0:
                return 0
            self.let_go()
        raise StoreClosedError(f"{self.path}: this segment takes no appends any more")

    cdef int confirm(self, int failure, int64_t size, int64_t messages) except -1:
        """Count what was written; on a failure cut the file back, so that nothing half stays."""
        if failure != 0:
            if ftruncate(self.fd, self.size) != 0:
                self.fd = -1
            raise OSError(failure, os.strerror(failure), self.path)
        self.size += size
        self.message_count += messages
        self.unflushed += 1
        self.due = not self.noticed or self.reached()
        return 0

    cdef bint reached(self):
        return (
            self.unflushed > self.flush_threshold
            or self.size >= self.size_limit
            or now_ms() - self.flushed_at_ms > self.flush_interval_ms
        )

    @property
    def flush_due(self):
        """True when a threshold, an interval or the segment's size limit has been reached."""
        return self.unflushed > 0 and self.reached()

    def append(self, int64_t message_id, data not None, int32_t flag=0, int32_t checksum=-1):
        """Write one record behind the last; return its `Location`.

        Args:
            message_id: 64 bits, the broker's.
            data: attribute block and payload.
            flag: bit 0 when the data begins with an attribute block.
            checksum: what the sender computed over ``data``; -1 when it did not.

        Raises:
            InvalidChecksumError: the sender's checksum differs; nothing was written.
            UnstorableRecordError: too large, or no data.
            OSError: the write failed; the file is as before.
        """
        cdef Py_buffer view
        cdef int64_t size, at
        cdef int32_t actual = 0
        cdef int failure = 0
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if not storable(view.len):
                raise UnstorableRecordError(message_id, view.len)
            size = HEADER_SIZE + view.len
            self.begin()
            try:
                at = self.size
                with nogil:
                    actual = checksum_of(<const uint8_t*>view.buf, view.len)
                    if checksum == -1 or checksum == actual:
                        store_header(self.scratch, <int32_t>view.len, actual, message_id, flag)
                        failure = self.write(&view, size, at)
                if checksum != -1 and checksum != actual:
                    raise InvalidChecksumError(checksum, actual)
                self.confirm(failure, size, 1)
            finally:
                self.let_go()
        finally:
            PyBuffer_Release(&view)
        return Location(self.start + at, size)

    cdef int write(self, Py_buffer* view, int64_t size, int64_t at) noexcept nogil:
        """Write the header in the scratch and the data: one call when both fit the scratch."""
        cdef int failure
        if size <= SCRATCH_SIZE:
            memcpy(self.scratch + DATA_AT, view.buf, view.len)
            return write_full(self.fd, self.scratch, size, at)
        failure = write_full(self.fd, self.scratch, HEADER_SIZE, at)
        if failure != 0:
            return failure
        return write_full(self.fd, <const uint8_t*>view.buf, view.len, at + DATA_AT)

    def append_buffer(self, buffer not None, int64_t message_count=1):
        """Write bytes that already are whole records; the caller vouches for them."""
        cdef Py_buffer view
        cdef int64_t at
        cdef int failure
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            self.begin()
            try:
                at = self.size
                with nogil:
                    failure = write_full(self.fd, <const uint8_t*>view.buf, view.len, at)
                self.confirm(failure, view.len, message_count)
            finally:
                self.let_go()
            return Location(self.start + at, view.len)
        finally:
            PyBuffer_Release(&view)

    cpdef void hold(self) noexcept:
        """Keep appends out, and wait for the one that is in."""
        if not PyThread_acquire_lock(self.gate, NOWAIT_LOCK):
            with nogil:
                PyThread_acquire_lock(self.gate, WAIT_LOCK)

    cpdef void let_go(self) noexcept:
        """Let appends in again."""
        PyThread_release_lock(self.gate)

    def flushed(self, int64_t up_to):
        """Note that the bytes below ``up_to`` are on disk."""
        if up_to >= self.size:
            self.unflushed = 0
        self.flushed_at_ms = now_ms()

    def close(self):
        """Refuse every further append; the descriptor belongs to the caller."""
        self.fd = -1
