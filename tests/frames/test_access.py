"""Who reads a cluster is known by signature and TLS, and its secret is in no text."""

import asyncio
import json
import pickle
import ssl
from pathlib import Path

import pytest
from frames.test_cluster import Stream, batch

from rmqcore.broker import Broker
from rmqcore.client import AclSigner, Admin, Producer
from rmqcore.errors import ConfigError
from rmqcore.namesrv import NameServer
from rmqcore.remoting import (
    Account,
    Permission,
    RemotingClosedError,
    RemotingConnectError,
    RequestRefusedError,
    Tls,
    TlsMode,
)
from rmqcore.testing import SMALL_FILES, RunningBroker

pytestmark = pytest.mark.engine

PEM = Path(__file__).parents[1] / "remoting" / "localhost.pem"
SECRET = "a-secret-of-lake"


@pytest.fixture
def guarded(tmp_path):
    """`guarded(work)`: what ``work(broker)`` returns beside a cluster with an account and TLS."""
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(PEM)
    trust = ssl.create_default_context(cafile=PEM)
    tls = Tls(TlsMode.ENFORCING, served, trust)
    both = Permission.PUB | Permission.SUB
    lake = Account("lake", SECRET, admin=True, default_topic=both, groups={"Lake": both})

    async def scenario(work):
        namesrv = NameServer("127.0.0.1", 0, tls=tls)
        await namesrv.start()
        address = f"127.0.0.1:{namesrv.port}"
        broker = Broker(
            tmp_path / "store",
            {"namesrvAddr": address, "listenPort": 0, **SMALL_FILES},
            accounts={"lake": lake},
            tls=tls,
        )
        await broker.start()
        try:
            acl = AclSigner("lake", SECRET)
            async with Admin(address, acl=acl, tls=trust) as admin:
                await admin.create_topic("T", queues=1)
            async with Producer(address, acl=acl, tls=trust) as producer:
                await producer.send_batch("T", [b"one", b"two"])
            there = RunningBroker(address, broker.address, tmp_path)
            return await asyncio.to_thread(work, there)
        finally:
            await broker.stop()
            await namesrv.stop()

    return lambda work: asyncio.run(scenario(work))


def options(**others):
    found = {"subscribe": "T", "startingOffsets": "earliest", "groupId": "Lake"}
    found |= {"accessKey": "lake", "secretKey": SECRET}
    return found | {"tls": "true", "tlsTrustCertPath": str(PEM)} | others


def test_a_stream_with_an_account_reads_and_its_checkpoint_tells_nothing(guarded):
    def work(broker):
        stream = Stream(broker, **options())
        parts = stream.reader.partitions(stream.at, stream.reader.latestOffset(stream.at, None))
        rows = stream.trigger()
        stream.reader.commit(stream.at)
        again = pickle.loads(pickle.dumps(stream.reader))
        assert again.options.access.secret_key == SECRET
        texts = (json.dumps(stream.at), repr(parts), repr(again.options), str(again.options.access))
        return [row["body"] for row in rows], texts

    bodies, texts = guarded(work)
    assert bodies == [b"one", b"two"]
    assert not [text for text in texts if SECRET in text]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"secretKey": "another-secret"}, RequestRefusedError),
        ({"tls": "false"}, RemotingClosedError),
        ({"tlsTrustCertPath": ""}, RemotingConnectError),
    ],
)
def test_who_is_not_let_in_hears_why_without_the_secret(guarded, wrong, error):
    given = {name: text for name, text in options(**wrong).items() if text}

    def work(broker):
        with pytest.raises(error) as caught:
            batch(broker, **given)
        return str(caught.value)

    text = guarded(work)
    assert given["secretKey"] not in text


@pytest.mark.parametrize("missing", ["accessKey", "secretKey"])
def test_half_of_the_keys_is_refused_without_the_other(missing):
    given = {name: text for name, text in options().items() if name != missing}
    with pytest.raises(ConfigError, match="belong together") as caught:
        batch(RunningBroker("127.0.0.1:1", "", Path()), **given)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingPhyOffset": "1"}, "startingOffsets"),
        ({"path": "/data/store"}, "not both"),
        ({"maxBytesPerTrigger": "1m"}, "maxOffsetsPerTrigger"),
        ({"groupID": "no group!"}, "groupId"),
        ({"subscibe": "T"}, "did you mean subscribe"),
        ({"startingOffsets": '{"T": {"0": "x"}}'}, "broker-a"),
        ({"topics": "T", "assign": '{"T": [0]}'}, "not both"),
        ({"namesrvAddr": "here"}, "host:port"),
        ({"path": "namesrv://here/T"}, "host:port"),
        ({"path": "namesrv://127.0.0.1:1/T"}, "says it"),
    ],
)
def test_a_wrong_option_is_refused_with_the_right_one(given, said):
    with pytest.raises(ConfigError, match=said):
        batch(RunningBroker("127.0.0.1:1", "", Path()), **given)
