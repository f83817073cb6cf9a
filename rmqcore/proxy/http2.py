"""One connection of a gRPC client: HTTP/2 through ngh2, calls out of it, answers into it.

All of HTTP/2 that there is to get wrong (frames, header compression, windows, floods of resets,
pings or settings) is libnghttp2's; here messages are cut out of streams, and bounded. Nothing above
knows ngh2: `Call` is all that a method gets.

Bounds, each a field of `Http2Settings`: streams at a time, bytes of headers, of one message, of all
messages of a connection that are not whole, of answers that the peer does not take, of these and of
streams all connections together; silence. A peer that breaks one loses the stream, or where it is
the connection's, the connection.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from __future__ import annotations

import asyncio
import logging
import struct
import urllib.parse
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, cast

from ngh2 import Configuration, Connection, NGH2Error, Role, events

from rmqcore.proxy.calls import READ_HEADERS, Answer, Call, Methods
from rmqcore.proxy.grpc_status import CallFailedError, GrpcStatus
from rmqcore.proxy.http2_settings import Http2Settings
from rmqcore.remoting.first_bytes import OtherProtocol
from rmqcore.remoting.shared_bound import SharedBound, Total
from rmqcore.remoting.sockets import address_text
from rmqcore.remoting.turns import Turn

logger = logging.getLogger(__name__)

_PREFIX: Final = struct.Struct(">?I")
_CONTENT_TYPE: Final = b"application/grpc"
_HEAD: Final = (
    (b":status", b"200"),
    (b"content-type", b"application/grpc+proto"),
    (b"grpc-accept-encoding", b"identity"),
)
_DONE: Final = ((b"grpc-status", b"0"),)
_NOT_GRPC: Final = ((b":status", b"415"),)
_MAX_CONCURRENT_STREAMS: Final = 3
_INITIAL_WINDOW_SIZE: Final = 4
_MAX_FRAME_SIZE: Final = 5
_MAX_HEADER_LIST_SIZE: Final = 6
_REFUSED_STREAM: Final = 7
_CANCEL: Final = 8
_ENHANCE_YOUR_CALM: Final = 11
_RATE: Final = (2_000, 400)
#: For each GOAWAY, 17 bytes, every open stream is looked at: a piece of what has come has no more
#: bytes than lets so many be looked at, of the fewer the more are open.
_PIECE: Final = 16 * 1024
_LOOKS: Final = 3 << 20
#: A client sends one, or two.
_GOAWAYS_MAX: Final = 16
#: A message of more bytes is refused while those that are worked on have too many.
_LARGE: Final = 16 * 1024


class Http2Connection(OtherProtocol):
    """The protocol of a connection that begins as HTTP/2 does.

    Attributes:
        peer: `host:port`.
        open_calls: how many it has.
        unfinished: its messages that are not whole yet, in bytes.
        unread: its answers that the peer does not take, in bytes.
    """

    def __init__(
        self,
        methods: Methods,
        settings: Http2Settings,
        open_calls: SharedBound,
        unfinished: SharedBound,
        unread: SharedBound,
        worked: Total,
        on_close: Callable[[OtherProtocol], None] | None = None,
    ) -> None:
        """Make the protocol of a connection that an event loop opens.

        Args:
            methods: by path.
            settings: the bounds.
            open_calls: how many calls all connections have.
            unfinished: what connections keep of messages that are not whole.
            unread: what they keep of answers.
            worked: what they keep of messages of calls that are worked on.
            on_close: called when the connection is gone.
        """
        self.peer = ""
        self._methods = methods
        self._settings = settings
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._http2 = Connection(
            Role.SERVER,
            Configuration(
                max_inbound_header_list_size=settings.header_size_max,
                max_inbound_header_count=128,
                stream_reset_rate_limit=_RATE,
            ),
        )
        self._calls: dict[int, Call] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.open_calls = open_calls.share(self._give_up_calls)
        self.unfinished = unfinished.share(self._give_up_unfinished)
        self.unread = unread.share(self._give_up_unread)
        self._worked, self._worked_size = worked, 0
        self._write_paused = False
        #: what has come and is still to be handled
        self._events: deque[events.Event] = deque()
        self._goaways = 0
        self._turns = Turn(self._loop, self._turn, self._tasks)
        self._in_turn = False
        self._flush_planned = False
        self._finishing = False
        self._gone = self._loop.create_future()
        self._last_active = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Http2Connection {self.peer}>"

    @property
    def closed(self) -> bool:
        """Tell whether nothing can be sent any more."""
        return self._transport is None or self._transport.is_closing()

    # ---- what the event loop calls ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start: see asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)
        self.peer = address_text(transport.get_extra_info("peername"))
        settings = self._settings
        self._transport.set_write_buffer_limits(high=settings.write_high_size)
        self._http2.initiate_connection(
            {
                _MAX_CONCURRENT_STREAMS: settings.stream_max,
                _INITIAL_WINDOW_SIZE: settings.window_size,
                _MAX_FRAME_SIZE: settings.frame_size,
                _MAX_HEADER_LIST_SIZE: settings.header_size_max,
            }
        )
        self._http2.set_local_window_size(settings.connection_window_size)
        if settings.idle_timeout_s > 0:
            self._timer = self._loop.call_later(self._look_s, self._look)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Take what was received: see asyncio.Protocol."""
        self._last_active = self._loop.time()
        try:
            self._receive(data)
        except NGH2Error as error:
            self._end(error)
        else:
            if self._turns.is_heavy:
                self._turns.plan()
                self._pause_or_go_on()
            elif not self._turns.is_planned:
                self._turn()

    def _receive(self, data: bytes) -> None:
        """Let ngh2 cut events out of what was received."""
        at, end = 0, len(data)
        while at < end:
            opened = len(self._calls) + len(self._events)
            size = max(1, min(_PIECE, _LOOKS // (1 + opened)))
            self._http2.receive_data(data[at : at + size])
            at += size
            found = self._http2.events()
            self._events.extend(found)
            self._goaways += sum(isinstance(each, events.GoAwayReceived) for each in found)
            if self._goaways > _GOAWAYS_MAX:
                raise NGH2Error("it says again and again that it goes")

    def _turn(self) -> None:
        """Handle what has come, one event at least, until others are to have their turn."""
        turns, number = self._turns, 0
        turns.begin()
        self._in_turn = True
        try:
            while self._events and not (number and turns.is_over()):
                number += 1
                self._handle(self._events.popleft())
        except NGH2Error as error:
            self._in_turn = False
            self._end(error)
            return
        finally:
            self._in_turn = False
        turns.end()
        if self._events:
            turns.plan()
        self._pause_or_go_on()
        self._flush()

    def _end(self, error: NGH2Error) -> None:
        logger.info("%r: closed, for it sent no HTTP/2: %s", self, error)
        self._events.clear()
        self._flush()
        self.close()

    def _pause_or_go_on(self) -> None:
        """Read on unless the peer reads too slowly, or what has come has still to be handled."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._write_paused or self._turns.is_planned:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def pause_writing(self) -> None:
        """Note that the peer reads too slowly: see asyncio.Protocol."""
        self._write_paused = True
        self._pause_or_go_on()

    def resume_writing(self) -> None:
        """Go on: see asyncio.Protocol."""
        self._write_paused = False
        self._last_active = self._loop.time()
        self._pause_or_go_on()
        self._plan_flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let every call know: see asyncio.Protocol. Methods that run come to their end."""
        if self._timer is not None:
            self._timer.cancel()
        self._events.clear()
        for call in list(self._calls.values()):
            self._drop(call)
        for kept in (self.open_calls, self.unfinished, self.unread):
            kept.close()
        if not self._gone.done():
            self._gone.set_result(None)
        if self._on_close is not None:
            self._on_close(self)

    # ---- receiving --------------------------------------------------------------------------

    def _handle(self, event: events.Event) -> None:
        if isinstance(event, events.DataReceived):
            self._receive_data(event.stream_id, event.data, event.end_stream)
        elif isinstance(event, events.RequestReceived):
            self._open(event.stream_id, dict(event.headers), event.end_stream)
        elif isinstance(event, events.StreamClosed):
            call = self._calls.get(event.stream_id)
            if call is not None:
                self._drop(call)
        elif isinstance(event, events.TrailersReceived):
            self._receive_data(event.stream_id, b"", True)
        elif isinstance(event, events.ConnectionClosed):
            self._flush()
            self.close()

    def _open(self, stream_id: int, headers: dict[bytes, bytes], ended: bool) -> None:
        """Begin a call, or refuse it."""
        if headers.get(b":method") != b"POST" or not headers.get(b"content-type", b"").startswith(
            _CONTENT_TYPE
        ):
            self._http2.send_response(stream_id, _NOT_GRPC, end_stream=True)
            self._take_no_more(stream_id, ended)
            return
        method = self._methods.get(headers.get(b":path", b""))
        if method is None:
            path = headers.get(b":path", b"").decode("ascii", "replace")[:255]
            self._refuse(stream_id, GrpcStatus.UNIMPLEMENTED, f"there is no method {path}")
            self._take_no_more(stream_id, ended)
            return
        if self._finishing:
            self._http2.reset_stream(stream_id, _REFUSED_STREAM)
            return
        if self._http2.queued_body_size() > self._settings.queued_size_max:
            reason = "the answers to former calls are not read"
            self._refuse(stream_id, GrpcStatus.RESOURCE_EXHAUSTED, reason)
            self._take_no_more(stream_id, ended)
            return
        read = {name: headers[name] for name in READ_HEADERS & headers.keys()}
        call = self._calls[stream_id] = Call(self, stream_id, read, method, self._last_active)
        self.open_calls.add(1)
        if method.streams_in:
            self._work_on(call, b"")
        if ended:
            self._receive_data(stream_id, b"", True)

    def _receive_data(self, stream_id: int, data: bytes, ended: bool) -> None:
        """Take a part of a call's messages."""
        call = self._calls.get(stream_id)
        if call is None or call.ended:
            return
        call.ended = ended
        try:
            if not call.method.streams_in and ended and not call.chunks:
                self._work_on(call, self._whole(call, data))
                return
            self._keep(call, data)
            if call.method.streams_in:
                self._cut(call)
                call.wake()
            elif ended:
                whole = bytes(call.chunks)
                self._release(call)
                self._work_on(call, self._whole(call, whole))
        except CallFailedError as error:
            self.fail(call, error.status, error.reason)

    def _keep(self, call: Call, data: bytes) -> None:
        """Keep what is no whole message yet."""
        call.chunks += data
        self.unfinished.add(len(data))
        if len(call.chunks) >= _PREFIX.size:
            size = self._size_of(call, call.chunks)
            if not call.method.streams_in and len(call.chunks) > _PREFIX.size + size:
                raise CallFailedError(GrpcStatus.INTERNAL, "the call has to carry one message")
        if self.unfinished.size > self._settings.unfinished_size_max:
            reason = "too many large messages at a time in one connection"
            raise CallFailedError(GrpcStatus.RESOURCE_EXHAUSTED, reason)

    def _cut(self, call: Call) -> None:
        """Cut whole messages off what a client that streams has sent."""
        while len(call.chunks) >= _PREFIX.size:
            end = _PREFIX.size + self._size_of(call, call.chunks)
            if len(call.chunks) < end:
                break
            call.messages.append(bytes(call.chunks[_PREFIX.size : end]))
            del call.chunks[:end]
            self.unfinished.add(-_PREFIX.size)

    def consumed(self, size: int) -> None:
        """Note that a streamed message is not kept here any more."""
        self.unfinished.add(-size)

    def _give_up_unfinished(self) -> None:
        """End the calls whose message is not whole: all connections together keep too much."""
        reason = "too many large messages at a time; this connection has the most"
        for call in [each for each in self._calls.values() if each.chunks]:
            self.fail(call, GrpcStatus.RESOURCE_EXHAUSTED, reason)

    def _whole(self, call: Call, data: bytes) -> bytes:
        """The message of a call that has one."""
        if len(data) < _PREFIX.size or len(data) != _PREFIX.size + self._size_of(call, data):
            raise CallFailedError(GrpcStatus.INTERNAL, "the call has to carry one whole message")
        return data[_PREFIX.size :]

    def _size_of(self, call: Call, data: bytes | bytearray) -> int:
        compressed, size = _PREFIX.unpack_from(data)
        if compressed:
            reason = "compressed messages are not taken; grpc-accept-encoding is identity"
            raise CallFailedError(GrpcStatus.UNIMPLEMENTED, reason)
        most = min(call.method.size_max, self._settings.message_size_max)
        if size > most:
            reason = f"a message of {size} bytes, {most} at most"
            raise CallFailedError(GrpcStatus.RESOURCE_EXHAUSTED, reason)
        return int(size)

    # ---- answering --------------------------------------------------------------------------

    def _work_on(self, call: Call, message: bytes) -> None:
        size = len(message) if call.method.keeps else 0
        if size > _LARGE and self._works_on_much:
            reason = "too many large messages are worked on; call again"
            self.fail(call, GrpcStatus.RESOURCE_EXHAUSTED, reason)
            return
        try:
            answer = call.method.handle(call, message)
        except CallFailedError as error:
            self.fail(call, error.status, error.reason)
        except Exception:  # noqa: BLE001 - logged and answered, whatever it is
            self._broken(call)
        else:
            if answer is None or isinstance(answer, bytes):
                self._done(call, answer)
            else:
                task = self._loop.create_task(self._finish_call(call, answer))
                self._tasks.add(task)
                self._count_worked(size)
                task.add_done_callback(self._tasks.discard)
                task.add_done_callback(partial(self._count_worked, -size))

    @property
    def _works_on_much(self) -> bool:
        most = self._settings.worked_size_max, self._settings.worked_total_max
        return self._worked_size >= most[0] or self._worked.size >= most[1]

    def _count_worked(self, size: int, _: object = None) -> None:
        self._worked_size += size
        self._worked.size += size

    async def _finish_call(self, call: Call, answer: Awaitable[Answer]) -> None:
        try:
            self._done(call, await answer)
        except CallFailedError as error:
            self.fail(call, error.status, error.reason)
        except Exception:  # noqa: BLE001 - logged and answered, whatever it is
            self._broken(call)

    def _broken(self, call: Call) -> None:
        path = call.headers.get(b":path", b"").decode("ascii", "replace")
        logger.exception("%r: %s failed", self, path)
        self.fail(call, GrpcStatus.INTERNAL, "the call failed; the log of the server says why")

    def send_messages(self, call: Call, messages: Sequence[bytes]) -> None:
        """Send messages of a call's answer; see `CallConnection.send_messages`."""
        if not call.head_sent:
            call.head_sent = True
            self._http2.send_response(call.stream_id, _HEAD)
        parts = [part for each in messages for part in (_PREFIX.pack(False, len(each)), each)]
        self._http2.send_data(call.stream_id, b"".join(parts))
        self._plan_flush()

    def _done(self, call: Call, answer: bytes | None) -> None:
        """Send the answer, or behind streamed answers their end."""
        if call.closed or self.closed:
            return
        try:
            if answer is not None:
                self.send_messages(call, (answer,))
            elif not call.head_sent:
                call.head_sent = True
                self._http2.send_response(call.stream_id, _HEAD)
            self._http2.send_trailers(call.stream_id, _DONE)
        except NGH2Error:  # the stream or the connection has gone meanwhile
            self._drop(call)
        self._plan_flush()

    def fail(self, call: Call, status: GrpcStatus, reason: str) -> None:
        """End a call without an answer.

        Args:
            call: of this connection; one that is closed is passed over.
            status: of gRPC.
            reason: for people.
        """
        if call.closed or self.closed:
            return
        self._release(call)
        came_whole, call.ended = call.ended, True
        try:
            if call.head_sent:
                self._http2.send_trailers(call.stream_id, _trailers(status, reason))
            else:
                call.head_sent = True
                self._refuse(call.stream_id, status, reason)
                self._take_no_more(call.stream_id, came_whole)
        except NGH2Error:
            self._drop(call)
        self._plan_flush()

    def _refuse(self, stream_id: int, status: GrpcStatus, reason: str) -> None:
        self._http2.send_response(
            stream_id, (*_HEAD[:2], *_trailers(status, reason)), end_stream=True
        )

    def _take_no_more(self, stream_id: int, ended: bool) -> None:
        """End a stream that is answered, of which nothing more is of use."""
        if not ended:
            # the reset would overtake the answer
            self._flush()
            self._http2.reset_stream(stream_id, 0)

    def _drop(self, call: Call) -> None:
        """Forget a call: it is answered, or nobody waits for that any more."""
        if self._calls.pop(call.stream_id, None) is not None:
            self.open_calls.add(-1)
        self._release(call)
        self.unfinished.add(-sum(map(len, call.messages)))
        call.close()

    def _release(self, call: Call) -> None:
        """Keep no more what is no whole message yet."""
        self.unfinished.add(-len(call.chunks))
        call.chunks = bytearray()

    def _plan_flush(self) -> None:
        if not self._in_turn and not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send what there is, as far as the peer takes it."""
        self._flush_planned = False
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        try:
            while not self._write_paused:
                data = self._http2.data_to_send(self._settings.write_high_size)
                if not data:
                    break
                transport.write(data)
        except NGH2Error:  # nothing can be said any more
            transport.close()
            return
        self.unread.set(self._http2.queued_body_size())
        if not (self._http2.want_read or self._http2.want_write):
            # the peer has broken a rule of the connection, and was told so
            transport.close()

    def _give_up_calls(self) -> None:
        """Close the connection: all together have too many calls, this one the most."""
        logger.warning("%r: closed, for it has %d calls open", self, self.open_calls.size)
        self.abort()
        self.open_calls.close()

    def _give_up_unread(self) -> None:
        """Close the connection: all together read too little, this one the least."""
        logger.warning("%r: closed, for it left %d bytes unread", self, self.unread.size)
        self.abort()
        self.unread.close()

    # ---- ending -----------------------------------------------------------------------------

    @property
    def _look_s(self) -> float:
        """How often it is looked for calls and connections whose time is over."""
        return min(self._settings.idle_timeout_s, self._settings.request_timeout_s) / 2

    def _look(self) -> None:
        """Close a silent connection, and end calls whose message does not become whole."""
        now_s = self._loop.time()
        if now_s - self._last_active >= self._settings.idle_timeout_s:
            logger.info("%r: closed, for it was silent", self)
            self.abort()
            return
        late_s = now_s - self._settings.request_timeout_s
        for call in list(self._calls.values()):
            if not call.ended and not call.method.streams_in and call.began_s <= late_s:
                self.fail(call, GrpcStatus.DEADLINE_EXCEEDED, "the message does not come")
        self._timer = self._loop.call_later(self._look_s, self._look)

    def close(self) -> None:
        """Send what is there, then close."""
        if self._transport is not None and not self._transport.is_closing():
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what was not sent is dropped."""
        if self._transport is not None:
            self._transport.abort()

    async def finish(self, timeout_s: float) -> None:
        """Accept no more calls, answer the accepted ones, close; abort what takes too long.

        Args:
            timeout_s: for all of it, seconds.
        """
        deadline_s = self._loop.time() + timeout_s
        self._finishing = True
        if not self.closed:
            self._http2.send_goaway(0)
            self._plan_flush()
        waiting = {task for task in self._tasks if not task.done()}
        if waiting:
            await asyncio.wait(waiting, timeout=timeout_s)
        self.close()
        await asyncio.wait([self._gone], timeout=max(0.0, deadline_s - self._loop.time()))
        for task in self._tasks:
            task.cancel()
        self.abort()
        await asyncio.wait([self._gone, *self._tasks], timeout=1)


def _trailers(status: GrpcStatus, reason: str) -> tuple[tuple[bytes, bytes], ...]:
    text = urllib.parse.quote(reason[:1024], safe=" !#$&'()*+,/:;=?@[]")
    return (b"grpc-status", b"%d" % status), (b"grpc-message", text.encode("ascii"))
