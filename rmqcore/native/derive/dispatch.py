"""What the reput service hands to those who derive something from the log."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rmqcore.native.derive._dispatch import DispatchBatch


class ScanStatus(IntEnum):
    """Why a scan of the log stopped; negative where no good record is. Source: _layout.pxd."""

    OK = 0
    BLANK = 1
    EMPTY = 2
    CAPACITY = 3
    TRUNCATED = -1
    BAD_MAGIC = -2
    BAD_SIZE = -3
    BAD_CRC = -4
    BAD_OFFSET = -5


class CommitLogDispatcher(Protocol):
    """Derives something from each stretch of the log, in log order.

    Dispatching a stretch again changes nothing: a crash may come between any two steps.

    Source: RocketMQ store/CommitLogDispatcher.java.
    """

    def dispatch(self, batch: DispatchBatch) -> None:
        """Take one stretch in.

        Raises:
            StoreError, OSError: it could not be derived; the reput service stops there.
        """
        ...
