"""`keep_dirty`: what a sync could not bring to the disk stays to be brought there."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from rmqcore.errors import StoreError, is_broken

if TYPE_CHECKING:
    from rmqcore.files.mapped_file import MappedFile


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
            file.region.renew(start)


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
