"""`ServiceThread`: a thread that works in rounds; what every service is built on."""

from __future__ import annotations

import errno
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

_log = logging.getLogger("rmqcore")
RETRY_INTERVAL_S = 1.0
#: what passes when somebody else closes something: nothing has been read or written
_SHORT_OF_DESCRIPTORS = frozenset((errno.EMFILE, errno.ENFILE))


class ServiceThread:
    """Runs `run_once` again and again until it is stopped.

    - A round that raises ends the service, and `on_error` gets the exception once. Where `tries`
      says so, a round that fails with OSError is repeated a second later, until so many rounds
      in a row have failed. One that gets no descriptor is repeated until it gets one.
    - `wakeup` begins the next round at once; several wake-ups before it count as one.
    - Between two rounds the thread keeps nothing of what the service works for: a store that its
      user has let go can be collected.

    Args:
        name: of the thread.
        interval_s: seconds between two rounds, unless woken.
        on_error: called in the service's thread with the exception that ended it.

    Source: RocketMQ common/ServiceThread.java.
    """

    #: rounds in a row that the system may refuse
    tries = 1

    def __init__(
        self, name: str, interval_s: float, on_error: Callable[[BaseException], None]
    ) -> None:
        self.name = name
        self.interval_s = interval_s
        self._on_error = on_error
        # not an Event: its lock would deadlock a signal handler that interrupts a use of it
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopping = False
        #: rounds in a row that have failed
        self._failed = 0
        self._thread: threading.Thread | None = None

    def run_once(self) -> None:
        """One round of work."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin; a service that has been started is left alone."""
        if not self.running:
            self._stopping = False
            self._thread = threading.Thread(
                target=_run, args=(weakref.ref(self),), name=self.name, daemon=True
            )
            self._thread.start()

    def wakeup(self) -> None:
        """Begin the next round at once."""
        if self._wake.empty():
            self._wake.put(None)

    def stop(self, timeout_s: float = 30.0) -> bool:
        """Let the current round end and no other begin; idempotent.

        Returns:
            False when the round did not end in time.
        """
        thread = self._thread
        self._stopping = True
        self._wake.put(None)
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    @property
    def running(self) -> bool:
        """True while rounds are being run."""
        return self._thread is not None and self._thread.is_alive()

    def one_round(self) -> Callable[[], object] | None:
        """Run a round; what waits for the next one, or None when there is none."""
        if self._stopping:
            return None
        try:
            self.run_once()
            self._failed = 0
        except BaseException as error:  # noqa: BLE001 - handed on, never swallowed
            self._failed += 1
            if not self._is_passing(error):
                _log.exception("%s ended", self.name)
                self._on_error(error)
                return None
            _log.warning(
                "%s tries again (%d of %d): %s", self.name, self._failed, self.tries, error
            )
            self._pause(RETRY_INTERVAL_S)
            return self._rest(0.0)
        return self._rest(self.interval_s)

    def _is_passing(self, error: BaseException) -> bool:
        """Tell whether a round that failed is worth another one."""
        if not isinstance(error, OSError):
            return False
        return error.errno in _SHORT_OF_DESCRIPTORS or self._failed < self.tries

    def _rest(self, seconds: float) -> Callable[[], object]:
        """What waits for the next round, so long or until woken; it must not keep the service."""
        return partial(_wait_for, self._wake, seconds)

    def _pause(self, seconds: float) -> None:
        """Wait the whole time although `wakeup` is called; end early only when it is stopped."""
        end = time.monotonic() + seconds
        while not self._stopping and (left := end - time.monotonic()) > 0:
            with suppress(queue.Empty):
                self._wake.get(timeout=left)


def _run(service: weakref.ref[ServiceThread]) -> None:
    """The rounds of a service, until it is stopped or gone."""
    while (kept := service()) is not None and (wait := kept.one_round()) is not None:
        del kept
        wait()


def _wait_for(wake: queue.SimpleQueue[None], seconds: float) -> None:
    with suppress(queue.Empty):
        wake.get(timeout=seconds)


def stop_running(services: Iterable[ServiceThread]) -> None:
    """Stop the services that an interrupt has kept from being stopped."""
    for service in services:
        if service.running:
            service.stop()
