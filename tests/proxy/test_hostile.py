"""A hostile peer loses its call, or its connection; others are served beside it."""

import asyncio
import select
import struct
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace

import pytest
from ngh2 import Connection, NGH2Error
from patience import TIMEOUT_S, until, until_async
from proxy.conftest import Served
from proxy.wire import Ended, Wire

from rmqcore.proxy import GrpcServer, Http2Settings, LocalBroker, Service, http2
from rmqcore.proxy.grpc_status import GrpcStatus
from rmqcore.proxy.messages import SERVICE, MessageType, v2_class

pytestmark = pytest.mark.engine

HEARTBEAT = f"/{SERVICE}/Heartbeat".encode()
SEND = f"/{SERVICE}/SendMessage".encode()
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, payload=b"", *, flags=0, stream=0):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


SETTINGS = frame(4)


@asynccontextmanager
async def without_broker(**settings):
    """A service whose broker is not there: what is below it is not asked."""
    service = Service(LocalBroker(lambda: None, lambda: "b"), None, Http2Settings(**settings))
    server = GrpcServer(service, "127.0.0.1", 0)
    await server.start()
    served = Served(None, service, server)
    try:
        yield served
    finally:
        for wire in served.wires:
            await wire.close()
        await server.stop()


def run(scenario, **settings):
    async def main():
        async with without_broker(**settings) as served:
            await scenario(served)
            # whatever was done to it, it serves on, and keeps nothing of it
            wire = await Wire.connect(served.port)
            assert (await wire.call("Heartbeat")).status.code == 20000
            await wire.close()

    asyncio.run(main())


async def says(served, *parts):
    """What the server answers to bytes, until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            for part in parts:
                writer.write(part)
                await writer.drain()
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "parts",
    [
        [b"PRINT me"],
        [PREFACE, b"\0" * 100],
        [PREFACE, SETTINGS, frame(0, b"x" * 10, stream=1)],
        [PREFACE, SETTINGS, frame(1, b"\xff" * 50, flags=4, stream=1)],
        [PREFACE, SETTINGS, frame(9, b"x", flags=4, stream=1)],
        [PREFACE, SETTINGS, frame(1, b"", stream=1), frame(4)],
        [PREFACE, SETTINGS, b"\xff\xff\xff\x00\x00\x00\x00\x00\x01"],
        [PREFACE, *[frame(4, struct.pack(">HI", 1, 4096) * 100)] * 100],
        [PREFACE, SETTINGS, *[frame(8, struct.pack(">I", 0), stream=0)] * 10],
    ],
)
def test_what_is_no_http2_ends_the_connection(parts):
    async def scenario(served):
        await says(served, *parts)

    run(scenario)


def test_headers_without_end_end_the_connection():
    async def scenario(served):
        # a block that never ends: each frame is within its size
        parts = [frame(1, b"\x00\x01a\x01b" * 100, stream=1)]
        parts += [frame(9, b"\x00\x01a\x01b" * 1000, stream=1)] * 100
        await says(served, PREFACE, SETTINGS, *parts)

    run(scenario)


def test_too_many_headers_end_the_call():
    async def scenario(served):
        wire = await served.connect()
        stream = wire.open(HEARTBEAT, [(b"x-%d" % n, b"v" * 100) for n in range(500)])
        await stream.until(lambda: stream.closed)
        assert stream.trailers == {}

    run(scenario)


def test_a_flood_of_resets_ends_the_connection():
    async def scenario(served):
        wire = await served.connect()
        with suppress(NGH2Error):  # the connection was ended
            for _ in range(10_000):
                wire.open(SEND).cancel()
                await asyncio.sleep(0)
        async with asyncio.timeout(TIMEOUT_S):
            await wire.lost

    run(scenario)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", GrpcStatus.INTERNAL),
        (b"\0\0\0", GrpcStatus.INTERNAL),
        (struct.pack(">?I", False, 9) + b"short", GrpcStatus.INTERNAL),
        (struct.pack(">?I", False, 1) + b"long", GrpcStatus.INTERNAL),
        (struct.pack(">?I", True, 4) + b"gzip", GrpcStatus.UNIMPLEMENTED),
        (struct.pack(">?I", False, 1 << 30), GrpcStatus.RESOURCE_EXHAUSTED),
        (struct.pack(">?I", False, 3) + b"\xff\xff\xff", GrpcStatus.INVALID_ARGUMENT),
    ],
)
def test_what_is_no_message_ends_the_call_with_a_status(data, status):
    async def scenario(served):
        wire = await served.connect()
        stream = wire.open(SEND)
        wire.http2.send_data(stream.stream_id, data, end_stream=True)
        wire.flush()
        with pytest.raises(Ended) as ended:
            await stream.end()
        assert ended.value.status == status

    run(scenario)


def test_a_message_that_says_it_is_too_large_is_refused_before_it_comes():
    async def scenario(served):
        wire = await served.connect()
        stream = wire.open(SEND)
        wire.http2.send_data(stream.stream_id, struct.pack(">?I", False, 9 << 20))
        wire.flush()
        with pytest.raises(Ended) as ended:
            await stream.end()
        assert ended.value.status == GrpcStatus.RESOURCE_EXHAUSTED

    run(scenario)


def test_messages_that_do_not_become_whole_have_a_bound_together_and_an_end():
    async def scenario(served):
        wire = await served.connect()
        streams = []
        for _ in range(6):
            stream = wire.open(SEND)
            wire.http2.send_data(
                stream.stream_id, struct.pack(">?I", False, 60_000) + bytes(50_000)
            )
            wire.flush()
            streams.append(stream)
        statuses = []
        for stream in streams:
            with pytest.raises(Ended) as ended:
                await stream.end()
            statuses.append(ended.value.status)
        assert statuses[-1] == GrpcStatus.RESOURCE_EXHAUSTED
        assert set(statuses[:4]) == {GrpcStatus.DEADLINE_EXCEEDED}
        (connection,) = served.server._server._others
        assert connection.unfinished.size == 0

    run(scenario, unfinished_size_max=220_000, request_timeout_s=0.2)


def test_beyond_what_all_may_keep_those_with_the_most_lose_it():
    async def scenario(served):
        hostile = [await served.connect() for _ in range(4)]
        honest = await served.connect()
        beat = v2_class("HeartbeatRequest")(group={"name": "G" * 100}).SerializeToString()
        data = struct.pack(">?I", False, len(beat)) + beat
        small = honest.open(HEARTBEAT)
        honest.http2.send_data(small.stream_id, data[:50])
        honest.flush()
        large = []
        for wire in hostile:
            large.append(wire.open(SEND))
            part = struct.pack(">?I", False, 60_000) + bytes(30_000 + 100 * len(large))
            wire.http2.send_data(large[-1].stream_id, part)
            wire.flush()
        with pytest.raises(Ended) as ended:
            await large[-1].end()
        assert ended.value.status == GrpcStatus.RESOURCE_EXHAUSTED
        assert not large[0].closed
        honest.http2.send_data(small.stream_id, data[50:], end_stream=True)
        honest.flush()
        assert len(await small.end()) == 1
        # what a connection kept is free when it goes
        for wire in hostile:
            await wire.close()
        await until_async(lambda: served.service._unfinished.size == 0, "nothing is kept")

    run(scenario, unfinished_total_max=100_000)


@pytest.mark.parametrize("bound", ["worked_size_max", "worked_total_max"])
def test_large_messages_are_refused_while_much_is_worked_on(bound):
    """Such as messages whose sends wait for a disk, or a slave, that stands still."""

    async def scenario(served):
        begun, go_on = [], asyncio.Event()

        async def send(call, message):
            begun.append(len(message))
            await go_on.wait()
            return b""

        methods = served.service.methods
        methods[SEND] = replace(methods[SEND], handle=send)
        first = await served.connect()
        wires = [first, first if bound == "worked_size_max" else await served.connect()]

        def calls(size):
            stream = wires[len(begun) % 2].open(SEND)
            stream.send(bytes(size), end=True)
            return stream

        waiting = []
        for size in (40_000, 30_000, 100):
            waiting.append(calls(size))
            await until_async(lambda: len(begun) == len(waiting), "it is worked on")
            if size == 30_000:
                with pytest.raises(Ended) as ended:
                    await calls(20_000).end()
                assert ended.value.status == GrpcStatus.RESOURCE_EXHAUSTED
        go_on.set()
        for stream in waiting:
            await stream.end()
        await calls(20_000).end()
        assert begun == [40_000, 30_000, 100, 20_000]

    run(scenario, **{bound: 70_000})


def test_calls_that_wait_for_messages_keep_no_large_send_from_being_served(with_grpc):
    """Whatever the size of theirs: nothing of it is kept."""

    async def scenario(served, wire):
        await wire.send("T", b"x")
        _, (message,) = await wire.receive("T")
        empty = (message.system_properties.queue_id + 1) % 4
        broker = {"name": served.broker.config.broker_name}
        hostile = await served.connect()
        for name in "ReceiveMessage", "PullMessage":
            request = v2_class(f"{name}Request")(
                group={"name": "G"},
                message_queue={"topic": {"name": "T"}, "id": empty, "broker": broker},
                batch_size=1,
                long_polling_timeout={"seconds": 20},
            )
            if name == "ReceiveMessage":
                request.invisible_duration.seconds = 30
            # a field that nobody knows: number 100, of 50,000 bytes
            data = request.SerializeToString() + b"\xa2\x06\xd0\x86\x03" + bytes(50_000)
            for _ in range(2):
                hostile.open(f"/{SERVICE}/{name}".encode()).send(data, end=True)
        await hostile.call("Heartbeat")
        assert [each.closed for each in hostile.streams.values()] == [False] * 4 + [True]
        assert (await wire.send("T2", bytes(20_000))).status.code == 20000

    with_grpc(scenario, settings=Http2Settings(worked_total_max=60_000))


def test_a_flood_of_goaways_ends_the_connection(monkeypatch):
    """For each of them every open stream is looked at."""
    taken = 0

    class Counted:
        def __init__(self, *args):
            self._http2 = Connection(*args)

        def __getattr__(self, name):
            return getattr(self._http2, name)

        def receive_data(self, data):
            nonlocal taken
            taken += len(data)
            self._http2.receive_data(data)

    monkeypatch.setattr(http2, "Connection", Counted)

    async def scenario(served):
        nonlocal taken
        wire = await served.connect()
        for _ in range(200):
            wire.open(f"/{SERVICE}/Telemetry".encode())
        stream = wire.open(HEARTBEAT)
        stream.send(b"", end=True)
        await stream.end()
        taken = 0
        wire.transport.write(frame(7, bytes(8)) * 15_000)
        async with asyncio.timeout(TIMEOUT_S):
            await wire.lost
        assert taken <= 16 * 1024

    run(scenario)


def test_beyond_the_calls_that_all_may_have_those_with_the_most_are_closed():
    async def scenario(served):
        telemetry = f"/{SERVICE}/Telemetry".encode()
        hostile = [await served.connect() for _ in range(4)]
        honest = await served.connect()
        stream = honest.open(telemetry)
        for number, wire in enumerate(hostile, 1):
            for _ in range(10 + number):
                wire.open(telemetry, [(b"x-%d" % n, b"v" * 1000) for n in range(10)])
        async with asyncio.timeout(TIMEOUT_S):
            await hostile[-1].lost
        assert not hostile[0].lost.done()
        assert not stream.closed
        assert (await honest.call("Heartbeat")).status.code == 20000
        # what a connection had is free when it goes, and what it has is little
        for call in (
            call for each in served.server._server._others for call in each._calls.values()
        ):
            assert sum(map(len, call.headers.values())) < 100
        for wire in hostile:
            await wire.close()
        # one that is answered counts until its connection says something more
        left = served.service._open_calls
        await until_async(lambda: left.size <= 2, "those of the honest one are left")

    run(scenario, call_total_max=50)


def test_beyond_what_all_may_leave_unread_those_with_the_most_are_closed(with_grpc):
    """They pull, and give no window for what they get."""

    async def scenario(served, honest):
        for _ in range(6):
            await honest.send("T", bytes(40_000), message_group="g", message_type=MessageType.FIFO)
        ids = (each for each in range(4) if served.broker.store.max_queue_offset("T", each) == 6)
        broker = {"name": served.broker.config.broker_name}
        where = {"topic": {"name": "T"}, "id": next(ids), "broker": broker}
        pull = {"group": {"name": "G"}, "message_queue": where, "offset": 0, "batch_size": 32}
        hostile = [await served.connect(window_size=0) for _ in range(4)]
        for number, wire in enumerate(hostile, 1):
            for _ in range(number):
                wire.begin("PullMessage", v2_class("PullMessageRequest")(**pull))
        async with asyncio.timeout(TIMEOUT_S):
            await hostile[-1].lost
        assert not hostile[0].lost.done()
        answers = await honest.calls("PullMessage", **pull)
        assert len([each for each in answers if each.HasField("message")]) == 6
        # what a connection kept is free when it goes
        for wire in hostile:
            await wire.close()
        await until_async(lambda: served.service._unread.size == 0, "nothing is kept")

    with_grpc(scenario, settings=Http2Settings(queued_total_max=2_000_000))


@pytest.mark.parametrize(
    ("path", "content_type", "status"),
    [
        (f"/{SERVICE}/Nothing".encode(), b"application/grpc", GrpcStatus.UNIMPLEMENTED),
        (b"/", b"application/grpc", GrpcStatus.UNIMPLEMENTED),
        (HEARTBEAT, b"text/html", None),
    ],
)
def test_what_is_no_call_is_answered_so(path, content_type, status):
    async def scenario(served):
        wire = await served.connect()
        stream = wire.open(path, content_type=content_type)
        wire.http2.end_stream(stream.stream_id)
        wire.flush()
        with pytest.raises(Ended) as ended:
            await stream.end()
        assert ended.value.status == status

    run(scenario)


@pytest.mark.parametrize(
    ("path", "content_type"),
    [(f"/{SERVICE}/Nothing".encode(), b"application/grpc"), (HEARTBEAT, b"text/html")],
)
def test_a_stream_that_is_no_call_does_not_stay_open_for_its_peer(path, content_type):
    async def scenario(served):
        wire = await served.connect()
        for _ in range(2 * Http2Settings().stream_max):
            stream = wire.open(path, content_type=content_type)
            await stream.until(lambda stream=stream: stream.closed)

    run(scenario)


def test_a_call_that_takes_long_is_one_turn(monkeypatch):
    monkeypatch.setattr("rmqcore.remoting.turns.TURN_S", -1)
    order = []

    async def scenario(served):
        of = served.service._callers.of
        busy, other = await served.connect("busy"), await served.connect("other")
        for wire in (busy, other):
            await wire.call("Heartbeat")

        def noting(call):
            caller = of(call)
            if caller.client_id == "busy" and not order:
                # the other's call is there before the busy one's second has its turn
                until(lambda: has_bytes(other_side), "the other's call")
            order.append(caller.client_id)
            return caller

        there = served.server._server._others
        (other_side,) = (
            each._transport.get_extra_info("socket")
            for each in there
            if each._transport.get_extra_info("peername")
            == other.transport.get_extra_info("sockname")
        )
        monkeypatch.setattr(served.service._callers, "of", noting)
        with held_back(busy):
            calls = [busy.begin("Heartbeat", v2_class("HeartbeatRequest")()) for _ in range(20)]
        await other.call("Heartbeat")
        assert order.index("other") <= 2
        for call in calls:
            await call.end()
        assert order.count("busy") == 20

    run(scenario)


def has_bytes(sock):
    return bool(select.select([sock.fileno()], [], [], 0)[0])


@contextmanager
def held_back(wire):
    """Send what is called meanwhile at once, at the end."""
    flush, wire.flush = wire.flush, lambda: None
    yield
    wire.flush = flush
    flush()


def test_a_silent_connection_is_closed():
    async def scenario(served):
        wire = await Wire.connect(served.port)
        async with asyncio.timeout(TIMEOUT_S):
            await wire.lost

    run(scenario, idle_timeout_s=0.2)


def test_telemetry_that_is_no_command_ends_with_a_status_and_keeps_nothing():
    async def scenario(served):
        wire = await served.connect()
        stream = wire.open(f"/{SERVICE}/Telemetry".encode())
        stream.send(b"\xff\xff\xff")
        with pytest.raises(Ended) as ended:
            await stream.end()
        assert ended.value.status == GrpcStatus.INVALID_ARGUMENT
        (connection,) = served.server._server._others
        await stream.until(lambda: connection.unfinished.size == 0)

    run(scenario)


def test_a_call_without_a_client_id_has_its_code():
    async def scenario(served):
        wire = await served.connect()
        wire.client_id = ""
        assert (await wire.call("Heartbeat")).status.code == 40017

    run(scenario)


def test_what_comes_of_who_has_used_up_a_turn_waits_in_the_line(monkeypatch):
    monkeypatch.setattr("rmqcore.remoting.turns.TURN_S", -1)
    ping = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + bytes(8)

    async def scenario(served):
        wire = await served.connect()
        await wire.call("Heartbeat")
        (connection,) = served.server._server._others
        await until_async(lambda: not connection._turns.is_planned, "what has come is handled")
        assert connection._turns.is_heavy
        connection.data_received(ping)
        assert connection._turns.is_planned
        assert not connection._transport.is_reading()
        await until_async(connection._transport.is_reading, "its turn")
        await wire.call("Heartbeat")

    run(scenario)
