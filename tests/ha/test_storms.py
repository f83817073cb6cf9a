"""Peers that come and go, or stay and say nothing; a loop that others run on as well."""

import asyncio
import logging
import os
import resource
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from ha.pair import (
    following,
    frame,
    log_bytes,
    master_store,
    serving,
    slave_store,
    until,
)

from rmqcore.ha import HAClient

pytestmark = pytest.mark.engine


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


async def in_step(master, slave, service):
    async with following(slave, service.port, master):
        await until(lambda: slave.appended_offset == master.max_phy_offset)
    await until(lambda: not service.connections)


def test_a_slave_that_comes_and_goes_a_thousand_times_leaves_nothing(tmp_path, caplog):
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
                    await until(lambda: not service.connections)
                    before = descriptors(), len(asyncio.all_tasks())
            await until(lambda: not service.connections)
            assert (descriptors(), len(asyncio.all_tasks())) == before
            assert service.waits.replicated_offset == -1
            await in_step(master, slave, service)

    with (
        master_store(tmp_path / "m", 30) as master,
        slave_store(tmp_path / "s") as slave,
        caplog.at_level(logging.WARNING),
    ):
        asyncio.run(scenario(master, slave))
        assert log_bytes(slave) == log_bytes(master)
    told = [record.getMessage().partition("closed: ")[2] for record in caplog.records]
    # a reset looks different from an end
    assert len(told) <= 20, told


def test_who_is_silent_shuts_out_no_slave(tmp_path, caplog):
    async def scenario(master, slave):
        async with serving(master) as service:
            with ExitStack() as stack:
                for _ in range(300):
                    stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
                    await asyncio.sleep(0)
                await until(lambda: len(service.connections) == 128)
                async with following(slave, service.port, master):
                    await until(lambda: slave.appended_offset == master.max_phy_offset)
                    assert sum(one.ack_offset >= 0 for one in service.connections) == 1
            await until(lambda: not service.connections)

    with (
        master_store(tmp_path / "m", 30) as master,
        slave_store(tmp_path / "s") as slave,
        caplog.at_level(logging.WARNING),
    ):
        asyncio.run(scenario(master, slave))
    assert sum("silent" in record.getMessage() for record in caplog.records) == 1


def test_without_descriptors_a_master_waits_and_goes_on(tmp_path, caplog):
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
                    worked_s = time.process_time()
                    await asyncio.sleep(0.7)
                    worked_s = time.process_time() - worked_s
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                    for descriptor in taken:
                        os.close(descriptor)
                assert worked_s < 0.3
                await until(lambda: service.connections)
            await in_step(master, slave, service)

    with (
        master_store(tmp_path / "m", 30) as master,
        slave_store(tmp_path / "s") as slave,
        caplog.at_level(logging.WARNING),
    ):
        asyncio.run(scenario(master, slave))
    assert sum("cannot accept" in record.getMessage() for record in caplog.records) == 1


def test_a_slave_that_catches_up_leaves_others_their_turn(tmp_path, monkeypatch):
    turns = []
    receive = HAClient._receive

    async def counting(*arguments):
        loop, going = asyncio.get_running_loop(), True

        def turn():
            turns.append(arguments[0]._store.appended_offset)
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
                    pieces = range(0, len(log), 200)
                    sock.sendall(b"".join(frame(at, log[at : at + 200]) for at in pieces))
                    while sock.recv(1 << 16):
                        pass

            thread = threading.Thread(target=play)
            thread.start()
            async with following(store, listening.getsockname()[1]):
                await until(lambda: store.appended_offset == len(log))
            thread.join()

    size = 4 << 20
    settings = {"mapped_file_size_commit_log": 2 * size}
    with master_store(tmp_path / "m", **settings) as master:
        while master.max_phy_offset < size:
            master.put("T", bytes(60_000))
        log = log_bytes(master)
    with slave_store(tmp_path / "s", **settings) as store:
        asyncio.run(scenario(store, log))
    assert len({offset for offset in turns if 0 < offset < len(log)}) >= 3
