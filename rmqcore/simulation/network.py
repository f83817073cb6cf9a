"""`Network`: machines, and between each two of them a link each way.

A link delays what it carries, each segment by another time, and may be closed: then everything on
it waits, as TCP repeats it, until the link is opened or a connection's patience is over. A stream
keeps its order and loses nothing but its end. Closing one of the two links between machines is an
asymmetric partition.

What a machine's kernel does goes on while a process on it is held up; who has lost its power says
nothing any more, and what is sent to it is answered with a reset when it is up again.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

from rmqcore.simulation.links import Link
from rmqcore.simulation.loop import NANOSECONDS, Node, SimulatedLoop
from rmqcore.simulation.sockets import Machine, Place, SimulatedSocket, Stream

_SYN_AGAIN_NS = NANOSECONDS
_SYN_TRIES = 7


class Network:
    """All machines and links of a cluster.

    Attributes:
        names: addresses by host name.
    """

    def __init__(self, loop: SimulatedLoop, seed: object) -> None:
        """Make a network without machines; each comes when it is first named.

        Args:
            loop: whose time it takes.
            seed: what its delays follow from, by its text.
        """
        self.names: dict[str, str] = {"localhost": "127.0.0.1"}
        self._loop = loop
        self._seed = seed
        self._machines: dict[str, Machine] = {}
        self._links: dict[tuple[str, str], Link] = {}

    def machine(self, address: str) -> Machine:
        """The machine with an address."""
        machine = self._machines.get(address)
        if machine is None:
            machine = self._machines[address] = Machine(address)
        return machine

    def link(self, source: str, target: str) -> Link:
        """What goes from one machine to another.

        Args:
            source: address of the machine that sends.
            target: address of the machine that receives.
        """
        link = self._links.get((source, target))
        if link is None:
            name = f"{self._seed}/network/{source}>{target}"
            rng = random.Random(name)  # noqa: S311 - repeatable
            link = self._links[source, target] = Link(rng)
        return link

    # ---- faults

    def close_link(self, source: str, target: str) -> None:
        """Let nothing through from one machine to another; a machine always reaches itself.

        Args:
            source: address of the machine that sends.
            target: address of the machine that receives.
        """
        if source != target:
            self.link(source, target).closed = True

    def open_link(self, source: str, target: str) -> None:
        """Let everything through again, also what waits.

        Args:
            source: address of the machine that sends.
            target: address of the machine that receives.
        """
        self.link(source, target).open()

    def heal(self) -> None:
        """Let every link be as it was at first."""
        for link in self._links.values():
            link.mend()

    def end_process(self, node: Node) -> None:
        """Close what a process had open, as its kernel does when it is killed."""
        machine = self.machine(node.address)
        for port, listening in list(machine.listening.items()):
            if listening.node is node:
                del machine.listening[port]
                listening.close()
        for sock in list(machine.connected):
            if sock.node is node:
                sock.close()

    def power_off(self, address: str) -> None:
        """Take a machine's power: nobody is told."""
        machine = self.machine(address)
        machine.up = False
        machine.listening.clear()
        connected, machine.connected = machine.connected, {}
        for sock in connected:
            sock.vanish()

    def power_on(self, address: str) -> None:
        """Give a machine its power back; connections from before are answered with a reset."""
        machine = self.machine(address)
        machine.up = True
        unanswered, machine.unanswered = machine.unanswered, {}
        for stream in unanswered:
            stream.go_on()

    def break_connections(self, one: str, other: str) -> None:
        """Reset every connection between two machines, on both sides.

        Args:
            one: address of a machine.
            other: address of a machine.
        """
        for sock in list(self.machine(one).connected):
            peer = sock.peer
            if peer is not None and peer.machine.address == other:
                sock.fail(errno.ECONNRESET)
                peer.fail(errno.ECONNRESET)

    # ---- connections

    def new_socket(self, node: Node) -> SimulatedSocket:
        """An unbound socket of a process."""
        return SimulatedSocket(self._loop, self.machine(node.address), node)

    def connect(
        self, sock: SimulatedSocket, place: Place, done: Callable[[OSError | None], None]
    ) -> None:
        """Bring about a connection; calls back with what stood in its way, or None.

        Args:
            sock: the client's socket.
            place: address and port to connect to.
            done: called once.
        """
        here = ("127.0.0.1", "0.0.0.0")  # noqa: S104 - compared
        host = sock.machine.address if place[0] in here else place[0]
        _Connecting(self._loop, self, sock, (host, place[1]), done).ask(0)


class _Connecting:
    """A connection that is coming about."""

    def __init__(
        self,
        loop: SimulatedLoop,
        network: Network,
        sock: SimulatedSocket,
        place: Place,
        done: Callable[[OSError | None], None],
    ) -> None:
        self._loop, self._network, self._sock, self._done = loop, network, sock, done
        self._place = place
        self._there = network.link(sock.machine.address, place[0])
        self._back = network.link(place[0], sock.machine.address)

    def ask(self, tries: int) -> None:
        """Send the first segment of a connection, the nth time."""
        self._after(self._there.delay_ns(), self._asked, tries)

    def _after(self, delay_ns: int, call: Callable[[int], None], tries: int) -> None:
        context = self._loop.harness.context
        self._loop.call_at_ns(self._loop.now_ns + delay_ns, call, tries, context=context)

    def _again(self, call: Callable[[int], None], tries: int) -> None:
        if tries + 1 < _SYN_TRIES:
            self._after(_SYN_AGAIN_NS << tries, call, tries + 1)
        else:
            self._end(errno.ETIMEDOUT)

    def _end(self, number: int) -> None:
        self._done(OSError(number, errno.errorcode[number]) if number else None)

    def _asked(self, tries: int) -> None:
        machine = self._network.machine(self._place[0])
        if self._sock.closed:
            return
        if self._there.closed or not machine.up:
            self._again(self._asked, tries)
            return
        listening = machine.listening.get(self._place[1])
        if listening is None:
            self._after(self._back.delay_ns(), self._refused, tries)
        elif listening.is_full:
            self._again(self._asked, tries)
        else:
            sock = self._sock
            accepted = SimulatedSocket(self._loop, machine, listening.node)
            accepted.join(sock, self._place, sock.name, Stream(self._loop, self._back, sock))
            sock.join(accepted, sock.name, self._place, Stream(self._loop, self._there, accepted))
            listening.offer(accepted)
            self._after(self._back.delay_ns(), self._answered, 0)

    def _answered(self, tries: int) -> None:
        if self._back.closed:
            self._again(self._answered, tries)
        elif not self._sock.closed:
            self._end(0)

    def _refused(self, tries: int) -> None:
        if self._back.closed:
            self._again(self._asked, tries)
        else:
            self._end(errno.ECONNREFUSED)
