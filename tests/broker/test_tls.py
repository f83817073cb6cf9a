"""A broker and a name server that speak TLS only, as a `tls.properties` says."""

import asyncio
import ssl
from pathlib import Path

import pytest
from patience import TIMEOUT_S

from rmqcore.broker import Broker
from rmqcore.client import Consumer, Producer
from rmqcore.namesrv import NameServer
from rmqcore.remoting import RemotingClient, RemotingCommand, RemotingError, RequestCode, load_tls

pytestmark = pytest.mark.engine

PEM = Path(__file__).parents[1] / "remoting" / "localhost.pem"


def test_messages_travel_encrypted_and_in_no_other_way(tmp_path):
    path = tmp_path / "tls.properties"
    path.write_text(
        f"tls.server.mode=enforcing\ntls.server.certPath={PEM}\ntls.enable=true\n"
        f"tls.client.authServer=true\ntls.client.trustCertPath={PEM}\n",
        "utf-8",
    )
    trust = ssl.create_default_context(cafile=PEM)

    async def scenario():
        names = NameServer("127.0.0.1", 0, tls=load_tls(path))
        await names.start()
        address = f"127.0.0.1:{names.port}"
        settings = {"namesrvAddr": address, "brokerIP1": "127.0.0.1", "listenPort": 0}
        settings |= {"mappedFileSizeCommitLog": 1 << 20, "maxMessageSize": 1 << 16}
        broker = Broker(tmp_path / "store", settings, tls=load_tls(path))
        await broker.start()
        plain = RemotingClient()
        try:
            async with Producer(address, group="P", tls=trust) as producer:
                await producer.send("T", b"secret")
            async with Consumer(address, "C", {"T": "*"}, start="first", tls=trust) as consumer:
                message = await asyncio.wait_for(anext(consumer), TIMEOUT_S)
                await consumer.ack(message)
            assert message.body == b"secret"
            for refuses in (address, broker.address):
                ask = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
                with pytest.raises(RemotingError):
                    await plain.invoke(refuses, ask, TIMEOUT_S * 1000)
        finally:
            await plain.close()
            await broker.stop()
            await names.stop()

    asyncio.run(scenario())
