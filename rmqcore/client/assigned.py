"""`AssignedQueue`: a consumer's progress in one queue; and how queues are shared out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from rmqcore.client.results import MessageQueue
from rmqcore.message import MessageExt, ReceivedMessage
from rmqcore.remoting.codes import MASTER_ID

_T = TypeVar("_T")

#: A queue with more bytes of messages than this waiting to be handed out is not pulled from.
_BUFFERED_BYTES_MAX = 8 * 1024 * 1024


class QueueGeneration(NamedTuple):
    """Where a message that was handed out belongs: a queue, and which of its beginnings."""

    assigned: AssignedQueue
    generation: int


class AssignedQueue:
    """One queue that a consumer has now. Source: ProcessQueue.

    Attributes:
        queue: which.
        next_offset: of the next pull.
        dropped: the queue is another consumer's now.
        broker_id: of the broker to pull from.
        in_hand: the message that is being worked on, where a queue is consumed in order.
        paused: no message is handed out, for one that failed waits for its next try.
        pulled_ms: when a pull was answered last, Unix time; 0 for never.
        settled_ms: when a message was settled last, likewise.
    """

    def __init__(
        self,
        queue: MessageQueue,
        offset: int,
        clock_ms: Callable[[], int],
        *,
        prefetch: int = 256,
        unacked_max: int = 2000,
    ) -> None:
        self.queue = queue
        self.next_offset = offset
        self.dropped = False
        self.broker_id = MASTER_ID
        self.in_hand: ReceivedMessage | None = None
        self.paused = False
        self.pulled_ms = self.settled_ms = 0
        self._clock_ms = clock_ms
        self.task: asyncio.Task[None] | None = None
        self._prefetch = prefetch
        self._unacked_max = unacked_max
        self._generation = 0
        self._buffered: deque[ReceivedMessage] = deque()
        self._buffered_bytes = 0
        #: offsets that were pulled and not yet settled, in ascending order
        self._unacked: dict[int, None] = {}
        self._room = asyncio.Event()
        self._room.set()

    @property
    def commit_offset(self) -> int:
        """The offset from which on a consumer that starts anew has to read."""
        return next(iter(self._unacked), self.next_offset)

    @property
    def cached(self) -> tuple[int, int, int, int]:
        """Of what is pulled and not settled: first and last offset, number; bytes that wait."""
        if not self._unacked:
            return 0, 0, 0, 0
        least, most = next(iter(self._unacked)), next(reversed(self._unacked))
        return least, most, len(self._unacked), self._buffered_bytes

    @property
    def has_messages(self) -> bool:
        """Tell whether there is something to hand out."""
        waits = self.dropped or self.paused or self.in_hand is not None
        return bool(self._buffered) and not waits

    async def room(self) -> None:
        """Wait until there is room for more messages."""
        await self._room.wait()

    def add(self, messages: Iterable[MessageExt], next_offset: int) -> None:
        """Take in what was pulled, and where the next pull begins.

        Args:
            messages: in the order of the queue.
            next_offset: where the next pull begins.
        """
        place = QueueGeneration(self, self._generation)
        for stored in messages:
            self._unacked[stored.queue_offset] = None
            self._buffered.append(ReceivedMessage(stored, self.queue.broker_name, place))
            self._buffered_bytes += stored.store_size
        self.next_offset = next_offset
        self.pulled_ms = self._clock_ms()
        self._measure()

    def hand_out(self) -> ReceivedMessage:
        """Hand out the next message."""
        message = self._buffered.popleft()
        self._buffered_bytes -= message.store_size
        self._measure()
        return message

    def put_back(self, message: ReceivedMessage) -> None:
        """Let a message be handed out again, before all others."""
        self._buffered.appendleft(message)
        self._buffered_bytes += message.store_size

    def take_back(self, message: ReceivedMessage, generation: int) -> bool:
        """Hand a message out once more that came to nobody, before all others.

        Args:
            message: that was handed out.
            generation: of the queue when the message was pulled.

        Returns:
            False when this queue has begun anew since, or is another's.
        """
        if generation != self._generation or self.dropped:
            return False
        if self.in_hand is message:
            self.in_hand = None
        self.put_back(message)
        return True

    def settle(self, message: ReceivedMessage, generation: int) -> bool:
        """A message is done with; False when this queue has begun anew since it was pulled.

        Args:
            message: that was handed out.
            generation: of the queue when the message was pulled.
        """
        if generation != self._generation or self.dropped:
            return False
        self._unacked.pop(message.queue_offset, None)
        self.settled_ms = self._clock_ms()
        if self.in_hand is message:
            self.in_hand = None
        self._measure()
        return True

    def restart(self, offset: int) -> None:
        """Forget what was pulled and go on at another offset."""
        self._generation += 1
        self._buffered.clear()
        self._buffered_bytes = 0
        self._unacked.clear()
        self.in_hand = None
        self.next_offset = offset
        self._measure()

    def drop(self) -> None:
        """Hand out nothing any more: the queue is another's."""
        self.dropped = True
        self._buffered.clear()
        self._room.set()
        if self.task is not None:
            self.task.cancel()

    def _measure(self) -> None:
        full = (
            len(self._buffered) >= self._prefetch
            or self._buffered_bytes >= _BUFFERED_BYTES_MAX
            or len(self._unacked) >= self._unacked_max
        )
        if full:
            self._room.clear()
        else:
            self._room.set()


def allocate(queues: Sequence[_T], client_ids: Sequence[str], client_id: str) -> list[_T]:
    """The share of one client: neighbouring queues, the first clients get what is left over.

    Args:
        queues: all of them, in an order that all clients agree on.
        client_ids: likewise.
        client_id: whose share; one that is not listed gets nothing.

    Source: AllocateMessageQueueAveragely.
    """
    if client_id not in client_ids:
        return []
    index, count = client_ids.index(client_id), len(client_ids)
    each, left = divmod(len(queues), count)
    begin = index * each + min(index, left)
    return list(queues[begin : begin + each + (1 if index < left else 0)])
