"""What can go wrong between two ends of a connection."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EADDRINUSE
from typing import Final

from rmqcore.errors import RmqCoreError, is_refusal
from rmqcore.remoting.codes import ResponseCode

logger = logging.getLogger(__name__)

#: Of what another says so many characters are logged.
_REASON_SIZE_MAX: Final = 500


class RemotingError(RmqCoreError):
    """Base of every error of the wire protocol."""


class FrameError(RemotingError, ValueError):
    """Bytes that are no frame, or a command that no frame can hold.

    Attributes:
        reason: what was found and what was expected.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class FrameTooLargeError(FrameError):
    """A frame, its header or the number of its fields is above the limit.

    Attributes:
        size: what the frame has, in the unit of the limit.
        limit: what is accepted.
    """

    def __init__(self, what: str, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(f"{what} of {size}, {limit} at most")


class RemotingConnectError(RemotingError, ConnectionError):
    """No connection to an address could be made; nothing was sent.

    Attributes:
        address: `host:port` that was tried.
        reason: what the system said.
    """

    def __init__(self, address: str, reason: str) -> None:
        self.address = address
        self.reason = reason
        super().__init__(f"cannot connect to {address}: {reason}")


class PortTakenError(RemotingError, OSError):
    """A port cannot be listened on, as another program does.

    Attributes:
        address: `host:port` that is taken.
        use: what it was to be for, and the setting that names it; empty for a server's only port.
        errno: `EADDRINUSE`.
    """

    errno: int | None = EADDRINUSE

    def __init__(self, address: str, use: str = "") -> None:
        self.address = address
        self.use = use
        said = f"{address} is taken: another program listens there"
        super().__init__(f"{use}: {said}" if use else said)


class RemotingClosedError(RemotingError, ConnectionError):
    """The connection was closed; whether the peer has seen the request is not known.

    Attributes:
        address: the peer, `host:port`.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        super().__init__(f"the connection with {address} was closed")


class RemotingTimeoutError(RemotingError, TimeoutError):
    """No answer came in time; whether the peer has done what was asked is not known.

    Attributes:
        address: the peer, `host:port`.
        code: the request's code.
        timeout_ms: how long was waited.
    """

    def __init__(self, address: str, code: int, timeout_ms: float) -> None:
        self.address = address
        self.code = code
        self.timeout_ms = timeout_ms
        super().__init__(f"{address} did not answer request {code} within {timeout_ms:.0f} ms")


class RequestRefusedError(RemotingError):
    """A request is answered with a response code that is not the wanted one.

    A processor raises it to answer so; a check of an answer raises it with the peer's words.

    Attributes:
        code: the response code.
        remark: what the answer says; it goes to the peer, so it holds no path and no secret.
        address: the peer that has refused, empty inside a processor.
    """

    def __init__(self, code: int, remark: str, address: str = "") -> None:
        self.code = int(code)
        self.remark = remark
        self.address = address
        by = f"{address} answered with " if address else ""
        super().__init__(f"{by}code {self.code}: {remark}")


def shortened(reason: str) -> str:
    """What another has said, for a line of the log: it may be as long as its answer."""
    if len(reason) <= _REASON_SIZE_MAX:
        return reason
    return f"{reason[:_REASON_SIZE_MAX]}... ({len(reason)} characters)"


@contextmanager
def expect_written(what: str) -> Iterator[None]:
    """Have what a request changes on the disk before it is answered.

    Args:
        what: is written within the context, in the words of an answer.

    Raises:
        RequestRefusedError: the system refuses, as a full disk does; answers with code 14.
    """
    try:
        yield
    except OSError as error:
        if not is_refusal(error):
            raise
        logger.warning("%s cannot be written: %s", what, error)
        remark = f"{what} cannot be written to the disk now; ask again"
        raise RequestRefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, remark) from error
