"""Ports of a broker beside one on the next port."""

import asyncio
import socket

import pytest

from interop.cluster import free_port
from rmqcore.broker import Broker
from rmqcore.remoting import PortTakenError

pytestmark = pytest.mark.engine
SMALL = {"mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 100, "maxIndexNum": 400}


async def started(path, port, **properties):
    broker = Broker(path, {**SMALL, "listenPort": port, **properties})
    await broker.start()
    return broker


def test_two_brokers_on_neighbouring_ports_both_serve_clients_and_slaves(tmp_path):
    async def scenario():
        port = free_port(beside=(-2, -3, 1))
        upper = await started(tmp_path / "upper", port)
        lower = await started(tmp_path / "lower", port - 1)
        try:
            assert lower.config.listen_port == port - 1
            slaves = {int(each.config.ha_address.rpartition(":")[2]) for each in (upper, lower)}
            assert port + 1 in slaves
            assert port not in slaves
            for each in slaves:
                socket.create_connection(("127.0.0.1", each), 10).close()
        finally:
            await lower.stop()
            await upper.stop()

    asyncio.run(scenario())


def test_the_port_behind_is_taken_again_once_it_is_free(tmp_path):
    async def scenario():
        port = free_port(beside=(-2, 1))
        with socket.create_server(("127.0.0.1", port + 1)):
            broker = await started(tmp_path / "store", port)
            await broker.stop()
        await broker.start()
        assert broker.config.ha_address == f"127.0.0.1:{port + 1}"
        await broker.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("named", [{"brokerRole": "SYNC_MASTER"}, {"haListenPort": None}])
def test_a_port_for_slaves_that_is_meant_and_taken_ends_the_start(tmp_path, named):
    async def scenario():
        port = free_port(beside=(-1, -3))
        with socket.create_server(("127.0.0.1", port)):
            properties = {name: value or port for name, value in named.items()}
            with pytest.raises(PortTakenError) as refused:
                await started(tmp_path / "store", port - 1, **properties)
            assert refused.value.address == f"127.0.0.1:{port}"
            assert "haListenPort" in refused.value.use
        # nothing of the start is left
        broker = await started(tmp_path / "store", 0)
        await broker.stop()

    asyncio.run(scenario())


def test_a_port_of_its_own_that_is_taken_is_said_before_the_store_is_opened(tmp_path):
    async def scenario():
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(PortTakenError) as refused:
                await started(tmp_path / "store", port)
            assert refused.value.address == f"127.0.0.1:{port}"
            assert "listenPort" in refused.value.use
        assert not (tmp_path / "store").exists()

    asyncio.run(scenario())
