"""`MessageStore`: what a broker, replication and adapters may rely on, whoever implements it.

`DefaultMessageStore` is one; so is a store that another process serves. Each method's own words
are those of `DefaultMessageStore`; here stands what every implementation promises.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, Unpack, runtime_checkable

from rmqcore.config import StoreConfig
from rmqcore.files.config_tables import TopicConfigTable
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.message import (
    BatchSettings,
    ColumnSettings,
    GetMessageResult,
    Lease,
    LeaseSettings,
    Message,
    MessageExt,
    PutMessageResult,
    PutSettings,
    QueryMessageResult,
    QueueLag,
    ReceivedMessage,
)
from rmqcore.services.arrival import ArrivalListener
from rmqcore.status import BoundaryName, BoundaryType, Durability, DurabilityName

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from rmqcore.native.format._wire_message import WireMessage
    from rmqcore.store.parts.iteration import OnDamage
    from rmqcore.store.parts.put_columns_result import PutColumnsResult
    from rmqcore.world import World


@runtime_checkable
class MessageStore(Protocol):
    """A store to put into and to read from.

    - A receipt names the durability that was reached when the put returned.
    - A read that begins after a put has returned sees that message.
    - A caller's mistake raises `MessageIllegalError` or `ConfigError`, and nothing is stored.
    - A queue that does not exist is a status, or 0, and is not created by a read.
    - Any thread may call; the coroutines belong to the event loop that runs them.

    Attributes:
        world: tells its time, and that of all that works on it.

    Source: RocketMQ store/MessageStore.java.
    """

    path: Path
    world: World
    topics: TopicConfigTable
    consumer_offsets: ConsumerOffsetTable

    @property
    def config(self) -> StoreConfig:
        """Its settings, as they are now."""
        ...

    # ---- putting

    def put(
        self,
        topic: str,
        body: Buffer,
        *,
        durability: Durability | DurabilityName | None = None,
        **settings: Unpack[PutSettings],
    ) -> PutMessageResult:
        """Store one message; raises when it is not stored as was asked.

        See `MessagePutter.put` for arguments and errors.
        """
        ...

    def put_message(
        self,
        message: Message | MessageExt,
        *,
        durability: Durability | DurabilityName | None = None,
    ) -> PutMessageResult:
        """Store one message; the status says when it is not stored as was asked.

        See `MessagePutter.put_message` for arguments and errors.
        """
        ...

    def put_messages(
        self,
        messages: Iterable[Message] | bytes,
        *,
        durability: Durability | DurabilityName | None = None,
        **settings: Unpack[BatchSettings],
    ) -> PutMessageResult:
        """Store several messages of one queue back to back, all or none.

        See `Writing.put_messages` for arguments and errors.
        """
        ...

    def put_columns(self, table: object, **settings: Unpack[ColumnSettings]) -> PutColumnsResult:
        """Store every row of a table as a message; the status says when not all are stored.

        See `ColumnWriting.put_columns` for arguments and errors.
        """
        ...

    async def put_columns_async(
        self, table: object, **settings: Unpack[ColumnSettings]
    ) -> PutColumnsResult:
        """As `put_columns`, without blocking the event loop."""
        ...

    async def put_async(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        durability: Durability | DurabilityName | None = None,
        **settings: Unpack[PutSettings],
    ) -> PutMessageResult:
        """As `put`, without blocking the event loop. See `Writing.put_async`."""
        ...

    async def put_message_async(
        self,
        message: Message | MessageExt,
        *,
        durability: Durability | DurabilityName | None = None,
    ) -> PutMessageResult:
        """As `put_message`, without blocking the event loop."""
        ...

    async def put_messages_async(
        self,
        messages: Iterable[Message] | bytes,
        *,
        durability: Durability | DurabilityName | None = None,
        **settings: Unpack[BatchSettings],
    ) -> PutMessageResult:
        """As `put_messages`, without blocking the event loop. See `Writing.put_messages_async`."""
        ...

    @property
    def waits(self) -> bool:
        """Tell whether a put is acknowledged when disk or slaves have it, and not before."""
        ...

    def append_now(self, message: WireMessage) -> PutMessageResult | None:
        """Append a client's message if that needs no waiting; None: `append_later`."""
        ...

    async def append_later(self, message: WireMessage) -> PutMessageResult:
        """As `append_now`, with whatever it takes off the event loop; always answers."""
        ...

    async def confirmed(self, receipt: PutMessageResult) -> PutMessageResult:
        """Wait for disk and slaves, as the settings ask; the receipt says how that ended."""
        ...

    def not_waited_for(self, receipt: PutMessageResult) -> PutMessageResult:
        """The receipt of an append that waits for nothing; it is flushed soon."""
        ...

    # ---- reading

    def get_message(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int = 128 << 20,
        tags: str | None = None,
        max_scanned: int | None = None,
    ) -> GetMessageResult:
        """Messages of one queue from an offset on, and where to go on.

        See `Reading.get_message` for arguments and errors.
        """
        ...

    def query_message(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = 64,
        begin_ms: int = 0,
        end_ms: int | None = None,
        page: int | None = None,
        explain: bool = False,
    ) -> QueryMessageResult:
        """The newest messages of a topic that carry a key: true hits, each once.

        See `Reading.query_message` for arguments and errors.
        """
        ...

    def query_many(
        self,
        topic: str,
        keys: Iterable[str],
        *,
        max_messages: int = 64,
        begin_ms: int = 0,
        end_ms: int | None = None,
    ) -> list[QueryMessageResult]:
        """As `query_message` of each key: a result for each, in their order.

        See `Reading.query_many` for arguments and errors.
        """
        ...

    def queue_offset_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        *,
        boundary: BoundaryType | BoundaryName = "lower",
    ) -> int:
        """The queue offset that belongs to a store time.

        See `Reading.queue_offset_by_time` for arguments and errors.
        """
        ...

    def message_at(self, phy_offset: int) -> MessageExt | None:
        """The message whose record begins at a physical offset, None when none does."""
        ...

    def message_by_id(self, message_id: str) -> MessageExt | None:
        """The message with an offset message id, None when none has it."""
        ...

    def messages(
        self,
        topic: str | None = None,
        queue_id: int | None = None,
        *,
        start: int | None = None,
        stop: int | None = None,
        on_damage: OnDamage | None = None,
    ) -> Iterator[MessageExt]:
        """Every message of a queue, of a topic, or of the whole log, in order.

        See `Reading.messages` for arguments and errors.
        """
        ...

    def read_units(self, topic: str, queue_id: int, queue_offset: int, count: int) -> bytes:
        """Up to ``count`` consume-queue units of 20 bytes; empty outside the queue.

        See `Reading.read_units` for arguments and errors.
        """
        ...

    def queues(self) -> list[tuple[str, int]]:
        """(topic, queue id) of every queue, sorted."""
        ...

    def min_queue_offset(self, topic: str, queue_id: int) -> int:
        """Number of the oldest message of a queue; 0 when the queue is unknown.

        See `Reading.min_queue_offset` for arguments and errors.
        """
        ...

    def max_queue_offset(self, topic: str, queue_id: int) -> int:
        """Number that the next message of a queue gets; 0 when the queue is unknown.

        See `Reading.max_queue_offset` for arguments and errors.
        """
        ...

    @property
    def min_phy_offset(self) -> int:
        """Physical offset of the first byte of the log."""
        ...

    @property
    def max_phy_offset(self) -> int:
        """Physical offset behind the last byte of the log."""
        ...

    # ---- small tables of keys and values

    def kv_get(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of keys, None for each that there is not.

        See `KeyValues.kv_get` for arguments and errors.
        """
        ...

    def kv_put(self, table: str, key: bytes, value: bytes | None, *, ttl_ms: int = 0) -> None:
        """Set the value of a key, or delete it (None); as durable as a put.

        See `KeyValues.kv_put` for arguments and errors.
        """
        ...

    def kv_swap(
        self, table: str, key: bytes, old: bytes | None, new: bytes | None, *, ttl_ms: int = 0
    ) -> bool:
        """Set the value of a key if it has the value that the caller knows; None: not there.

        See `KeyValues.kv_swap` for arguments and errors.
        """
        ...

    def kv_list(
        self, table: str, *, first: bytes = b"", last: bytes | None = None, max_entries: int = 0
    ) -> list[tuple[bytes, bytes]]:
        """The entries of a range, by key.

        See `KeyValues.kv_list` for arguments and errors.
        """
        ...

    def kv_take(
        self, table: str, *, first: bytes = b"", last: bytes | None = None, max_entries: int = 0
    ) -> list[tuple[bytes, bytes]]:
        """Delete the entries of a range and give them: each goes to one caller.

        See `KeyValues.kv_take` for arguments and errors.
        """
        ...

    def kv_count(self, table: str) -> int:
        """How many entries a table has."""
        ...

    # ---- consuming

    def wait(self, topic: str, queue_id: int, offset: int, timeout_ms: float | None = None) -> bool:
        """Wait until a queue has a message with an offset; False when it has not come in time.

        See `Consuming.wait` for arguments and errors.
        """
        ...

    async def wait_async(
        self, topic: str, queue_id: int, offset: int, timeout_ms: float | None = None
    ) -> bool:
        """As `wait`, without blocking the event loop."""
        ...

    def follow(
        self, topic: str, queue_id: int, start: int | None = None
    ) -> AsyncIterator[MessageExt]:
        """Every message of a queue, and those that come: ``async for`` without end.

        See `Consuming.follow` for arguments and errors.
        """
        ...

    def lease(
        self,
        group: str,
        subscriptions: Mapping[str, str],
        *,
        holder: str = "",
        max_messages: int = 32,
        lease_ms: int = 30_000,
        timeout_ms: float | None = 0,
        max_reconsume_times: int = 16,
        by_priority: bool = False,
        drop_expired: bool = False,
    ) -> list[ReceivedMessage]:
        """Hand out messages of some topics to one of a group's consumers, for a time.

        Nobody else of the group gets them before that time is over. What comes again comes before
        what is newer in its queue. A group that is new begins with the oldest message.

        Args:
            group: the consumers that share the messages.
            subscriptions: topic -> ``*``, tags such as ``a || b``, or `Sql`; the group's retry
                topic belongs to them.
            holder: who takes them, see `release_leases`; without a name this process, with whose
                end they come again, or with the store's closing.
            max_messages: at most this many.
            lease_ms: for how long, milliseconds.
            timeout_ms: how long to wait when there is none; 0 not at all, None without end.
            max_reconsume_times: a message that was handed out once, and this many times again, goes
                to the group's dead-letter topic.
            by_priority: queues with higher ids first, always; else they take turns.
            drop_expired: what has a property EXPIRES_MS with a Unix time in milliseconds that has
                come is acknowledged in place of being handed out.

        Returns:
            the messages; ``place`` of each is its `Lease`. None in time: an empty list.

        Raises:
            ArgumentError: an argument is not what it should be.
            DiskFullError: there is no room to write the leases down; nothing is handed out.
            StoreClosedError: the store is closed, or was closed meanwhile.

        Source: RocketMQ broker/processor/PopMessageProcessor.java.
        """
        ...

    async def lease_async(
        self,
        group: str,
        subscriptions: Mapping[str, str],
        **settings: Unpack[LeaseSettings],
    ) -> list[ReceivedMessage]:
        """As `lease`, without blocking the event loop while there is none."""
        ...

    def acknowledge(self, group: str, leases: Iterable[Lease]) -> int:
        """Be done with messages; how many were not acknowledged before.

        See `Consuming.acknowledge` for arguments and errors.
        """
        ...

    def change_lease(self, group: str, leases: Iterable[Lease], lease_ms: int) -> int:
        """Let leases end some milliseconds from now; how many there are still.

        See `Consuming.change_lease` for arguments and errors.
        """
        ...

    def give_back(
        self,
        group: str,
        leases: Iterable[Lease],
        *,
        delay_ms: int | None = None,
        max_reconsume_times: int = 16,
    ) -> int:
        """Let messages come again later, or become dead letters; how many leases there were.

        See `Consuming.give_back` for arguments and errors.
        """
        ...

    def release_leases(self, holder: str) -> int:
        """Let all come again at once that somebody has leased and not settled; how many."""
        ...

    def lag(self, group: str, topics: Iterable[str]) -> list[QueueLag]:
        """What a group has before it of each queue of some topics and of its retry topic.

        See `Consuming.lag` for arguments and errors.
        """
        ...

    def ready(self, group: str, topic: str) -> list[tuple[int, int, int]]:
        """(queue id, first offset, offset behind the last) of what can be handed out now.

        See `Consuming.ready` for arguments and errors.
        """
        ...

    def purge(self, group: str, topic: str) -> int:
        """Be done with all messages of a topic that are ready; how many.

        See `Consuming.purge` for arguments and errors.
        """
        ...

    # ---- settings and topics

    def change_settings(self, **settings: Any) -> None:
        """Change settings that may change while the store is open: all that are given, or none."""
        ...

    def delete_topic(self, topic: str) -> bool:
        """Delete a topic for good: its queues, its configuration, what groups have consumed of it.

        False when there was none.
        """
        ...

    # ---- what it says of itself

    def on_arrival(self, listener: ArrivalListener) -> Callable[[], None]:
        """Call a function whenever messages have come that can be read; returns what ends it."""
        ...

    def broker_conf(self) -> str:
        """The ``broker.conf`` lines with which RocketMQ opens this store."""
        ...

    def delay_offsets(self) -> dict[int, int]:
        """By delay level, the next queue offset that is delivered."""
        ...

    def why_not_writable(self) -> str | None:
        """Why puts are refused at this moment; None when they are not."""
        ...

    def stats(self) -> dict[str, str]:
        """Counters and rates under RocketMQ's runtime-info names."""
        ...

    # ---- flushing and closing

    def delete_expired_files(self) -> None:
        """Delete what retention would delete now, whatever the hour."""
        ...

    def delete_consumed_files(self, disposable: Iterable[str] = ()) -> int:
        """Delete the oldest log files, as far as every message in them is done with; how many."""
        ...

    def flush(self) -> int:
        """Write everything put so far through to the disk; the flushed physical offset."""
        ...

    def close(self) -> None:
        """Write everything through to the disk and let the store go; idempotent."""
        ...

    def __enter__(self) -> Self:
        """The store itself."""
        ...

    def __exit__(self, *_: object) -> None:
        """Close the store."""
        ...

    async def __aenter__(self) -> Self:
        """The store itself."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Close the store, without blocking the event loop."""
        ...
