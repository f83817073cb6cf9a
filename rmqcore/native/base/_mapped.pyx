"""Memory mappings with an owner and a lifetime, and the system calls around them.

A `MappedRegion` hands its bytes out through the buffer protocol and counts those exports: a held
buffer is RocketMQ's ``hold()``, its release is ``release()``. The file is unmapped when
the region was retired and the last buffer is released, never before. Blocking calls run without the
GIL.

Never decides when to flush, roll or lock: that is Python's.
"""

import errno as error_numbers
import os

from libc.errno cimport errno
from libc.stdint cimport int64_t, uint8_t
cimport cython

from rmqcore.native.base._world cimport sync_range

from rmqcore.errors import StoreClosedError

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* at, size_t size, int protection, int flags, int fd, int64_t offset)
    int munmap(void* at, size_t size)
    int mlock(const void* at, size_t size)
    int munlock(const void* at, size_t size)
    int madvise(void* at, size_t size, int advice)
    int mincore(void* at, size_t size, unsigned char* in_memory)
    int PROT_READ, PROT_WRITE, MAP_SHARED, MAP_PRIVATE, MAP_ANONYMOUS
    int MADV_NORMAL, MADV_RANDOM, MADV_WILLNEED, MADV_DONTNEED, MADV_HUGEPAGE
    void* MAP_FAILED

cdef extern from "<unistd.h>" nogil:
    int close_fd "close"(int fd)

cdef extern from *:
    """
    #include <errno.h>
    #include <fcntl.h>
    #include <sys/mman.h>
    #include <unistd.h>
    #ifndef MADV_POPULATE_WRITE
    #define MADV_POPULATE_WRITE 23
    #endif
    #ifdef __linux__
    #ifndef FALLOC_FL_KEEP_SIZE
    #define FALLOC_FL_KEEP_SIZE 1
    #endif
    #ifndef FALLOC_FL_ZERO_RANGE
    #define FALLOC_FL_ZERO_RANGE 16
    #endif
    extern int fallocate(int fd, int mode, off_t at, off_t size);
    static int rmq_reserve(int fd, long long at, long long size, int keep_size) {
        return fallocate(fd, keep_size ? FALLOC_FL_KEEP_SIZE : 0, at, size);
    }
    static int rmq_zero(int fd, long long at, long long size) {
        return fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, at, size);
    }
    #else
    static int rmq_reserve(int fd, long long at, long long size, int keep_size) {
        (void)fd; (void)at; (void)size; (void)keep_size;
        errno = EOPNOTSUPP;
        return -1;
    }
    static int rmq_zero(int fd, long long at, long long size) {
        return rmq_reserve(fd, at, size, 1);
    }
    #endif
    """
    int MADV_POPULATE_WRITE
    int rmq_reserve(int fd, int64_t at, int64_t size, int keep_size) nogil
    int rmq_zero(int fd, int64_t at, int64_t size) nogil

cdef extern from "Python.h":
    int PyBuffer_FillInfo(
        Py_buffer* view, object exporter, void* buf, Py_ssize_t len, int readonly, int flags
    ) except -1

#: RocketMQ's OS_PAGE_SIZE, in which it counts what is to be flushed; the system's may differ
STORE_PAGE_SIZE = 4096
PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
cdef int64_t SYSTEM_PAGE_SIZE = PAGE_SIZE


cdef int touch_pages(uint8_t* base, int64_t size, int64_t sync_every) except -1 nogil:
    """Write to each page what it holds; with `sync_every` > 0 force the mapping each so many bytes.

    Nothing changes, so it may run beside a writer that has begun to use the file.
    """
    cdef int64_t at = 0, synced = 0
    cdef int failed
    while at < size:
        keep_byte(base + at)
        at += SYSTEM_PAGE_SIZE
        if sync_every and at - synced >= sync_every:
            failed = sync_range(base + synced, at - synced if at < size else size - synced)
            if failed:
                return failed
            synced = at
    return sync_range(base + synced, size - synced) if sync_every and synced < size else 0


cdef extern from *:
    """
    /* no race, whatever is written there meanwhile: it stores what is there */
    __attribute__((no_sanitize_thread))
    static inline void keep_byte(unsigned char* at) {
        __atomic_fetch_or(at, 0, __ATOMIC_RELAXED);
    }
    """
    void keep_byte(uint8_t* at) noexcept nogil


@cython.final
cdef class WarmUpResult:
    """What a warm-up did.

    Attributes:
        pages: system pages made resident.
        locked: True when they are locked in memory.
        error: errno of a refused ``mlock`` (ENOMEM, EPERM: a limit, no failure), else 0.
    """

    cdef readonly int64_t pages
    cdef readonly bint locked
    cdef readonly int error

    def __init__(self, int64_t pages, bint locked, int error):
        self.pages = pages
        self.locked = locked
        self.error = error

    def __repr__(self):
        return f"WarmUpResult(pages={self.pages}, locked={self.locked}, error={self.error})"


cdef object system_error(int failed, object path):
    return OSError(failed, os.strerror(failed), None if path is None else str(path))


@cython.final
cdef class MappedRegion:
    """A shared mapping of a whole file, or anonymous memory.

    Args:
        fd: file to map, or None for anonymous memory (the transient pool's buffers).
        size: bytes to map, 1 or more; the file must be that long.
        writable: False maps for reading only.
        path: the file's name, for error messages.

    Attributes:
        locked: True while its pages are locked in memory.
        retired: True when it hands out no more buffers.

    Raises:
        OSError: the mapping failed (ENOMEM: too many mappings, or no address space).

    Source: RocketMQ store/logfile/DefaultMappedFile.java, ReferenceResource.java.
    """

    cdef uint8_t* base
    cdef readonly int64_t size
    cdef readonly bint writable
    cdef readonly object path
    cdef readonly bint locked
    cdef readonly bint retired
    cdef int64_t export_count

    def __cinit__(self, fd, int64_t size, *, bint writable=True, path=None):
        cdef int number = -1 if fd is None else fd
        cdef int flags = MAP_PRIVATE | MAP_ANONYMOUS if fd is None else MAP_SHARED
        cdef int protection = PROT_READ | PROT_WRITE if writable else PROT_READ
        cdef void* at
        cdef int failed
        self.base = NULL
        if size <= 0:
            raise ValueError(f"a mapping has 1 byte or more, not {size}")
        with nogil:
            at = mmap(NULL, size, protection, flags, number, 0)
            failed = errno
        if at == MAP_FAILED:
            raise system_error(failed, path)
        self.base = <uint8_t*>at
        self.size = size
        self.writable = writable
        self.path = path

    def __dealloc__(self):
        if self.base != NULL:
            munmap(self.base, self.size)
            self.base = NULL

    cdef unmap(self):
        cdef uint8_t* base = self.base
        cdef int64_t size = self.size
        self.base = NULL
        if base != NULL:
            with nogil:
                munmap(base, size)

    cdef int check(self, int64_t at, int64_t size) except -1:
        if self.base == NULL or self.retired:
            raise StoreClosedError(f"{self.path or 'mapping'}: it has been closed")
        if at < 0 or size < 0 or at > self.size - size:
            raise IndexError(f"bytes {at} to {at + size} lie outside the {self.size} mapped")
        return 0

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        with cython.critical_section(self):
            self.check(0, 0)
            PyBuffer_FillInfo(buffer, self, self.base, self.size, not self.writable, flags)
            self.export_count += 1

    def __releasebuffer__(self, Py_buffer* buffer):
        with cython.critical_section(self):
            self.export_count -= 1
            if self.export_count == 0 and self.retired:
                self.unmap()

    def __len__(self):
        return self.size

    def close(self) -> None:
        """Unmap now.

        Raises:
            BufferError: a buffer is still held; `retire` waits for it.
        """
        with cython.critical_section(self):
            if self.export_count:
                raise BufferError(f"{self.path or 'mapping'}: {self.export_count} views are held")
            self.retired = True
            self.unmap()

    def retire(self) -> None:
        """Refuse new buffers and unmap when the last one is released."""
        with cython.critical_section(self):
            self.retired = True
            if self.export_count == 0:
                self.unmap()

    def sync(self, int64_t at=0, size=None) -> None:
        """Write the bytes ``at`` to ``at + size`` through to the disk (``msync``, no GIL).

        Raises:
            OSError: the disk refused; the bytes may be lost and must not be taken as stored.
        """
        cdef int64_t length = self.size - at if size is None else size
        cdef int64_t start = at - at % SYSTEM_PAGE_SIZE
        cdef int failed
        cdef object held
        self.check(at, length)
        held = memoryview(self)
        with nogil:
            failed = sync_range(self.base + start, at + length - start)
        held.release()
        if failed:
            raise system_error(failed, self.path)

    def warm_up(
        self, *, int64_t sync_every=0, bint lock=False, str way="populate", bint expect_empty=True
    ) -> WarmUpResult:
        """Make every page resident and writable before it is needed.

        Args:
            sync_every: force the mapping each so many bytes (SYNC_FLUSH); 0 never.
            lock: also ``mlock`` the region; a refusal is reported, not raised.
            way: "populate" asks the kernel in one call (falls back to "touch" where it cannot);
                "touch" writes to each page what it holds.
            expect_empty: refuse a region that already begins with data.

        Raises:
            ValueError: the region holds data, is read-only, or ``way`` is unknown.
            OSError: the forced write failed.

        Source: RocketMQ store/logfile/DefaultMappedFile.java, warmMappedFile.
        """
        cdef int failed = 0, error = 0
        cdef bint populate = way == "populate"
        cdef object held
        self.check(0, self.size)
        if way not in ("populate", "touch"):
            raise ValueError(f"way={way!r}: expected 'populate' or 'touch'")
        if not self.writable:
            raise ValueError("a read-only region cannot be warmed by writing")
        held = memoryview(self)
        if expect_empty:
            self.check_empty()
        with nogil:
            if populate and madvise(self.base, self.size, MADV_POPULATE_WRITE) != 0:
                populate = False
            if not populate or sync_every:
                failed = touch_pages(self.base, self.size, sync_every)
            if lock and failed == 0:
                error = errno if mlock(self.base, self.size) != 0 else 0
                madvise(self.base, self.size, MADV_WILLNEED)
        held.release()
        if failed:
            raise system_error(failed, self.path)
        self.locked = self.locked or (lock and error == 0)
        return WarmUpResult(
            (self.size + SYSTEM_PAGE_SIZE - 1) // SYSTEM_PAGE_SIZE, lock and error == 0, error
        )

    def renew(self, int64_t start=0) -> None:
        """Have the system take for new what is in memory, behind a sync that failed.

        Before Linux 5.14, and where it cannot, pages stay as they are; what a disk does not give
        any more is no signal.

        Args:
            start: position below which all is on the disk.

        Raises:
            ValueError: the region is read-only.
            OSError: the system does not tell what is in memory.
        """
        cdef int64_t at = start - start % SYSTEM_PAGE_SIZE, page = 0, behind
        cdef int64_t pages = (self.size - at + SYSTEM_PAGE_SIZE - 1) // SYSTEM_PAGE_SIZE
        cdef bytearray in_memory
        cdef char* resident
        cdef object held
        self.check(at, self.size - at)
        if not self.writable:
            raise ValueError("a read-only region has nothing to bring to the disk")
        if pages <= 0:
            return
        in_memory = bytearray(pages)
        resident = in_memory
        held = memoryview(self)
        if mincore(self.base + at, self.size - at, <unsigned char*> resident) != 0:
            raise system_error(errno, self.path)
        with nogil:
            while page < pages:
                behind = page + 1
                if resident[page] & 1:
                    while behind < pages and resident[behind] & 1:
                        behind += 1
                    madvise(
                        self.base + at + page * SYSTEM_PAGE_SIZE,
                        (behind - page) * SYSTEM_PAGE_SIZE,
                        MADV_POPULATE_WRITE,
                    )
                page = behind
        held.release()

    cdef int check_empty(self) except -1:
        cdef int64_t at
        for at in range(min(self.size, <int64_t> STORE_PAGE_SIZE)):
            if self.base[at]:
                raise ValueError(f"{self.path or 'the region'} holds data, a new file has none")
        return 0

    def lock_memory(self) -> int:
        """Keep the pages in memory; returns 0, or the errno of the refusal (a limit)."""
        cdef int error
        self.check(0, self.size)
        held = memoryview(self)
        with nogil:
            error = errno if mlock(self.base, self.size) != 0 else 0
        held.release()
        self.locked = error == 0
        return error

    def unlock_memory(self) -> None:
        """Undo `lock_memory`."""
        self.check(0, self.size)
        held = memoryview(self)
        with nogil:
            munlock(self.base, self.size)
        held.release()
        self.locked = False

    def advise(self, str advice, int64_t at=0) -> bool:
        """Tell the kernel how the region is used from ``at`` on.

        Args:
            advice: "normal"; "random": bring in one page at a time; "hugepage": many as one, where
                the file system can; "dontneed": unmap the pages, which come back at need.
            at: a multiple of the system's page size.

        Returns:
            True when the kernel took the advice.

        Raises:
            ValueError: an unknown advice.
        """
        cdef int number, failed
        numbers = {
            "normal": MADV_NORMAL, "random": MADV_RANDOM, "hugepage": MADV_HUGEPAGE,
            "dontneed": MADV_DONTNEED,
        }
        if advice not in numbers:
            raise ValueError(f"advice={advice!r}: expected one of {', '.join(numbers)}")
        number = numbers[advice]
        self.check(at, self.size - at)
        held = memoryview(self)
        with nogil:
            failed = madvise(self.base + at, self.size - at, number)
        held.release()
        return failed == 0


@cython.final
cdef class Descriptor:
    """An open file descriptor that closes when its last reference goes.

    The garbage collector, which sees no references in it, never closes it before that: a store
    that nobody has closed still writes to its files while it is collected.

    Args:
        fd: the number, which nobody else closes.
    """

    cdef readonly int fd

    def __cinit__(self, int fd):
        self.fd = fd

    def __dealloc__(self):
        with nogil:
            close_fd(self.fd)


cdef object supported(int failed):
    if not failed:
        return True
    if failed in (error_numbers.EOPNOTSUPP, error_numbers.ENOSYS):
        return False
    raise OSError(failed, os.strerror(failed))


def reserve(int fd, int64_t at, int64_t size, *, bint keep_size=False) -> bool:
    """Reserve disk blocks for a range of a file, so that writing it later cannot run out of room.

    Returns:
        False where the file system cannot reserve (the caller then writes zeros instead).

    Raises:
        OSError: ENOSPC and others.
    """
    cdef int failed
    with nogil:
        failed = errno if rmq_reserve(fd, at, size, keep_size) != 0 else 0
    return supported(failed)


def zero_range(int fd, int64_t at, int64_t size) -> bool:
    """Make a range read as zeros and keep it reserved; False where the file system cannot.

    Raises:
        OSError: the disk refused.
    """
    cdef int failed
    with nogil:
        failed = errno if rmq_zero(fd, at, size) != 0 else 0
    return supported(failed)


cdef extern from *:
    """
    #include <linux/fs.h>
    #include <sys/syscall.h>
    static int rmq_exchange(const char *one, const char *other) {
        return (int)syscall(SYS_renameat2, AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE);
    }
    """
    int rmq_exchange(const char* one, const char* other) nogil


def exchange_paths(one, other) -> bool:
    """Let two files or directories of one file system change places in one step.

    Returns:
        False where the file system cannot; nothing was changed.

    Raises:
        OSError: the system refused.
    """
    cdef bytes first = os.fsencode(one), second = os.fsencode(other)
    cdef const char* first_at = first
    cdef const char* second_at = second
    cdef int failed
    with nogil:
        failed = errno if rmq_exchange(first_at, second_at) != 0 else 0
    return failed != error_numbers.EINVAL and supported(failed)
