"""`keep_dirty`: what a sync could not bring to the disk stays to be brought there."""

from __future__ import annotations

import ctypes
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from rmqcore.errors import StoreError, is_broken
from rmqcore.files.zeros import PAGE_SIZE

if TYPE_CHECKING:
    from rmqcore.files.mapped_file import MappedFile

#: Linux' advice, from 5.14 on, to make pages writable and dirty; what cannot be is no signal.
_POPULATE_WRITE: Final = 23
_system = ctypes.CDLL(None)


def keep_dirty(file: MappedFile, error: OSError, start: int = 0) -> None:
    """Have the system take a file's pages for new behind a sync that failed.

    Where it could not write a page it takes it for written all the same, and shows what it holds to
    whoever opens the file next: that one's sync would succeed without it. Only what is in memory is
    asked for, as a disk that is gone gives nothing, and in a way that ends no process.

    Args:
        file: writable.
        error: of the sync.
        start: position in the file below which all is on the disk.
    """
    if is_broken(error):
        with suppress(OSError, StoreError):
            held = ctypes.c_char.from_buffer(file.region)
            start -= start % PAGE_SIZE
            at, size = ctypes.addressof(held) + start, file.size - start
            in_memory = (ctypes.c_char * -(-size // PAGE_SIZE))()
            _system.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), in_memory)
            for run in re.finditer(b"\1+", in_memory.raw):
                first, length = (PAGE_SIZE * pages for pages in (run.start(), len(run[0])))
                _system.madvise(
                    ctypes.c_void_p(at + first), ctypes.c_size_t(length), _POPULATE_WRITE
                )


def sync_or_keep_dirty(file: MappedFile) -> None:
    """Write a file through to the disk.

    Raises:
        OSError: the disk refused.
    """
    try:
        file.sync()
    except OSError as error:
        keep_dirty(file, error)
        raise
