"""The store that is open for writing: makes its parts, starts them, forwards calls, and closes."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from rmqcore.config import StoreConfig
from rmqcore.files.store_dir import StoreDir
from rmqcore.files.store_trace import StoreTrace
from rmqcore.native.base._lock import ReentrantLock, locks_held
from rmqcore.native.log._putter import MessagePutter
from rmqcore.services.runner import Runner, Threads
from rmqcore.store.open_stores import OPEN_STORES, close_forgotten
from rmqcore.store.parts.all_parts import Parts
from rmqcore.store.parts.column_writing import ColumnWriting
from rmqcore.store.parts.confirmation import Confirmation
from rmqcore.store.parts.consumed_files import ConsumedFiles
from rmqcore.store.parts.consuming import Consuming
from rmqcore.store.parts.flushing import Flushing
from rmqcore.store.parts.handle import Handle
from rmqcore.store.parts.health import Health
from rmqcore.store.parts.key_values import KeyValues
from rmqcore.store.parts.opening import Opening
from rmqcore.store.parts.topics import Topics
from rmqcore.store.parts.upkeep import Upkeep
from rmqcore.store.parts.writing import Writing
from rmqcore.store.readable_store import ReadableStore, broker_conf
from rmqcore.store.words import in_the_words_of
from rmqcore.world import REAL, World

if TYPE_CHECKING:
    from rmqcore.files.store_trace import TraceRow
    from rmqcore.message import (
        BatchSettings,
        Lease,
        LeaseSettings,
        Message,
        MessageExt,
        PutMessageResult,
        PutSettings,
        QueueLag,
        ReceivedMessage,
    )
    from rmqcore.native.format._wire_message import WireMessage
    from rmqcore.recovery.report import RecoveryProgress
    from rmqcore.services.arrival import ArrivalListener
    from rmqcore.status import Durability, DurabilityName
    from rmqcore.store.parts.put_columns_result import PutColumnsResult
    from rmqcore.store.parts.slave_waits import SlaveWaits


@in_the_words_of(
    Writing,
    ColumnWriting,
    Confirmation,
    Consuming,
    ConsumedFiles,
    KeyValues,
    Topics,
    Flushing,
    Upkeep,
    Health,
    Parts,
)
class DefaultMessageStore(MessagePutter, ReadableStore):
    """A store that is open for writing; made by `rmqcore.open_store`.

    - One handle at a time: the lock excludes other processes, Java brokers and other handles.
    - A receipt names the durability that was reached; docs/durability.md says what that means.
    - After the disk has refused a write the store takes no more puts, and says why.
    - Consume queues and index are derived from the log; a read that begins after a put returned
      sees that message.

    Attributes:
        parts: what the store consists of.
        followed_log: the log as replication sees it.

    Threads: any.
    Source: RocketMQ store/DefaultMessageStore.java.
    """

    _handle: Handle | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: StoreConfig,
        *,
        progress: Callable[[RecoveryProgress], None] | None = None,
        keep_from: Callable[[], int | None] = lambda: None,
        runner: Runner | None = None,
        world: World = REAL,
    ) -> None:
        """Open the store; see `rmqcore.open_store`.

        Args:
            path: the store's directory.
            config: its settings.
            progress: called while the store is being recovered.
            keep_from: physical offset of the oldest message that somebody else has still to
                deliver, or None: retention keeps it.
            runner: runs the store's services; None runs them in threads.
            world: tells the time, and lets it pass.
        """
        config.check_for_writing()
        self.path = Path(path)
        self._closing = ReentrantLock()
        directory = StoreDir(self.path, config.store_path_commit_log)
        trace = StoreTrace(directory.trace, world.clock_ms)
        handle = Handle(self.path)
        self.parts = parts = Opening(handle, directory, trace, progress).run(
            config,
            Threads(world) if runner is None else runner,
            keep_from,
            world,
        )
        MessagePutter.__init__(self, parts.files.tail, parts.confirmation, parts.writing)
        ReadableStore.__init__(self, parts.reading)
        self._handle = handle
        self.log = parts.files.log
        self.consume_queues = parts.files.consume_queues
        self.index = parts.files.index
        self.topics = parts.files.topics
        self.consumer_offsets = parts.consumer_offsets
        self.flags = parts.health.flags
        self.followed_log = parts.followed_log
        self.recovery_report = parts.recovery_report
        OPEN_STORES.add(self)

    @property
    def config(self) -> StoreConfig:
        """The settings, as they are now."""
        return self.parts.settings.config

    # ---- putting

    def put_messages(
        self,
        messages: Iterable[Message] | bytes,
        *,
        durability: Durability | DurabilityName | None = None,
        **settings: Unpack[BatchSettings],
    ) -> PutMessageResult:
        """See `Writing.put_messages`."""
        return self.parts.writing.put_messages(messages, durability=durability, **settings)

    async def put_async(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        durability: Durability | DurabilityName | None = None,
        **settings: Unpack[PutSettings],
    ) -> PutMessageResult:
        """See `Writing.put_async`."""
        return await self.parts.writing.put_async(topic, body, durability=durability, **settings)

    async def put_message_async(
        self,
        message: Message | MessageExt,
        *,
        durability: Durability | DurabilityName | None = None,
    ) -> PutMessageResult:
        """See `Writing.put_message_async`."""
        return await self.parts.writing.put_message_async(message, durability=durability)

    async def put_messages_async(
        self,
        messages: Iterable[Message] | bytes,
        *,
        durability: Durability | DurabilityName | None = None,
        **settings: Unpack[BatchSettings],
    ) -> PutMessageResult:
        """See `Writing.put_messages_async`."""
        return await self.parts.writing.put_messages_async(
            messages, durability=durability, **settings
        )

    def put_columns(
        self,
        table: object,
        *,
        topic: str | None = None,
        queue_count: int = 1,
        copy: bool = False,
        durability: Durability | DurabilityName | None = None,
    ) -> PutColumnsResult:
        """See `ColumnWriting.put_columns`."""
        return self.parts.column_writing.put_columns(
            table, topic=topic, queue_count=queue_count, copy=copy, durability=durability
        )

    async def put_columns_async(
        self,
        table: object,
        *,
        topic: str | None = None,
        queue_count: int = 1,
        copy: bool = False,
        durability: Durability | DurabilityName | None = None,
    ) -> PutColumnsResult:
        """See `ColumnWriting.put_columns_async`."""
        return await self.parts.column_writing.put_columns_async(
            table, topic=topic, queue_count=queue_count, copy=copy, durability=durability
        )

    def put_records(
        self,
        records: bytes,
        queues: list[tuple[str, int]],
        *,
        durability: Durability | DurabilityName | None = None,
    ) -> PutColumnsResult:
        """See `ColumnWriting.put_records`."""
        return self.parts.column_writing.put_records(records, queues, durability=durability)

    @property
    def waits(self) -> bool:
        """Tell whether a put is acknowledged when disk or slaves have it, and not before."""
        return self.parts.confirmation.waits

    async def append_later(self, message: WireMessage) -> PutMessageResult:
        """See `Writing.append_later`."""
        return await self.parts.writing.append_later(message)

    async def confirmed(self, receipt: PutMessageResult) -> PutMessageResult:
        """See `Writing.confirmed`."""
        return await self.parts.writing.confirmed(receipt)

    def not_waited_for(self, receipt: PutMessageResult) -> PutMessageResult:
        """See `Writing.not_waited_for`."""
        return self.parts.writing.not_waited_for(receipt)

    def wait_for_slaves(self, slaves: SlaveWaits | None) -> None:
        """See `Confirmation.wait_for_slaves`."""
        self.parts.confirmation.wait_for_slaves(slaves)

    def warn_without_slaves(self) -> None:
        """See `Confirmation.warn_without_slaves`."""
        self.parts.confirmation.warn_without_slaves()

    # ---- tables of keys and values

    def kv_get(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `KeyValues.kv_get`."""
        return self.parts.key_values.kv_get(table, keys)

    def kv_put(self, table: str, key: bytes, value: bytes | None, *, ttl_ms: int = 0) -> None:
        """See `KeyValues.kv_put`."""
        self.parts.key_values.kv_put(table, key, value, ttl_ms=ttl_ms)

    def kv_swap(
        self, table: str, key: bytes, old: bytes | None, new: bytes | None, *, ttl_ms: int = 0
    ) -> bool:
        """See `KeyValues.kv_swap`."""
        return self.parts.key_values.kv_swap(table, key, old, new, ttl_ms=ttl_ms)

    def kv_list(
        self, table: str, *, first: bytes = b"", last: bytes | None = None, max_entries: int = 0
    ) -> list[tuple[bytes, bytes]]:
        """See `KeyValues.kv_list`."""
        return self.parts.key_values.kv_list(table, first=first, last=last, max_entries=max_entries)

    def kv_take(
        self, table: str, *, first: bytes = b"", last: bytes | None = None, max_entries: int = 0
    ) -> list[tuple[bytes, bytes]]:
        """See `KeyValues.kv_take`."""
        return self.parts.key_values.kv_take(table, first=first, last=last, max_entries=max_entries)

    def kv_count(self, table: str) -> int:
        """See `KeyValues.kv_count`."""
        return self.parts.key_values.kv_count(table)

    # ---- consuming

    def wait(self, topic: str, queue_id: int, offset: int, timeout_ms: float | None = None) -> bool:
        """See `Consuming.wait`."""
        return self.parts.consuming.wait(topic, queue_id, offset, timeout_ms)

    async def wait_async(
        self, topic: str, queue_id: int, offset: int, timeout_ms: float | None = None
    ) -> bool:
        """See `Consuming.wait_async`."""
        return await self.parts.consuming.wait_async(topic, queue_id, offset, timeout_ms)

    async def follow(
        self, topic: str, queue_id: int, start: int | None = None
    ) -> AsyncIterator[MessageExt]:
        """See `Consuming.follow`."""
        async for message in self.parts.consuming.follow(topic, queue_id, start):
            yield message

    def lease(
        self,
        group: str,
        subscriptions: Mapping[str, str],
        **settings: Unpack[LeaseSettings],
    ) -> list[ReceivedMessage]:
        """See `MessageStore.lease`."""
        return self.parts.consuming.lease(group, subscriptions, **settings)

    async def lease_async(
        self,
        group: str,
        subscriptions: Mapping[str, str],
        **settings: Unpack[LeaseSettings],
    ) -> list[ReceivedMessage]:
        """See `MessageStore.lease_async`."""
        return await self.parts.consuming.lease_async(group, subscriptions, **settings)

    def acknowledge(self, group: str, leases: Iterable[Lease]) -> int:
        """See `Consuming.acknowledge`."""
        return self.parts.consuming.acknowledge(group, leases)

    def change_lease(self, group: str, leases: Iterable[Lease], lease_ms: int) -> int:
        """See `Consuming.change_lease`."""
        return self.parts.consuming.change_lease(group, leases, lease_ms)

    def give_back(
        self,
        group: str,
        leases: Iterable[Lease],
        *,
        delay_ms: int | None = None,
        max_reconsume_times: int = 16,
    ) -> int:
        """See `Consuming.give_back`."""
        return self.parts.consuming.give_back(
            group, leases, delay_ms=delay_ms, max_reconsume_times=max_reconsume_times
        )

    def release_leases(self, holder: str) -> int:
        """See `Consuming.release_leases`."""
        return self.parts.consuming.release_leases(holder)

    def lag(self, group: str, topics: Iterable[str]) -> list[QueueLag]:
        """See `Consuming.lag`."""
        return self.parts.consuming.lag(group, topics)

    def purge(self, group: str, topic: str) -> int:
        """See `Consuming.purge`."""
        return self.parts.consuming.purge(group, topic)

    def delete_consumed_files(self, disposable: Iterable[str] = ()) -> int:
        """See `ConsumedFiles.delete_consumed_files`."""
        return self.parts.consumed_files.delete_consumed_files(disposable)

    def on_arrival(self, listener: ArrivalListener) -> Callable[[], None]:
        """Call a function whenever messages have come that can be read.

        Args:
            listener: called with the (topic, queue id) of each queue concerned, by the thread that
                dispatches; it must neither block nor raise.

        Returns:
            what ends it.
        """
        return self.parts.log_services.arrival.listen(listener)

    # ---- settings and topics

    def change_settings(self, **settings: Any) -> None:
        """See `Parts.change_settings`."""
        self.parts.change_settings(**settings)

    def delete_topic(self, topic: str) -> bool:
        """See `Topics.delete_topic`."""
        return self.parts.topics.delete_topic(topic)

    # ---- what the store says of itself

    def why_not_writable(self) -> str | None:
        """See `Health.why_not_writable`."""
        return self.parts.health.why_not_writable()

    def why_will_be_deleted(self, file: str | Path) -> str | None:
        """See `Upkeep.why_will_be_deleted`."""
        return self.parts.upkeep.why_will_be_deleted(file)

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that consume queues and index do not have yet."""
        return self.parts.log_services.reput.behind

    def delay_offsets(self) -> dict[int, int]:
        """See `Upkeep.delay_offsets`."""
        return self.parts.upkeep.delay_offsets()

    def delay_skipped_count(self) -> int:
        """See `Upkeep.delay_skipped_count`."""
        return self.parts.upkeep.delay_skipped_count()

    def stats(self) -> dict[str, str]:
        """Counters and rates under RocketMQ's runtime-info names."""
        return self.parts.runtime_info()

    def broker_conf(self) -> str:
        """The ``broker.conf`` lines with which RocketMQ opens this store."""
        return broker_conf(self.config, self.path)

    def trace(self) -> list[TraceRow]:
        """The store's last 200 events, newest last: puts, rolls, flushes, dispatches and the like.

        Those of earlier openings stand in front of its own; docs/cli.md says what they tell. Also
        of a store that is closed.
        """
        return self.parts.trace.rows()

    # ---- flushing and closing

    def flush(self) -> int:
        """See `Flushing.flush`."""
        return self.parts.flushing.flush()

    def flush_log(self) -> None:
        """See `Flushing.flush_log`."""
        self.parts.flushing.flush_log()

    def delete_expired_files(self) -> None:
        """See `Upkeep.delete_expired_files`."""
        self.parts.upkeep.delete_expired_files()

    def close(self) -> None:
        """Write everything through to the disk and let the store go; idempotent.

        Called by a signal handler or a finalizer inside another call of the same thread, it returns
        at once, and the store is closed as soon as that call has ended.

        Raises:
            OSError: the disk refused; the abort marker stays, and the next open recovers.
            StoreNotFoundError: the directory has been removed.
            KeyboardInterrupt: the same; what an interrupt leaves open, a further call closes.
        """
        handle = self.parts.handle
        if handle.forked:
            handle.closed = True
            OPEN_STORES.discard(self)
            return
        if locks_held():
            threading.Thread(target=self.close, name="CloseStore").start()
            return
        if not handle.closed:
            self.parts.stop_callers()
        # one does it, the others return when it is done
        with self._closing.within():
            handle.closer = threading.get_ident()
            if not handle.closed:
                self._close()
            elif self.has_files:
                # an interrupt has ended an earlier close before its end
                self.parts.let_go(clean=False)

    @property
    def has_files(self) -> bool:
        """Whether the files are this store's; an interrupt in `close` may have left them so."""
        return self.parts.files.directory.is_ours

    def _close(self) -> None:
        clean = False
        self.parts.handle.closed = True
        try:
            OPEN_STORES.discard(self)
            clean = self.parts.end()
        finally:
            self.parts.let_go(clean=clean)

    def after_fork_in_child(self) -> None:
        """Make this handle, which the parent owns, refuse everything in a forked child."""
        self.parts.after_fork_in_child()

    def __del__(self) -> None:
        if self._handle is not None and self._handle.usable:
            close_forgotten(self)

    def __repr__(self) -> str:
        closed = self.parts.handle.closed
        state = "closed" if closed else f"{self.log.min_offset} to {self.log.max_offset}"
        return f"DefaultMessageStore({str(self.path)!r}, {state})"
