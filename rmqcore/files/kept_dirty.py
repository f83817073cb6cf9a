"""`keep_dirty`: what a sync could not bring to the disk stays to be brought there."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from rmqcore.errors import StoreError, is_broken

if TYPE_CHECKING:
    from rmqcore.files.mapped_file import MappedFile

#: bytes of what `stat` counts
_BLOCK: Final = 512


def keep_dirty(file: MappedFile, error: OSError) -> None:
    """Have the system take a file's pages for new behind a sync that failed.

    Where it could not write a page it takes it for written all the same, and shows what it holds to
    whoever opens the file next: that one's sync would succeed without it.

    Args:
        file: one that is not reserved whole is left alone: a page of it might find no room.
        error: of the sync.
    """
    if is_broken(error):
        with suppress(OSError, StoreError):
            facts = file.path.stat()
            if facts.st_blocks * _BLOCK >= facts.st_size:
                file.region.warm_up(way="touch", expect_empty=False)


def sync_or_keep_dirty(file: MappedFile) -> None:
    """Write a file of the log through to the disk.

    Raises:
        OSError: the disk refused.
    """
    try:
        file.sync()
    except OSError as error:
        keep_dirty(file, error)
        raise
