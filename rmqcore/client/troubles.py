"""`Troubles`: what a client cannot do at the moment: in the log once, and to who waits for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from rmqcore.errors import RmqCoreError
from rmqcore.remoting import RequestRefusedError, ResponseCode

logger = logging.getLogger(__name__)

#: Answers that pass by themselves: the broker is busy, is starting, is stopping, or has another
#: table yet.
_PASSING: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)


class Troubles:
    """What a client tries again and again by itself, and fails at.

    A failure is a warning in the log when it is new, and a line when it has passed. A refusal that
    does not pass by itself is for whoever waits, once for each time that a broker has said it.

    Attributes:
        on_refusal: called with each refusal.
        told: the number of the last refusal that was raised.
    """

    def __init__(self) -> None:
        self.on_refusal: Callable[[], None] | None = None
        self.told = 0
        self._standing: dict[str, str] = {}
        self._refusals: dict[str, RequestRefusedError] = {}
        self._number = 0

    def note(self, what: str, error: Exception, *, is_passing: bool = False) -> None:
        """Something has failed, and will be tried again.

        Args:
            what: that which was tried.
            error: why.
            is_passing: a refusal that nobody has to hear.
        """
        said = str(error) if isinstance(error, RmqCoreError) else repr(error)
        if said not in self._standing.values():
            logger.warning("%s: %s; it is tried again", what, said)
        self._standing[what] = said
        self._refusals.pop(what, None)
        if is_passing or not isinstance(error, RequestRefusedError) or error.code in _PASSING:
            return
        self._refusals[what] = error
        self._number += 1
        if self.on_refusal is not None:
            self.on_refusal()

    def end(self, what: str) -> None:
        """It went well, or is tried no more."""
        self._refusals.pop(what, None)
        said = self._standing.pop(what, None)
        if said is not None and said not in self._standing.values():
            logger.info("%s: no longer so: %s", what, said)

    def raise_refusal(self, since: int) -> None:
        """Raise the last refusal, if it has come after another and still stands.

        Args:
            since: `told`, when the caller began to wait.

        Raises:
            RequestRefusedError: there is one.
        """
        if self._number > since and self._refusals:
            self.told = self._number
            error = next(reversed(self._refusals.values()))
            # each of those who wait gets one of its own, for the traceback
            raise RequestRefusedError(error.code, error.remark, error.address)
