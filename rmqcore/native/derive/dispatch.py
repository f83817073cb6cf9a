"""`CommitLogDispatcher`: what takes each stretch of the log from the reput service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rmqcore.native.derive._dispatch import DispatchBatch


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
