"""`PassedOver`: records that a service of the broker could not handle, and has gone on behind.

A message that only its queue's file does not lead to is none of them: the log has it, and the next
start derives the file again. Until then it is held back: services go on behind it, but keep no
progress that says so.
"""

from __future__ import annotations

import logging
from typing import Final, TypeAlias

from rmqcore.errors import CorruptStoreError, RmqCoreError, StoreError
from rmqcore.files.queue_damage import log_has_it
from rmqcore.message import MessageExt
from rmqcore.store.protocol import MessageStore

logger = logging.getLogger(__name__)

TIMER: Final = "timer"
REVIVE: Final = "revive"
TRANSACTION: Final = "transaction"

#: (topic, queue id, queue offset)
Place: TypeAlias = tuple[str, int, int]


class Guard:
    """The context of `PassedOver.guard`.

    Attributes:
        held: True when the message is held back.
    """

    __slots__ = ("_passed_over", "_place", "_record", "_service", "held")

    def __init__(
        self, passed_over: PassedOver, service: str, record: str, place: Place | None
    ) -> None:
        self._passed_over = passed_over
        self._service = service
        self._record = record
        self._place = place
        self.held = False

    def __enter__(self) -> None:
        """Begin the work on the record."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """End it; True when the record is passed over."""
        if not isinstance(error, Exception) or isinstance(error, MemoryError):
            return False
        if isinstance(error, (StoreError, OSError)) and not isinstance(error, CorruptStoreError):
            return False
        if self._place is not None and isinstance(error, CorruptStoreError):
            self.held = self._passed_over.hold(self._service, self._place, error)
        if not self.held:
            self._passed_over.add(self._service, self._record, error)
        return True


class PassedOver:
    """Counts records that cannot be handled: each is logged once, and keeps no other waiting.

    Args:
        store: the broker's.

    Attributes:
        counts: how many there were since the start, by service.
        held_counts: how many messages are held back, by the service that came to each first.
    """

    def __init__(self, store: MessageStore) -> None:
        self.counts: dict[str, int] = {}
        self.held_counts: dict[str, int] = {}
        self._store = store
        #: by topic and queue id, the offsets of what is held back
        self._held: dict[tuple[str, int], set[int]] = {}

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

    def hold(self, service: str, place: Place, error: CorruptStoreError) -> bool:
        """Hold a message back, if the log has it, and say so once for its queue.

        Args:
            service: whose work it is.
            place: (topic, queue id, queue offset) of the message.
            error: what a get of it has raised.

        Returns:
            False when it is the record that is damaged.
        """
        if not log_has_it(self._store, error):
            return False
        topic, queue_id, offset = place
        if not self.holds(topic, queue_id):
            text = "%s: offset %d of queue %d of %s is in the log, and the queue's file does not "
            text += "lead to it: it is handled after the next start, which derives the file: %s"
            logger.error(text, service, offset, queue_id, topic, error)
        if not self.holds(*place):
            self.held_counts[service] = self.held_counts.get(service, 0) + 1
        self._held.setdefault((topic, queue_id), set()).add(offset)
        return True

    def holds(self, topic: str, queue_id: int, offset: int | None = None) -> bool:
        """Whether a message of a queue is held back.

        Args:
            topic: of the queue.
            queue_id: its number.
            offset: of the message in it; None for any.
        """
        held = self._held.get((topic, queue_id), ())
        return bool(held) if offset is None else offset in held

    def forget_topic(self, topic: str) -> None:
        """Hold nothing of a topic back that is deleted: its offsets will be those of others."""
        for key in [key for key in self._held if key[0] == topic]:
            del self._held[key]

    def guard(self, service: str, record: str, place: Place | None = None) -> Guard:
        """A context that passes a record over when the work on it raises.

        What the store, the disk or the memory refuses now is raised: that is no record's fault.

        Args:
            service: by name, under which it is counted.
            record: what it is and where, for the log.
            place: (topic, queue id, queue offset) of the message that is read in it, which is held
                back where the log has it.
        """
        return Guard(self, service, record, place)

    def read(
        self, service: str, topic: str, queue_id: int, offset: int, count: int
    ) -> tuple[list[MessageExt], int]:
        """Messages of a queue that a service goes through, and the offset where it goes on.

        That is the given one when nothing is there; it is beyond a record that is damaged, or held
        back.

        Args:
            service: whose queue it is.
            topic: of the queue.
            queue_id: its number.
            offset: of the first message.
            count: at most so many.
        """
        try:
            result = self._store.get_message(topic, queue_id, offset, max_messages=count)
            return result.messages, max(offset, result.next_queue_offset)
        except CorruptStoreError as error:
            if count == 1:
                if not self.hold(service, (topic, queue_id, offset), error):
                    self.add(service, f"offset {offset} of {topic}", error)
                return [], offset + 1
        return self.read(service, topic, queue_id, offset, 1)
