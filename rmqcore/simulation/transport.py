"""`StreamTransport`: asyncio's transport on a simulated socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextvars import copy_context
from typing import Final

from rmqcore.simulation.errors import UnsimulatedError
from rmqcore.simulation.sockets import Buffer, SimulatedSocket, Watch

_READ_SIZE: Final = 256 * 1024
_HIGH_SIZE: Final = 64 * 1024


class StreamTransport(asyncio.Transport):
    """See asyncio.Transport; made on the node whose socket it is."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: SimulatedSocket, protocol: asyncio.Protocol
    ) -> None:
        """Make the transport of a connected socket; the protocol hears of it at once."""
        names = {"socket": sock, "peername": sock.getpeername(), "sockname": sock.getsockname()}
        super().__init__(names)
        self._loop = loop
        self._sock = sock
        self._protocol = protocol
        self._context = copy_context()
        self._unsent = bytearray()
        self._high, self._low = _HIGH_SIZE, _HIGH_SIZE // 4
        self._paused_reading = self._paused_writing = False
        self._closing = self._lost = self._end_wanted = False
        protocol.connection_made(self)
        if not self._closing and not self._paused_reading:
            self._watch_reading()

    # ---- reading

    def _watch_reading(self) -> None:
        self._sock.watch_reading(Watch(self._read, (), self._context))

    def _read(self) -> None:
        try:
            data = self._sock.recv(_READ_SIZE)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        if data:
            self._protocol.data_received(data)
        elif self._protocol.eof_received():
            self._sock.watch_reading(None)
        else:
            self.close()

    def is_reading(self) -> bool:
        """See asyncio."""
        return not self._paused_reading and not self._closing

    def pause_reading(self) -> None:
        """See asyncio."""
        if not self._closing and not self._paused_reading:
            self._paused_reading = True
            self._sock.watch_reading(None)

    def resume_reading(self) -> None:
        """See asyncio."""
        if not self._closing and self._paused_reading:
            self._paused_reading = False
            self._watch_reading()

    # ---- writing

    def write(self, data: Buffer) -> None:
        """See asyncio."""
        if self._lost or self._end_wanted or not data:
            return
        if not self._unsent:
            try:
                data = memoryview(data)[self._sock.send(data) :]
            except BlockingIOError:
                pass
            except OSError as error:
                self._lose(error)
                return
            if not data:
                return
            self._sock.watch_writing(Watch(self._write, (), self._context))
        self._unsent += data
        if not self._paused_writing and len(self._unsent) > self._high:
            self._paused_writing = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """See asyncio."""
        self.write(b"".join(list_of_data))

    def _write(self) -> None:
        try:
            del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        if self._paused_writing and len(self._unsent) <= self._low:
            self._paused_writing = False
            self._protocol.resume_writing()
        if not self._unsent:
            self._sock.watch_writing(None)
            if self._closing:
                self._end(None)
            elif self._end_wanted:
                self._sock.shutdown(1)

    def can_write_eof(self) -> bool:
        """See asyncio."""
        return True

    def write_eof(self) -> None:
        """See asyncio."""
        if not self._closing and not self._end_wanted:
            self._end_wanted = True
            if not self._unsent:
                self._sock.shutdown(1)

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """See asyncio."""
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio.

        Args:
            high: bytes above which the protocol is paused; None for the usual.
            low: bytes below which it goes on; None for a quarter.
        """
        self._high = _HIGH_SIZE if high is None else high
        self._low = self._high // 4 if low is None else low

    # ---- the end

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._closing

    def close(self) -> None:
        """See asyncio."""
        if not self._closing:
            self._closing = True
            self._sock.watch_reading(None)
            if not self._unsent:
                self._end(None)

    def abort(self) -> None:
        """See asyncio."""
        self._lose(None)

    def _lose(self, error: OSError | None) -> None:
        if not self._lost:
            self._closing = True
            self._unsent.clear()
            if error is None:
                self._sock.reset()
            self._end(error)

    def _end(self, error: OSError | None) -> None:
        self._lost = True
        self._sock.watch_reading(None)
        self._sock.watch_writing(None)
        self._loop.call_soon(self._notify_lost, error)

    def _notify_lost(self, error: OSError | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._sock.close()

    def get_protocol(self) -> asyncio.BaseProtocol:
        """See asyncio."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Not there: nothing here changes its protocol.

        Raises:
            UnsimulatedError: always.
        """
        raise UnsimulatedError("Transport.set_protocol")
