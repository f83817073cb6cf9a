"""Waiting for messages: threads and coroutines sleep until a topic that they name has some."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from rmqcore.arguments import real_number
from rmqcore.services.arrival import ArrivalListener
from rmqcore.services.bell import Bell
from rmqcore.services.event_loop import new_event, running_loop, within

if TYPE_CHECKING:
    import asyncio

#: A lock of the system waits no longer than this, seconds; nobody asks for as much.
_LONGEST_S: Final = 1e6


class Sleeper:
    """A thread that waits; `wake` may come from anywhere, a signal handler too.

    Attributes:
        holder: for whom it waits.
        ended: whether that one has gone.
    """

    def __init__(self, holder: str = "") -> None:
        self.holder = holder
        self.ended = False
        self._bell = Bell()

    def wake(self) -> None:
        """Let it look again."""
        self._bell.ring()

    def sleep(self, seconds: float) -> None:
        """Wait so long, or until woken."""
        self._bell.wait(max(0.0, min(seconds, _LONGEST_S)))


class AsyncSleeper:
    """A coroutine that waits; `wake` may come from any thread. See `Sleeper`."""

    def __init__(self, holder: str = "") -> None:
        self.holder = holder
        self.ended = False
        self._loop: asyncio.AbstractEventLoop = running_loop()
        self._woken = new_event()

    def wake(self) -> None:
        """Let it look again."""
        # a loop that is closed has nobody who waits
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._woken.set)

    async def sleep(self, seconds: float) -> None:
        """Wait so long, or until woken."""
        with suppress(TimeoutError):
            async with within(min(seconds, _LONGEST_S)):
                await self._woken.wait()
        self._woken.clear()


class Arrivals:
    """Who waits for which topics.

    Threads: any; `heard` runs in the thread that dispatches.

    Args:
        listen: of the store, see `MessageArrival.listen`.
    """

    def __init__(self, listen: Callable[[ArrivalListener], object]) -> None:
        self._listen = listen
        self._listening = False
        self._first: ArrivalListener | None = None
        self._sleepers: dict[Sleeper | AsyncSleeper, frozenset[str]] = {}

    def listen_first(self, listener: ArrivalListener) -> None:
        """Call a function with all that comes, before anybody is woken."""
        self._first = listener
        self._begin()

    def _begin(self) -> None:
        if not self._listening:
            # in this order: who finds it begun is heard for; of two threads both may begin it
            self._listen(self._heard)
            self._listening = True

    @contextmanager
    def waking(self, sleeper: Sleeper | AsyncSleeper, topics: Iterable[str]) -> Iterator[None]:
        """Wake somebody whenever one of some topics has messages, as long as the block runs.

        Args:
            sleeper: whose `wake` is called, from the thread that dispatches.
            topics: by name; one that has no messages yet counts from its first on.
        """
        self._begin()
        self._sleepers[sleeper] = frozenset(topics)
        try:
            yield
        finally:
            self._sleepers.pop(sleeper, None)

    def wake(self, topics: Iterable[str]) -> None:
        """Wake all who wait for any of some topics."""
        if self._sleepers:
            some = frozenset(topics)
            for sleeper, wanted in list(self._sleepers.items()):
                if not wanted.isdisjoint(some):
                    sleeper.wake()

    def end_waits(self, holder: str) -> None:
        """Wake all who wait for somebody, for the last time."""
        for sleeper in list(self._sleepers):
            if sleeper.holder == holder:
                sleeper.ended = True
                sleeper.wake()

    def wake_all(self) -> None:
        """Wake all who wait: the store is closed."""
        for sleeper in list(self._sleepers):
            sleeper.wake()

    def _heard(self, queues: Sequence[tuple[str, int]]) -> None:
        if self._first is not None:
            self._first(queues)
        if self._sleepers:
            self.wake(topic for topic, _ in queues)


class Deadline:
    """For how long somebody still waits.

    Args:
        timeout_ms: in all; None without end.
        clock: seconds, of a clock that is never set.
    """

    def __init__(self, timeout_ms: float | None, clock: Callable[[], float]) -> None:
        self._clock = clock
        wait_ms = math.inf if timeout_ms is None else real_number("timeout_ms", timeout_ms)
        self._end = clock() + wait_ms / 1000

    @property
    def left_s(self) -> float:
        """Seconds that are left; 0 when there are none."""
        return max(0.0, self._end - self._clock())
