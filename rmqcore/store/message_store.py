"""The store that is open for writing: makes its parts, starts them, forwards calls, and closes."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from rmqcore.arguments import directory_path
from rmqcore.config import StoreConfig
from rmqcore.files.store_dir import StoreDir
from rmqcore.files.store_trace import StoreTrace
from rmqcore.native.base._lock import ReentrantLock, locks_held
from rmqcore.native.log._putter import MessagePutter
from rmqcore.services.delay_schedule import QueueAtDelivery, as_asked
from rmqcore.services.runner import Runner, Threads, refuse_greenlets
from rmqcore.store.consume.undoing import undone_if_interrupted
from rmqcore.store.forwarding import forwards, in_the_words_of
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
from rmqcore.world import REAL, World

if TYPE_CHECKING:
    from rmqcore.files.store_trace import TraceRow
    from rmqcore.message import (
        MessageExt,
    )
    from rmqcore.recovery.report import RecoveryProgress
    from rmqcore.services.arrival import ArrivalListener


class DefaultMessageStore(MessagePutter, ReadableStore):
    """A store that is open for writing; made by `rmqcore.open_store`.

    - One handle at a time: the lock excludes other processes, Java brokers and other handles.
    - A receipt names the durability that was reached; docs/durability.md says what that means.
    - After the disk has refused a write the store takes no more puts, and says why.
    - Consume queues and index are derived from the log; a read that begins after a put returned
      sees that message.

    Attributes:
        world: tells its time.
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
        keep_from: Callable[[], int | None] | None = None,
        queue_at_delivery: QueueAtDelivery = as_asked,
        runner: Runner | None = None,
        world: World = REAL,
    ) -> None:
        """Open the store; see `rmqcore.open_store`.

        Args:
            path: the store's directory.
            config: its settings.
            progress: called while the store is being recovered.
            keep_from: physical offset of the oldest message that somebody else has still to
                deliver, or None: retention keeps it; without it as the files of a broker say.
            queue_at_delivery: (configuration of a topic or None, the queue that a delayed message
                asks for) -> the queue that it is delivered to; by default that one.
            runner: runs the store's services; None runs them in threads.
            world: tells the time, and lets it pass.
        """
        config.check_for_writing()
        self.path = directory_path("path", path).absolute()
        if runner is None:
            refuse_greenlets(self.path)
        self.world = world
        self._closing = ReentrantLock()
        directory = StoreDir(self.path, config.store_path_commit_log)
        trace = StoreTrace(directory.trace, world.clock_ms)
        handle = Handle(self.path)
        self.parts = parts = Opening(handle, directory, trace, progress).run(
            config,
            Threads(world) if runner is None else runner,
            keep_from,
            queue_at_delivery,
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

    put_messages = forwards("parts.writing", Writing.put_messages)
    put_async = forwards("parts.writing", Writing.put_async)
    put_message_async = forwards("parts.writing", Writing.put_message_async)
    put_messages_async = forwards("parts.writing", Writing.put_messages_async)
    put_columns = forwards("parts.column_writing", ColumnWriting.put_columns)
    put_columns_async = forwards("parts.column_writing", ColumnWriting.put_columns_async)
    put_records = forwards("parts.column_writing", ColumnWriting.put_records)

    @property
    def waits(self) -> bool:
        """Tell whether a put is acknowledged when disk or slaves have it, and not before."""
        return self.parts.confirmation.waits

    append_later = forwards("parts.writing", Writing.append_later)
    confirmed = forwards("parts.writing", Writing.confirmed)
    not_waited_for = forwards("parts.writing", Writing.not_waited_for)
    wait_for_slaves = forwards("parts.confirmation", Confirmation.wait_for_slaves)
    warn_without_slaves = forwards("parts.confirmation", Confirmation.warn_without_slaves)

    # ---- tables of keys and values

    kv_get = forwards("parts.key_values", KeyValues.kv_get)
    kv_put = forwards("parts.key_values", KeyValues.kv_put)
    kv_swap = forwards("parts.key_values", KeyValues.kv_swap)
    kv_list = forwards("parts.key_values", KeyValues.kv_list)
    kv_take = forwards("parts.key_values", KeyValues.kv_take)
    kv_count = forwards("parts.key_values", KeyValues.kv_count)

    # ---- consuming

    wait = forwards("parts.consuming", Consuming.wait)
    wait_async = forwards("parts.consuming", Consuming.wait_async)

    @in_the_words_of(Consuming.follow)
    async def follow(
        self, topic: str, queue_id: int, start: int | None = None
    ) -> AsyncIterator[MessageExt]:
        """See `Consuming.follow`."""
        async for message in self.parts.consuming.follow(topic, queue_id, start):
            yield message

    lease = undone_if_interrupted(forwards("parts.consuming", Consuming.lease))
    lease_async = forwards("parts.consuming", Consuming.lease_async)
    acknowledge = forwards("parts.consuming", Consuming.acknowledge)
    change_lease = forwards("parts.consuming", Consuming.change_lease)
    give_back = forwards("parts.consuming", Consuming.give_back)
    release_leases = forwards("parts.consuming", Consuming.release_leases)
    lag = forwards("parts.consuming", Consuming.lag)
    ready = forwards("parts.consuming", Consuming.ready)
    purge = forwards("parts.consuming", Consuming.purge)
    delete_consumed_files = forwards("parts.consumed_files", ConsumedFiles.delete_consumed_files)

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

    @in_the_words_of(Parts.change_settings)
    def change_settings(self, **settings: Any) -> None:
        """See `Parts.change_settings`."""
        self.parts.change_settings(**settings)

    delete_topic = forwards("parts.topics", Topics.delete_topic)

    # ---- what the store says of itself

    why_not_writable = forwards("parts.health", Health.why_not_writable)
    why_will_be_deleted = forwards("parts.upkeep", Upkeep.why_will_be_deleted)

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that consume queues and index do not have yet."""
        return self.parts.log_services.reput.behind

    delay_offsets = forwards("parts.upkeep", Upkeep.delay_offsets)
    delay_skipped_count = forwards("parts.upkeep", Upkeep.delay_skipped_count)
    delay_held_count = forwards("parts.upkeep", Upkeep.delay_held_count)

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

    flush = forwards("parts.flushing", Flushing.flush)
    flush_log = forwards("parts.flushing", Flushing.flush_log)
    delete_expired_files = forwards("parts.upkeep", Upkeep.delete_expired_files)

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
            clean = self.parts.end()
        finally:
            try:
                self.parts.let_go(clean=clean)
            finally:
                # only now: a child that is forked before has to know whose the store is
                OPEN_STORES.discard(self)

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
