"""Peers that come and go, or stay and say nothing; a loop that others run on as well."""

import asyncio
import gc
import logging
import os
import resource
import socket
import threading
import time
from contextlib import ExitStack, suppress
from itertools import groupby, pairwise
from pathlib import Path

import pytest
from ha.pair import (
    Clock,
    all_gone,
    following,
    frame,
    has_all,
    log_bytes,
    master_store,
    serving,
    slave_store,
)
from patience import until_async

from rmqcore.ha import HAClient
from rmqcore.ha.client import _RECEIVED_MAX
from rmqcore.ha.service import _CONNECTIONS_MAX
from rmqcore.ha.sockets import tune
from rmqcore.remoting.acceptor import ACCEPT_PAUSE_S, Acceptor

pytestmark = pytest.mark.engine


def sockets():
    """How many sockets the process has open; files come and go with the stores' own threads."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += str(descriptor.readlink()).startswith("socket:")
    return found


def reasons(caplog, level):
    """Why connections have ended, those that were told at a level or above."""
    told = [
        one.getMessage().partition("closed: ") for one in caplog.records if one.levelno >= level
    ]
    return [reason for _, closed, reason in told if closed]


async def in_step(master, slave, service):
    async with following(slave, service.port, master):
        await has_all(slave, master)
    await all_gone(service)


def test_a_slave_that_comes_and_goes_a_thousand_times_leaves_nothing(tmp_path):
    async def scenario(master, slave):
        async with serving(master) as service:
            before = None
            for number in range(1000):
                with socket.create_connection(("127.0.0.1", service.port)) as sock:
                    # each third is in step, each third asks for all, each third says nothing
                    if number % 3:
                        sock.sendall((master.max_phy_offset * (number % 3 - 1)).to_bytes(8))
                    await asyncio.sleep(0)
                if number == 20:
                    await all_gone(service)
                    gc.collect()
                    before = sockets(), len(asyncio.all_tasks())
            await all_gone(service)
            await until_async(
                lambda: (sockets(), len(asyncio.all_tasks())) == before, "nothing is left"
            )
            assert service.group_transfer.replicated_offset == -1
            await in_step(master, slave, service)

    with master_store(tmp_path / "m", 30) as master, slave_store(tmp_path / "s") as slave:
        asyncio.run(scenario(master, slave))
        assert log_bytes(slave) == log_bytes(master)


def test_slaves_that_go_for_the_same_reason_are_told_of_once(tmp_path, caplog):
    async def scenario(store):
        loop = asyncio.get_running_loop()
        async with serving(store) as service:
            for said in (None, store.max_phy_offset, 0):
                for _ in range(30):
                    with socket.create_connection(("127.0.0.1", service.port)) as sock:
                        sock.setblocking(False)
                        if said is not None:
                            sock.sendall(said.to_bytes(8))
                        if said == 0:
                            # what it has not read makes a reset of its end
                            assert await loop.sock_recv(sock, 8) == bytes(8)
                    await all_gone(service)

    with master_store(tmp_path / "m", 30) as store, caplog.at_level(logging.DEBUG):
        asyncio.run(scenario(store))
    assert len(reasons(caplog, logging.DEBUG)) == 90
    # a reset looks different from an end
    assert [reset for reset, _ in groupby(reasons(caplog, logging.DEBUG))] == reasons(
        caplog, logging.WARNING
    )
    assert len(reasons(caplog, logging.WARNING)) <= 20


def test_who_is_silent_shuts_out_no_slave(tmp_path, caplog):
    def taken():
        return sum("connected" in one.getMessage() for one in caplog.records)

    async def scenario(master, slave):
        async with serving(master) as service:
            with ExitStack() as stack:
                for _ in range(300):
                    stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
                    await asyncio.sleep(0)
                await until_async(
                    lambda: taken() == 300 and len(service.connections) == 128,
                    "those that are too many have gone",
                )
                async with following(slave, service.port, master):
                    await has_all(slave, master)
                    assert sum(one.ack_offset >= 0 for one in service.connections) == 1
            await all_gone(service)

    with (
        master_store(tmp_path / "m", 30) as master,
        slave_store(tmp_path / "s") as slave,
        caplog.at_level(logging.INFO, "rmqcore.ha.service"),
    ):
        asyncio.run(scenario(master, slave))
    assert sum("silent" in reason for reason in reasons(caplog, logging.WARNING)) == 1


def test_those_that_report_take_no_more_descriptors_than_there_are_for_slaves(tmp_path, caplog):
    def is_closed(sock):
        try:
            return not sock.recv(1 << 16)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    async def scenario(master):
        async with serving(master) as service:
            with ExitStack() as stack:
                opened = []
                for _ in range(_CONNECTIONS_MAX + 20):
                    sock = socket.create_connection(("127.0.0.1", service.port))
                    opened.append(stack.enter_context(sock))
                    sock.sendall(master.max_phy_offset.to_bytes(8))
                    await asyncio.sleep(0)
                    sock.setblocking(False)
                await until_async(
                    lambda: all(map(is_closed, opened[_CONNECTIONS_MAX:])),
                    "those that are too many have gone",
                )
                assert len(service.connections) == _CONNECTIONS_MAX
            await all_gone(service)

    with master_store(tmp_path / "m", 30) as master, caplog.at_level(logging.WARNING):
        asyncio.run(scenario(master))
    assert sum("are all that it has" in one.getMessage() for one in caplog.records) == 1


def test_who_takes_all_connections_keeps_out_no_slave_of_another_host(tmp_path):
    async def scenario(master, first, second):
        async with serving(master) as service:
            with ExitStack() as stack:
                async with following(first, service.port, master):
                    await has_all(first, master)
                    for _ in range(_CONNECTIONS_MAX + 20):
                        place = "127.0.0.1", service.port
                        sock = socket.create_connection(place, source_address=("127.0.0.2", 0))
                        stack.enter_context(sock).sendall(master.max_phy_offset.to_bytes(8))
                        await asyncio.sleep(0)
                    await until_async(
                        lambda: len(service.connections) == _CONNECTIONS_MAX, "there are no more"
                    )
                    kept = service.connections[0]
                    async with following(second, service.port, master):
                        await has_all(second, master)
                        assert kept is service.connections[0]
            await all_gone(service)

    with (
        master_store(tmp_path / "m", 30) as master,
        slave_store(tmp_path / "a") as first,
        slave_store(tmp_path / "b") as second,
    ):
        asyncio.run(scenario(master, first, second))


@pytest.mark.parametrize("reads", [False, True])
def test_who_reads_nothing_holds_no_deleted_file_by_saying_that_it_is_there(
    tmp_path, monkeypatch, reads
):
    clock = Clock(monkeypatch)

    def small(sock):
        tune(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)

    monkeypatch.setattr("rmqcore.ha.service.tune", small)
    monkeypatch.setattr("rmqcore.ha.sockets._PIECE", 1024)

    async def scenario(master):
        async with serving(master) as service:
            with socket.socket() as deaf:
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
                deaf.connect(("127.0.0.1", service.port))
                deaf.setblocking(False)
                deaf.sendall((1).to_bytes(8))
                await until_async(
                    lambda: service.connections and service.connections[0].next_offset > 1,
                    "the master sends",
                )
                (one,) = service.connections
                for _ in range(10):
                    wrote = one._last_write
                    deaf.sendall((1).to_bytes(8))
                    clock.now += 10
                    await until_async(
                        lambda: one._last_read == clock.now or not service.connections,
                        "the master has heard of it",
                    )
                    while reads and one._last_write == wrote:
                        with suppress(BlockingIOError):
                            deaf.recv(1024)
                        await asyncio.sleep(0)
                    for _ in range(3):
                        rounds = clock._rounds
                        await until_async(
                            lambda: clock._rounds > rounds or not service.connections,  # noqa: B023
                            "the master has looked at the clock",
                        )
                    if not service.connections:
                        break
                assert bool(service.connections) is reads
            await all_gone(service)

    with master_store(tmp_path / "m", 400) as master:
        asyncio.run(scenario(master))


def test_who_reads_slowly_is_not_taken_for_one_that_reads_nothing(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)

    async def looks(service):
        rounds = clock._rounds + 3
        await until_async(
            lambda: clock._rounds > rounds or not service.connections,
            "the master has looked at the clock",
        )

    async def scenario(master):
        async with serving(master) as service:
            with socket.create_connection(("127.0.0.1", service.port)) as slow:
                slow.setblocking(False)
                slow.sendall(bytes(8))
                await until_async(
                    lambda: service.connections and service.connections[0]._sends,
                    "the master waits for room",
                )
                (one,) = service.connections
                for _ in range(30):
                    clock.now += 10
                    slow.sendall(bytes(8))
                    await until_async(
                        lambda: one._last_read == clock.now or not service.connections,
                        "the master has heard of it",
                    )
                    left = 100_000
                    while left and service.connections:
                        with suppress(BlockingIOError):
                            left -= len(slow.recv(left))
                        await asyncio.sleep(0)
                    await looks(service)
                assert service.connections == [one]
            await all_gone(service)

    with master_store(tmp_path / "m", mapped_file_size_commit_log=32 << 20) as master:
        for _ in range(30):
            master.put("T", bytes(1 << 20))
        asyncio.run(scenario(master))


def without_descriptors(path, meanwhile):
    """A master that can accept nobody, while something is awaited, and can again."""

    async def scenario(master, slave):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        async with serving(master) as service:
            with socket.socket() as peer:
                # the stores' own threads are through with files that they open for a moment
                master.flush()
                slave.flush()
                taken = [os.dup(0)]
                resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0], limits[1]))
                try:
                    with suppress(OSError):
                        while True:
                            taken.append(os.dup(0))
                    peer.connect(("127.0.0.1", service.port))
                    await meanwhile(service)
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                    for descriptor in taken:
                        os.close(descriptor)
                await until_async(lambda: service.connections, "the connection is taken")
            await in_step(master, slave, service)

    with master_store(path / "m", 30) as master, slave_store(path / "s") as slave:
        asyncio.run(scenario(master, slave))


def test_without_descriptors_a_master_waits_and_goes_on(tmp_path, caplog, monkeypatch):
    tried, accept = [], Acceptor._accept

    def watched(acceptor):
        tried.append(time.monotonic())
        accept(acceptor)

    async def three_times(_):
        await until_async(lambda: len(tried) > 3, "it has tried again, and again")

    monkeypatch.setattr(Acceptor, "_accept", watched)
    with caplog.at_level(logging.WARNING):
        without_descriptors(tmp_path, three_times)
    # to the loop's clock a timer is due a little early
    assert all(after - before >= ACCEPT_PAUSE_S - 0.01 for before, after in pairwise(tried[:4]))
    assert sum("cannot accept" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.measure
def test_without_descriptors_a_master_works_little(tmp_path, figure):
    async def a_while(_):
        worked_s = time.process_time()
        await asyncio.sleep(0.7)
        figure("processor time", time.process_time() - worked_s, "s", at_most=0.3)

    without_descriptors(tmp_path, a_while)


def test_a_slave_that_catches_up_leaves_others_their_turn(tmp_path, monkeypatch):
    turns = []
    receive = HAClient._receive

    async def counting(*arguments):
        loop, going = asyncio.get_running_loop(), True

        def turn():
            turns.append(arguments[0]._log.appended_offset)
            if going:
                loop.call_soon(turn)

        # nothing else makes this loop turn: all is in the socket, or on its way
        turn()
        try:
            return await receive(*arguments)
        finally:
            going = False

    monkeypatch.setattr(HAClient, "_receive", counting)

    async def scenario(store, log):
        with socket.create_server(("127.0.0.1", 0)) as listening:

            def play():
                sock, _ = listening.accept()
                with sock:
                    sock.recv(8)
                    pieces = range(0, len(log), 4000)
                    sock.sendall(b"".join(frame(at, log[at : at + 4000]) for at in pieces))
                    while sock.recv(1 << 16):
                        pass

            thread = threading.Thread(target=play)
            thread.start()
            async with following(store, listening.getsockname()[1]):
                await until_async(
                    lambda: store.followed_log.appended_offset == len(log), "it has all of it"
                )
            thread.join()

    # takes five times at least, and none of the first four is the last
    size = 5 * _RECEIVED_MAX
    settings = {"mapped_file_size_commit_log": 2 * size}
    with master_store(tmp_path / "m", **settings) as master:
        while master.max_phy_offset < size:
            master.put("T", bytes(60_000))
        log = log_bytes(master)
    with slave_store(tmp_path / "s", **settings) as store:
        asyncio.run(scenario(store, log))
    assert len({offset for offset in turns if 0 < offset < len(log)}) >= 3
