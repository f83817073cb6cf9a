"""Puts that wait until slaves have them too.

Source: RocketMQ store/ha/GroupTransferService.java; of 4.9, HAService.isSlaveOK.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Final

from rmqcore.ha.settings import HAConfig
from rmqcore.status import PutMessageStatus
from rmqcore.world import REAL, World

Finish = Callable[[PutMessageStatus], None]
_LATE: Final = PutMessageStatus.FLUSH_SLAVE_TIMEOUT


class GroupTransferService:
    """Knows how far each slave has the log, and answers the puts that wait for it.

    - A put whose slaves are not there, or too far behind, is answered at once: SLAVE_NOT_AVAILABLE.
    - One that they have not acknowledged in time: FLUSH_SLAVE_TIMEOUT. It is stored all the same.

    Threads: any.
    Differs: the statuses are those of 4.9, for any number of slaves; RocketMQ 5 never says
        SLAVE_NOT_AVAILABLE.
    """

    def __init__(
        self,
        config: HAConfig,
        *,
        end: Callable[[], int],
        on_waiting: Callable[[], None],
        world: World = REAL,
    ) -> None:
        """Begin without slaves.

        Args:
            config: the settings.
            end: gives the end of the master's log.
            on_waiting: called whenever a put begins to wait.
            world: tells threads how long they have waited.
        """
        self.slaves_needed = config.in_sync_replicas - 1
        self._timeout_s = config.slave_timeout / 1000
        self._gap_max = config.ha_max_gap_not_in_sync
        self._end = end
        self._on_waiting = on_waiting
        self._monotonic_s = world.monotonic_s
        self._acks: dict[object, int] = {}
        #: the proven offset of each connection over which something was sent
        self._proven: dict[object, int] = {}
        # a signal handler that puts may come in a block of its own thread's
        self._lock = threading.RLock()
        self._waiting: list[tuple[int, int, Finish]] = []
        self._numbers = count()
        self._deadlines: dict[asyncio.AbstractEventLoop, _Deadlines] = {}
        self._stopped = False

    def is_in_sync(self, ack_offset: int, end: int) -> bool:
        """Whether a slave that has acknowledged so far can be counted on.

        Args:
            ack_offset: physical offset up to which it has the log; negative before its first
                report.
            end: physical offset behind the last byte of the master's log.
        """
        return ack_offset >= 0 and end - ack_offset < self._gap_max

    @property
    def replicated_offset(self) -> int:
        """Enough slaves have the log up to here; -1 when there are not enough."""
        acks = sorted(self._proven.values(), reverse=True)
        if self.slaves_needed == 0:
            return self._end()
        return acks[self.slaves_needed - 1] if len(acks) >= self.slaves_needed else -1

    def acknowledged(self, slave: object, offset: int, *, proven: bool = True) -> None:
        """Take a slave's report, and answer the puts that waited for it.

        Args:
            slave: whose.
            offset: how far it has the log, as it says.
            proven: False for one that has taken nothing yet: it is there, but what it has may be
                another log, and answers no put.
        """
        with self._lock:
            self._acks[slave] = offset
            if proven:
                self._proven[slave] = offset
            reached = self.replicated_offset
            done = []
            while self._waiting and self._waiting[0][0] <= reached:
                done.append(heapq.heappop(self._waiting)[2])
        for finish in done:
            finish(PutMessageStatus.PUT_OK)

    def forget(self, slave: object) -> None:
        """Count on a slave no more: its connection is gone."""
        with self._lock:
            self._acks.pop(slave, None)
            self._proven.pop(slave, None)

    def stop(self) -> None:
        """Answer every put that waits, and from now on each at once."""
        with self._lock:
            self._stopped = True
            left, self._waiting = self._waiting, []
        for _, _, finish in left:
            finish(_LATE)

    # ---- waiting

    def begin(self, end: int) -> ThreadSlaveWait:
        """Begin to wait until enough slaves have the log up to ``end``."""
        wait = ThreadSlaveWait(self._timeout_s, self._monotonic_s)
        self._enlist(end, wait.finish)
        return wait

    def begin_async(self, end: int) -> asyncio.Future[PutMessageStatus]:
        """As `begin`, as a future of the running loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[PutMessageStatus] = loop.create_future()
        mine = threading.get_ident()

        def answer(status: PutMessageStatus) -> None:
            if not future.done():
                future.set_result(status)

        def finish(status: PutMessageStatus) -> None:
            # a loop that was closed: nobody waits on it any more
            with suppress(RuntimeError):
                if threading.get_ident() == mine:
                    answer(status)
                else:
                    loop.call_soon_threadsafe(answer, status)

        self._enlist(end, finish)
        if not future.done():
            self._deadlines_of(loop).add(loop, loop.time() + self._timeout_s, future)
        return future

    def _deadlines_of(self, loop: asyncio.AbstractEventLoop) -> _Deadlines:
        with self._lock:
            if loop not in self._deadlines:
                for ended in [one for one in self._deadlines if one.is_closed()]:
                    del self._deadlines[ended]
                self._deadlines[loop] = _Deadlines()
            return self._deadlines[loop]

    def _enlist(self, end: int, finish: Finish) -> None:
        """Finish a put when enough slaves have it: at once, or when they say so."""
        with self._lock:
            status = self._known(end)
            if status is None:
                heapq.heappush(self._waiting, (end, next(self._numbers), finish))
        if status is not None:
            finish(status)
        else:
            self._on_waiting()

    def _known(self, end: int) -> PutMessageStatus | None:
        """What can be said at once; None: it has to be waited for."""
        if self.slaves_needed == 0 or self.replicated_offset >= end:
            return PutMessageStatus.PUT_OK
        in_sync = sum(self.is_in_sync(ack, end) for ack in self._acks.values())
        if self._stopped or in_sync < self.slaves_needed:
            return PutMessageStatus.SLAVE_NOT_AVAILABLE
        return None


class ThreadSlaveWait:
    """One thread's wait for slaves."""

    def __init__(self, timeout_s: float, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._deadline = monotonic_s() + timeout_s
        self._finished = threading.Event()
        self._status = _LATE

    def finish(self, status: PutMessageStatus) -> None:
        """End it."""
        self._status = status
        self._finished.set()

    def status(self) -> PutMessageStatus:
        """Wait to the end; how it ended."""
        self._finished.wait(max(0.0, self._deadline - self._monotonic_s()))
        return self._status


class _Deadlines:
    """The waits of one loop, in the order in which their time is over, with one timer for all.

    Threads: the loop's.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, asyncio.Future[PutMessageStatus]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(
        self,
        loop: asyncio.AbstractEventLoop,
        deadline: float,
        future: asyncio.Future[PutMessageStatus],
    ) -> None:
        """End a wait at a time of the loop's, which is not before that of the one before."""
        waits = self._waiting
        while waits and waits[0][1].done():
            waits.popleft()
        waits.append((deadline, future))
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._expire, loop)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        waits, now = self._waiting, loop.time()
        self._timer = None
        try:
            while waits and (waits[0][1].done() or waits[0][0] <= now):
                if not waits[0][1].done():
                    waits[0][1].set_result(_LATE)
                waits.popleft()
        finally:
            # a signal handler may have raised
            if waits:
                self._timer = loop.call_at(waits[0][0], self._expire, loop)
