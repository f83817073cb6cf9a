"""The store that is open for writing: wires files and services together."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from rmqcore.config import BrokerRole, StoreConfig
from rmqcore.derived.consume_queue_store import ConsumeQueueStore
from rmqcore.derived.index_service import IndexService
from rmqcore.errors import (
    ConfigError,
    DiskFullError,
    StoreClosedError,
    StoreForkedError,
    StoreNotWritableError,
    is_broken,
)
from rmqcore.files.commit_log import CommitLog
from rmqcore.files.commit_log_writer import CommitLogWriter
from rmqcore.files.config_tables import ConsumerOffsetTable, TopicConfigTable
from rmqcore.files.deleted_topics import DeletedTopics
from rmqcore.files.mapped_file import MappedFile, OpenFiles
from rmqcore.files.mapped_file_queue import MappedFileQueue
from rmqcore.files.store_checkpoint import StoreCheckpoint
from rmqcore.files.store_dir import StoreDir
from rmqcore.files.store_mark import StoreMark
from rmqcore.files.store_trace import StoreTrace, error_words
from rmqcore.files.transient_store_pool import TransientStorePool
from rmqcore.native.base._lock import ReentrantLock, locks_held
from rmqcore.native.base._published import PublishedOffset
from rmqcore.native.derive._dispatch import DispatchBatch
from rmqcore.native.log._tail import LogTail
from rmqcore.recovery.geometry import fitted_config
from rmqcore.recovery.recovery import Recovery
from rmqcore.recovery.report import RecoveryProgress, RecoveryReport
from rmqcore.recovery.unfinished_repair import tell_unfinished_repair
from rmqcore.services.allocate import AllocateMappedFileService
from rmqcore.services.arrival import ArrivalListener, MessageArrival
from rmqcore.services.flush import (
    CommitRealTimeService,
    FlushConsumeQueueService,
    FlushRealTimeService,
    GroupCommitService,
    LogFlusher,
)
from rmqcore.services.flush_policy import FlushPolicy
from rmqcore.services.reput import ReputMessageService
from rmqcore.services.retention import RetentionService
from rmqcore.services.runner import Runner, Threads, stop_running
from rmqcore.services.running_flags import RunningFlags
from rmqcore.services.save_tables import SaveTablesService
from rmqcore.services.service import Service
from rmqcore.services.store_marker import StoreMarker
from rmqcore.services.store_stats import SampleStatsService, StoreStatsService
from rmqcore.store.delivery_of_store import delivery_of
from rmqcore.store.general_reads import GeneralReads
from rmqcore.store.key_values import KeyValues
from rmqcore.store.leasing import Leasing
from rmqcore.store.live_settings import LiveSettings
from rmqcore.store.open_stores import OPEN_STORES, close_forgotten
from rmqcore.store.replication import Replication
from rmqcore.store.retention_of_store import retention_of
from rmqcore.store.service_reports import ServiceReports
from rmqcore.store.topic_deletion import TopicDeletion
from rmqcore.store.wire_puts import WirePuts
from rmqcore.world import wall_clock_ms

_log = logging.getLogger("rmqcore")
#: units that are dispatched at a time, more where there are many queues
_STRETCH_UNITS = 1 << 13


class DefaultMessageStore(
    ServiceReports, WirePuts, Leasing, Replication, LiveSettings, KeyValues, TopicDeletion
):
    """A store that is open for writing; made by `rmqcore.open_store`.

    - One handle at a time: the lock excludes other processes, Java brokers and other handles.
    - A receipt names the durability that was reached; docs/durability.md says what that means.
    - After the disk has refused a write the store takes no more puts, and says why.
    - Consume queues and index are derived from the log; a read that begins after a put returned
      sees that message.

    Threads: any.
    Source: RocketMQ store/DefaultMessageStore.java.
    """

    _closed = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: StoreConfig,
        *,
        progress: Callable[[RecoveryProgress], None] | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        keep_from: Callable[[], int | None] = lambda: None,
        runner: Runner | None = None,
    ) -> None:
        config.check_for_writing()
        KeyValues.__init__(self)
        self.path = Path(path)
        #: nothing has to be recovered, as long as opening has not succeeded
        self._was_clean = self._forked = False
        self.unwaited_end = 0
        self._unwaited, self._closing = ReentrantLock(), ReentrantLock()
        self._closer = 0
        self._clock_ms = clock_ms
        self._keep_from = keep_from
        self._runner = Threads() if runner is None else runner
        self._directory = StoreDir(self.path, config.store_path_commit_log)
        self._trace = StoreTrace(self._directory.trace, clock_ms)
        try:
            self._directory.create()
            self._directory.lock()
            self._closed = False
            # not before: a repair may have been killed just before the lock was free
            told = tell_unfinished_repair(self._directory, config.on_corruption)
            self.config = fitted_config(config, self._directory)
            self._is_slave = self.config.broker_role is BrokerRole.SLAVE
            self._assemble()
            self._was_clean = not self._directory.was_aborted
            # what is refused up to here has changed nothing
            self._note_opening()
            self._directory.mark_running()
            self.recovery_report = self._recover(progress)
            self.recovery_report.findings += told
            self._start()
            self._prepare_leases()
        except BaseException as error:
            self._trace.note("close", words=f"not opened: {error_words(error)}")
            self._abandon()
            raise
        OPEN_STORES.add(self)

    # ---- opening

    def _assemble(self) -> None:
        config, directory = self.config, self._directory
        log_file_size = config.mapped_file_size_commit_log
        self._open_files = OpenFiles(mappings_max=config.max_mapped_files)
        queue = MappedFileQueue(directory.commit_log, log_file_size, self._open_files)
        self._tail = LogTail(
            config.store_host,
            config.effective_max_message_size,
            append_crc=config.enabled_append_prop_crc,
            multi_dispatch=config.enable_lmq and config.enable_multi_dispatch,
        )
        self.flags = RunningFlags(self._flags_changed)
        self._flush_policy = policy = FlushPolicy.of(config)
        self._tail.durability = policy.put_reaches
        self._allocate = self._allocate_service()
        pool = None
        if policy.through_pool:
            pool = TransientStorePool(config.transient_store_pool_size, log_file_size)
        self.log = CommitLog(
            queue,
            self._tail.end if pool is None else PublishedOffset(),
            mapped=pool is None,
            demand_crc=config.force_verify_prop_crc,
        )
        self._log_writer = CommitLogWriter(
            self.log,
            self._tail,
            self._allocate,
            pool,
            large_folios=policy.large_folios,
            note=self._trace.note,
        )
        self.consume_queues = ConsumeQueueStore(
            directory,
            config.mapped_file_size_consume_queue,
            config.mapper_file_size_batch_consume_queue,
            self._open_files,
        )
        self.index = self._index_service() if config.message_index_enable else None
        self._arrival = MessageArrival()
        filled = (self.consume_queues, self.index, self._arrival)
        self._dispatchers = [part for part in filled if part is not None]
        self._checkpoint = StoreCheckpoint(directory.checkpoint, self._trace.note)
        self._mark = StoreMark(directory, self._trace.note)
        self._deleted = DeletedTopics(directory)
        self._batch = self._new_batch()
        self.topics = TopicConfigTable(directory.config, clock=self._clock_ms)
        self.consumer_offsets = ConsumerOffsetTable(
            directory.config, clock=self._clock_ms, end_of=self.max_queue_offset
        )
        self._reader = GeneralReads(self.log, self.consume_queues, self.index)
        self._stats = StoreStatsService(
            clock=self._clock_ms,
            put_counts=lambda: self._tail.counts,
            get_counts=lambda: self._reader.counts,
        )
        self._tail.took = None if policy.waits_for_disk else self._stats.put_latencies.took

    def _allocate_service(self) -> AllocateMappedFileService:
        config = self.config

        def make(path: Path, offset: int) -> MappedFile:
            return self._log_writer.make_file(path, offset)

        return AllocateMappedFileService(
            make,
            config.mapped_file_size_commit_log,
            ahead=config.allocate_ahead,
            warm=config.warm_mapped_file_enable,
            sync_every=self._flush_policy.warm_up_sync_size,
            lock_budget=config.lock_memory_bytes,
        )

    def _index_service(self) -> IndexService:
        slots, most = self.config.max_hash_slot_num, self.config.max_index_num
        return IndexService(
            self._directory.index, slots, most, self._open_files, clock_ms=self._clock_ms
        )

    def _recover(self, progress: Callable[[RecoveryProgress], None] | None) -> RecoveryReport:
        self._checkpoint.load()
        self._mark.load()
        for table in (self.topics, self.consumer_offsets, self._deleted, self._mark):
            table.discard_unfinished()
        self.log.load(lengthen=self.config.on_corruption != "raise")
        recovery = Recovery(
            self._log_writer,
            self.consume_queues,
            self.index,
            self._checkpoint,
            self._mark,
            self._deleted.load(),
            self.config,
            (self._batch, self._new_batch()),
            clean_shutdown=self._was_clean,
            progress=progress,
        )
        report = recovery.run()
        self._begin_topics()
        return report

    def _new_batch(self) -> DispatchBatch:
        config = self.config
        return DispatchBatch(
            row_count_enough=_STRETCH_UNITS,
            delays_ms=config.delay_levels_ms,
            multi_dispatch=config.enable_lmq and config.enable_multi_dispatch,
        )

    def _start(self) -> None:
        config = self.config
        self._flusher = LogFlusher(self._log_writer, self._checkpoint)
        self._group_commit = GroupCommitService(self._flusher, self._service_failed)
        self._commits = self._group_commit.group
        self.wait_for_slaves(None)
        self._disk_timeout_s = self._flush_policy.timeout_ms / 1000
        self._reput = ReputMessageService(
            self.log,
            self._dispatchers,
            self._batch,
            partial(self._flush_policy.confirm_offset, self._log_writer),
            on_progress=self._progressed,
            on_refused=self._dispatch_refused,
            tail=None if self._flush_policy.waits_for_disk else self._tail,
            monotonic_s=time.monotonic,
            sleep=time.sleep,
        )
        self._reput.offset = self.recovery_report.end_offset
        self._note_recovery()
        if self._is_slave:
            self.consume_queues.begin_anew = self._begin_queue_anew
        if self._flush_policy.waits_for_disk:
            self._flusher.on_flushed = self._reput.wakeup
        self._flush_queues = self._queue_flush_service()
        flush_log = FlushRealTimeService(self._flusher, config)
        self._timed = (flush_log, self._flush_queues)
        self._services: list[Service] = [
            SampleStatsService(self._stats, self._clock_ms),
            self._allocate,
            self._group_commit,
            self._flush_queues,
            flush_log,
            self._reput,
            SaveTablesService(self.topics, self.consumer_offsets),
        ]
        if self._flush_policy.through_pool:
            commit = CommitRealTimeService(self._log_writer, config)
            self._timed = (*self._timed, commit)
            self._services.append(commit)
        if self.log.queue.files or not self._is_slave:
            # the log of a slave begins where its master's does
            self._log_writer.attach()
        self._retention = self._retention_service()
        if config.retention:
            self._services.append(self._retention)
        self._delayed = None
        if config.deliver_delayed and not self._is_slave:
            self._delayed = delivery_of(self, self._directory.config, self._clock_ms)
            self._services.append(self._delayed)
        self._flags_changed(self.flags)
        for service in self._services:
            self._runner.start(service, self._service_failed)
        if self._reader.fast is not None:
            self._reader.fast.dispatched = self._reput

    def _retention_service(self) -> RetentionService:
        return retention_of(
            self,
            self._clock_ms,
            self._trace.note,
            needed_from=lambda: min(self._reput.offset, self._log_writer.flushed_offset),
            keep_from=self._oldest_parked,
        )

    def _queue_flush_service(self) -> FlushConsumeQueueService:
        config = self.config
        self._marker = StoreMarker(self._mark, self._log_writer, self.consume_queues, config)
        return FlushConsumeQueueService(
            self.consume_queues,
            self.index,
            self._checkpoint,
            config,
            check=self._directory.check_there,
            on_flushed=self._marker.queues_flushed,
            monotonic_s=time.monotonic,
        )

    def _end_fast_reads(self) -> None:
        """Let every later read come through `_see_new`, which says why there is none."""
        if self._reader.fast is not None:
            self._reader.fast.dispatched = None

    def _abandon(self) -> None:
        """Close everything after opening has failed."""
        self._closed = True
        for service in getattr(self, "_services", ()):
            self._runner.stop(service)
        for part in ("_log_writer", "consume_queues", "index"):
            opened = getattr(self, part, None)
            if opened is not None:
                opened.close()
        if self._was_clean:
            self._directory.clear_running()
        self._trace.let_go()
        self._directory.unlock()

    # ---- in the middle of something else

    def after_fork_in_child(self) -> None:
        """Make this handle, which the parent owns, refuse everything in a forked child."""
        self._forked = True
        self._trace.let_go()
        self._end_fast_reads()
        self._tail.writable = self._tail.follows = False
        self._directory.unlock()

    def _check_open(self) -> None:
        if self._forked:
            raise StoreForkedError(
                f"{self.path}: this handle belongs to the parent process; open the store again"
            )
        if self._closed:
            raise StoreClosedError(f"{self.path}: the store has been closed")

    def _interrupted(self) -> bool:
        """True in a signal handler or a finalizer inside one of this thread's own calls.

        It must not wait for a lock: its holder may be waiting for one that this thread holds.
        """
        return locks_held() > (self._closer == threading.get_ident())

    def _see_new(self) -> None:
        if self._closed or self._forked:
            self._check_open()
        if self._interrupted():
            with suppress(DiskFullError):
                self._reput.catch_up(wait=False)
            return
        if self._reput.offset < self._tail.max_offset:
            if self._log_writer.flushed_offset < self.unwaited_end and self.flags.writeable:
                self._group_commit.try_wait(self.unwaited_end, self._flush_policy.timeout_ms)
            # on a full disk what has been dispatched is still served; `flags` say what is not
            with suppress(DiskFullError):
                self._reput.catch_up()

    # ---- what the store says of itself

    def why_not_writable(self) -> str | None:
        """Why puts are refused at this moment; None when they are not."""
        if self._forked:
            return "this handle belongs to the parent process"
        if self._closed:
            return "the store has been closed"
        if self._is_slave:
            return "the store is a slave's (brokerRole=SLAVE): put into its master"
        return self.flags.why_not_writable()

    def why_not_appended(self) -> str | None:
        """Why a master's bytes are refused at this moment; None when they are not."""
        if not self._is_slave:
            return "the store is no slave's: brokerRole=SLAVE lets it follow a master"
        return self.flags.why_not_writable()

    def why_will_be_deleted(self, file: str | Path) -> str | None:
        """Why retention will delete a log file, and when; None when it will not.

        Args:
            file: name or path of a file of the commit log.
        """
        if not self.config.retention:
            return None
        return self._retention.clean_log.why_will_be_deleted(file)

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that consume queues and index do not have yet."""
        return self._reput.behind

    def on_arrival(self, listener: ArrivalListener) -> Callable[[], None]:
        """Call a function whenever messages have come that can be read.

        Args:
            listener: called with the (topic, queue id) of each queue concerned, by the thread that
                dispatches; it must neither block nor raise.

        Returns:
            what ends it.
        """
        return self._arrival.listen(listener)

    def delay_offsets(self) -> dict[int, int]:
        """By delay level, the next queue offset that is delivered; empty when none is."""
        return {} if self._delayed is None else self._delayed.schedule.offsets()

    def delay_skipped_count(self) -> int:
        """How many parked messages could not be delivered since the store was opened."""
        return 0 if self._delayed is None else self._delayed.schedule.skipped_count

    def stats(self) -> dict[str, str]:
        """Counters and rates under RocketMQ's runtime-info names."""
        info = self._stats.runtime_info()
        info["dispatchBehindBytes"] = str(self.dispatch_behind_bytes)
        info["commitLogMinOffset"] = str(self.log.min_offset)
        info["commitLogMaxOffset"] = str(self.log.max_offset)
        info["remainHowManyDataToFlush"] = str(self._flusher.pending)
        if self._delayed is not None:
            info |= self._delayed.schedule.runtime_info()
        return info

    # ---- flushing and closing

    def flush(self) -> int:
        """Write everything put so far to the disk, with derived files, consumer offsets and topics.

        Returns:
            the flushed physical offset.

        Raises:
            DiskFullError: there is no room; nothing is lost, and a later call tries again.
            OSError: the disk refused; the store takes no puts any more, unless only the tables
                below ``config/`` could not be written.
            StoreNotWritableError: the call comes from a signal handler or a finalizer inside
                another call of this thread, and cannot wait.
        """
        self._check_open()
        if self._interrupted():
            raise StoreNotWritableError(
                "a signal handler or a finalizer inside another call cannot wait; flush again later"
            )
        try:
            flushed = self._flusher.flush()
            self._see_new()
            self._flush_queues.flush()
        except OSError as error:
            if is_broken(error):
                self._service_failed(error)
            raise
        self._persist_tables()
        return flushed

    def delete_expired_files(self) -> None:
        """Delete what retention would delete now, whatever the hour.

        Raises:
            ConfigError: the store was opened without retention; nothing is deleted.

        Source: RocketMQ store/DefaultMessageStore.java, executeDeleteFilesManually.
        """
        if not self.config.retention:
            raise ConfigError(
                "retention", False, "True, or any setting of it, for a store that deletes files"
            )
        self.flush()
        self._retention.delete_now()

    def close(self) -> None:
        """Write everything through to the disk and let the store go; idempotent.

        Called by a signal handler or a finalizer inside another call of the same thread, it returns
        at once, and the store is closed as soon as that call has ended.

        Raises:
            OSError: the disk refused; the abort marker stays, and the next open recovers.
            StoreNotFoundError: the directory has been removed.
            KeyboardInterrupt: the same; what an interrupt leaves open, a further call closes.
        """
        if self._forked:
            self._closed = True
            OPEN_STORES.discard(self)
            return
        if locks_held():
            threading.Thread(target=self.close, name="CloseStore").start()
            return
        if not self._closed:
            self._stop_callers()
        # one does it, the others return when it is done
        with self._closing.within():
            self._closer = threading.get_ident()
            if not self._closed:
                self._close()
            elif self._directory.is_ours:
                # an interrupt has ended an earlier close before its end
                self._let_go(clean=False)

    @property
    def has_files(self) -> bool:
        """Whether the files are this store's; an interrupt in `close` may have left them so."""
        return self._directory.is_ours

    def _close(self) -> None:
        clean = False
        self._closed = True
        try:
            self._end_fast_reads()
            self._arrivals.wake_all()
            OPEN_STORES.discard(self)
            self._log_writer.end_puts()
            for service in reversed(self._services):
                self._runner.stop(service)
            clean = self._write_through()
        finally:
            self._let_go(clean=clean)

    def _let_go(self, *, clean: bool) -> None:
        """End the services, close the files and unlock the store."""
        # one that an interrupt has left running would write when the store is another's
        stop_running(self._runner, self._services)
        self._abandon_files(clean=clean)

    def _stop_callers(self) -> None:
        """Stop what uses the store as any caller does, while it is still open."""
        if self._leases is not None:
            self._leases.stop()
        if self._delayed is not None:
            self._runner.stop(self._delayed)
        self._runner.stop(self._retention)

    def _write_through(self) -> bool:
        """Flush all; True when nothing is left to be done at the next open."""
        self._directory.check_there()
        self._flusher.flush()
        self._reput.catch_up()
        self._flush_queues.flush()
        if self._reput.behind == 0:
            self._marker.closed()
        self._persist_tables()
        if self._leases is not None:
            self._leases.close()
        return self._reput.behind == 0

    def _persist_tables(self) -> None:
        self.topics.persist()
        self.consumer_offsets.persist()

    def _abandon_files(self, *, clean: bool) -> None:
        try:
            if self._leases is not None:
                self._leases.abandon()
            for part in (self._log_writer, self.consume_queues, self.index):
                if part is not None:
                    part.close()
            if clean:
                self._directory.clear_running()
            left = "the next opening recovers" if self._directory.was_aborted else "in order"
            self._trace.note("close", words=left)
        finally:
            self._trace.let_go()
            self._directory.unlock()

    def __del__(self) -> None:
        if not (self._closed or self._forked):
            close_forgotten(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.log.min_offset} to {self.log.max_offset}"
        return f"DefaultMessageStore({str(self.path)!r}, {state})"
