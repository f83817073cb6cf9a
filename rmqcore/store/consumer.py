"""`Consumer`: the messages of some topics, shared by the consumers of a group; needs no broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Self

from rmqcore.errors import ArgumentError, StoreClosedError, StoreError
from rmqcore.message import Lease, QueueLag, ReceivedMessage
from rmqcore.store.consume.arrivals import Deadline
from rmqcore.store.consume.holders import Holder
from rmqcore.store.consume.undoing import undone_if_interrupted
from rmqcore.store.protocol import MessageStore

#: A wait ends after this at the latest and begins anew. `close` ends it sooner, except when the
#: wait begins in the same moment.
_WAIT_MS: Final = 5_000
#: A group that consumes nothing.
_NOBODY: Final = "nobody"


class Consumer:
    """Hands out messages, each for a time; what is not settled in that time comes again.

    - Each message goes to one consumer of the group at a time; it has to be settled by `ack` or
      `nack`. One that was handed out, and whose process was killed, comes again.
    - So a message may come more than once: ``reconsume_times`` says how often it came before.
    - A group that is new begins with the oldest message of each queue.

    Threads: any.
    Source: RocketMQ client/consumer/DefaultMQPushConsumer.java, with
        broker/processor/PopMessageProcessor.java.

    Attributes:
        store: where the messages are.
        group: the consumers that share the messages and their progress.
    """

    def __init__(
        self,
        store: MessageStore,
        group: str,
        subscriptions: Mapping[str, str],
        *,
        lease_ms: int = 30_000,
        max_reconsume_times: int = 16,
        by_priority: bool = False,
        drop_expired: bool = False,
    ) -> None:
        """Prepare a consumer; nothing is handed out yet.

        Args:
            store: an open store, this process's or one that another process serves.
            group: name of the group.
            subscriptions: topic -> ``*``, tags such as ``a || b``, or `Sql`.
            lease_ms: for how long nobody else gets a message that was handed out, milliseconds.
            max_reconsume_times: how often a message comes again before it becomes a dead letter.
            by_priority: queues with higher ids first, always; else they take turns.
            drop_expired: what has a property EXPIRES_MS with a Unix time in milliseconds that has
                come is not handed out.

        Raises:
            ArgumentError: an argument is not what it should be.
        """
        from rmqcore.store.consume.lease_request import LeaseRequest  # noqa: PLC0415 - heavy

        self.store = store
        self.group = group
        self._holder = Holder()
        self._lease_ms = lease_ms
        self._max_reconsume_times = max_reconsume_times
        #: the arguments that every call of `MessageStore.lease` has
        self._terms: dict[str, Any] = {
            "lease_ms": lease_ms,
            "max_reconsume_times": max_reconsume_times,
            "by_priority": by_priority,
            "drop_expired": drop_expired,
        }
        self._closed = False
        LeaseRequest.of(group, subscriptions, max_messages=1, **self._terms)
        self._subscriptions = dict(subscriptions)

    @property
    def holder(self) -> str:
        """By what `MessageStore.release_leases` knows this consumer; another in a forked child."""
        return self._holder.name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the loops over it; what was handed out and not settled comes again at once."""
        if not self._closed:
            self._closed = True
            # closing the store has released all leases
            with suppress(StoreClosedError):
                self.store.release_leases(self.holder)

    # ---- handing out

    @undone_if_interrupted
    def receive(
        self, max_messages: int = 1, timeout_ms: float | None = None
    ) -> list[ReceivedMessage]:
        """Return the next messages.

        Args:
            max_messages: at most this many; it is not waited for more than the first.
            timeout_ms: how long to wait for one, milliseconds; None until there is one.

        Returns:
            the messages; empty when there was none in time, or the consumer was closed meanwhile.

        Raises:
            DiskFullError: there is no room to write down who has them; nothing is handed out.
            StoreClosedError: the consumer or its store is closed.
        """
        deadline = self._deadline(timeout_ms)
        while True:
            wait_ms = deadline.left_s * 1000
            found = self.store.lease(
                self.group,
                self._subscriptions,
                holder=self.holder,
                max_messages=max_messages,
                timeout_ms=min(wait_ms, _WAIT_MS),
                **self._terms,
            )
            if found or wait_ms <= _WAIT_MS or self._closed:
                return self._unless_closed(found)

    async def receive_async(
        self, max_messages: int = 1, timeout_ms: float | None = None
    ) -> list[ReceivedMessage]:
        """As `receive`, without blocking the event loop."""
        deadline = self._deadline(timeout_ms)
        while True:
            wait_ms = deadline.left_s * 1000
            found = await self.store.lease_async(
                self.group,
                self._subscriptions,
                holder=self.holder,
                max_messages=max_messages,
                timeout_ms=min(wait_ms, _WAIT_MS),
                **self._terms,
            )
            if found or wait_ms <= _WAIT_MS or self._closed:
                return self._unless_closed(found)

    def _deadline(self, timeout_ms: float | None) -> Deadline:
        if self._closed:
            raise StoreClosedError(f"the consumer of group {self.group} has been closed")
        return Deadline(timeout_ms, self.store.world.monotonic_s)

    def _unless_closed(self, found: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """What was leased while `close` took everything back is nobody's."""
        if found and self._closed:
            with suppress(StoreClosedError):
                self.store.release_leases(self.holder)
            return []
        return found

    def __iter__(self) -> Self:
        return self

    @undone_if_interrupted
    def __next__(self) -> ReceivedMessage:
        for message in () if self._closed else self.receive():
            return message
        raise StopIteration

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        for message in () if self._closed else await self.receive_async():
            return message
        raise StopAsyncIteration

    # ---- settling

    def ack(self, *messages: ReceivedMessage) -> int:
        """Be done with messages: the group gets them no more.

        Args:
            messages: what this consumer has handed out.

        Returns:
            how many were not acknowledged before, by anybody.

        Raises:
            DiskFullError: there is no room to write it down; nothing is acknowledged.

        Durability: page_cache when it returns: a kill of the process does not undo it.
        """
        return self.store.acknowledge(self.group, _places(messages))

    def nack(self, *messages: ReceivedMessage, delay_ms: int | None = None) -> int:
        """Let messages come again later; a message that came too often becomes a dead letter.

        Args:
            messages: what this consumer has handed out.
            delay_ms: when they come, milliseconds from now, each in its place in its queue; 0 is at
                once. None lets each try wait longer than the one before, as RocketMQ does.

        Returns:
            how many were given back; of the others the lease was over.

        Raises:
            PutMessageError: the copy for a retry or dead-letter topic could not be put; the
                message comes again by itself.
        """
        return self.store.give_back(
            self.group,
            _places(messages),
            delay_ms=delay_ms,
            max_reconsume_times=self._max_reconsume_times,
        )

    def extend(self, *messages: ReceivedMessage, lease_ms: int | None = None) -> int:
        """Keep messages longer.

        Args:
            messages: what this consumer has handed out.
            lease_ms: for how long from now, milliseconds; None as long as when they came.

        Returns:
            how many are still held; of the others the lease was over.
        """
        lease_ms = self._lease_ms if lease_ms is None else lease_ms
        return self.store.change_lease(self.group, _places(messages), lease_ms)

    def lag(self) -> list[QueueLag]:
        """What the group has before it, by queue; its retry topic is among them."""
        return self.store.lag(self.group, self._subscriptions)

    def __repr__(self) -> str:
        return f"<Consumer of {self.group}: {', '.join(self._subscriptions)}>"


def _places(messages: Iterable[ReceivedMessage]) -> list[Lease]:
    """By what the store knows messages."""
    places = []
    for message in messages:
        place = getattr(message, "place", None)
        if not isinstance(place, Lease):
            raise ArgumentError("message", message, "a message that a consumer has handed out")
        places.append(place)
    return places


def keep_room_for_leases(store: MessageStore) -> None:
    """Have room for leases on the disk before it is full, which is emptied by consuming alone.

    Args:
        store: that programs put into and consume from; one that refuses is asked later again.
    """
    with suppress(StoreError, OSError):
        store.lag(_NOBODY, ())
