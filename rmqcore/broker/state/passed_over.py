"""`PassedOver`: records that a service of the broker could not handle, and has gone on behind."""

from __future__ import annotations

import logging
from typing import Final

from rmqcore.errors import CorruptStoreError, RmqCoreError, StoreError
from rmqcore.message import MessageExt
from rmqcore.store.protocol import MessageStore

logger = logging.getLogger(__name__)

TIMER: Final = "timer"
REVIVE: Final = "revive"
TRANSACTION: Final = "transaction"


class Guard:
    """The context of `PassedOver.guard`."""

    __slots__ = ("_passed_over", "_record", "_service")

    def __init__(self, passed_over: PassedOver, service: str, record: str) -> None:
        self._passed_over = passed_over
        self._service = service
        self._record = record

    def __enter__(self) -> None:
        """Begin the work on the record."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """End it; True when the record is passed over."""
        if not isinstance(error, Exception) or isinstance(error, MemoryError):
            return False
        if isinstance(error, (StoreError, OSError)) and not isinstance(error, CorruptStoreError):
            return False
        self._passed_over.add(self._service, self._record, error)
        return True


class PassedOver:
    """Counts records that cannot be handled: each is logged once, and keeps no other waiting.

    Attributes:
        counts: how many there were since the start, by service.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, service: str, record: str, error: Exception) -> None:
        """Count a record, and say why; what nobody has expected with its traceback.

        Args:
            service: by name, under which it is counted.
            record: what it is and where, for the log.
            error: what was raised.
        """
        self.counts[service] = self.counts.get(service, 0) + 1
        trace = None if isinstance(error, RmqCoreError) else error
        logger.error("%s: %s is passed over: %s", service, record, error, exc_info=trace)

    def guard(self, service: str, record: str) -> Guard:
        """A context that passes a record over when the work on it raises.

        What the store, the disk or the memory refuses now is raised: that is no record's fault.

        Arguments as those of `add`.
        """
        return Guard(self, service, record)

    def read(
        self,
        service: str,
        store: MessageStore,
        topic: str,
        queue_id: int,
        offset: int,
        count: int,
    ) -> tuple[list[MessageExt], int]:
        """Messages of a queue that a service goes through, and the offset where it goes on.

        That is the given one when nothing is there; it is beyond a record that is damaged.

        Args:
            service: whose queue it is.
            store: where it is.
            topic: of the queue.
            queue_id: its number.
            offset: of the first message.
            count: at most so many.
        """
        try:
            result = store.get_message(topic, queue_id, offset, max_messages=count)
            return result.messages, max(offset, result.next_queue_offset)
        except CorruptStoreError as error:
            if count == 1:
                self.add(service, f"offset {offset} of {topic}", error)
                return [], offset + 1
        return self.read(service, store, topic, queue_id, offset, 1)
