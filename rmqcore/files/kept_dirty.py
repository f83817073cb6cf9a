"""`keep_dirty`: what a sync could not bring to the disk stays to be brought there."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from rmqcore.errors import StoreError, is_broken

if TYPE_CHECKING:
    from rmqcore.files.mapped_file import MappedFile


def keep_dirty(file: MappedFile, error: OSError) -> None:
    """Have the system take a file's pages for new behind a sync that failed.

    Where it could not write a page it takes it for written all the same, and shows what it holds to
    whoever opens the file next: that one's sync would succeed without it.

    Args:
        file: reserved whole, so that no page of it has to find room.
        error: of the sync.
    """
    if is_broken(error):
        with suppress(OSError, StoreError):
            file.region.warm_up(way="touch", expect_empty=False)
