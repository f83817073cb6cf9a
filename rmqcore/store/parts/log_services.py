"""`LogServices`: what brings the log to the disk, and to consume queues, index and listeners."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from rmqcore.services.arrival import MessageArrival
from rmqcore.services.flush import (
    CommitRealTimeService,
    FlushConsumeQueueService,
    FlushRealTimeService,
    GroupCommitService,
    LogFlusher,
)
from rmqcore.services.reput import ReputMessageService
from rmqcore.services.store_marker import StoreMarker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rmqcore.config import StoreConfig
    from rmqcore.files.store_trace import StoreTrace
    from rmqcore.services.service import Service
    from rmqcore.services.store_stats import StoreStatsService
    from rmqcore.store.parts.files import StoreFiles
    from rmqcore.store.parts.health import Health
    from rmqcore.store.parts.settings import Settings
    from rmqcore.world import World

#: The next log file is made when one part in this many of the current one is used.
_PREPARE_AT: Final = 4


class LogServices:
    """Dispatch and flushes; none of them runs yet.

    Args:
        settings: of the store.
        files: of the store, recovered.
        dispatched_to: physical offset below which all has been dispatched.
        health: hears what goes wrong.
        stats: hear how much waits for its dispatch.
        trace: hears of dispatches.
        world: tells the time, and lets it pass.

    Attributes:
        arrival: tells listeners what has come.
        reput: dispatches.
        flusher: flushes the log.
        group_commit: where callers wait for that.
        flush_log, flush_queues, commit: flush now and then; ``commit`` is None without a pool.
        marker: notes where log and queues end.
    """

    def __init__(
        self,
        settings: Settings,
        files: StoreFiles,
        dispatched_to: int,
        health: Health,
        stats: StoreStatsService,
        trace: StoreTrace,
        world: World,
    ) -> None:
        config, policy = settings.config, settings.policy
        self._files = files
        self._health = health
        self._stats = stats
        self._trace = trace
        self.arrival = MessageArrival()
        self.reput = ReputMessageService(
            files.log,
            [*files.derived, self.arrival],
            files.batch,
            partial(policy.confirm_offset, files.writer),
            on_progress=self._progressed,
            on_refused=self._refused,
            tail=None if policy.waits_for_disk else files.tail,
            monotonic_s=world.monotonic_s,
        )
        self.reput.begin_at(dispatched_to, files.no_room)
        on_flushed = self.reput.wakeup if policy.waits_for_disk else None
        self.flusher = LogFlusher(files.writer, files.checkpoint, on_flushed)
        self.group_commit = GroupCommitService(self.flusher, health.service_failed)
        self.flush_log = FlushRealTimeService(self.flusher, config)
        self.marker = StoreMarker(files.mark, files.writer, files.consume_queues, config)
        self.flush_queues = FlushConsumeQueueService(
            files.consume_queues,
            files.index,
            files.checkpoint,
            config,
            check=files.directory.check_there,
            on_flushed=self._queues_flushed,
            monotonic_s=world.monotonic_s,
        )
        self.commit = None
        if policy.through_pool:
            self.commit = CommitRealTimeService(files.writer, config, health.commit_refused)

    def _refused(self, error: OSError | None) -> None:
        if error is None and self._files.no_room is not None:
            # no put has come before this
            self._files.number_queues()
            self._files.no_room = None
        self._health.dispatch_refused(error)

    def _queues_flushed(self) -> None:
        # the mark says of the whole log that the queues have it
        if not self.reput.refused:
            self.marker.queues_flushed()

    def _progressed(self, offset: int) -> None:
        """Make the next log file ready once a part of the current one is used."""
        log = self._files.log
        file_size, end = log.queue.file_size, self._files.tail.max_offset
        self._stats.dispatch_lagged(end - offset)
        self._trace.dispatched()
        if end % file_size > file_size // _PREPARE_AT:
            behind = end - end % file_size + file_size
            self._files.allocate.prepare(log.queue.path_of(behind), behind)

    @property
    def services(self) -> Iterator[Service]:
        """The services, in the order in which they are started."""
        yield self._files.allocate
        yield self.group_commit
        yield self.flush_queues
        yield self.flush_log
        yield self.reput
        if self.commit is not None:
            yield self.commit

    @property
    def timed(
        self,
    ) -> tuple[FlushRealTimeService | FlushConsumeQueueService | CommitRealTimeService, ...]:
        """Those that flush now and then."""
        commit = () if self.commit is None else (self.commit,)
        return self.flush_log, self.flush_queues, *commit

    def configure(self, config: StoreConfig) -> None:
        """Take a store's settings when they change."""
        for service in self.timed:
            service.configure(config)

    def write_through(self) -> bool:
        """Flush and dispatch all; True when nothing is left to be done at the next open."""
        self._files.directory.check_there()
        self.flusher.flush()
        self.reput.catch_up()
        done = self.reput.behind == 0
        if done:
            self.marker.closing()
        self.flush_queues.flush()
        if done:
            self.marker.closed()
        return done
