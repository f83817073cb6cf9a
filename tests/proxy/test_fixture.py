"""The broker of the pytest plugin is served over gRPC, too."""

import asyncio

import pytest
from proxy.wire import Wire

from rmqcore.proxy.codes import Code
from rmqcore.testing import running_broker

pytestmark = pytest.mark.engine


def test_a_broker_for_tests_has_a_port_for_grpc(tmp_path):
    async def scenario(port):
        wire = await Wire.connect(port)
        assert (await wire.send("T", b"body")).status.code == Code.OK
        assert len((await wire.receive("T", f"G{port}"))[1]) >= 1
        await wire.close()

    with running_broker(tmp_path / "store") as broker:
        for address in (broker.grpc_addr, broker.broker_addr):
            asyncio.run(scenario(int(address.rpartition(":")[2])))
