"""A broker in this process that serves gRPC, and clients for it."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from broker.conftest import clock  # noqa: F401 - a fixture
from proxy.wire import Wire

from rmqcore.broker import Broker
from rmqcore.proxy import GrpcServer, LocalBroker, Service
from rmqcore.world import REAL

SMALL = {"mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 1000, "maxIndexNum": 4000}


class Served:
    """A broker and its port for gRPC."""

    def __init__(self, broker, service, server):
        self.broker, self.service, self.server = broker, service, server
        self.wires = []

    @property
    def port(self):
        return self.server.port

    async def connect(self, *args, port=None, **settings):
        wire = await Wire.connect(port or self.port, *args, **settings)
        self.wires.append(wire)
        return wire


@asynccontextmanager
async def serving(
    path, *, accounts=None, tls=None, settings=None, port=0, world=REAL, **properties
):
    """Serve a store over gRPC."""
    of_broker = {"listenPort": 0, **SMALL, **properties}
    broker = Broker(path, of_broker, accounts=accounts, tls=tls, world=world)
    cluster = LocalBroker(lambda: broker.local, lambda: broker.config.broker_name, world=world)
    service = Service(cluster, accounts, settings, world=world)
    broker.http2 = service.new_connection
    await broker.start()
    server = GrpcServer(service, "127.0.0.1", port, tls=tls)
    await server.start()
    served = Served(broker, service, server)
    try:
        yield served
    finally:
        for wire in served.wires:
            await wire.close()
        await server.stop()
        await broker.stop()


@pytest.fixture
def with_grpc(tmp_path):
    """Run a coroutine function with a served broker and a client."""

    def run(scenario, **settings):
        async def main():
            async with serving(tmp_path / "store", **settings) as served:
                await scenario(served, await served.connect())

        asyncio.run(main())

    return run
