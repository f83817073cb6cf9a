"""Our proxy for gRPC in front of RocketMQ's own brokers, of 5 under RocketMQ's Python client."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time

import pytest
from patience import TIMEOUT_S as SOON_S
from patience import until
from proxy.wire import Wire

from interop.cluster import asker, java_broker, name_server
from interop.peer import missing
from interop.test_grpc_clients import HERE, check_python, python_client, toured  # noqa: F401
from interop.test_name_server import route_of
from rmqcore.proxy.codes import Code
from rmqcore.proxy.messages import MessageType
from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
]


@contextlib.contextmanager
def proxy(namesrv):
    """`rmqcore proxy` on a free port; yields its address."""
    command = [sys.executable, "-m", "rmqcore", "proxy", "--namesrv", namesrv, "--port", "0"]
    process = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE)
    try:
        yield json.loads(process.stdout.readline())["grpc"]
    finally:
        process.terminate()
        process.communicate(timeout=SOON_S)


def test_the_python_client_at_a_broker_of_5(python_client, tmp_path):  # noqa: F811
    settings = {
        "recallMessageEnable": "true",
        "transactionTimeOut": 2000,
        "transactionCheckInterval": 3000,
        # it notes decisions in batches, and asks for what is not noted within the time
        "transactionOpBatchInterval": 100,
    }
    with (
        name_server() as (namesrv, ask),
        java_broker("5.5.0", tmp_path / "java", namesrv, "broker-a", **settings),
        proxy(namesrv) as address,
    ):
        until(lambda: route_of(ask, "TBW102"), "the broker registers")
        check_python(toured([python_client, HERE / "tour.py", address, "A"], HOME=str(tmp_path)))


def test_a_broker_of_4_is_sent_to_and_pulled_from(tmp_path):
    async def pulled(wire, topic):
        found = []
        for number in range(4):
            where = {"topic": {"name": topic}, "id": number, "broker": {"name": "broker-a"}}
            answers = await wire.calls(
                "PullMessage", group={"name": "G"}, message_queue=where, batch_size=32
            )
            found += [each.message.body for each in answers if each.HasField("message")]
        return found

    async def scenario(address):
        wire = await Wire.connect(int(address.rpartition(":")[2]))
        assert (await wire.send("Plain", b"plain")).status.code == Code.OK
        for number in range(3):
            system = {"message_group": "g", "message_type": MessageType.FIFO}
            assert (await wire.send("Fifo", b"%d" % number, **system)).status.code == Code.OK
        for body, resolution in ((b"kept", 1), (b"dropped", 2)):
            half = await wire.send("Half", body, message_type=MessageType.TRANSACTION)
            ended = {"message_id": half.message_id, "transaction_id": half.transaction_id}
            topic = {"name": "Half"}
            answer = await wire.call("EndTransaction", topic=topic, resolution=resolution, **ended)
            assert answer.status.code == Code.OK
        due = {"delivery_timestamp": {"seconds": int(time.time()) + 60}}
        later = await wire.send("Later", b"later", message_type=MessageType.DELAY, **due)
        assert later.status.code == Code.VERSION_UNSUPPORTED
        assert (await wire.receive("Plain"))[0].code == Code.NOT_IMPLEMENTED
        assert await pulled(wire, "Plain") == [b"plain"]
        assert await pulled(wire, "Fifo") == [b"0", b"1", b"2"]
        assert await pulled(wire, "Half") == [b"kept"]
        await wire.close()

    with (
        name_server() as (namesrv, ask),
        java_broker("4.9.7", tmp_path / "java", namesrv, "broker-a"),
        proxy(namesrv) as address,
    ):
        until(lambda: route_of(ask, "TBW102"), "the broker registers")
        asyncio.run(scenario(address))


def test_an_ordered_group_at_a_broker_of_5_counts_tries_and_has_dead_letters(tmp_path):
    async def scenario(address):
        wire = await Wire.connect(int(address.rpartition(":")[2]))

        async def one():
            until_s = time.monotonic() + SOON_S
            while time.monotonic() < until_s:
                _, found = await wire.receive("Fifo", "O", wait_s=5, count=1, invisible_s=10)
                if found:
                    return found[0].body, found[0].system_properties.delivery_attempt
            return None

        for number in range(2):
            system = {"message_group": "g", "message_type": MessageType.FIFO}
            assert (await wire.send("Fifo", b"%d" % number, **system)).status.code == Code.OK
        assert [await one(), await one(), await one()] == [(b"0", 1), (b"0", 2), (b"1", 1)]
        await wire.close()

    with (
        name_server() as (namesrv, ask),
        java_broker("5.5.0", tmp_path / "java", namesrv, "broker-a") as (_, broker),
        proxy(namesrv) as address,
    ):
        until(lambda: route_of(ask, "TBW102"), "the broker registers")
        group = {"groupName": "O", "consumeMessageOrderly": True, "retryMaxTimes": 1}
        group |= {"consumeEnable": True, "retryQueueNums": 1}
        of_broker = asker(broker)
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert of_broker(code, {}, json.dumps(group).encode()).code == ResponseCode.SUCCESS
        asyncio.run(scenario(address))
        dead = of_broker(RequestCode.GET_MAX_OFFSET, {"topic": "%DLQ%O", "queueId": "0"})
        assert dead.ext_fields["offset"] == "1"
