"""`SharedMessageStore`: every call of a store, made in the owner or asked of it."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Unpack, cast

from rmqcore.arguments import text
from rmqcore.config import StoreConfig
from rmqcore.files.config_tables import TopicConfigTable
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.message import (
    BatchSettings,
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
from rmqcore.native.format._wire_message import WireMessage
from rmqcore.services.arrival import ArrivalListener
from rmqcore.services.event_loop import running_loop
from rmqcore.status import BoundaryType, Durability
from rmqcore.store.parts.iteration import OnDamage, checked_bounds, topic_messages
from rmqcore.store.protocol import MessageStore
from rmqcore.store.readable_store import broker_conf
from rmqcore.store.sharing.shared_handle import SharedStoreHandle

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from rmqcore.status import BoundaryName, DurabilityName
    from rmqcore.store.parts.put_columns_result import PutColumnsResult


class SharedStore(MessageStore, Protocol):
    """What `open_shared` gives: a `MessageStore`, and who owns it."""

    @property
    def owner(self) -> int:
        """Process id of the owner; this process's own when it is the owner."""
        ...


class SharedMessageStore(SharedStoreHandle):
    """A store that several processes share; made by `rmqcore.open_shared`.

    In the owner a call is one of its `DefaultMessageStore`, in a client it is one request.

    Threads: any. After a fork the child's handle is a client of the parent's.
    """

    # ---- calls that are one request each

    def put(
        self,
        topic: str,
        body: Buffer,
        *,
        durability: Durability | DurabilityName | None = None,
        **settings: Unpack[PutSettings],
    ) -> PutMessageResult:
        """See `MessageStore.put`."""
        return self._forward(MessageStore.put, topic, body, durability=durability, **settings)

    def put_message(
        self,
        message: Message | MessageExt,
        *,
        durability: Durability | DurabilityName | None = None,
    ) -> PutMessageResult:
        """See `MessageStore.put_message`."""
        return self._forward(MessageStore.put_message, message, durability=durability)

    def put_messages(
        self,
        messages: Iterable[Message] | bytes,
        *,
        durability: Durability | DurabilityName | None = None,
        **settings: Unpack[BatchSettings],
    ) -> PutMessageResult:
        """See `MessageStore.put_messages`."""
        return self._forward(MessageStore.put_messages, messages, durability=durability, **settings)

    async def put_async(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        durability: Durability | DurabilityName | None = None,
        **settings: Unpack[PutSettings],
    ) -> PutMessageResult:
        """See `MessageStore.put_async`."""
        return await self._forward_async(
            MessageStore.put_async, topic, body, durability=durability, **settings
        )

    async def put_message_async(
        self,
        message: Message | MessageExt,
        *,
        durability: Durability | DurabilityName | None = None,
    ) -> PutMessageResult:
        """See `MessageStore.put_message_async`."""
        return await self._forward_async(
            MessageStore.put_message_async, message, durability=durability
        )

    async def put_messages_async(
        self,
        messages: Iterable[Message] | bytes,
        *,
        durability: Durability | DurabilityName | None = None,
        **settings: Unpack[BatchSettings],
    ) -> PutMessageResult:
        """See `MessageStore.put_messages_async`."""
        return await self._forward_async(
            MessageStore.put_messages_async, messages, durability=durability, **settings
        )

    async def append_later(self, message: WireMessage) -> PutMessageResult:
        """See `MessageStore.append_later`."""
        return await self._forward_async(MessageStore.append_later, message)

    async def confirmed(self, receipt: PutMessageResult) -> PutMessageResult:
        """See `MessageStore.confirmed`."""
        return await self._forward_async(MessageStore.confirmed, receipt)

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
        """See `MessageStore.get_message`."""
        return self._forward(
            MessageStore.get_message,
            topic,
            queue_id,
            queue_offset,
            max_messages=max_messages,
            max_bytes=max_bytes,
            tags=tags,
            max_scanned=max_scanned,
        )

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
        """See `MessageStore.query_message`."""
        return self._forward(
            MessageStore.query_message,
            topic,
            key,
            max_messages=max_messages,
            begin_ms=begin_ms,
            end_ms=end_ms,
            page=page,
            explain=explain,
        )

    def query_many(
        self,
        topic: str,
        keys: Iterable[str],
        *,
        max_messages: int = 64,
        begin_ms: int = 0,
        end_ms: int | None = None,
    ) -> list[QueryMessageResult]:
        """See `MessageStore.query_many`."""
        return self._forward(
            MessageStore.query_many,
            topic,
            [text("key", key) for key in keys],
            max_messages=max_messages,
            begin_ms=begin_ms,
            end_ms=end_ms,
        )

    def queue_offset_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        *,
        boundary: BoundaryType | BoundaryName = "lower",
    ) -> int:
        """See `MessageStore.queue_offset_by_time`."""
        return self._forward(
            MessageStore.queue_offset_by_time, topic, queue_id, timestamp_ms, boundary=boundary
        )

    def message_at(self, phy_offset: int) -> MessageExt | None:
        """See `MessageStore.message_at`."""
        return self._forward(MessageStore.message_at, phy_offset)

    def message_by_id(self, message_id: str) -> MessageExt | None:
        """See `MessageStore.message_by_id`."""
        return self._forward(MessageStore.message_by_id, message_id)

    def read_units(self, topic: str, queue_id: int, queue_offset: int, count: int) -> bytes:
        """See `MessageStore.read_units`."""
        return self._forward(MessageStore.read_units, topic, queue_id, queue_offset, count)

    def queues(self) -> list[tuple[str, int]]:
        """See `MessageStore.queues`."""
        return self._forward(MessageStore.queues)

    def min_queue_offset(self, topic: str, queue_id: int) -> int:
        """See `MessageStore.min_queue_offset`."""
        return self._forward(MessageStore.min_queue_offset, topic, queue_id)

    def max_queue_offset(self, topic: str, queue_id: int) -> int:
        """See `MessageStore.max_queue_offset`."""
        return self._forward(MessageStore.max_queue_offset, topic, queue_id)

    def kv_get(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `MessageStore.kv_get`."""
        return self._forward(MessageStore.kv_get, table, keys)

    def kv_put(self, table: str, key: bytes, value: bytes | None, *, ttl_ms: int = 0) -> None:
        """See `MessageStore.kv_put`."""
        self._forward(MessageStore.kv_put, table, key, value, ttl_ms=ttl_ms)

    def kv_swap(
        self, table: str, key: bytes, old: bytes | None, new: bytes | None, *, ttl_ms: int = 0
    ) -> bool:
        """See `MessageStore.kv_swap`."""
        return self._forward(MessageStore.kv_swap, table, key, old, new, ttl_ms=ttl_ms)

    def kv_list(
        self, table: str, *, first: bytes = b"", last: bytes | None = None, max_entries: int = 0
    ) -> list[tuple[bytes, bytes]]:
        """See `MessageStore.kv_list`."""
        return self._forward(
            MessageStore.kv_list, table, first=first, last=last, max_entries=max_entries
        )

    def kv_take(
        self, table: str, *, first: bytes = b"", last: bytes | None = None, max_entries: int = 0
    ) -> list[tuple[bytes, bytes]]:
        """See `MessageStore.kv_take`."""
        return self._forward(
            MessageStore.kv_take, table, first=first, last=last, max_entries=max_entries
        )

    def kv_count(self, table: str) -> int:
        """See `MessageStore.kv_count`."""
        return self._forward(MessageStore.kv_count, table)

    def wait(self, topic: str, queue_id: int, offset: int, timeout_ms: float | None = None) -> bool:
        """See `MessageStore.wait`."""
        return self._forward(MessageStore.wait, topic, queue_id, offset, timeout_ms)

    async def wait_async(
        self, topic: str, queue_id: int, offset: int, timeout_ms: float | None = None
    ) -> bool:
        """See `MessageStore.wait_async`."""
        return await self._forward_async(
            MessageStore.wait_async, topic, queue_id, offset, timeout_ms
        )

    def lease(
        self,
        group: str,
        subscriptions: Mapping[str, str],
        **settings: Unpack[LeaseSettings],
    ) -> list[ReceivedMessage]:
        """See `MessageStore.lease`."""
        return self._forward(MessageStore.lease, group, subscriptions, **settings)

    async def lease_async(
        self,
        group: str,
        subscriptions: Mapping[str, str],
        **settings: Unpack[LeaseSettings],
    ) -> list[ReceivedMessage]:
        """See `MessageStore.lease_async`."""
        return await self._forward_async(MessageStore.lease_async, group, subscriptions, **settings)

    def acknowledge(self, group: str, leases: Iterable[Lease]) -> int:
        """See `MessageStore.acknowledge`."""
        return self._forward(MessageStore.acknowledge, group, leases)

    def change_lease(self, group: str, leases: Iterable[Lease], lease_ms: int) -> int:
        """See `MessageStore.change_lease`."""
        return self._forward(MessageStore.change_lease, group, leases, lease_ms)

    def give_back(
        self,
        group: str,
        leases: Iterable[Lease],
        *,
        delay_ms: int | None = None,
        max_reconsume_times: int = 16,
    ) -> int:
        """See `MessageStore.give_back`."""
        return self._forward(
            MessageStore.give_back,
            group,
            leases,
            delay_ms=delay_ms,
            max_reconsume_times=max_reconsume_times,
        )

    def release_leases(self, holder: str) -> int:
        """See `MessageStore.release_leases`."""
        return self._forward(MessageStore.release_leases, holder)

    def lag(self, group: str, topics: Iterable[str]) -> list[QueueLag]:
        """See `MessageStore.lag`."""
        return self._forward(MessageStore.lag, group, topics)

    def purge(self, group: str, topic: str) -> int:
        """See `MessageStore.purge`."""
        return self._forward(MessageStore.purge, group, topic)

    def change_settings(self, **settings: Any) -> None:
        """See `MessageStore.change_settings`."""
        if (store := self._store) is not None:
            store.change_settings(**settings)
        else:
            self._call("change_settings", (), settings)

    def delete_topic(self, topic: str) -> bool:
        """See `MessageStore.delete_topic`."""
        return self._forward(MessageStore.delete_topic, topic)

    def delay_offsets(self) -> dict[int, int]:
        """See `MessageStore.delay_offsets`."""
        return self._forward(MessageStore.delay_offsets)

    def why_not_writable(self) -> str | None:
        """See `MessageStore.why_not_writable`."""
        return self._forward(MessageStore.why_not_writable)

    def stats(self) -> dict[str, str]:
        """See `MessageStore.stats`."""
        return self._forward(MessageStore.stats)

    def delete_expired_files(self) -> None:
        """See `MessageStore.delete_expired_files`."""
        self._forward(MessageStore.delete_expired_files)

    def delete_consumed_files(self, disposable: Iterable[str] = ()) -> int:
        """See `MessageStore.delete_consumed_files`."""
        return self._forward(MessageStore.delete_consumed_files, disposable)

    def flush(self) -> int:
        """See `MessageStore.flush`."""
        return self._forward(MessageStore.flush)

    # ---- calls that are more than one request, or none

    def put_columns(
        self,
        table: object,
        *,
        topic: str | None = None,
        queue_count: int = 1,
        copy: bool = False,
        durability: Durability | DurabilityName | None = None,
    ) -> PutColumnsResult:
        """See `MessageStore.put_columns`: the records are made here, the owner appends them."""
        if (store := self._store) is not None:
            return store.put_columns(
                table, topic=topic, queue_count=queue_count, copy=copy, durability=durability
            )
        from rmqcore.store.sharing.column_calls import put_table  # noqa: PLC0415 - for tables only

        if durability is None and self._asks_for_disk:
            durability = Durability.DISK
        put = functools.partial(self._call, "put_records")
        return put_table(put, self.config, (table, topic, queue_count), copy, durability)

    async def put_columns_async(
        self,
        table: object,
        *,
        topic: str | None = None,
        queue_count: int = 1,
        copy: bool = False,
        durability: Durability | DurabilityName | None = None,
    ) -> PutColumnsResult:
        """As `put_columns`, without blocking the event loop."""
        call = functools.partial(
            self.put_columns,
            table,
            topic=topic,
            queue_count=queue_count,
            copy=copy,
            durability=durability,
        )
        return await running_loop().run_in_executor(None, call)

    def append_now(self, message: WireMessage) -> PutMessageResult | None:
        """See `MessageStore.append_now`: a client always has to wait for the owner."""
        return None if (store := self._store) is None else store.append_now(message)

    def not_waited_for(self, receipt: PutMessageResult) -> PutMessageResult:
        """See `MessageStore.not_waited_for`: for a client the owner has seen to that."""
        return receipt if (store := self._store) is None else store.not_waited_for(receipt)

    def follow(
        self, topic: str, queue_id: int, start: int | None = None
    ) -> AsyncIterator[MessageExt]:
        """See `MessageStore.follow`."""
        if (store := self._store) is not None:
            return store.follow(topic, queue_id, start)
        return self._followed(topic, queue_id, start)

    async def _followed(
        self, topic: str, queue_id: int, start: int | None
    ) -> AsyncIterator[MessageExt]:
        offset = start
        if offset is None:
            offset = await self._call_async("min_queue_offset", (topic, queue_id), {})
        while True:
            await self.wait_async(topic, queue_id, offset)
            result = await self._call_async("get_message", (topic, queue_id, offset), {})
            for message in result.messages:
                yield message
            offset = result.next_queue_offset

    def on_arrival(self, listener: ArrivalListener) -> Callable[[], None]:
        """See `MessageStore.on_arrival`; after a take-over every queue is told once."""
        return self._listeners.add(listener)

    def messages(
        self,
        topic: str | None = None,
        queue_id: int | None = None,
        *,
        start: int | None = None,
        stop: int | None = None,
        on_damage: OnDamage | None = None,
    ) -> Iterator[MessageExt]:
        """See `MessageStore.messages`."""
        if (store := self._store) is not None:
            return store.messages(topic, queue_id, start=start, stop=stop, on_damage=on_damage)
        checked_bounds(queue_id, start, stop)
        if topic is None:
            return self._log_messages(start, stop, on_damage)
        queues = cast("MessageStore", self)
        return topic_messages(queues, text("topic", topic), queue_id, start, stop, on_damage)

    def broker_conf(self) -> str:
        """The ``broker.conf`` lines with which RocketMQ opens this store."""
        return broker_conf(self.config, self.path)

    def _log_messages(
        self, start: int | None, stop: int | None, on_damage: OnDamage | None
    ) -> Iterator[MessageExt]:
        offset = start
        while True:
            page, offset = self._call("log_page", (offset, stop), {})
            for each in page:
                if isinstance(each, MessageExt):
                    yield each
                elif on_damage is None:
                    raise each
                else:
                    on_damage(each)
            if offset is None:
                return

    @property
    def config(self) -> StoreConfig:
        """The settings of the store, as the owner has opened it."""
        return cast("StoreConfig", self._call("config", (), {}))

    @property
    def topics(self) -> TopicConfigTable:
        """The topics' configuration."""
        return cast("TopicConfigTable", self._topics)

    @property
    def consumer_offsets(self) -> ConsumerOffsetTable:
        """What groups have consumed."""
        return cast("ConsumerOffsetTable", self._consumer_offsets)

    @property
    def min_phy_offset(self) -> int:
        """Physical offset of the first byte of the log."""
        return cast("int", self._call("min_phy_offset", (), {}))

    @property
    def max_phy_offset(self) -> int:
        """Physical offset behind the last byte of the log."""
        return cast("int", self._call("max_phy_offset", (), {}))

    @property
    def waits(self) -> bool:
        """Tell whether a put is acknowledged when disk or slaves have it, and not before."""
        return cast("bool", self._call("waits", (), {}))
