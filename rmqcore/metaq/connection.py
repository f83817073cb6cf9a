"""One client's connection: commands in, replies out in their order.

Moves bytes; `broker.py` decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from rmqcore.metaq._puts import scan_puts
from rmqcore.metaq.broker import BrokerProcessor, PutGroup, PutRow, Puts
from rmqcore.metaq.file_message_set import FileMessageSet
from rmqcore.metaq.protocol import (
    MAX_LINE_SIZE,
    NO_OPAQUE,
    Command,
    Get,
    Offset,
    ProtocolError,
    Put,
    Quit,
    ResultCode,
    Stats,
    Sync,
    Transaction,
    Version,
    format_result,
    parse_command,
)

_LOG = logging.getLogger(__name__)
#: An answer of fewer bytes than this is copied: that is cheaper than another call of sendfile. So
#: many bytes of answers are written at once: whoever does not read them is given no more.
_COPY_BELOW = 32_768
#: A connection with this many replies waiting is not read from; a burst of puts counts as one.
_MAX_PENDING = 256
#: Nor is one with this many puts among them, or bytes of other answers, which are there already.
_MAX_PUTS = 32_768
_MAX_BYTES = 1 << 20

Reply = bytes | Puts | tuple[bytes, FileMessageSet]


class MetaConnection(asyncio.Protocol):
    """One client.

    Attributes:
        heard_s: when it said something last, by the clock of the broker's world.

    Invariants:
        - Replies leave in the order of the commands, however long a put waits.
        - A line that is no command is answered with 400 and ends this connection, no other.
        - Data that a refused line announces is passed over, never kept.
    """

    def __init__(
        self,
        processor: BrokerProcessor,
        max_message_size: int,
        closed: Callable[[MetaConnection], object],
    ) -> None:
        """Prepare.

        Args:
            processor: what answers.
            max_message_size: bytes of one put.
            closed: called with this connection at its end.
        """
        self._processor = processor
        self._max_message_size = max_message_size
        self._closed = closed
        self._monotonic_s = processor.manager.world.monotonic_s
        self.heard_s = self._monotonic_s()
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._buffer = bytearray()
        self._skip = 0  # bytes of refused data that have not arrived yet
        self._replies: deque[Reply] = deque()
        self._puts = self._bytes = 0  # among these
        self._writable = True
        self._sending: asyncio.Task[None] | None = None
        self._reading = True
        self._eof = False  # no more bytes
        self._ended = False  # no more commands

    # ---- what the event loop calls ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport
        # so its buffer alone tells whether it has said `pause_writing`; see `_send_file`
        _, most = self._transport.get_write_buffer_limits()
        self._transport.set_write_buffer_limits(high=most, low=most)
        self._processor.stats.connections += 1

    def data_received(self, data: bytes) -> None:
        """Take what arrived, and answer what is whole."""
        self.heard_s = self._monotonic_s()
        self._buffer += data
        self._work()

    def eof_received(self) -> bool:
        """Answer what has been asked; then the connection ends."""
        self._eof = True
        self._work()
        return True

    def pause_writing(self) -> None:
        """The client reads slowly."""
        self._writable = False

    def resume_writing(self) -> None:
        """The client reads on."""
        self._writable = True
        self._work()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what waits."""
        del exc
        self._ended = True
        self._replies.clear()
        if self._sending is not None:
            self._sending.cancel()
        self._processor.stats.connections -= 1
        self._closed(self)

    def close(self, *, now: bool = False) -> None:
        """End after the replies that are on their way, or now."""
        self._ended = True
        if not now:
            self._send()
        elif self._sending is None:
            self._transport.abort()
        else:
            # the loop has to let the socket go before it is closed: another connection gets its
            # number
            self._sending.add_done_callback(lambda _: self._transport.abort())
            self._sending.cancel()

    # ---- commands ----

    def _work(self) -> None:
        """Answer every whole command, as long as there is room for replies."""
        # there may be room behind what has had to wait: no more bytes may come that tell of it
        self._send()
        more = True
        while more and not self._ended and self._room():
            try:
                while self._room() and more:
                    more = self._answer_next()
            except ProtocolError as error:
                self._reply(format_result(ResultCode.BAD_REQUEST, error.reason, NO_OPAQUE))
                self._ended = True
            if self._eof and not more:
                self._ended = True
            self._send()

    def _room(self) -> bool:
        full = self._puts >= _MAX_PUTS or self._bytes >= _MAX_BYTES
        return len(self._replies) < _MAX_PENDING and not full

    def _answer_next(self) -> bool:
        """Answer what the buffer begins with; False when it is not whole yet."""
        if self._skip:
            passed = min(self._skip, len(self._buffer))
            del self._buffer[:passed]
            self._skip -= passed
        rows, used = scan_puts(self._buffer, MAX_LINE_SIZE, self._max_message_size)
        if rows:
            del self._buffer[:used]
            self._put(rows)
            return True
        end = self._buffer.find(b"\r\n", 0, MAX_LINE_SIZE)
        if end < 0:
            if len(self._buffer) >= MAX_LINE_SIZE:
                raise ProtocolError(f"a line has at most {MAX_LINE_SIZE} bytes")
            return False
        return self._answer(parse_command(bytes(self._buffer[:end])), end + 2)

    def _answer(self, command: Command, at: int) -> bool:
        """Answer one command whose data, if it has any, begins at ``at``."""
        match command:
            case Put(size=size):
                reason = self._refused(command)
                if reason is not None:
                    place = command.topic, command.partition, command.opaque
                    reply = self._processor.refuse_put(*place, ResultCode.BAD_REQUEST, reason)
                    self._reply(reply)
                    self._skip = size
                elif len(self._buffer) - at < size:
                    return False
                else:
                    data = bytes(self._buffer[at : at + size])
                    at += size
                    place = command.topic, command.partition, command.flag
                    self._put([(*place, command.checksum, command.opaque, data)])
            case Sync(size=size, opaque=opaque):
                text = "this broker is no slave: it takes no sync"
                self._reply(format_result(ResultCode.SERVICE_UNAVAILABLE, text, opaque))
                self._skip = size
            case Transaction(opaque=opaque):
                text = "no transactions here"
                self._reply(format_result(ResultCode.BAD_REQUEST, text, opaque))
            case Get():
                found = self._processor.get(command)
                if isinstance(found, FileMessageSet):
                    self._replies.append((found.write_header(command.opaque), found))
                else:
                    self._reply(found)
            case Offset():
                self._reply(self._processor.offset(command))
            case Stats():
                self._reply(self._processor.statistics(command))
            case Version():
                self._reply(self._processor.version(command))
            case Quit():
                self._ended = True
        del self._buffer[:at]
        return not self._ended

    def _reply(self, reply: bytes) -> None:
        self._replies.append(reply)
        self._bytes += len(reply)

    def _refused(self, command: Put) -> str | None:
        """Why the data of a put is not even read; None when it is."""
        if command.transaction is not None:
            return "no transactions here"
        if command.size > self._max_message_size:
            return f"a put of {command.size} bytes; at most {self._max_message_size} are taken"
        return None

    def _put(self, rows: list[PutRow]) -> None:
        puts = self._processor.put_many(rows)
        self._replies.append(puts)
        self._puts += len(rows)
        for group in puts.waiting:
            group.stored.add_done_callback(self._stored(puts, group))

    def _stored(self, puts: Puts, group: PutGroup) -> Callable[[Future[Any]], None]:
        def tell(_: Future[Any]) -> None:  # in the partition's commit thread
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._answer_puts, puts, group)

        return tell

    def _answer_puts(self, puts: Puts, group: PutGroup) -> None:
        self._processor.answer_puts(puts, group)
        puts.waiting.remove(group)
        if not puts.waiting:
            self._work()

    # ---- replies ----

    def _send(self) -> None:
        """Write every reply that is known, and end when there is nothing more to come."""
        if self._transport.is_closing():
            return
        ready = bytearray()
        while self._writable and self._sending is None and self._replies:
            reply = self._replies[0]
            if isinstance(reply, Puts):
                if reply.waiting:
                    break
                self._puts -= len(reply.replies)
                ready += b"".join(reply.replies)
            elif isinstance(reply, bytes):
                self._bytes -= len(reply)
                ready += reply
            elif reply[1].size_in_bytes < _COPY_BELOW:
                ready += reply[0]
                ready += reply[1].read()
            else:
                self._transport.write(bytes(ready + reply[0]))
                ready.clear()
                self._sending = self._loop.create_task(self._send_file(reply[1]))
            self._replies.popleft()
            if len(ready) >= _COPY_BELOW:
                self._transport.write(bytes(ready))
                ready.clear()
        if ready:
            self._transport.write(bytes(ready))
        self._balance()

    async def _send_file(self, records: FileMessageSet) -> None:
        try:
            await records.send_async(self._transport)
        except Exception as error:  # noqa: BLE001 - whatever it is, the reply is cut off
            if not isinstance(error, ConnectionError):
                _LOG.warning("a reply was cut off: %r", error)
            self._transport.abort()
        self._sending = None
        # while it was copied `pause_writing` was said to what has copied it
        _, most = self._transport.get_write_buffer_limits()
        self._writable = self._transport.get_write_buffer_size() <= most
        self._work()

    def _balance(self) -> None:
        """Read while there is room for replies; close when all have been written."""
        if self._sending is not None:  # sending a file stops and starts the reading itself
            return
        if self._ended and not self._replies:
            self._transport.close()
            return
        room = self._room() and not self._ended
        if room != self._reading:
            self._reading = room
            if room:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
