"""When bytes go to the disk: group commit, real-time flush and commit, consume-queue flush."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from rmqcore.config import StoreConfig
from rmqcore.errors import DiskFullError, StoreClosedError, is_broken, is_refusal
from rmqcore.files.commit_log_writer import CommitLogWriter
from rmqcore.files.store_checkpoint import StoreCheckpoint, later_of
from rmqcore.native.base._lock import ReentrantLock
from rmqcore.native.base._mapped import STORE_PAGE_SIZE
from rmqcore.native.log._commit_group import CommitGroup
from rmqcore.services.event_loop import running_loop
from rmqcore.services.service import Service
from rmqcore.services.standing import Standing

if TYPE_CHECKING:
    import asyncio

_HOUR_S: Final = 3600.0
#: What was refused without loss is tried again after so long.
_AGAIN_S: Final = 1.0


class LogFlusher:
    """Flushes the log and then advances the checkpoint's time, never the other way round.

    Args:
        log: is flushed.
        checkpoint: is told, and written by who flushes what is derived.
        on_flushed: called when more is on the disk.
    """

    def __init__(
        self,
        log: CommitLogWriter,
        checkpoint: StoreCheckpoint,
        on_flushed: Callable[[], None] | None = None,
    ) -> None:
        self._log = log
        self._checkpoint = checkpoint
        self._on_flushed = on_flushed

    def flush(self) -> int:
        """Flush what was put before the call; the flushed offset.

        Raises:
            OSError: the disk refused, now or before.
        """
        timestamp_ms = self._log.tail.last_store_timestamp_ms
        flushed = self._log.flush()
        checkpoint = self._checkpoint
        checkpoint.physic_msg_timestamp_ms = later_of(
            checkpoint.physic_msg_timestamp_ms, timestamp_ms
        )
        if self._on_flushed is not None:
            self._on_flushed()
        return flushed

    @property
    def flushed_offset(self) -> int:
        """Everything below is on disk."""
        return self._log.flushed_offset

    @property
    def put_offset(self) -> int:
        """Everything put lies below."""
        return self._log.tail.max_offset

    @property
    def pending(self) -> int:
        """Bytes put and not flushed."""
        return self._log.tail.max_offset - self._log.flushed_offset


class GroupCommitService(Service):
    """Group commit: callers wait until their record is on disk, many of them for one flush.

    The first caller that finds no leader leads: it flushes for all that was put by then. The others
    follow: they wait, and mostly find it done. A signal handler or a finalizer that puts inside a
    flush flushes by itself. Coroutines do not block: the service's rounds flush for them.

    Args:
        flusher: flushes the log.
        report: called with an error after which nothing can be flushed any more.

    Source: RocketMQ store/CommitLog.java, GroupCommitService and FlushDiskWatcher.
    Differs: the flush runs in the first caller's thread, which saves it two thread switches.
    """

    def __init__(self, flusher: LogFlusher, report: Callable[[BaseException], None]) -> None:
        super().__init__("GroupCommitService")
        self._flusher = flusher
        self._report = report
        #: where callers wait
        self.group = CommitGroup(self._lead)
        self._waiting = ReentrantLock()
        self._soon = False
        self._coroutines: dict[asyncio.AbstractEventLoop, _Coroutines] = {}

    def wait(self, offset: int, timeout_ms: int) -> bool:
        """Return when everything below ``offset`` is on disk.

        Args:
            offset: physical offset behind the record.
            timeout_ms: milliseconds.

        Returns:
            False when the disk did not confirm it within ``timeout_ms``; one's own flush is always
            waited for.

        Raises:
            OSError: the disk refused.
            StoreClosedError: the store was closed before its record was flushed.
        """
        return self.group.wait(offset, timeout_ms / 1000)

    def try_wait(self, offset: int, timeout_ms: int) -> None:
        """As `wait`, for who goes on without the disk, too.

        Arguments as those of `wait`.

        Raises:
            StoreClosedError: the store was closed before its record was flushed.
        """
        try:
            self.wait(offset, timeout_ms)
        except OSError as error:
            if not is_refusal(error):
                raise

    def _lead(self, offset: int) -> int:
        """Flush for all who have put by now; the flushed offset."""
        try:
            flushed = self._flusher.flush()
        except OSError as error:
            if is_broken(error):
                self._report(error)
            raise
        if flushed < offset:
            raise StoreClosedError("the store was closed while a put waited for the disk")
        return flushed

    def wait_async(self, offset: int, timeout_ms: int) -> asyncio.Future[bool]:
        """As `wait`, as a future of the running loop.

        Arguments as those of `wait`.

        Returns:
            gets what `wait` returns, or raises.
        """
        loop = running_loop()
        deadline = loop.time() + timeout_ms / 1000
        with self._waiting.within():
            together = self._coroutines.get(loop)
            if together is None:
                together = self._coroutines[loop] = _Coroutines(loop, deadline)
            future = together.add(offset, deadline)
        self.wakeup()
        return future

    def flush_soon(self) -> None:
        """Flush what has been put by now; nobody waits for it."""
        self._soon = True
        self.wakeup()

    def run(self, now: float) -> float:
        """Flush for waiting coroutines, and for puts that do not wait."""
        self._flush_for_all()
        return _AGAIN_S if self._soon else _HOUR_S

    def last(self, *, ended: bool) -> None:
        """Flush for the callers that still wait."""
        self._flush_for_all()

    def _flush_for_all(self) -> None:
        if self._soon:
            self._soon = False
            with suppress(StoreClosedError):
                try:
                    self.wait(self._flusher.put_offset, 3_600_000)
                except OSError as error:
                    # where that is final, puts are refused by now, and say why
                    self._soon = not is_broken(error)
        while self._coroutines:
            with self._waiting.within():
                waiting, self._coroutines = self._coroutines, {}
            failure: BaseException | None = None
            try:
                self.wait(max(together.offset for together in waiting.values()), 3_600_000)
            except (OSError, StoreClosedError) as error:
                failure = error
            for loop, together in waiting.items():
                # the loop was closed: no coroutine of it waits any more
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(together.complete, failure)


class _Coroutines:
    """Coroutines of one loop that wait for the same flush, with one timer for all.

    Args:
        loop: theirs; everything here is called in its thread.
        deadline: of the first of them, in the loop's time, seconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self.offset = 0
        self._loop = loop
        self._futures: list[tuple[float, asyncio.Future[bool]]] = []
        self._timer = loop.call_at(deadline, self._expire)

    def add(self, offset: int, deadline: float) -> asyncio.Future[bool]:
        """Add a future that waits up to ``deadline`` until all below ``offset`` is on disk."""
        future: asyncio.Future[bool] = self._loop.create_future()
        self.offset = max(self.offset, offset)
        self._futures.append((deadline, future))
        return future

    def complete(self, failure: BaseException | None) -> None:
        """The flush has ended."""
        self._timer.cancel()
        for _, future in self._futures:
            if not future.done():
                if failure is None:
                    future.set_result(True)
                else:
                    future.set_exception(failure)

    def _expire(self) -> None:
        """Answer the futures whose time has run out."""
        now = self._loop.time()
        for deadline, future in self._futures:
            if deadline > now:
                self._timer = self._loop.call_at(deadline, self._expire)
                break
            if not future.done():
                future.set_result(False)


class FlushRealTimeService(Service):
    """Flushes the log every so often under ASYNC_FLUSH, when enough pages of 4 KiB are pending.

    Source: RocketMQ store/CommitLog.java, FlushRealTimeService.
    """

    def __init__(self, flusher: LogFlusher, config: StoreConfig) -> None:
        super().__init__("FlushRealTimeService")
        self._flusher = flusher
        #: when it flushed last, and at first when it began
        self._flushed_at: float | None = None
        self.configure(config)

    def configure(self, config: StoreConfig) -> None:
        """Take a store's settings, now and whenever they change."""
        self._interval_s = config.flush_interval_commit_log_ms / 1000
        self._least_bytes = config.flush_commit_log_least_pages * STORE_PAGE_SIZE
        self._thorough_s = config.flush_commit_log_thorough_interval_ms / 1000

    def run(self, now: float) -> float:
        """Flush when enough is pending or enough time has passed."""
        if self._flushed_at is None:
            self._flushed_at = now
        pending = self._flusher.pending
        overdue = now - self._flushed_at >= self._thorough_s
        if pending and (pending >= self._least_bytes or overdue):
            self._flusher.flush()
            self._flushed_at = now
        return self._interval_s


class CommitRealTimeService(Service):
    """Moves the transient pool's buffers into the files every so often.

    Source: RocketMQ store/CommitLog.java, CommitRealTimeService.
    Differs: a log without room for them is told, so that no put is taken meanwhile.
    """

    def __init__(
        self,
        log: CommitLogWriter,
        config: StoreConfig,
        on_refused: Callable[[DiskFullError | None], None],
    ) -> None:
        super().__init__("CommitRealTimeService")
        self._log = log
        self._on_refused = on_refused
        self.configure(config)

    def configure(self, config: StoreConfig) -> None:
        """Take a store's settings, now and whenever they change."""
        self._interval_s = config.commit_interval_commit_log_ms / 1000

    def run(self, now: float) -> float:
        """Commit what is there; what finds no room stays in the pool for the next round."""
        try:
            self._log.commit()
        except DiskFullError as error:
            self._on_refused(error)
            raise
        self._on_refused(None)
        return self._interval_s


class Derived(Protocol):
    """Something derived from the log that can be written through to the disk."""

    def flush(self) -> int:
        """Write through; the store time up to which it is complete on disk, 0 when unknown."""
        ...


class DerivedIndex(Derived, Protocol):
    """As `Derived`; some of it goes to the disk when it is full, whoever fills it."""

    def check_synced(self) -> None:
        """Raise the refusal of the disk, if there was one."""


class DerivedQueues(Derived, Protocol):
    """As `Derived`, of many files."""

    def flush_some(self, least_bytes: int) -> tuple[int, bool]:
        """Write through what is most urgent, this many new bytes in any case.

        Returns:
            (as of `flush`, True when nothing was left out).
        """
        ...


class FlushConsumeQueueService(Service):
    """Flushes consume queues every so often, the index more seldom, and writes the checkpoint.

    An index file's changes lie all over it, so it goes to the disk when it is full, when the
    store is closed, and after its thorough interval. ``check``, called before each round, ends the
    service by what it raises; ``on_flushed`` is called when the consume queues are on the disk.

    Threads: `flush` may be called from any; one of them works at a time, as the others would find
        nothing left to flush, and not know whether it is on the disk yet.
    Source: RocketMQ store/DefaultMessageStore.java, FlushConsumeQueueService.
    Differs: the checkpoint's times are taken before the flush and written after it.
    """

    def __init__(
        self,
        queues: DerivedQueues,
        index: DerivedIndex | None,
        checkpoint: StoreCheckpoint,
        config: StoreConfig,
        *,
        check: Callable[[], None],
        on_flushed: Callable[[], None],
        monotonic_s: Callable[[], float],
    ) -> None:
        super().__init__("FlushConsumeQueueService")
        self._check = check
        self._on_flushed = on_flushed
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._monotonic_s = monotonic_s
        self._last_thorough = monotonic_s()
        self._written: tuple[int, int, int] | None = None
        self._standing = Standing()
        self._flushing = ReentrantLock()
        self.configure(config)

    def configure(self, config: StoreConfig) -> None:
        """Take a store's settings, now and whenever they change."""
        self._interval_s = config.flush_interval_consume_queue_ms / 1000
        self._least_bytes = config.flush_consume_queue_least_pages * STORE_PAGE_SIZE
        self._thorough_s = config.flush_consume_queue_thorough_interval_ms / 1000

    def run(self, now: float) -> float:
        """Flush, the index too when its interval has passed."""
        self._check()
        thorough = now - self._last_thorough >= self._thorough_s
        self.flush_files(thorough=thorough)
        try:
            self.write_checkpoint()
            self._standing.end("writing the checkpoint")
        except OSError as error:
            if not is_refusal(error):
                raise
            self._standing.note("writing the checkpoint", error)
        return self._interval_s

    def flush(self, *, thorough: bool = True) -> None:
        """Flush and advance the checkpoint.

        Raises:
            OSError: the disk refused.
        """
        self.flush_files(thorough=thorough)
        self.write_checkpoint()

    def flush_files(self, *, thorough: bool = True) -> None:
        """Flush what the checkpoint speaks of.

        Raises:
            OSError: the disk refused.
        """
        with self._flushing.within():
            self._flush_files(thorough=thorough)

    def _flush_files(self, *, thorough: bool) -> None:
        checkpoint = self._checkpoint
        logics, whole = (
            (self._queues.flush(), True) if thorough else self._queues.flush_some(self._least_bytes)
        )
        if whole:
            self._on_flushed()
        checkpoint.logics_msg_timestamp_ms = later_of(checkpoint.logics_msg_timestamp_ms, logics)
        if self._index is not None:
            self._index.check_synced()
        if thorough:
            self._last_thorough = self._monotonic_s()
            if self._index is not None:
                index = self._index.flush()
                checkpoint.index_msg_timestamp_ms = later_of(
                    checkpoint.index_msg_timestamp_ms, index
                )

    def write_checkpoint(self) -> None:
        """Write the checkpoint, if it has advanced; whole, so a refusal costs nothing.

        Raises:
            OSError: the disk refused; it stays as it is, or goes back to what it was.
        """
        with self._flushing.within():
            times = self._checkpoint.times_ms
            if times != self._written:
                self._check()
                self._checkpoint.flush()
                self._written = times
