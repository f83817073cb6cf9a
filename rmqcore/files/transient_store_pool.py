"""The transient store pool: buffers outside the page cache, committed to the log file later."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rmqcore.native.base._mapped import MappedRegion

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rmqcore.files.mapped_file import MappedFile

_log = logging.getLogger("rmqcore")


class TransientStorePool:
    """A fixed number of anonymous buffers of a log file's size, locked in memory where allowed.

    - A buffer is free when no file has it as its ``write_buffer``: none has to be given back, so
      none is lost by an interrupt.

    Threads: one at a time.
    Durability: what is in a buffer and not committed survives nothing.
    Source: RocketMQ store/TransientStorePool.java.
    """

    def __init__(self, count: int, buffer_size: int) -> None:
        self._buffers = [MappedRegion(None, buffer_size) for _ in range(count)]
        refused = sum(1 for buffer in self._buffers if buffer.lock_memory())
        if refused:
            _log.warning("%d of %d pool buffers could not be locked in memory", refused, count)

    def free(self, files: Iterable[MappedFile]) -> MappedRegion | None:
        """A buffer that none of the log's files has; None when there is none.

        The file that has none is then written through its mapping.
        """
        lent = {id(file.write_buffer) for file in files}
        return next((buffer for buffer in self._buffers if id(buffer) not in lent), None)
