"""`Parts`: all parts of one store, made in the order in which one needs the other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rmqcore.errors import StoreError
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.services.store_stats import StoreStatsService
from rmqcore.store.parts.column_writing import ColumnWriting
from rmqcore.store.parts.confirmation import Confirmation
from rmqcore.store.parts.consumed_files import ConsumedFiles
from rmqcore.store.parts.consuming import Consuming
from rmqcore.store.parts.flushing import Flushing
from rmqcore.store.parts.followed_log import FollowedLog
from rmqcore.store.parts.health import Health
from rmqcore.store.parts.inner_store import InnerStore
from rmqcore.store.parts.key_values import KeyValues
from rmqcore.store.parts.level import Level
from rmqcore.store.parts.log_services import LogServices
from rmqcore.store.parts.reading import Reading
from rmqcore.store.parts.topics import Topics
from rmqcore.store.parts.upkeep import Upkeep
from rmqcore.store.parts.writing import Writing

if TYPE_CHECKING:
    from rmqcore.files.store_trace import StoreTrace
    from rmqcore.recovery.report import RecoveryReport
    from rmqcore.services.delay_schedule import QueueAtDelivery
    from rmqcore.services.runner import Runner
    from rmqcore.store.parts.files import StoreFiles
    from rmqcore.store.parts.handle import Handle
    from rmqcore.store.parts.settings import Settings
    from rmqcore.world import World


class Parts:
    """What a store that is open for writing consists of; nothing runs before `begin`.

    Args:
        handle: says whether the store is open.
        settings: of the store.
        files: of the store, recovered.
        report: of their recovery.
        trace: takes down what happens.
        runner: runs the services.
        keep_from, queue_at_delivery: see `Upkeep`.
        world: tells the time, and lets it pass.

    Attributes:
        each part under its own name; tests look at them, programs call the store.
    """

    def __init__(
        self,
        handle: Handle,
        settings: Settings,
        files: StoreFiles,
        report: RecoveryReport,
        trace: StoreTrace,
        runner: Runner,
        keep_from: Callable[[], int | None] | None,
        queue_at_delivery: QueueAtDelivery,
        world: World,
    ) -> None:
        self.handle, self.settings, self.files, self.trace = handle, settings, files, trace
        self.recovery_report = report
        self.world = world
        self.health = Health(handle, files.tail, trace.note, is_slave=settings.is_slave)
        self.stats = StoreStatsService(
            clock=world.clock_ms,
            put_counts=lambda: files.tail.counts,
            get_counts=lambda: files.reader.counts,
        )
        self.log_services = self._log_services()
        self.level = self._level()
        self.reading = Reading(handle.path, files, self.level)
        self.consumer_offsets = self._consumer_offsets()
        self.flushing = self._flushing()
        self.confirmation = self._confirmation()
        self.writing = self._writing()
        self.column_writing = self._column_writing()
        self.inner = InnerStore(
            settings, files, self.consumer_offsets, self.reading, self.writing, self.flushing
        )
        self.consuming = self._consuming()
        self.key_values = self._key_values()
        self.topics = self._topics()
        self.followed_log = self._followed_log()
        self.upkeep = self._upkeep(runner, keep_from, queue_at_delivery)
        self.consumed_files = self._consumed_files()

    def _log_services(self) -> LogServices:
        return LogServices(
            self.settings,
            self.files,
            self.recovery_report.derived_to,
            self.health,
            self.stats,
            self.trace,
            self.world,
        )

    def _level(self) -> Level:
        return Level(
            self.handle,
            self.settings,
            self.files.writer,
            self.files.consume_queues,
            self.log_services.reput,
            self.log_services.group_commit,
            self.health.flags,
        )

    def _consumer_offsets(self) -> ConsumerOffsetTable:
        table = ConsumerOffsetTable(
            self.files.directory.config,
            clock=self.world.clock_ms,
            end_of=self.reading.max_queue_offset,
        )
        table.check_there = self.files.directory.check_there
        table.discard_unfinished()
        return table

    def _flushing(self) -> Flushing:
        return Flushing(
            self.handle,
            self.log_services.flusher,
            self.level,
            self.log_services.flush_queues,
            (self.files.topics, self.consumer_offsets),
            self.health,
        )

    def _confirmation(self) -> Confirmation:
        return Confirmation(
            self.settings,
            self.log_services.group_commit,
            self.stats.put_took,
            self.level,
            self.world.monotonic_s,
        )

    def _writing(self) -> Writing:
        return Writing(
            self.handle,
            self.settings,
            self.files.writer,
            self.confirmation,
            self.health,
            self.level,
            self.stats.put_failed,
        )

    def _column_writing(self) -> ColumnWriting:
        return ColumnWriting(
            self.handle, self.settings, self.files.tail, self.writing.append, self.confirmation
        )

    def _consuming(self) -> Consuming:
        return Consuming(
            self.handle,
            self.inner,
            self.files.directory,
            self.level,
            self.log_services.arrival.listen,
            self.world.clock_ms,
            self.world.monotonic_s,
        )

    def _key_values(self) -> KeyValues:
        return KeyValues(
            self.handle,
            self.settings,
            self.files.directory,
            self.reading,
            self.writing,
            self.files.topics,
            self.consumer_offsets,
            self.flushing,
            self.world.clock_ms,
        )

    def _topics(self) -> Topics:
        return Topics(
            self.handle,
            self.files,
            self.consumer_offsets,
            self.level,
            self.log_services.reput,
            self.log_services.flusher,
            self.key_values,
            self.consuming,
            self.trace.note,
        )

    def _followed_log(self) -> FollowedLog:
        return FollowedLog(
            self.handle,
            self.settings,
            self.files.writer,
            self.files.mark,
            self.log_services.reput,
            self.log_services.group_commit,
            self.health,
            self.reading,
            self.confirmation,
            self.log_services.arrival,
            self.topics,
        )

    def _upkeep(
        self,
        runner: Runner,
        keep_from: Callable[[], int | None] | None,
        queue_at_delivery: QueueAtDelivery,
    ) -> Upkeep:
        return Upkeep(
            self.settings,
            self.files,
            self.log_services,
            self.stats,
            self.inner,
            self.flushing,
            self.health,
            runner,
            self.trace.note,
            self.world,
            keep_from,
            queue_at_delivery,
        )

    def _consumed_files(self) -> ConsumedFiles:
        return ConsumedFiles(
            self.handle,
            self.settings,
            self.reading,
            self.consumer_offsets,
            self.level,
            self.log_services.reput,
            self.upkeep.oldest_parked,
            self.key_values,
            self.flushing,
            self.upkeep.retention,
        )

    # ---- beginning and ending

    def begin(self) -> None:
        """Take puts and answer reads from now on; all services run.

        Raises:
            DiskFullError: there is no room for the log's next file.
        """
        files = self.files
        waits = self.settings.policy.waits_for_disk
        files.tail.took = None if waits else self.stats.put_latencies.took
        if self.settings.is_slave:
            files.consume_queues.begin_anew = self.topics.begin_queue_anew
        if files.log.queue.files or not self.settings.is_slave:
            # the log of a slave begins where its master's does
            files.writer.attach()
        self.health.begin()
        self.upkeep.start()
        files.reader.begin_fast(self.log_services.reput)
        self.consuming.begin()

    def stop_callers(self) -> None:
        """Stop what uses the store as any caller does, while it is still open."""
        self.consuming.stop()
        self.upkeep.stop_callers()

    def end(self) -> bool:
        """Take no puts any more, stop all services and write everything to the disk.

        Returns:
            True when nothing is left to be done at the next open.

        Raises:
            OSError: the disk refused.
            StoreNotFoundError: the directory has been removed.
        """
        self.files.reader.end_fast()
        self.consuming.wake_all()
        self.files.writer.end_puts()
        self.upkeep.stop()
        done = self.upkeep.write_through()
        self.consuming.close()
        return done

    def change_settings(self, **settings: Any) -> None:
        """Change settings at once: all that are given, or none.

        Those are retention's, the intervals of flushes and commits, ``sync_flush_timeout_ms`` and
        ``max_message_size``; every other needs the store to be opened again.

        Args:
            settings: by RocketMQ's names, or those of `StoreConfig`.

        Raises:
            ConfigError: one may not change while the store is open, or is not what it should be.

        Source: RocketMQ broker/processor/AdminBrokerProcessor.java, updateBrokerConfig.
        """
        config = self.settings.change(settings)
        self.files.tail.max_message_size = config.effective_max_message_size
        self.confirmation.timeout_ms = self.settings.policy.timeout_ms
        self.upkeep.configure(config)

    def runtime_info(self) -> dict[str, str]:
        """Counters and rates under RocketMQ's runtime-info names."""
        info = self.stats.runtime_info()
        info["dispatchBehindBytes"] = str(self.log_services.reput.behind)
        info["commitLogMinOffset"] = str(self.files.log.min_offset)
        info["commitLogMaxOffset"] = str(self.files.log.max_offset)
        info["remainHowManyDataToFlush"] = str(self.log_services.flusher.pending)
        return info | self.upkeep.delay_info()

    def after_fork_in_child(self) -> None:
        """Refuse everything in a forked child, whose parent has the store."""
        self.handle.forked = True
        self.trace.let_go()
        self.files.reader.end_fast()
        self.files.tail.writable = self.files.tail.follows = False
        self.files.directory.after_fork_in_child()

    def let_go(self, *, clean: bool) -> None:
        """Close the files and unlock the store.

        Args:
            clean: whether nothing is left to be done at the next open.
        """
        # a service that an interrupt left running would write when the store is already another's
        self.upkeep.stop_running()
        directory = self.files.directory
        try:
            self.consuming.abandon()
            if not clean:
                # what an interrupt has left in memory; a disk that refuses it keeps nothing open
                with suppress(StoreError, OSError):
                    self.files.writer.commit()
            self.files.close()
            if clean:
                directory.clear_running()
            left = "the next opening recovers" if directory.was_aborted else "in order"
            self.trace.note("close", words=left)
        finally:
            self.trace.let_go()
            directory.unlock()
