"""`Upkeep`: everything that an open store does in the background, and who runs it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rmqcore.errors import ConfigError, CorruptStoreError
from rmqcore.files.consume_queue import SCHEDULE_TOPIC
from rmqcore.files.delay_offset_table import DelayOffsetTable
from rmqcore.services.delay_schedule import DeliverDelayedMessageService, ScheduleMessageService
from rmqcore.services.lasting_clock import LastingClock
from rmqcore.services.retention import (
    CleanCommitLogService,
    CleanConsumeQueueService,
    CommitLogFiles,
    RetentionService,
    disk_usage,
)
from rmqcore.services.runner import stop_running
from rmqcore.services.save_tables import SaveTablesService
from rmqcore.services.standing import Standing
from rmqcore.services.store_stats import SampleStatsService
from rmqcore.store.parts.left_waiting import FirstTimed, first_place, left_waiting

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rmqcore.config import StoreConfig
    from rmqcore.files.store_trace import Note
    from rmqcore.services.delay_schedule import DelayStore, QueueAtDelivery
    from rmqcore.services.runner import Runner
    from rmqcore.services.service import Service
    from rmqcore.services.store_stats import StoreStatsService
    from rmqcore.store.parts.files import StoreFiles
    from rmqcore.store.parts.flushing import Flushing
    from rmqcore.store.parts.health import Health
    from rmqcore.store.parts.inner_store import InnerStore
    from rmqcore.store.parts.log_services import LogServices
    from rmqcore.store.parts.settings import Settings
    from rmqcore.world import World


class Upkeep:
    """All services of a store: started together, stopped in the opposite order.

    Args:
        settings: of the store.
        files: of the store, recovered.
        log_services: dispatch and flushes.
        stats: are sampled.
        inner: what delayed delivery reads and puts through.
        flushing: writes the store through.
        health: hears of services that end, and refuses puts while the disk is full.
        runner: runs the services.
        note: takes down which log files are deleted.
        world: tells the time, and lets it pass.
        keep_from: physical offset of the oldest message that somebody else has still to deliver,
            or None; without it that is what the files of the broker say that it had.
        queue_at_delivery: says which queue of its topic a delayed message goes to.

    Attributes:
        services: all of them, in the order in which they are started.
        runner: as given.
        retention: deletes old files; it runs only where the settings say so.
        delayed: delivers delayed messages; None where none are.
    """

    def __init__(
        self,
        settings: Settings,
        files: StoreFiles,
        log_services: LogServices,
        stats: StoreStatsService,
        inner: InnerStore,
        flushing: Flushing,
        health: Health,
        runner: Runner,
        note: Note,
        world: World,
        keep_from: Callable[[], int | None] | None,
        queue_at_delivery: QueueAtDelivery,
    ) -> None:
        config = settings.config
        self._settings = settings
        self._log_services = log_services
        self._flushing = flushing
        self._health = health
        self._clock_ms = world.clock_ms
        self._standing = Standing()
        self._first_timed = FirstTimed(inner)
        self._keep_from = keep_from or partial(self._left_waiting, inner, files.directory.config)
        self.runner = runner
        self.delayed: DeliverDelayedMessageService | None = None
        if config.deliver_delayed and not settings.is_slave:
            self.delayed = _delivery(inner, files, config, world.clock_ms, queue_at_delivery)
        self.retention = self._retention(files, note, world)
        self.services: list[Service] = [
            SampleStatsService(stats, world.clock_ms),
            *log_services.services,
            SaveTablesService(inner.topics, inner.consumer_offsets),
        ]
        if config.retention:
            self.services.append(self.retention)
        if self.delayed is not None:
            self.services.append(self.delayed)

    def _retention(self, files: StoreFiles, note: Note, world: World) -> RetentionService:
        """Deletes nothing before it is started, or asked to."""
        queue, config = files.log.queue, self._settings.config
        reput, writer = self._log_services.reput, files.writer

        directory = files.directory

        def archived() -> int | None:
            """Up to where files may be deleted; None where that is no matter."""
            if not self.retention.clean_log.config.keep_unarchived:
                return None
            from rmqcore.files.archive_note import archived_end  # noqa: PLC0415 - few need it

            return archived_end(directory)

        def needed_from() -> int:
            offsets = (reput.offset, writer.flushed_offset, archived())
            return min(offset for offset in offsets if offset is not None)

        derived = (
            [*files.derived] if files.log.mapped is None else [files.log.mapped, *files.derived]
        )
        log = CommitLogFiles(queue, needed_from, note)
        clean_log = CleanCommitLogService(
            config,
            log,
            self._health.flags,
            usage=lambda: disk_usage(queue.directory),
            keep_from=self.oldest_parked,
            archived_end=archived,
            world=world,
        )
        last_write_ms = max((file.modified_ms for file in log.log_files()), default=0)
        return RetentionService(
            clean_log,
            CleanConsumeQueueService(lambda: files.log.min_offset, *derived),
            clock=LastingClock(world, lambda: clean_log.reserved_ms, last_write_ms),
            interval_s=config.clean_resource_interval_ms / 1000,
        )

    # ---- running

    def start(self) -> None:
        """Start all services."""
        for service in self.services:
            self.runner.start(service, self._health.service_failed)

    def stop_callers(self) -> None:
        """Stop what uses the store as any caller does, while it is still open."""
        if self.delayed is not None:
            self.runner.stop(self.delayed)
        self.runner.stop(self.retention)

    def stop(self) -> None:
        """Stop all services, the last one first."""
        for service in reversed(self.services):
            self.runner.stop(service)

    def stop_running(self) -> None:
        """Stop what an interrupt has left running: it would write when the store is another's."""
        stop_running(self.runner, self.services)

    def write_through(self) -> bool:
        """Write all to the disk; True when nothing is left to be done at the next open.

        Raises:
            OSError: the disk refused.
            StoreNotFoundError: the directory has been removed.
        """
        done = self._log_services.write_through()
        self._flushing.persist_tables()
        return done

    def configure(self, config: StoreConfig) -> None:
        """Take the store's settings when they change."""
        self._log_services.configure(config)
        self.retention.configure(config)

    # ---- delayed messages

    def oldest_parked(self) -> int | None:
        """Physical offset of the oldest message that has still to be delivered; None without one.

        Here or, of messages that somebody else delivers, as ``keep_from`` says.
        """
        parked = None if self.delayed is None else self.delayed.schedule.pending_from()
        return min((at for at in (parked, self._keep_from()) if at is not None), default=None)

    def _left_waiting(self, store: InnerStore, folder: Path) -> int | None:
        here = self.delayed is not None
        try:
            delivered = None if here else DelayOffsetTable(folder, clock=self._clock_ms).levels()
            waiting = left_waiting(
                store, store.consumer_offsets, folder, delivered, self._first_timed
            )
            place = first_place(store, waiting)
        except (CorruptStoreError, OSError) as error:
            # nobody can tell what waits: age and quota delete nothing, and a full disk what it must
            self._standing.note("what waits for a broker", error)
            return 0
        self._standing.end("what waits for a broker")
        return place

    def delay_offsets(self) -> dict[int, int]:
        """By delay level, the next queue offset that is delivered; empty when none is."""
        return {} if self.delayed is None else self.delayed.schedule.offsets()

    def delay_skipped_count(self) -> int:
        """How many parked messages could not be delivered since the store was opened."""
        return 0 if self.delayed is None else self.delayed.schedule.skipped_count

    def delay_held_count(self) -> int:
        """How many parked messages wait for the next opening: their queues do not lead to them."""
        return 0 if self.delayed is None else self.delayed.schedule.held_count

    def delay_info(self) -> dict[str, str]:
        """What RocketMQ's runtime info says of delay levels."""
        return {} if self.delayed is None else self.delayed.schedule.runtime_info()

    # ---- retention

    def why_will_be_deleted(self, file: str | Path) -> str | None:
        """Why retention will delete a log file, and when; None when it will not.

        Args:
            file: name or path of a file of the commit log.
        """
        if not self._settings.config.retention:
            return None
        return self.retention.why_will_be_deleted(file)

    def delete_expired_files(self) -> None:
        """Delete what retention would delete now, whatever the hour.

        Raises:
            ConfigError: the store was opened without retention; nothing is deleted.

        Source: RocketMQ store/DefaultMessageStore.java, executeDeleteFilesManually.
        """
        if not self._settings.config.retention:
            raise ConfigError(
                "retention", False, "True, or any setting of it, for a store that deletes files"
            )
        self._flushing.flush()
        self.retention.delete_now()


def _delivery(
    store: DelayStore,
    files: StoreFiles,
    config: StoreConfig,
    clock_ms: Callable[[], int],
    queue_at_delivery: QueueAtDelivery,
) -> DeliverDelayedMessageService:
    """The service that delivers a store's parked messages."""
    offsets = DelayOffsetTable(files.directory.config, clock=clock_ms)
    offsets.check_there = files.directory.check_there
    offsets.discard_unfinished()
    schedule = ScheduleMessageService(
        store,
        offsets,
        config.delay_levels_ms,
        flush_interval_ms=config.flush_delay_offset_interval_ms,
        parked_queue_ids=[
            queue.queue_id for queue in files.consume_queues if queue.topic == SCHEDULE_TOPIC
        ],
        queue_at_delivery=queue_at_delivery,
    )
    return DeliverDelayedMessageService(schedule, clock=clock_ms)
