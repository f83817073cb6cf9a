"""Zeros in files: what was reserved and not written yet, and what is cleared again."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final

#: As many as are compared or written in one go.
ZEROS: Final = bytes(1 << 20)
PAGE_SIZE: Final = resource.getpagesize()


def holds_nothing(path: Path) -> bool:
    """True for an empty file and for zeros, which an interrupted creation leaves behind."""
    with path.open("rb") as stream:
        while data := stream.read(len(ZEROS)):
            if data.strip(b"\0"):
                return False
    return True


def zero_pages(fd: int, start: int, stop: int) -> None:
    """Write zeros to a file from byte ``stop`` back to ``start``, page by page.

    A kill breaks a write off between two pages. What it leaves here is the front as it was.

    Args:
        fd: open for writing.
        start: position of the first byte that becomes zero.
        stop: position behind the last one.

    Raises:
        OSError: the system refused; what is in front of the page it refused is as it was.
    """
    for page in reversed(range(start - start % PAGE_SIZE, stop, PAGE_SIZE)):
        begin = max(page, start)
        os.pwrite(fd, ZEROS[: min(page + PAGE_SIZE, stop) - begin], begin)
