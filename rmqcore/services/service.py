"""`Service`: work that is done in rounds, without a thread; what every service is built on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rmqcore.services.bell import Bell


class Service:
    """Work that `rmqcore.services.runner` does in rounds, until it is stopped.

    - A round that raises ends the service. One that the system refuses without any loss, as for
      want of room or of a descriptor, is run again a second later, however often; where
      `tries_again` says so, one that it refuses for any other reason, too.
    - It has no thread: `run` is told the time, and says when it wants to run next.

    Args:
        name: of the thread that runs it.

    Source: RocketMQ common/ServiceThread.java.
    """

    #: whether no refusal of the system ends it: none of them costs what another round needs
    tries_again = False
    #: whether it is `woken` by something else, too, than `wakeup`
    is_woken_unheard = False

    def __init__(self, name: str) -> None:
        self.name = name
        self._bell = Bell()
        self._active = False

    def run(self, now: float) -> float:
        """One round of work.

        Args:
            now: when it begins, seconds of a clock that is never put back.

        Returns:
            seconds until the next round, unless woken.
        """
        raise NotImplementedError

    def wakeup(self) -> None:
        """Begin the next round at once."""
        self._bell.ring()

    # ---- for who runs it

    @property
    def active(self) -> bool:
        """Whether rounds are to be run: it was begun, and has neither been ended nor failed."""
        return self._active

    def begin(self) -> None:
        """Rounds are run from now on."""
        self._active = True

    def end(self) -> None:
        """Let a round that runs be the last one, and a rest between two end."""
        self._active = False
        self._bell.ring()

    def last(self, *, ended: bool) -> None:
        """Do what is left to be done behind the last round; may be called again.

        Args:
            ended: False when the last round did not end in time.
        """

    @property
    def woken(self) -> bool:
        """Whether the next round may begin at once."""
        return self._bell.rung

    def hear(self, on_woken: Callable[[], object] | None) -> None:
        """Have a function called, by whoever wakes it, when it is woken; None: none."""
        self._bell.on_ring = on_woken

    def rest(self, seconds: float) -> Callable[[], object]:
        """What waits for the next round, so long or until woken; it must not keep the service."""
        return partial(self._bell.wait, seconds)

    def awake(self) -> None:
        """The next round begins: it is no longer woken."""
        self._bell.silence()
