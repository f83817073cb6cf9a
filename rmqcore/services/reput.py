"""The reput service: dispatches what was put to consume queues, index and listeners."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from rmqcore.errors import (
    CorruptRecordError,
    CorruptStoreError,
    StoreNotWritableError,
    is_refusal,
)
from rmqcore.files.commit_log import CommitLog, View
from rmqcore.files.log_walker import walk_file
from rmqcore.native.base._lock import ReentrantLock
from rmqcore.native.derive.dispatch import CommitLogDispatcher
from rmqcore.native.format._next_record import ScanStatus
from rmqcore.services.bell import Bell
from rmqcore.services.service import Service

if TYPE_CHECKING:
    from rmqcore.native.derive._dispatch import DispatchBatch
    from rmqcore.native.log._tail import LogTail

SCAN_SIZE = 8 << 20
_BUSY_INTERVAL_S = 0.001
_BUSY_INTERVAL_MAX_S = 0.002
#: After a round the thread pauses this many times as long as the round has taken, within the two
#: bounds above: so it dispatches several puts at a time.
_PAUSE_FACTOR = 10
#: A put wakes it before.
_IDLE_INTERVAL_S = 1.0
_LONGEST_S = 1e6


class ReputMessageService(Service):
    """Dispatches each record of the log once, in order, up to the confirm offset.

    - Everything below `offset` has been dispatched.
    - A reader that must see what has just been put calls `catch_up` itself; the rounds only keep
      the lag short. While there is work it looks after a millisecond, or after two when its rounds
      take long, so that it holds up those who put no longer than it must. When there is none it
      sleeps, and the next put, or the next flush where that decides, wakes it at once.

    Args:
        log: the log.
        dispatchers: called in this order with each stretch.
        batch: the kernel's working arrays.
        confirm_offset: the end of what may be dispatched: the flushed offset under SYNC_FLUSH,
            else the end of the log.
        on_progress: called with the new offset after each stretch.
        tail: the log's tail, whose puts wake the thread; None where a flush or commit decides what
            may be dispatched: it then calls `wakeup`.
        on_refused: called with the error when the system refused to take a stretch, a full disk
            above all, and with None when it takes it again.
        monotonic_s: tells how long a round took.

    Threads: `catch_up` may be called from any; one of them works at a time.
    Source: RocketMQ store/DefaultMessageStore.java, ReputMessageService; store/ConsumeQueue.java,
        putMessagePositionInfoWrapper.
    Differs: a record that is not there is an error, where RocketMQ goes on behind it silently.
    """

    tries_again = True
    #: by puts
    is_woken_unheard = True

    def __init__(
        self,
        log: CommitLog,
        dispatchers: Sequence[CommitLogDispatcher],
        batch: DispatchBatch,
        confirm_offset: Callable[[], int],
        *,
        on_progress: Callable[[int], None],
        on_refused: Callable[[OSError | None], None],
        monotonic_s: Callable[[], float],
        tail: LogTail | None = None,
    ) -> None:
        super().__init__("ReputMessageService")
        self.offset = 0
        self._log = log
        self._tail = tail
        self._dispatchers = dispatchers
        self._batch = batch
        self._confirm_offset = confirm_offset
        self._on_progress = on_progress
        self._on_refused = on_refused
        self._monotonic_s = monotonic_s
        #: nobody rings it: waiting for it is a pause that `stop` can end
        self._pause = Bell()
        #: whether the system has not taken what was dispatched last
        self.refused = False
        self._lock = ReentrantLock()
        self._failure: CorruptStoreError | None = None

    @property
    def behind(self) -> int:
        """Bytes of the log that are not dispatched yet."""
        return max(0, self._log.max_offset - self.offset)

    def begin_at(self, phy_offset: int, refused: OSError | None = None) -> None:
        """Begin with the record at an offset: all before it has been dispatched, or is not here.

        Args:
            phy_offset: of the record.
            refused: why an opening has not dispatched it.
        """
        self.offset = phy_offset
        self._report_refusal(refused)

    def catch_up(self, *, wait: bool = True) -> None:
        """Dispatch everything up to the confirm offset as it is now.

        Args:
            wait: False returns at once when another thread is dispatching. A signal handler or a
                finalizer that interrupted a dispatch of this thread returns at once in any case.

        Raises:
            OSError: the system refused to take a stretch, a full disk above all; the next call
                tries again.
            CorruptStoreError: a stretch could not be dispatched, now or before.
        """
        end = self._confirm_offset()
        if self.offset >= end:
            return
        with self._lock.within(_LONGEST_S if wait else 0.0) as mine:
            if not mine or self._lock.depth > 1:
                return
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            try:
                self._dispatch_below(end)
                self._report_refusal(None)
            except OSError as error:
                if is_refusal(error):
                    self._report_refusal(error)
                raise
            except CorruptStoreError as error:
                self._failure = error
                raise

    @contextmanager
    def stopped(self) -> Iterator[Callable[[int], None]]:
        """Dispatch nothing while the caller works, but what it asks for.

        Yields what dispatches all below a physical offset.

        Raises:
            StoreNotWritableError: the caller is a signal handler or a finalizer that interrupted
                a dispatch of this thread.
        """
        with self._lock.within(_LONGEST_S) as mine:
            if not mine or self._lock.depth > 1:
                raise StoreNotWritableError("a dispatch that was interrupted is still at work")
            yield self._dispatch_below

    def _dispatch_below(self, end: int) -> None:
        try:
            while self.offset < end:
                self._dispatch_file(end)
        finally:
            self._batch.clear()

    def _report_refusal(self, error: OSError | None) -> None:
        if error is not None or self.refused:
            self.refused = error is not None
            self._on_refused(error)

    def _dispatch_file(self, end: int) -> None:
        """Dispatch what one log file has below ``end``, one stretch after the other."""
        file_size = self._log.queue.file_size
        file_end = self.offset - self.offset % file_size + file_size
        for step in walk_file(
            self._view,
            self._batch.scan,
            self.offset,
            min(end, file_end),
            file_end=file_end,
            piece_size=SCAN_SIZE,
        ):
            for dispatcher in self._dispatchers:
                dispatcher.dispatch(self._batch)
            if not step.is_good:
                path = self._view(step.phy_offset, 0).path
                raise CorruptRecordError(path, step.phy_offset, step.reason)
            self.offset = file_end if step.status is ScanStatus.BLANK else step.phy_offset
            self._on_progress(self.offset)

    def _view(self, offset: int, size: int) -> View:
        view = self._log.view(offset, size)
        if view is None:
            raise CorruptRecordError(
                self._log.queue.directory, offset, "the log has no record here to dispatch"
            )
        return view

    def rest(self, seconds: float) -> Callable[[], object]:
        """As `Service.rest`."""
        if seconds <= _BUSY_INTERVAL_MAX_S:
            # while there is work no put wakes the thread: that would cost more than it gains
            return partial(self._pause.wait, seconds)
        if self._tail is not None and seconds == _IDLE_INTERVAL_S:
            return partial(self._tail.wait_for_put, self.offset, seconds)
        return super().rest(seconds)

    def end(self) -> None:
        """As `Service.end`."""
        super().end()
        if self._tail is not None:
            self._tail.end_wait()

    @property
    def woken(self) -> bool:
        """As `Service.woken`."""
        put = self._tail is not None and self._tail.max_offset > self.offset
        return put or super().woken

    def run(self, now: float) -> float:
        """Dispatch what there is, and look again soon when there was any."""
        before = self.offset
        self.catch_up()
        if self.offset == before:
            return _IDLE_INTERVAL_S
        pause_s = _PAUSE_FACTOR * (self._monotonic_s() - now)
        return min(max(_BUSY_INTERVAL_S, pause_s), _BUSY_INTERVAL_MAX_S)
