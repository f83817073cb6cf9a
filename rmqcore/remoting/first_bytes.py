"""`FirstBytes`: looks at how a connection begins, and gives it to the protocol that it speaks.

A client of HTTP/2 begins with a text (RFC 9113, 3.4); a frame begins with the high byte of its
length, which is never `P`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

#: A connection whose first byte is this one speaks HTTP/2: no frame begins so.
HTTP2_BEGINS: Final = b"P"


class OtherProtocol(asyncio.Protocol):
    """The protocol of a connection that a server serves, and that speaks no frames."""

    def abort(self) -> None:
        """Close at once."""
        raise NotImplementedError

    async def finish(self, timeout_s: float) -> None:
        """Answer what was taken, and close.

        Args:
            timeout_s: what is not done by then is dropped.
        """
        raise NotImplementedError


class FirstBytes(OtherProtocol):
    """The protocol of a connection until its first byte has come.

    Args:
        plain: makes the protocol of frames.
        http2: makes the one of HTTP/2.
        timeout_s: for the first byte, seconds.
        on_open: called when the connection stands: one whose handshake fails never does.
        on_close: called when the connection goes before that.
    """

    def __init__(
        self,
        plain: Callable[[], asyncio.Protocol],
        http2: Callable[[], asyncio.Protocol],
        timeout_s: float,
        on_open: Callable[[OtherProtocol], None],
        on_close: Callable[[OtherProtocol], None],
    ) -> None:
        self._plain = plain
        self._http2 = http2
        self._timeout_s = timeout_s
        self._on_open = on_open
        self._on_close = on_close
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start: see asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self.abort)
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        """Give the connection away: see asyncio.Protocol."""
        transport = self._transport
        if transport is None or not data:
            return
        self._stop_timer()
        protocol = self._http2() if data.startswith(HTTP2_BEGINS) else self._plain()
        self._on_close(self)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let the server know: see asyncio.Protocol."""
        self._stop_timer()
        self._on_close(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    async def finish(self, timeout_s: float) -> None:
        """Close: nothing was taken yet."""
        self.abort()
