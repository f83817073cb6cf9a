"""One TCP connection, seen from either end: frames in, answers and requests out.

Both ends may ask. A peer's requests are handled by the processors; its answers go to the
callers that asked. All of it runs on the event loop, and a connection is used from there only.

Bounds, each a field of `ConnectionSettings`: a peer that sends faster than its requests are worked
on is not read from for a while, one that does not read its answers neither; one that lets answers
pile up nevertheless, or is silent for too long, is disconnected. Frames that are whole are handled
some at a time, so that one peer does not keep the loop from the others.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from rmqcore.remoting.codec import (
    DEFAULT_LIMITS,
    INT32_MAX,
    DirectAnswers,
    FrameDecoder,
    FrameLimits,
    LaterAnswers,
    encode_command,
)
from rmqcore.remoting.codes import JSON_HEADER, ONEWAY_FLAG, RESPONSE_FLAG, ResponseCode
from rmqcore.remoting.command import Buffer, RemotingCommand, failure
from rmqcore.remoting.errors import (
    FrameError,
    RemotingClosedError,
    RemotingTimeoutError,
)
from rmqcore.remoting.failed import answer_to, internal_error
from rmqcore.remoting.shared_bound import SharedBound
from rmqcore.remoting.sockets import address_text
from rmqcore.remoting.turns import TURN_FRAMES, OnlyWaits, Turn

logger = logging.getLogger(__name__)

Answer: TypeAlias = RemotingCommand | None
#: Handles one request: a plain function, or a coroutine function. None is no answer now: for a
#: oneway request, or because `Connection.answer` will be called later.
Processor: TypeAlias = Callable[
    ["Connection", RemotingCommand], Answer | Awaitable[RemotingCommand | None]
]
#: Looks at a request before its processor does; an answer refuses it, None lets it through.
Gate: TypeAlias = Callable[["Connection", RemotingCommand], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """The bounds of one connection.

    Attributes:
        frames: limits of one frame.
        idle_timeout_s: without a byte either way it is closed; 0 for never. Java:
            serverChannelMaxIdleTimeSeconds, clientChannelMaxIdleTimeSeconds.
        write_high_size: bytes that wait to be sent, or until they may be, from which on a server
            takes no more requests.
        write_size_max: bytes that wait to be sent, above which the peer is disconnected.
        request_max: requests of the peer that coroutines work on at a time; those that are answered
            directly count as one when they came at once, and by the bytes of their answers.
        worked_size_max: bytes of their bodies, beyond which a server takes no more requests.
    """

    frames: FrameLimits = DEFAULT_LIMITS
    idle_timeout_s: float = 120.0
    write_high_size: int = 1024 * 1024
    write_size_max: int = 64 * 1024 * 1024
    request_max: int = 1024
    worked_size_max: int = 16 * 1024 * 1024


class Connection(asyncio.Protocol):
    """One connection; a processor gets it as its first argument.

    Attributes:
        remote_address: the peer, `host:port`.
        local_address: this end, `host:port`.
        attributes: what the owner's processors keep with the connection, by name.
    """

    def __init__(
        self,
        processors: Mapping[int, Processor],
        settings: ConnectionSettings,
        *,
        serves: bool,
        gate: Gate | None = None,
        direct: tuple[DirectAnswers, ...] = (),
        kept: SharedBound | None = None,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
    ) -> None:
        """Make the protocol of a connection that an event loop then opens.

        Args:
            processors: by request code; looked into at each request.
            settings: the bounds.
            serves: whether this end is the server. A server that cannot send stops reading; a
                client reads on, else both could wait for each other.
            gate: asked before each request's processor.
            direct: answer what needs neither gate nor processor.
            kept: bounds what all connections keep of frames that are not whole, or not read.
            on_open: called when the connection stands.
            on_close: called when it is gone.
        """
        self.remote_address = ""
        self.local_address = ""
        self.attributes: dict[str, Any] = {}
        self._processors = processors
        self._settings = settings
        self._serves = serves
        self._gate = gate
        self._direct = direct
        self._kept = None if kept is None else kept.share(self._give_up_kept, self._count_kept)
        self._on_open = on_open
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(settings.frames)
        self._opaques = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}
        #: tasks that work on requests: bytes of the answer that each holds back, of its body
        self._tasks: dict[asyncio.Task[None], tuple[int, int]] = {}
        self._held_size = self._worked_size = 0
        self._out: list[Buffer] = []
        self._out_size = 0
        self._in_turn = False
        self._turns = Turn(self._loop, self._turn, self._tasks)
        self._flush_planned = False
        self._write_paused = False
        self._taking = True
        self._writable: asyncio.Future[None] | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._last_active = self._loop.time()
        self._last_size = 0
        self._idle_timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Connection {self.local_address} - {self.remote_address}>"

    # ---- what owners and processors call ----------------------------------------------------

    @property
    def closed(self) -> bool:
        """Tell whether nothing can be sent any more."""
        return self._transport is None or self._transport.is_closing()

    @property
    def writable(self) -> bool:
        """Tell whether the peer takes what it is sent; if not, more would pile up here."""
        return not self.closed and not self._write_paused

    @property
    def owner(self) -> Hashable:
        """Whose budget it is what requests keep."""
        return self

    def count_worked(self, size: int) -> None:
        """Note bytes of bodies that are worked on, below 0 such as are counted no more.

        Args:
            size: of a body that waits for a client, who may answer behind further requests here.
        """
        if self._at_limit:
            self._plan_turn()
        self._worked_size += size

    def fileno(self) -> int:
        """The descriptor of the connection's socket; -1 when it is closed."""
        if self._transport is None:
            return -1
        return int(self._transport.get_extra_info("socket").fileno())

    def answer(self, request: RemotingCommand, response: RemotingCommand) -> None:
        """Answer a request, once; a oneway request and a closed connection get nothing.

        Args:
            request: what was received on this connection.
            response: gets the request's opaque and the flag of an answer, and the request's kind
                of header.
        """
        if request.flag & ONEWAY_FLAG or self.closed:
            return
        if request.answered:
            logger.error("%r: request %d was answered a second time", self, request.code)
            return
        request.answered = True
        self._send_answer(request, response)

    async def answer_in_turn(
        self, request: RemotingCommand, responses: Iterable[RemotingCommand]
    ) -> None:
        """Answer a request with one frame or more, each when the peer takes what it is sent.

        So that long answers, however many, never pile up. Ends early when the connection does.

        Args:
            request: what is answered.
            responses: the frames; each gets the request's opaque, and may be made when it is its
                turn.

        Raises:
            FrameError: no frame can hold an answer; those before it were sent.
        """
        for response in responses:
            self._flush()
            while self._write_paused and not self.closed:
                await asyncio.wait([self._resumed()])
                self._flush()
            if self.closed:
                return
            self._send_answer(request, response)

    def _send_answer(self, request: RemotingCommand, response: RemotingCommand) -> None:
        response.opaque = request.opaque
        response.flag = RESPONSE_FLAG
        try:
            frame = encode_command(response, request.serialize_type, self._settings.frames)
        except Exception:  # whatever a processor has made, its connection goes on
            logger.exception("%r: the answer to request %d cannot be sent", self, request.code)
            refusal = internal_error(request)
            refusal.opaque, refusal.flag = request.opaque, RESPONSE_FLAG
            frame = encode_command(refusal, request.serialize_type)
        self._send(*frame)

    async def invoke(
        self,
        command: RemotingCommand,
        timeout_ms: float = 3000,
        *,
        serialize_type: int = JSON_HEADER,
    ) -> RemotingCommand:
        """Send a request and wait for its answer, whatever code that has.

        Args:
            command: gets its opaque and flag here.
            timeout_ms: how long to wait, for a peer that reads slowly as well.
            serialize_type: of the header.

        Raises:
            RemotingTimeoutError: no answer came in time.
            RemotingClosedError: the connection is or was closed.
            FrameError: no frame can hold the command.
        """
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        opaque = next(self._opaques) & INT32_MAX
        timer = self._loop.call_later(
            timeout_ms / 1000, self._expire, future, command.code, timeout_ms
        )
        self._waiting[opaque] = future
        try:
            if self._write_paused:
                await self._until_writable(timeout_ms, command.code)
            command.opaque, command.flag = opaque, 0
            self._send_request(command, serialize_type)
            return await future
        finally:
            timer.cancel()
            self._waiting.pop(opaque, None)
            if not future.cancel() and not future.cancelled():
                future.exception()

    async def invoke_oneway(
        self,
        command: RemotingCommand,
        timeout_ms: float = 3000,
        *,
        serialize_type: int = JSON_HEADER,
    ) -> None:
        """Send a request that gets no answer; waits only while the peer does not read.

        Args:
            command: gets its opaque and flag here.
            timeout_ms: how long to wait for a peer that reads slowly.
            serialize_type: of the header.

        Raises:
            RemotingTimeoutError: the peer took nothing in all that time; nothing was sent.
            RemotingClosedError: the connection is closed.
            FrameError: no frame can hold the command.
        """
        if self._write_paused:
            await self._until_writable(timeout_ms, command.code)
        self.notify(command, serialize_type=serialize_type)

    def notify(self, command: RemotingCommand, *, serialize_type: int = JSON_HEADER) -> None:
        """Send a request that gets no answer, without ever waiting.

        Args:
            command: gets its opaque and flag here.
            serialize_type: of the header.

        Raises:
            RemotingClosedError: the connection is closed.
            FrameError: no frame can hold the command.
        """
        command.opaque = next(self._opaques) & INT32_MAX
        command.flag = ONEWAY_FLAG
        self._send_request(command, serialize_type)

    def close(self) -> None:
        """Send what was answered, then close."""
        self._taking = False
        if self._transport is not None and not self._transport.is_closing():
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what was not sent is dropped."""
        self._taking = False
        if self._transport is not None:
            self._transport.abort()

    async def finish(self, timeout_s: float) -> None:
        """Accept no more requests, answer the accepted ones, close; abort what takes too long."""
        self._taking = False
        self._pause_reading()
        deadline = self._loop.time() + timeout_s
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        self.close()
        rest_s = max(0.0, deadline - self._loop.time())
        await asyncio.wait([self._gone], timeout=rest_s)
        for task in self._tasks:
            task.cancel()
        self.abort()
        await asyncio.wait([self._gone, *self._tasks], timeout=1)

    # ---- what the event loop calls ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start: see asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)
        self.remote_address = address_text(transport.get_extra_info("peername"))
        self.local_address = address_text(transport.get_extra_info("sockname"))
        self._transport.set_write_buffer_limits(high=self._settings.write_high_size)
        idle_s = self._settings.idle_timeout_s
        if idle_s > 0:
            self._idle_timer = self._loop.call_later(idle_s, self._check_idle)
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        """Take what was received: see asyncio.Protocol."""
        self._last_active = self._loop.time()
        self._decoder.feed(data)
        if self._turns.is_heavy:
            self._pause_reading()
            self._turns.plan()
        elif not self._turns.is_planned:
            self._turn()

    def pause_writing(self) -> None:
        """Note that the peer reads too slowly: see asyncio.Protocol."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """Go on: see asyncio.Protocol."""
        self._write_paused = False
        self._count_kept()
        self._last_active = self._loop.time()
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
        self._plan_turn()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everybody who waits: see asyncio.Protocol. Processors that run come to their end."""
        self._taking = False
        self._out, self._out_size = [], 0
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._kept is not None:
            self._kept.close()
        for future in (*self._waiting.values(), self._writable):
            if future is not None and not future.done():
                future.set_exception(RemotingClosedError(self.remote_address))
        if self._writable is not None:
            self._writable.exception()
        if not self._gone.done():
            self._gone.set_result(None)
        if self._on_close is not None:
            self._on_close(self)

    # ---- requests and answers of the peer ---------------------------------------------------

    @property
    def _at_limit(self) -> bool:
        return (
            len(self._tasks) >= self._settings.request_max
            or self._out_size + self._held_size > self._settings.write_high_size
            or (self._serves and self._worked_size > self._settings.worked_size_max)
            or (self._serves and self._write_paused)
        )

    def _turn(self) -> None:
        """Handle frames that are whole until one is not, or a bound is reached; one at least."""
        turns = self._turns
        turns.begin(self._worked_size)
        self._in_turn = True
        more = True
        try:
            for number in range(TURN_FRAMES):
                if not self._taking or self._at_limit:
                    break
                if number and turns.is_over(self._worked_size):
                    break
                for direct in self._direct:
                    answers = self._decoder.answer_directly(direct, self.remote_address)
                    if isinstance(answers, LaterAnswers):
                        self._add_task(self._send_later(answers.frames), answers.size, 0)
                    elif answers:
                        self._send([answers], len(answers))
                command = self._decoder.next()
                if command is None:
                    more = False
                    break
                if command.flag & RESPONSE_FLAG:
                    self._accept_answer(command)
                else:
                    self._accept_request(command)
        except FrameError as error:
            logger.warning("%r: closed, for it sent no frame: %s", self, error)
            self.close()
        finally:
            self._in_turn = False
        turns.end(self._worked_size)
        self._flush()
        self._count_kept()
        if not self._taking or not more:
            self._go_on_reading()
        elif self._at_limit:
            self._pause_reading()
        else:
            self._pause_reading()
            self._plan_turn()

    def _plan_turn(self) -> None:
        if self._taking:
            self._turns.plan()

    def _pause_reading(self) -> None:
        if not self.closed and self._transport is not None:
            self._transport.pause_reading()

    def _go_on_reading(self) -> None:
        if self._taking and not self.closed and self._transport is not None:
            self._transport.resume_reading()

    def _accept_answer(self, response: RemotingCommand) -> None:
        future = self._waiting.pop(response.opaque, None)
        if future is None:
            logger.debug("%r: an answer to nobody, opaque %d", self, response.opaque)
        elif not future.done():
            future.set_result(response)

    def _accept_request(self, request: RemotingCommand) -> None:
        processor = self._processors.get(request.code)
        try:
            answer = None if self._gate is None else self._gate(self, request)
            if answer is not None:
                self.answer(request, answer)
            elif processor is None:
                remark = f" request type {request.code} not supported"
                self.answer(request, failure(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
            else:
                result = processor(self, request)
                if type(result) is RemotingCommand:
                    self.answer(request, result)
                elif result is not None:
                    self._work_on(request, result)  # type: ignore[arg-type] # no subclasses
        except Exception as error:  # noqa: BLE001 - logged and answered, whatever it is
            self.answer(request, answer_to(error, request, self))

    def _work_on(self, request: RemotingCommand, result: Awaitable[Answer]) -> None:
        if isinstance(result, OnlyWaits):
            self._turns.allow(request)
        self._add_task(self._finish_request(request, result), 0, len(request.body))

    def _add_task(self, work: Coroutine[Any, Any, None], held_size: int, body_size: int) -> None:
        task = self._loop.create_task(work)
        self._tasks[task] = held_size, body_size
        self._held_size += held_size
        self._worked_size += body_size
        task.add_done_callback(self._task_is_done)

    def _task_is_done(self, task: asyncio.Task[None]) -> None:
        held_size, body_size = self._tasks[task]
        self.count_worked(-body_size)
        del self._tasks[task]
        self._held_size -= held_size

    async def _send_later(self, frames: Awaitable[bytes]) -> None:
        try:
            answers = await frames
        except Exception:  # nobody knows what became of the requests
            logger.exception("%r: closed, for its answers cannot be made", self)
            self.close()
            return
        if not self.closed:
            self._send([answers], len(answers))

    async def _finish_request(self, request: RemotingCommand, result: Awaitable[Answer]) -> None:
        try:
            answer = await result
        except Exception as error:  # noqa: BLE001 - logged and answered, whatever it is
            answer = answer_to(error, request, self)
        if answer is not None:
            self.answer(request, answer)

    # ---- sending ----------------------------------------------------------------------------

    def _send_request(self, command: RemotingCommand, serialize_type: int) -> None:
        if self.closed:
            raise RemotingClosedError(self.remote_address)
        self._send(*encode_command(command, serialize_type, self._settings.frames))

    def _send(self, buffers: list[Buffer], size: int) -> None:
        """Put a frame behind those to be sent: with the turn's others, or at the loop's next."""
        self._out += buffers
        self._out_size += size
        if not self._in_turn and not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        if not self._out:
            return
        buffers, self._out, self._out_size = self._out, [], 0
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if len(buffers) == 1:
            transport.write(buffers[0])
        else:
            transport.writelines(buffers)
        if not self._write_paused:
            self._last_active = self._loop.time()
            return
        self._count_kept()
        if transport.get_write_buffer_size() > self._settings.write_size_max:
            logger.warning("%r: disconnected, for it does not read what it is sent", self)
            self.abort()

    def _count_kept(self) -> None:
        """Let the bound of all connections know what this one keeps."""
        if self._kept is not None:
            paused = self._transport if self._write_paused else None
            unread = 0 if paused is None else paused.get_write_buffer_size()
            self._kept.set(self._decoder.size + unread)

    def _give_up_kept(self) -> None:
        """Close the connection: all together keep too much, this one the most."""
        if self._kept is not None:
            logger.warning("%r: closed, for %d bytes of it wait", self, self._kept.size)
            self.abort()
            self._kept.close()

    def _resumed(self) -> asyncio.Future[None]:
        """Done when the peer takes something again, or the connection is gone."""
        if self._writable is None:
            self._writable = self._loop.create_future()
        return self._writable

    async def _until_writable(self, timeout_ms: float, code: int) -> None:
        done, _ = await asyncio.wait([self._resumed()], timeout=timeout_ms / 1000)
        if not done:
            raise RemotingTimeoutError(self.remote_address, code, timeout_ms)
        if self.closed:
            raise RemotingClosedError(self.remote_address)

    def _expire(
        self, future: asyncio.Future[RemotingCommand], code: int, timeout_ms: float
    ) -> None:
        if not future.done():
            error = RemotingTimeoutError(self.remote_address, code, timeout_ms)
            future.set_exception(error)

    def _check_idle(self) -> None:
        """Close when nothing was received, nor taken by the peer, for the idle time-out."""
        if self._transport is None:
            return
        now = self._loop.time()
        size = self._transport.get_write_buffer_size()
        if 0 < size < self._last_size:
            self._last_active = now
        self._last_size = size
        rest_s = self._last_active + self._settings.idle_timeout_s - now
        if rest_s > 0:
            self._idle_timer = self._loop.call_later(rest_s, self._check_idle)
        else:
            logger.info("%r: closed, for it was idle", self)
            self.abort()
