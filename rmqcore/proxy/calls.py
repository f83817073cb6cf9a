"""`Call`: one call of a client, as a method gets it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

_SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT_DIGITS_MAX: Final = 8
#: What is read of a call's metadata; nothing else is kept.
READ_HEADERS: Final = frozenset(
    {
        *(b":path", b"grpc-timeout", b"authorization", b"x-mq-date-time", b"x-mq-client-id"),
        *(b"x-mq-client-version", b"x-mq-language", b"x-mq-namespace"),
    }
)


class CallConnection(Hashable, Protocol):
    """What a call needs of its connection."""

    peer: str

    def send_messages(self, call: Call, messages: Sequence[bytes]) -> None:
        """Send messages of a call's answer.

        Args:
            call: of this connection, and open.
            messages: each as protobuf bytes.
        """

    def consumed(self, size: int) -> None:
        """Note that a streamed message is not kept here any more."""


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC.

    Attributes:
        handle: gets the call and, unless the client streams, its one message; returns the answer's
            bytes, or what is awaited for them; None where the answers were sent already.
        streams_in: the client sends any number of messages: `Call.receive` gives them.
        size_max: bytes of one message of the client; a connection's own bound may be less.
        keeps: the message is kept while it is worked on.
    """

    handle: Callable[[Call, bytes], Answer | Awaitable[Answer]]
    streams_in: bool = False
    size_max: int = 1024 * 1024
    keeps: bool = True


Answer: TypeAlias = bytes | None
Methods: TypeAlias = Mapping[bytes, Method]


class Call:
    """One call of a client.

    Attributes:
        headers: the call's metadata, by lower-case name, as far as it is read.
        peer: the client, `host:port`.
        timeout_s: what the client gives it, from `began_s` on; None without an end.
        began_s: when it came, by the event loop's clock.
        closed: nobody waits for an answer any more.
        ended: the client says nothing more.
        stream_id, method, chunks, messages, head_sent: the connection's: which stream and method it
            is, what has come and is no whole message yet, whole ones, whether an answer has begun.
    """

    __slots__ = (
        "_connection",
        "_gone",
        "_waiter",
        "began_s",
        "chunks",
        "closed",
        "ended",
        "head_sent",
        "headers",
        "messages",
        "method",
        "peer",
        "stream_id",
        "timeout_s",
    )

    def __init__(
        self,
        connection: CallConnection,
        stream_id: int,
        headers: dict[bytes, bytes],
        method: Method,
        began_s: float,
    ) -> None:
        self.headers = headers
        self.peer = connection.peer
        self.timeout_s = _timeout_of(headers.get(b"grpc-timeout"))
        self.began_s = began_s
        self.closed = False
        self.ended = False
        self._connection = connection
        self.stream_id = stream_id
        self.method = method
        self.chunks = bytearray()
        self.messages: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._gone: asyncio.Event | None = None
        self.head_sent = False

    @property
    def owner(self) -> Hashable:
        """The connection that it came over."""
        return self._connection

    def left_s(self, now_s: float) -> float:
        """What is left of the time that the client gives the call, seconds."""
        return float("inf") if self.timeout_s is None else self.began_s + self.timeout_s - now_s

    async def gone(self) -> None:
        """Wait until nobody waits for an answer any more."""
        if self.closed:
            return
        if self._gone is None:
            self._gone = asyncio.Event()
        await self._gone.wait()

    def send(self, *messages: bytes) -> None:
        """Send messages of an answer that has several."""
        if not self.closed:
            self._connection.send_messages(self, messages)

    async def receive(self) -> bytes | None:
        """The next message of a client that streams; None when there is no further one."""
        while not self.messages:
            if self.ended or self.closed:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message = self.messages.popleft()
        self._connection.consumed(len(message))
        return message

    def close(self) -> None:
        """Note that nobody waits for an answer any more."""
        self.closed = True
        self.messages.clear()
        if self._gone is not None:
            self._gone.set()
        self.wake()

    def wake(self) -> None:
        """Let who waits for the client's next message look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _timeout_of(text: bytes | None) -> float | None:
    """What a client gives a call, seconds; None without, or where it says no time."""
    if text is None:
        return None
    digits, unit = text[:-1], _SECONDS.get(text[-1:])
    if unit is None or not digits.isdigit() or len(digits) > _TIMEOUT_DIGITS_MAX:
        return None
    return int(digits) * unit
