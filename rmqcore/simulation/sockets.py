"""`SimulatedSocket`: what code that has a socket in its hands finds in its place.

It never blocks. Who waits for it is called as long as there is something, as with `select`. Below
it lie a `Machine`, whose kernel goes on while a process is held up, and a `Stream` each way.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from enum import Enum, auto
from typing import Any, Final

from rmqcore.simulation.errors import UnsimulatedError
from rmqcore.simulation.links import Link
from rmqcore.simulation.loop import NANOSECONDS, Node, SimulatedLoop

Place = tuple[str, int]
Buffer = bytes | bytearray | memoryview
_ANY: Final = "0.0.0.0"  # noqa: S104 - nobody listens there
_NOT_YET: Final = "nothing is there yet"
#: The first port that is given to a socket which asks for any, and the last.
_FIRST_PORT: Final = 32768
_LAST_PORT: Final = 65535
#: A connection with this many bytes that its other side has not read takes no more.
CAPACITY: Final = 64 * 1024
#: A connection is given up when what it sent is not acknowledged for one of these times.
_SEND_TIMEOUTS_NS: Final = (15 * NANOSECONDS, 60 * NANOSECONDS, 900 * NANOSECONDS)
#: The probability that what is sent at once arrives in two parts.
_SPLIT: Final = 0.1


class SegmentKind(Enum):
    """What a segment is."""

    DATA = auto()
    END = auto()
    RESET = auto()


class Machine:
    """A machine's ports and power.

    Attributes:
        address: its address.
        up: whether it has power.
        listening: by port, the sockets that take connections.
        connected: the sockets that have one.
        unanswered: streams whose segments nobody has answered, for there is no power.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.up = True
        self.listening: dict[int, SimulatedSocket] = {}
        self.connected: dict[SimulatedSocket, None] = {}
        self.unanswered: dict[Stream, None] = {}
        self._last_port = _FIRST_PORT

    def free_port(self) -> int:
        """The next port that nobody has now; long after the last one the first comes again."""
        self._last_port = self._last_port + 1 if self._last_port < _LAST_PORT else _FIRST_PORT
        return self._last_port


class Stream:
    """One direction of a connection: segments in order.

    Attributes:
        in_flight: bytes on their way.
    """

    __slots__ = (
        "_giving_up",
        "_held",
        "_last_ns",
        "_link",
        "_loop",
        "_segments",
        "_to",
        "in_flight",
    )

    def __init__(self, loop: SimulatedLoop, link: Link, to: SimulatedSocket) -> None:
        self.in_flight = 0
        self._link = link
        self._to = to
        self._segments: deque[tuple[SegmentKind, bytes]] = deque()
        #: segments that have come to a closed link, or to a machine without power
        self._held = 0
        self._loop = loop
        self._last_ns = 0
        self._giving_up = False

    def send(self, kind: SegmentKind, data: bytes = b"") -> None:
        """Send a segment.

        Args:
            kind: of the segment.
            data: its bytes; now and then they come in two.
        """
        if len(data) > 1 and self._link.rng.random() < _SPLIT:
            at = self._link.rng.randrange(1, len(data))
            self._send(kind, data[:at])
            data = data[at:]
        self._send(kind, data)

    def _send(self, kind: SegmentKind, data: bytes) -> None:
        self._segments.append((kind, data))
        self.in_flight += len(data)
        self._plan()

    def _plan(self) -> None:
        self._last_ns = max(self._last_ns + 1, self._loop.now_ns + self._link.delay_ns())
        self._loop.call_at_ns(self._last_ns, self._arrive, context=self._loop.harness.context)

    def go_on(self) -> None:
        """Send again what was held."""
        held, self._held = self._held, 0
        for _ in range(held):
            self._plan()

    def notify_room(self) -> None:
        """Tell the sender at the other end that there is room again."""
        when_ns = self._loop.now_ns + self._link.delay_ns()
        self._loop.call_at_ns(when_ns, self._to.notify_writer, context=self._loop.harness.context)

    def _arrive(self) -> None:
        if self._link.closed:
            self._link.waiting[self] = None
            self._hold()
        elif not self._to.machine.up:
            self._to.machine.unanswered[self] = None
            self._hold()
        elif self._segments:
            kind, data = self._segments.popleft()
            self.in_flight -= len(data)
            self._to.arrived(kind, data)

    def _hold(self) -> None:
        self._held += 1
        if not self._giving_up:
            self._giving_up = True
            when_ns = self._loop.now_ns + self._link.rng.choice(_SEND_TIMEOUTS_NS)
            self._loop.call_at_ns(when_ns, self._give_up, context=self._loop.harness.context)

    def _give_up(self) -> None:
        self._giving_up = False
        if self._held:
            self._segments.clear()
            self.in_flight = self._held = 0
            if self._to.peer is not None:
                self._to.peer.fail(errno.ETIMEDOUT)


class Watch:
    """Somebody who is called as long as a socket has something for him."""

    __slots__ = ("args", "callback", "context", "planned")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context
    ) -> None:
        self.callback, self.args, self.context = callback, args, context
        self.planned = False


class SimulatedSocket:
    """A stream socket: unbound, listening, or connected.

    Attributes:
        node: the process that has it.
        machine: where that runs.
        peer: the other side of the connection; None while there is none.
        name: this side's address and port.
        closed: whether it was closed.
    """

    family = socket.AF_INET
    type = socket.SOCK_STREAM

    def __init__(self, loop: SimulatedLoop, machine: Machine, node: Node) -> None:
        """Make an unbound socket of a process on a machine."""
        self.node = node
        self.machine = machine
        self.peer: SimulatedSocket | None = None
        self.name: Place = (_ANY, 0)
        self.closed = False
        self._loop = loop
        self._peer_name: Place | None = None
        self._out: Stream | None = None
        self._received = bytearray()
        self._ended = False
        self._error = 0
        #: whether the peer's kernel has to tell when there is room again
        self._peer_waits = False
        self._reading: Watch | None = None
        self._writing: Watch | None = None
        self._offered: deque[SimulatedSocket] = deque()
        self._backlog = 0

    def __repr__(self) -> str:
        return f"<SimulatedSocket {self.name} {self._peer_name}>"

    def __enter__(self) -> SimulatedSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what users of sockets call

    def fileno(self) -> int:
        """No descriptor: -1."""
        return -1

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""
        del flag

    def setsockopt(self, *_: object) -> None:
        """No option changes what is simulated."""

    def getsockname(self) -> Place:
        """This side's address and port."""
        return self.name

    def getpeername(self) -> Place:
        """The other side's.

        Raises:
            OSError: it is not connected.
        """
        if self._peer_name is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self._peer_name

    def bind(self, place: Place) -> None:
        """Take an address and a port, 0 for any.

        Raises:
            OSError: somebody listens there, or it is another machine's address.
        """
        host, port = place
        if host not in (self.machine.address, _ANY, "127.0.0.1"):
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        if port in self.machine.listening:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self.name = (self.machine.address, port or self.machine.free_port())

    def listen(self, backlog: int = 128) -> None:
        """Take connections."""
        self._backlog = backlog
        self.machine.listening[self.name[1]] = self

    def accept(self) -> tuple[SimulatedSocket, Place]:
        """The next connection.

        Raises:
            BlockingIOError: there is none.
        """
        if not self._offered:
            raise BlockingIOError(errno.EAGAIN, _NOT_YET)
        accepted = self._offered.popleft()
        return accepted, accepted.getpeername()

    def recv(self, size: int, flags: int = 0) -> bytes:
        """What has been received; nothing at the end.

        Args:
            size: bytes at most.
            flags: ``MSG_PEEK`` leaves them there; others are without effect.

        Raises:
            BlockingIOError: nothing was received, and it is not the end.
            OSError: the connection is broken.
        """
        data = self._read_up_to(size, keep=bool(flags & socket.MSG_PEEK))
        return bytes(data)

    def recv_into(self, buffer: memoryview) -> int:
        """As `recv`, into a buffer; how many bytes."""
        data = self._read_up_to(len(buffer), keep=False)
        buffer[: len(data)] = data
        return len(data)

    def send(self, data: Buffer) -> int:
        """Send what there is room for; how many bytes.

        Raises:
            BlockingIOError: there is no room.
            OSError: the connection is broken.
        """
        return self.sendmsg((data,))

    def sendmsg(self, buffers: Iterable[Buffer]) -> int:
        """Send several buffers, one behind the other; how many bytes of them.

        Raises:
            BlockingIOError: there is no room for a byte.
            OSError: the connection is broken, or closed.
        """
        self._raise_error()
        if self._out is None or self.peer is None or self.closed:
            raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
        data = b"".join(buffers)
        room = self._room()
        if room <= 0:
            self.peer._peer_waits = True
            raise BlockingIOError(errno.EAGAIN, _NOT_YET)
        if len(data) > room:
            self.peer._peer_waits = True
            data = data[:room]
        self._out.send(SegmentKind.DATA, data)
        return len(data)

    def shutdown(self, how: int) -> None:
        """Send nothing more."""
        if how != socket.SHUT_RD and self._out is not None and not self.closed:
            self._out.send(SegmentKind.END)

    def close(self) -> None:
        """Let the other side read the end; who has left something unread resets it."""
        if self.closed:
            return
        self.closed = True
        self._reading = self._writing = None
        if self._backlog:
            self.machine.listening.pop(self.name[1], None)
        for offered in self._offered:
            offered.reset()
        self._leave(reset=bool(self._received))

    def reset(self) -> None:
        """Close without an end: the other side gets an error."""
        if not self.closed:
            self.closed = True
            self._reading = self._writing = None
            self._leave(reset=True)

    def detach(self) -> int:
        """Not there.

        Raises:
            UnsimulatedError: always.
        """
        raise UnsimulatedError("socket.detach")

    # ---- what the event loop calls

    def watch_reading(self, watch: Watch | None) -> None:
        """Call somebody as long as there is something to read or to accept; None: nobody."""
        self._reading = watch
        self._notify_reader()

    def watch_writing(self, watch: Watch | None) -> None:
        """Call somebody as long as there is room to send; None: nobody."""
        self._writing = watch
        self.notify_writer()

    @property
    def is_watched(self) -> tuple[bool, bool]:
        """Whether somebody waits to read, and to write."""
        return self._reading is not None, self._writing is not None

    # ---- what the network calls

    @property
    def is_full(self) -> bool:
        """Whether more connections wait here than it takes."""
        return len(self._offered) >= self._backlog

    def offer(self, accepted: SimulatedSocket) -> None:
        """A connection has come."""
        self._offered.append(accepted)
        self._notify_reader()

    def join(self, peer: SimulatedSocket, name: Place, peer_name: Place, out: Stream) -> None:
        """Be connected.

        Args:
            peer: the other side.
            name: address and port of this side.
            peer_name: address and port of the other side.
            out: what goes there.
        """
        self.peer, self.name, self._peer_name, self._out = peer, name, peer_name, out
        self.machine.connected[self] = None

    def arrived(self, kind: SegmentKind, data: bytes) -> None:
        """A segment has come.

        Args:
            kind: of the segment.
            data: its bytes.
        """
        if kind is SegmentKind.RESET:
            self.fail(errno.ECONNRESET)
        elif self.closed or self._error:
            # nobody is here any more
            if data and self._out is not None:
                self._out.send(SegmentKind.RESET)
        else:
            self._received += data
            self._ended = self._ended or kind is SegmentKind.END
            self._notify_reader()

    def fail(self, number: int) -> None:
        """The connection is broken."""
        if not self.closed and not self._error:
            self._error = number
            self.machine.connected.pop(self, None)
            self._notify_reader()
            self.notify_writer()

    def vanish(self) -> None:
        """Be gone with the machine's power, without a word.

        Who waits for room over there goes on asking, and so comes to hear of it.
        """
        self.closed = True
        self._reading = self._writing = None
        self._received.clear()
        if self.peer is not None:
            self.peer.notify_writer()

    def notify_writer(self) -> None:
        """Call who waits for room, when there is some."""
        watch = self._writing
        if watch is not None and not watch.planned and self._is_writable:
            watch.planned = True
            self._loop.call_soon(self._write, watch, context=watch.context)

    # ---- inside

    def _read_up_to(self, size: int, *, keep: bool) -> bytearray:
        if self.closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if not self._received:
            self._raise_error()
            if not self._ended:
                raise BlockingIOError(errno.EAGAIN, _NOT_YET)
        data = self._received[:size]
        if not keep:
            del self._received[:size]
            if self._peer_waits and self._out is not None:
                self._peer_waits = False
                self._out.notify_room()
        return data

    def _room(self) -> int:
        if self._out is None or self.peer is None:
            return 0
        return CAPACITY - self._out.in_flight - len(self.peer._received)

    def _raise_error(self) -> None:
        if self._error:
            raise OSError(self._error, os.strerror(self._error))

    def _leave(self, *, reset: bool) -> None:
        self.machine.connected.pop(self, None)
        if self._out is not None and not self._error:
            if reset:
                self._out.send(SegmentKind.RESET)
            else:
                self._out.send(SegmentKind.END)

    @property
    def _is_readable(self) -> bool:
        return bool(self._received or self._offered or self._ended or self._error)

    @property
    def _is_writable(self) -> bool:
        return bool(self._error) or self._room() > 0

    def _notify_reader(self) -> None:
        watch = self._reading
        if watch is not None and not watch.planned and self._is_readable:
            watch.planned = True
            self._loop.call_soon(self._read, watch, context=watch.context)

    def _read(self, watch: Watch) -> None:
        watch.planned = False
        if watch is self._reading and self._is_readable:
            watch.callback(*watch.args)
            self._notify_reader()

    def _write(self, watch: Watch) -> None:
        watch.planned = False
        if watch is self._writing and self._is_writable:
            watch.callback(*watch.args)
            self.notify_writer()
