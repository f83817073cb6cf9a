"""One thread that flushes topics in time and runs the delete jobs."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from datetime import datetime

from rmqcore.errors import RmqCoreError
from rmqcore.metaq.cron import QuartzCron
from rmqcore.world import World

_LOG = logging.getLogger(__name__)
_POLL_S = 600.0


class Schedule:
    """Flush intervals and cron jobs.

    Invariants:
        - An interval counts only while something with that interval is unflushed, so that an idle
          broker wakes for its cron jobs alone.
        - A job that fails is logged, and runs again at its next time.

    Source: MetaQ MessageStoreManager.java, scheduleFlushTask and startScheduleDeleteJobs.
    """

    def __init__(
        self,
        flush: Callable[[int], None],
        delete: Callable[[str], None],
        world: World,
    ) -> None:
        """Prepare; nothing runs before `start`.

        Args:
            flush: called with an interval in milliseconds that has passed.
            delete: called with a cron expression whose time has come.
            world: its clocks; cron jobs go by local time.
        """
        self._flush = flush
        self._delete = delete
        self._world = world
        self._changed = threading.Condition()
        self._flushes: dict[int, float] = {}
        self._jobs: dict[str, datetime] = {}
        self._stopping = False
        self._thread: threading.Thread | None = None

    def _now(self) -> datetime:
        """Local time."""
        return datetime.fromtimestamp(self._world.clock_ms() / 1000).astimezone()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="metaq-schedule", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for the job that it is in."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def wake(self) -> None:
        """Look at once what is due: a clock may have been moved."""
        with self._changed:
            self._changed.notify()

    def flush_within(self, interval_ms: int) -> None:
        """See that ``flush(interval_ms)`` is called at the latest after that time."""
        if interval_ms <= 0:
            return
        due = self._world.monotonic_s() + interval_ms / 1000
        with self._changed:
            if interval_ms not in self._flushes:
                self._flushes[interval_ms] = due
                self._changed.notify()

    def flush_intervals(self) -> frozenset[int]:
        """The intervals that wait for their time."""
        with self._changed:
            return frozenset(self._flushes)

    def forget_flushes(self) -> None:
        """Drop every waiting interval; the caller adds again the intervals that still count."""
        with self._changed:
            self._flushes.clear()

    def set_jobs(self, expressions: set[str]) -> None:
        """Replace the cron jobs; one that stays keeps its next time."""
        now = self._now()
        with self._changed:
            self._jobs = {
                expression: self._jobs.get(expression) or QuartzCron(expression).next_after(now)
                for expression in expressions
            }
            self._changed.notify()

    def next_runs(self) -> dict[str, datetime]:
        """When each cron job runs next."""
        with self._changed:
            return dict(self._jobs)

    def _run(self) -> None:
        while (work := self._wait()) is not None:
            for call in work:
                try:
                    call()
                except (OSError, RmqCoreError):
                    _LOG.exception("a scheduled flush or delete job failed")

    def _wait(self) -> list[Callable[[], None]] | None:
        """Sleep until something is due; None when the schedule stops."""
        with self._changed:
            while not self._stopping:
                work = self._pop_due()
                if work:
                    return work
                self._changed.wait(self.seconds_left())
        return None

    def _pop_due(self) -> list[Callable[[], None]]:
        moment, now = self._world.monotonic_s(), self._now()
        work: list[Callable[[], None]] = []
        for interval_ms in [i for i, due in self._flushes.items() if due <= moment]:
            del self._flushes[interval_ms]
            work.append(functools.partial(self._flush, interval_ms))
        for expression in [e for e, due in self._jobs.items() if due <= now]:
            self._jobs[expression] = QuartzCron(expression).next_after(now)
            work.append(functools.partial(self._delete, expression))
        return work

    def seconds_left(self) -> float | None:
        """How long the thread sleeps; None: until it is woken.

        The wall clock may be set, so never long without a look at it.
        """
        with self._changed:
            flushes, jobs = list(self._flushes.values()), list(self._jobs.values())
        left = [due - self._world.monotonic_s() for due in flushes]
        left += [min((due - self._now()).total_seconds(), _POLL_S) for due in jobs]
        return max(0.0, min(left)) if left else None
