"""The bytes on the wire are RocketMQ's: what was captured between a master and a slave of 4.9.8."""

import asyncio
import socket
from itertools import pairwise

import pytest
from ha.pair import (
    Clock,
    all_gone,
    derived,
    fill,
    following,
    frame,
    has_all,
    log_bytes,
    master_store,
    peer_master,
    serving,
    slave_store,
)
from patience import until_async

from rmqcore.ha.frames import FRAME_SIZE_MAX, FrameReader, HAError, ReportReader
from rmqcore.ha.sockets import send_all

pytestmark = pytest.mark.engine


def exactly(store, size):
    """Put one message into an empty store so that its log has so many bytes."""
    store.put("T", b"x" * (size - 92))
    assert store.max_phy_offset == size


def test_a_master_sends_what_was_captured(tmp_path, monkeypatch):
    """S>M 0; M>S heart-beat 0; M>S 0x2500 bytes; S>M 0x2500; heart-beat; S>M; M>S 0x718 bytes."""
    clock = Clock(monkeypatch)

    async def scenario(store):
        async with serving(store, ha_send_heartbeat_interval=200) as service:
            reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
            # a master is silent before the first report, however long that takes
            await until_async(lambda: service.connections, "the master has taken the connection")
            await clock.go_on(30, service)
            writer.write(bytes.fromhex("0000000000000000"))
            body = log_bytes(store)
            heard = await reader.readexactly(12 + 12 + 0x2500)
            assert heard[:12].hex() == "000000000000000000000000"
            assert heard[12:24].hex() == "000000000000000000002500"
            assert heard[24:] == body
            writer.write(bytes.fromhex("0000000000002500"))
            await clock.go_on(0.3, service)
            assert (await reader.readexactly(12)).hex() == "000000000000250000000000"
            writer.write(bytes.fromhex("0000000000002500"))
            store.put("T", b"y" * (0x718 - 92))
            heard = await reader.readexactly(12 + 0x718)
            assert heard[:12].hex() == "000000000000250000000718"
            assert heard[12:] == log_bytes(store, 0x2500)
            writer.write(bytes.fromhex("0000000000002c18"))
            slave = service.connections[0]
            await until_async(lambda: slave.ack_offset == 0x2C18, "the slave has it all")
            assert (slave.request_offset, slave.next_offset) == (0, 0x2C18)
            writer.close()
            await all_gone(service)

    with master_store(tmp_path / "m") as store:
        exactly(store, 0x2500)
        asyncio.run(scenario(store))


def test_a_slave_says_what_was_captured(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    with master_store(tmp_path / "m") as master:
        exactly(master, 0x2500)
        body = log_bytes(master)
    heard = []

    async def play(reader, writer):
        heard.append((await reader.readexactly(8)).hex())
        writer.write(frame(0))
        writer.write(frame(0, body))
        heard.append((await reader.readexactly(8)).hex())
        writer.write(frame(0x2500))
        # with nothing to tell it says so again
        clock.now += 0.1
        heard.append((await reader.readexactly(8)).hex())

    async def scenario(store):
        async with (
            peer_master(play) as port,
            following(store, port, ha_send_heartbeat_interval=100),
        ):
            await until_async(lambda: len(heard) == 3, "the slave has reported three times")
        assert log_bytes(store) == body

    with slave_store(tmp_path / "s") as store:
        asyncio.run(scenario(store))
    assert heard == ["0000000000000000", "0000000000002500", "0000000000002500"]


def test_no_frame_crosses_a_log_file_or_is_larger_than_asked_for(tmp_path):
    async def scenario(store):
        settings = {"ha_transfer_batch_size": 1000, "ha_send_heartbeat_interval": 60_000}
        async with serving(store, **settings) as service:
            reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
            writer.write(bytes(8))
            at = 0
            while at < store.max_phy_offset:
                head = await reader.readexactly(12)
                offset, size = int.from_bytes(head[:8]), int.from_bytes(head[8:])
                assert (offset, 0 < size <= 1000) == (at, True)
                assert offset // (16 << 10) == (offset + size - 1) // (16 << 10)
                assert await reader.readexactly(size) == log_bytes(store)[at : at + size]
                at += size
            writer.close()

    with master_store(tmp_path / "m", 300) as store:
        asyncio.run(scenario(store))


@pytest.mark.parametrize("batch", [7, 500, 32 << 10])
def test_both_have_the_same_bytes_and_derive_the_same(tmp_path, batch):
    async def scenario(master, slave):
        async with (
            serving(master, ha_transfer_batch_size=batch) as service,
            following(slave, service.port, master),
        ):
            await has_all(slave, master)
            fill(master, 200, seed=2)
            await has_all(slave, master)
            await until_async(
                lambda: service.connections[0].ack_offset == master.max_phy_offset,
                "the slave has reported it",
            )

    with master_store(tmp_path / "m", 200) as master:
        with slave_store(tmp_path / "s") as slave:
            asyncio.run(scenario(master, slave))
            assert log_bytes(slave) == log_bytes(master)
            assert derived(slave) == derived(master)
            assert len(master.log.queue.files) > 3
        with slave_store(tmp_path / "s") as slave:
            assert slave.recovery_report.clean_shutdown
            assert log_bytes(slave) == log_bytes(master)
            assert derived(slave) == derived(master)


def test_reports_are_eight_bytes_however_they_arrive():
    stream = b"".join(offset.to_bytes(8) for offset in (0, 5, 1 << 40, 7))
    for cuts in ([0, 32], [0, 3, 8, 9, 31, 32], list(range(33))):
        reports, latest = ReportReader(), None
        for begin, end in pairwise(cuts):
            reports.free[: end - begin] = stream[begin:end]
            offset = reports.received(end - begin)
            assert offset is None or offset == int.from_bytes(stream[end - end % 8 - 8 :][:8])
            latest = latest if offset is None else offset
        assert latest == 7


def test_what_is_no_report_is_refused():
    for said in (b"GET / HT", (-1).to_bytes(8, signed=True), b"\x16\x03\x01\x02\x00\x01\x00\x01"):
        reports = ReportReader()
        reports.free[:8] = said
        with pytest.raises(HAError, match="no slave"):
            reports.received(8)


def test_frames_of_any_size_pass_through_the_buffer():
    reader, at = FrameReader(), 0
    bodies = [
        bytes([number % 251]) * size
        for number, size in enumerate(
            [0, 1, 3 << 20, 9, 0, 2 << 20, 4 << 10, FRAME_SIZE_MAX - 12, 5]
        )
    ]
    stream, offset = b"", 0
    for body in bodies:
        stream += frame(offset, body)
        offset += len(body)
    got, expected = [], 0
    while at < len(stream):
        free = reader.free
        assert len(free)
        piece = stream[at : at + min(len(free), 700_001)]
        free[: len(piece)] = piece
        at += len(piece)
        for begin, body in reader.received(len(piece), expected):
            assert begin == expected
            got.append(bytes(body))
            expected += len(body)
    assert got == bodies


def test_what_is_torn_at_any_byte_is_the_whole_frames_before():
    parts = [(0, b""), (0, b"abc"), (3, b""), (3, bytes(40)), (43, b"z")]
    stream = b"".join(frame(*part) for part in parts)
    ends = [sum(12 + len(body) for _, body in parts[: number + 1]) for number in range(len(parts))]
    for cut in range(len(stream) + 1):
        reader = FrameReader()
        reader.free[:cut] = stream[:cut]
        got = [(offset, bytes(body)) for offset, body in reader.received(cut, 0)]
        assert got == parts[: sum(end <= cut for end in ends)]
        rest = len(stream) - cut
        reader.free[:rest] = stream[cut:]
        expected = got[-1][0] + len(got[-1][1]) if got else 0
        got += [(offset, bytes(body)) for offset, body in reader.received(rest, expected)]
        assert got == parts


def test_what_a_full_socket_has_not_taken_follows_in_order():
    ours, theirs = socket.socketpair()
    buffers = [b"%011d|" % number + bytes([number % 251]) * 3000 for number in range(400)]

    async def scenario():
        loop = asyncio.get_running_loop()
        sending = loop.create_task(send_all(ours, [*buffers, b""]))
        came = bytearray()
        await asyncio.sleep(0)
        while len(came) < sum(map(len, buffers)):
            came += await loop.sock_recv(theirs, 5000)
        await sending
        return came

    with ours, theirs:
        for sock in (ours, theirs):
            sock.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        assert asyncio.run(scenario()) == b"".join(buffers)
