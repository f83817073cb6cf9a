"""The simulated network: order, bounds, partitions, lost power, and who is told what."""

import asyncio
import errno

import pytest

from rmqcore.remoting.sockets import listen, local_address, new_socket
from rmqcore.simulation.loop import NANOSECONDS
from rmqcore.simulation.sockets import CAPACITY

pytestmark = [pytest.mark.logic, pytest.mark.seeded]
PORT = 4000


class Ends:
    """A server's and a client's end of one connection, by socket calls."""

    def __init__(self, loop, server, client):
        self.loop, self.server, self.client = loop, server, client
        self.to_server = self.to_client = None

    async def open(self):
        listening = await self.loop.spawn(self.server, self._listen())
        accepted = self.loop.spawn(self.server, self.loop.sock_accept(listening))
        self.to_server = await self.loop.spawn(self.client, self._connect())
        self.to_client, place = await accepted
        assert place == self.to_server.getsockname()
        return self

    async def _listen(self):
        return listen(self.server.address, PORT)

    async def _connect(self):
        sock = new_socket(2)
        await self.loop.sock_connect(sock, (self.server.address, PORT))
        return sock

    async def received(self, sock, size):
        data = b""
        while len(data) < size:
            part = await self.loop.sock_recv(sock, size - len(data))
            if not part:
                break
            data += part
        return data


@pytest.fixture
def ends(loop, machines):
    server, client = machines("server", "client")
    return Ends(loop, server, client)


@pytest.fixture
def run(loop):
    return loop.run_until_complete


def test_a_stream_keeps_its_order_whatever_its_parts_take(ends, loop, run, rng):
    data = rng.randbytes(500_000)

    async def scene():
        await ends.open()
        sending = loop.create_task(loop.sock_sendall(ends.to_server, data))
        assert await ends.received(ends.to_client, len(data)) == data
        await sending
        ends.to_server.close()
        assert await loop.sock_recv(ends.to_client, 10) == b""

    run(scene())


def test_who_does_not_read_is_sent_no_more_than_the_connection_holds(ends, loop, run):
    async def scene():
        await ends.open()
        sent = ends.to_server.send(bytes(100_000))
        assert 0 < sent < 100_000
        await loop.pause(100)
        with pytest.raises(BlockingIOError):
            ends.to_server.send(b"x")
        assert len(await ends.received(ends.to_client, sent)) == sent
        await loop.pause(1)
        assert ends.to_server.send(b"x") == 1

    run(scene())


@pytest.mark.parametrize("both", [True, False])
def test_a_partition_holds_what_is_sent_until_it_ends(ends, loop, run, both):
    async def scene():
        await ends.open()
        server, client = ends.server.address, ends.client.address
        loop.network.close_link(client, server)
        if both:
            loop.network.close_link(server, client)
        ends.to_server.send(b"question")
        ends.to_client.send(b"answer")
        await loop.pause(10)
        with pytest.raises(BlockingIOError):
            ends.to_client.recv(100)
        if both:
            with pytest.raises(BlockingIOError):
                ends.to_server.recv(100)
        else:
            assert await ends.received(ends.to_server, 6) == b"answer"
        loop.network.open_link(client, server)
        loop.network.open_link(server, client)
        assert await ends.received(ends.to_client, 8) == b"question"
        if both:
            assert await ends.received(ends.to_server, 6) == b"answer"

    run(scene())


def test_a_partition_that_lasts_leaves_the_other_side_half_open(ends, loop, run):
    async def scene():
        await ends.open()
        loop.network.close_link(ends.client.address, ends.server.address)
        ends.to_server.send(b"question")
        await loop.pause(1000)
        with pytest.raises(TimeoutError):
            ends.to_server.recv(100)
        loop.network.open_link(ends.client.address, ends.server.address)
        await loop.pause(1)
        with pytest.raises(BlockingIOError):
            ends.to_client.recv(100)
        ends.to_client.send(b"are you there")
        with pytest.raises(ConnectionResetError):
            await loop.sock_recv(ends.to_client, 100)

    run(scene())


def test_a_killed_process_ends_its_connections_and_a_machine_without_power_says_nothing(
    ends, loop, run
):
    async def scene():
        await ends.open()
        loop.network.end_process(ends.server)
        assert await loop.sock_recv(ends.to_server, 100) == b""
        await ends.open()
        loop.network.power_off(ends.server.address)
        await loop.pause(10)
        with pytest.raises(BlockingIOError):
            ends.to_server.recv(100)
        ends.to_server.send(b"are you there")
        await loop.pause(5)
        loop.network.power_on(ends.server.address)
        with pytest.raises(ConnectionResetError):
            await loop.sock_recv(ends.to_server, 100)

    run(scene())


def test_who_waits_for_room_hears_that_a_machine_has_lost_its_power(ends, loop, run):
    async def scene():
        await ends.open()
        filling = loop.create_task(loop.sock_sendall(ends.to_server, bytes(3 * CAPACITY)))
        await loop.pause(1)
        assert not filling.done()
        loop.network.power_off(ends.server.address)
        await loop.pause(5)
        loop.network.power_on(ends.server.address)
        with pytest.raises(ConnectionResetError):
            await filling

    run(scene())


def test_what_was_not_read_resets_the_connection_when_its_reader_closes(ends, loop, run):
    async def scene():
        await ends.open()
        ends.to_server.send(b"question")
        await loop.pause(1)
        ends.to_client.close()
        with pytest.raises(ConnectionResetError):
            await loop.sock_recv(ends.to_server, 100)

    run(scene())


def test_nobody_listens_and_nobody_answers_are_two_errors(ends, loop, run):
    async def connect():
        await loop.sock_connect(new_socket(2), (ends.server.address, PORT))

    async def scene():
        with pytest.raises(ConnectionRefusedError):
            await loop.spawn(ends.client, connect())
        loop.network.power_off(ends.server.address)
        began = loop.time()
        with pytest.raises(TimeoutError):
            await loop.spawn(ends.client, connect())
        assert loop.time() - began > 60

    run(scene())


def test_a_port_is_one_listeners_and_an_address_its_machines(ends, loop, run):
    async def scene():
        first = listen(ends.server.address, PORT)
        with pytest.raises(OSError, match="is taken") as taken:
            listen(ends.server.address, PORT)
        assert taken.value.errno == errno.EADDRINUSE
        first.close()
        listen(ends.server.address, PORT).close()
        with pytest.raises(OSError, match="assign") as strange:
            listen(ends.client.address, PORT)
        assert strange.value.errno == errno.EADDRNOTAVAIL
        assert local_address("10.9.9.9", 1) == ends.server.address

    async def whole():
        await loop.spawn(ends.server, scene())

    run(whole())


def test_connections_that_break_break_at_both_ends(ends, loop, run):
    async def scene():
        await ends.open()
        loop.network.break_connections(ends.client.address, ends.server.address)
        for sock in (ends.to_client, ends.to_server):
            with pytest.raises(ConnectionResetError):
                await loop.sock_recv(sock, 100)

    run(scene())


class Noting(asyncio.Protocol):
    """Notes what a transport tells it."""

    def __init__(self):
        self.seen, self.lost = bytearray(), []
        self.paused = 0

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.seen += data

    def pause_writing(self):
        self.paused += 1

    def resume_writing(self):
        self.paused -= 1

    def connection_lost(self, exc):
        self.lost.append(exc)


def test_a_transport_sends_all_before_it_closes_and_pauses_who_writes_too_much(
    ends, loop, run, rng
):
    data = rng.randbytes(300_000)

    async def serve():
        listening = listen(ends.server.address, PORT)
        accepted, _ = await loop.sock_accept(listening)
        _, protocol = await loop.connect_accepted_socket(Noting, accepted)
        return protocol

    async def ask():
        transport, protocol = await loop.create_connection(Noting, ends.server.address, PORT)
        transport.write(data)
        assert protocol.paused
        transport.close()
        return protocol

    async def scene():
        serving = loop.spawn(ends.server, serve())
        await loop.pause(0.01)
        client = await loop.spawn(ends.client, ask())
        server = await serving
        await loop.pause(10)
        assert server.seen == data
        assert (client.lost, client.paused) == ([None], 0)
        assert server.lost == [None]

    run(scene())


def test_a_link_that_loses_much_delays_and_loses_nothing(ends, loop, run):
    async def scene():
        loop.network.link(ends.client.address, ends.server.address).loss = 0.5
        await ends.open()
        began = loop.now_ns
        for number in range(100):
            ends.to_server.send(bytes([number]))
        assert await ends.received(ends.to_client, 100) == bytes(range(100))
        assert loop.now_ns - began > NANOSECONDS // 5

    run(scene())
