"""`LoopRunner`: the services of a store as actors on a simulated loop, each round an event."""

from __future__ import annotations

import random
from contextvars import Context, copy_context
from functools import partial
from typing import Final

from rmqcore.services.runner import OnError, Rounds
from rmqcore.services.service import Service
from rmqcore.simulation.loop import NANOSECONDS, SimulatedLoop, current_node

#: A thread takes at most this long to wake, and mostly much less.
_WAKING_NS: Final = 5_000_000
_SLACK_MOST_S: Final = 1.0


class LoopRunner:
    """Runs services on the node that has made it; see `rmqcore.services.runner.Runner`.

    After each event of the node it looks which services were woken.
    """

    def __init__(self, loop: SimulatedLoop, rng: random.Random, slack: float = 1.0) -> None:
        """Make a runner; to be called on the node.

        Args:
            loop: whose events rounds are.
            rng: how long services take to wake.
            slack: how much longer services rest than they want to, up to a second, unless woken.
        """
        self._loop = loop
        self._rng = rng
        self._slack = slack
        self._context = copy_context()
        self._running: dict[Service, _Actor] = {}
        #: those that it has to look at, as they are not heard when they are woken
        self._unheard: dict[Service, _Actor] = {}
        #: those that were woken since it looked
        self._woken: list[_Actor] = []
        current_node(loop).after_event = self.look

    def start(self, service: Service, on_error: OnError) -> None:
        """As `Runner.start`; the first round comes in a moment."""
        if service not in self._running:
            service.begin()
            actor = _Actor(self._loop, self._context, service, on_error, self._slack)
            self._running[service] = actor
            if service.is_woken_unheard:
                self._unheard[service] = actor
            service.hear(partial(self._woken.append, actor))
            self._plan(actor)

    def stop(self, service: Service, timeout_s: float = 30.0) -> bool:
        """As `Runner.stop`; no round is running unless it is this one that calls."""
        del timeout_s
        service.end()
        service.hear(None)
        self._running.pop(service, None)
        self._unheard.pop(service, None)
        service.last(ended=True)
        return True

    def is_running(self, service: Service) -> bool:
        """As `Runner.is_running`."""
        return service in self._running

    def look(self) -> None:
        """Bring forward the rounds of services that were woken."""
        for service, actor in self._unheard.items():
            if not actor.soon and service.woken:
                self._plan(actor)
        while self._woken:
            actor = self._woken.pop()
            if not actor.soon and actor.service.woken and actor.service in self._running:
                self._plan(actor)

    def _plan(self, actor: _Actor) -> None:
        actor.soon = True
        waking_ns = int(self._rng.random() ** 8 * _WAKING_NS)
        actor.plan(self._loop.now_ns + waking_ns)


class _Actor:
    """One service: when its next round is."""

    __slots__ = ("_context", "_loop", "_number", "_rounds", "_slack", "service", "soon")

    def __init__(
        self,
        loop: SimulatedLoop,
        context: Context,
        service: Service,
        on_error: OnError,
        slack: float,
    ) -> None:
        self._slack = slack
        self._loop = loop
        self._context = context
        self.service = service
        self._rounds = Rounds(service, on_error)
        #: of the plan that counts: a later one replaces it
        self._number = 0
        #: whether waking it changes nothing: its round comes soon, or whatever comes
        self.soon = False

    def plan(self, when_ns: int) -> None:
        """Let the next round be then."""
        self._number += 1
        self._loop.call_at_ns(when_ns, self._round, self._number, context=self._context)

    def _round(self, number: int) -> None:
        service = self.service
        if number != self._number or not service.active:
            return
        service.awake()
        following = self._rounds.one(self._loop.time())
        if following is None:
            self.soon = True
            return
        rest_s, self.soon = following
        if rest_s < _SLACK_MOST_S:
            rest_s = min(_SLACK_MOST_S, rest_s * self._slack)
        self.plan(self._loop.now_ns + round(rest_s * NANOSECONDS))
