"""Who runs services: `Threads`, a thread for each; `ByHand`, when a test says so.

A service (`rmqcore.services.service.Service`) says after each round in how many seconds it wants
the next one; a runner waits for that, or until the service is woken. What becomes of a round that
fails is the same in both.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf
from typing import Final, Protocol

from rmqcore.errors import StoreError, is_broken, is_refusal
from rmqcore.services.service import Service
from rmqcore.services.standing import Standing
from rmqcore.world import REAL, World

_log = logging.getLogger("rmqcore")
RETRY_INTERVAL_S: Final = 1.0
#: After this many rounds `ByHand.until_idle` raises: services wake each other for ever.
_ROUNDS_MAX: Final = 10_000

OnError = Callable[[BaseException], None]


class Runner(Protocol):
    """Runs the services of a store."""

    def start(self, service: Service, on_error: OnError) -> None:
        """Run rounds from now on; one that is running is left alone.

        Args:
            service: what is run.
            on_error: called once, with the exception that has ended the service.
        """
        ...

    def stop(self, service: Service, timeout_s: float = 30.0) -> bool:
        """Let the current round end and no other begin, and `Service.last` do the rest; idempotent.

        Args:
            service: one that is not running is told to do the rest all the same.
            timeout_s: seconds that the round may still take.

        Returns:
            False when the round did not end in time.
        """
        ...

    def is_running(self, service: Service) -> bool:
        """Tell whether a round of a service may be running, or another one come."""
        ...


def stop_running(runner: Runner, services: Iterable[Service]) -> None:
    """Stop the services that an interrupt has kept from being stopped.

    Args:
        runner: of the services.
        services: in the order in which they are stopped.
    """
    for service in services:
        if runner.is_running(service):
            runner.stop(service)


def refuse_greenlets(path: str | os.PathLike[str]) -> None:
    """Refuse to serve a store where a library has put its greenlets in the place of threads.

    Of these one runs at a time, until it waits by the library: a service that waits for the system
    lets nobody else go on.

    Args:
        path: the store's directory.

    Raises:
        StoreError: it is so.
    """
    # of locks a profiler makes its own, and threads stay what they are
    maker = threading.get_ident.__module__.partition(".")[0]
    if maker != "_thread":
        raise StoreError(
            f"{os.fspath(path)}: {maker} has replaced the threads that serve a store; let the "
            "workers be threads or processes, and do not patch the standard library"
        )


class Rounds:
    """The rounds of one service, and what a failed round leads to."""

    def __init__(self, service: Service, on_error: OnError) -> None:
        self.service = service
        self._on_error = on_error
        self._standing = Standing()

    def one(self, now: float) -> tuple[float, bool] | None:
        """Run a round.

        Returns:
            None when there is no other one; else seconds until the next one, and whether it has to
            wait so long although it is woken.
        """
        service = self.service
        if not service.active:
            return None
        try:
            rest_s = service.run(now)
        except BaseException as error:  # noqa: BLE001 - handed on, never swallowed
            if is_refusal(error) and (service.tries_again or not is_broken(error)):
                self._standing.note(service.name, error)
                return RETRY_INTERVAL_S, True
            _log.exception("%s ended", service.name)
            service.end()
            self._on_error(error)
            return None
        self._standing.end(service.name)
        return rest_s, False


class Threads:
    """Runs each service in a thread of its own, a daemon.

    Between two rounds a thread keeps nothing of what its service works for: a store that its user
    has let go can be collected.

    Args:
        world: tells rounds the time.
    """

    def __init__(self, world: World = REAL) -> None:
        self._monotonic_s = world.monotonic_s
        self._running: dict[Service, tuple[threading.Thread, Rounds]] = {}

    def start(self, service: Service, on_error: OnError) -> None:
        """As `Runner.start`."""
        if self.is_running(service):
            return
        service.begin()
        rounds = Rounds(service, on_error)
        thread = threading.Thread(
            target=_run, args=(weakref.ref(rounds), self._monotonic_s), name=service.name
        )
        thread.daemon = True
        self._running[service] = thread, rounds
        thread.start()

    def stop(self, service: Service, timeout_s: float = 30.0) -> bool:
        """As `Runner.stop`; the thread that runs the service does not wait for itself."""
        service.end()
        thread = self.thread_of(service)
        ended = True
        if thread is not None and thread is not threading.current_thread():
            # one that an interrupt has kept from its begin does no round any more
            with suppress(RuntimeError):
                thread.join(timeout_s)
            ended = not thread.is_alive()
            if not ended:
                _log.warning(
                    "%s is still at work after %g s: nobody waits for it any more",
                    service.name,
                    timeout_s,
                )
        service.last(ended=ended)
        return ended

    def is_running(self, service: Service) -> bool:
        """As `Runner.is_running`."""
        thread = self.thread_of(service)
        return thread is not None and thread.is_alive()

    def thread_of(self, service: Service) -> threading.Thread | None:
        """The thread that runs a service, or ran it last; None for one that was never started."""
        known = self._running.get(service)
        return None if known is None else known[0]


def _run(rounds: weakref.ref[Rounds], monotonic_s: Callable[[], float]) -> None:
    """The rounds of a service, until it is stopped or gone."""
    while (kept := rounds()) is not None and (following := kept.one(monotonic_s())) is not None:
        rest_s, whole = following
        if whole:
            _pause(kept.service, rest_s, monotonic_s)
            rest_s = 0.0
        wait = kept.service.rest(rest_s)
        del kept
        wait()


def _pause(service: Service, seconds: float, monotonic_s: Callable[[], float]) -> None:
    """Wait the whole time although the service is woken; end early only when it is stopped."""
    end = monotonic_s() + seconds
    while service.active and (left := end - monotonic_s()) > 0:
        Service.rest(service, left)()


class ByHand:
    """Runs services in the caller's thread, a round at a time, when it is told to.

    Rounds that are due at the same time run in the order in which their services were started.

    Args:
        world: tells the time, and lets it pass.

    Threads: one.
    """

    def __init__(self, world: World) -> None:
        self._monotonic_s = world.monotonic_s
        self._sleep = world.sleep
        self._running: dict[Service, _Due] = {}

    def start(self, service: Service, on_error: OnError) -> None:
        """As `Runner.start`; the first round is due at once."""
        if service not in self._running:
            service.begin()
            self._running[service] = _Due(Rounds(service, on_error), self._monotonic_s())

    def stop(self, service: Service, timeout_s: float = 30.0) -> bool:
        """As `Runner.stop`; no round is running unless it is this one that calls."""
        service.end()
        self._running.pop(service, None)
        service.last(ended=True)
        return True

    def is_running(self, service: Service) -> bool:
        """As `Runner.is_running`."""
        return service in self._running

    @property
    def due_in_s(self) -> float:
        """Seconds until the next round is due: 0 when one is, infinity without a service."""
        now = self._monotonic_s()
        return min((max(0.0, each.at(now) - now) for each in self._running.values()), default=inf)

    def step(self) -> bool:
        """Run the round that has been due longest; False when none is."""
        now = self._monotonic_s()
        due = min(self._running.values(), key=lambda each: each.at(now), default=None)
        if due is None or due.at(now) > now:
            return False
        service = due.rounds.service
        service.awake()
        following = due.rounds.one(now)
        if following is None:
            self._running.pop(service, None)
        else:
            rest_s, due.whole = following
            due.at_s = self._monotonic_s() + rest_s
        return True

    def until_idle(self) -> None:
        """Run rounds until none is due at this time.

        Raises:
            RuntimeError: services wake each other, or themselves, without end.
        """
        for _ in range(_ROUNDS_MAX):
            if not self.step():
                return
        now = self._monotonic_s()
        names = [service.name for service, due in self._running.items() if due.at(now) <= now]
        raise RuntimeError(f"{_ROUNDS_MAX} rounds, and still due: {', '.join(names)}")

    def advance(self, seconds: float) -> None:
        """Let time pass, and run each round when it is due."""
        end = self._monotonic_s() + seconds
        self.until_idle()
        while (left := end - self._monotonic_s()) > 0:
            self._sleep(min(left, self.due_in_s))
            self.until_idle()


class _Due:
    """When the next round of a service is due."""

    def __init__(self, rounds: Rounds, at_s: float) -> None:
        self.rounds = rounds
        self.at_s = at_s
        #: True when the thread sleeps the whole pause although it is woken
        self.whole = False

    def at(self, now: float) -> float:
        """The time at which it is due; ``now`` at the latest when it is woken."""
        woken = not self.whole and self.rounds.service.woken
        return min(now, self.at_s) if woken else self.at_s
