"""The transient store pool: buffers outside the page cache, committed to the log file later."""

from __future__ import annotations

import logging

from rmqcore.native.base._lock import ReentrantLock
from rmqcore.native.base._mapped import MappedRegion

_log = logging.getLogger("rmqcore")


class TransientStorePool:
    """A fixed number of anonymous buffers of a log file's size, locked in memory where allowed.

    Durability: what is in a buffer and not committed survives nothing.
    Source: RocketMQ store/TransientStorePool.java.
    """

    def __init__(self, count: int, buffer_size: int) -> None:
        self._lock = ReentrantLock()
        self._free = [MappedRegion(None, buffer_size) for _ in range(count)]
        refused = sum(1 for buffer in self._free if buffer.lock_memory())
        if refused:
            _log.warning("%d of %d pool buffers could not be locked in memory", refused, count)

    def borrow(self) -> MappedRegion | None:
        """A buffer; None when all are lent, and the file is then written through its mapping."""
        with self._lock.within():
            return self._free.pop() if self._free else None

    def give_back(self, buffer: MappedRegion) -> None:
        """Take a buffer back."""
        with self._lock.within():
            self._free.append(buffer)
