"""Memory that ends where the data ends: one byte further is a segmentation fault."""

import ctypes
import mmap

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)
NO_ACCESS, READ_WRITE = 0, 3


class GuardedMemory:
    """Pages of which the last may not be touched; `place` puts data right before it."""

    def __init__(self, size_max):
        self.usable = -(-size_max // PAGE) * PAGE
        self.pages = mmap.mmap(-1, self.usable + PAGE)
        self.protect(NO_ACCESS)

    def protect(self, access):
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.pages)) + self.usable
        if LIBC.mprotect(ctypes.c_void_p(start), PAGE, access):
            raise OSError(ctypes.get_errno(), "mprotect")

    def place(self, data):
        """Return a view of the data, whose end is the end of what may be touched."""
        start = self.usable - len(data)
        self.pages[start : self.usable] = data
        return memoryview(self.pages)[start : self.usable]
