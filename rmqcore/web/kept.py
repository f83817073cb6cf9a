"""`Kept`: what takes long to look up, as it was a moment ago."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from rmqcore.errors import RmqCoreError
from rmqcore.world import monotonic_s

logger = logging.getLogger(__name__)

#: What is kept is looked up anew after this many times what that takes, no sooner.
_TIMES: Final = 20
_Value = TypeVar("_Value")


class Kept(Generic[_Value]):
    """A value that readers get at once, while a thread looks it up anew.

    Only the first reader waits.

    Args:
        look: looks it up; what it raises the first reader gets.
        seconds: for so long it is not looked up again.
        stamp: while this stays the same, so does the value; called by each reader, who gets what it
            raises.
    """

    def __init__(
        self,
        look: Callable[[], _Value],
        seconds: float,
        stamp: Callable[[], Hashable] | None = None,
    ) -> None:
        self._look = look
        self._seconds = seconds
        self._stamp = stamp
        self._first = threading.Lock()
        self._looking = threading.Lock()
        self._value: _Value | None = None
        self._known: Hashable = None
        self._until_s = 0.0
        self._has_value = False

    def get(self) -> _Value:
        """The value; raises as ``look`` where there is none yet."""
        if not self._has_value:
            with self._first:
                if not self._has_value:
                    self._look_now()
        elif self._is_outdated() and self._looking.acquire(blocking=False):
            threading.Thread(target=self._look_aside, name="WebLook", daemon=True).start()
        return self._value  # type: ignore[return-value]

    def _is_outdated(self) -> bool:
        if monotonic_s() < self._until_s:
            return False
        return self._stamp is None or self._stamp() != self._known

    def _look_now(self) -> None:
        began_s = monotonic_s()
        stamp = None if self._stamp is None else self._stamp()
        value = self._look()
        now_s = monotonic_s()
        self._value, self._known, self._has_value = value, stamp, True
        self._until_s = now_s + max(self._seconds, _TIMES * (now_s - began_s))

    def _look_aside(self) -> None:
        try:
            self._look_now()
        except (RmqCoreError, OSError) as error:
            self._until_s = monotonic_s() + self._seconds
            logger.warning("what a page shows could not be looked up anew: %s", error)
        finally:
            self._looking.release()
