"""Brokers and tools of Apache RocketMQ use our name server as their own."""

import asyncio
import json
import time

import pytest
from broker.serving import serving
from namesrv.brokers import CLUSTER as CLUSTER_OF_COMMAND
from namesrv.brokers import register_command
from patience import until

from interop.cluster import (
    CLUSTER,
    asker,
    java_broker,
    java_name_server,
    mqadmin,
    name_server,
)
from interop.peer import free_port, missing
from interop.writers import BOTH
from rmqcore.client.blocking import Consumer, Producer
from rmqcore.remoting import (
    ClientSettings,
    RemotingClient,
    RemotingCommand,
    RemotingError,
    RequestCode,
    ResponseCode,
)

#: name servers forget a broker that is silent for two minutes

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
]


def answers(ask):
    """Tell whether a server is there."""
    try:
        return ask(RequestCode.GET_BROKER_CLUSTER_INFO).code == ResponseCode.SUCCESS
    except RemotingError:
        return False


def route_of(ask, topic):
    """Broker name -> addresses, and broker name -> queues; None when there is no route."""
    answer = ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    route = json.loads(answer.body)
    addrs = {each["brokerName"]: each["brokerAddrs"] for each in route["brokerDatas"]}
    return addrs, {each["brokerName"]: each for each in route["queueDatas"]}


@pytest.mark.parametrize("release", BOTH)
def test_mqadmin_works_with_keys_and_settings(tmp_path, release):
    with name_server() as (address, ask):
        printed, errors = mqadmin(
            release,
            tmp_path / "admin",
            address,
            "updateKvConfig -s N -k kept -v käy;1",
            "updateKvConfig -s N -k gone -v 2",
            "deleteKvConfig -s N -k gone",
            "updateOrderConf -m put -t T -v b:4",
            "updateOrderConf -m get -t T",
            "updateNamesrvConfig -k orderMessageEnable -v true",
            "updateNamesrvConfig -k configStorePath -v /tmp/anything",
            "getNamesrvConfig",
            "clusterList",
            "topicList",
        )
        entries = ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"}).body
        assert json.loads(entries) == {"table": {"kept": "käy;1"}}
        assert "orderConf=[b:4]" in printed["updateOrderConf -m get -t T"]
        assert "orderMessageEnable" in printed["getNamesrvConfig"]
        assert "/tmp/anything" not in printed["getNamesrvConfig"]
        told = ask(RequestCode.GET_NAMESRV_CONFIG).body.decode()
        assert "orderMessageEnable=true" in told
        refused = errors + printed["updateNamesrvConfig -k configStorePath -v /tmp/anything"]
        assert "CODE: 16" in refused
        assert "nothing was changed: configStorePath has to be one of" in refused
        assert refused.count("CODE:") == 1
        assert "#Cluster Name" in printed["clusterList"]


@pytest.mark.parametrize("release", BOTH)
@pytest.mark.parametrize(("kind", "tls"), [(0, True), (1, False)], ids=["tls", "binary"])
def test_mqadmin_may_use_tls_and_binary_headers(tmp_path, release, kind, tls):
    kinds = set()
    options = ["-Dfile.encoding=UTF-8", f"-Dtls.enable={str(tls).lower()}"]
    options.append(f"-Drocketmq.serialize.type={['JSON', 'ROCKETMQ'][kind]}")
    with name_server(tls, lambda _, request: kinds.add(request.serialize_type)) as (address, ask):
        command = "updateKvConfig -s N -k käy -v ü1"
        printed, errors = mqadmin(release, tmp_path / "admin", address, command, options=options)
        assert "success" in printed[command], errors
        assert kinds == {kind}
        answer = ask(RequestCode.GET_KV_CONFIG, {"namespace": "N", "key": "käy"})
        assert answer.ext_fields == {"value": "ü1"}


@pytest.mark.parametrize("release", BOTH)
def test_our_client_registers_a_broker_with_rocketmqs_name_server(tmp_path, release):
    async def register(address, serialize_type, name):
        """Register, and hold the connection: the broker goes with it."""
        client = RemotingClient(settings=ClientSettings(serialize_type=serialize_type))
        assert (await client.invoke(address, register_command(name))).code == 0
        answer = await client.invoke(address, RemotingCommand(105, {"topic": "TopicA"}))
        route = json.loads(answer.body)
        unknown = await client.invoke(address, RemotingCommand(105, {"topic": "none"}))
        assert unknown.code == ResponseCode.TOPIC_NOT_EXIST
        await client.close()
        return route

    with java_name_server(release, tmp_path / "namesrv") as address:
        until(lambda: answers(asker(address)), "the name server answers")
        for serialize_type, name in enumerate(("broker-json", "broker-binary")):
            route = asyncio.run(register(address, serialize_type, name))
            (broker,), (queues,) = route["brokerDatas"], route["queueDatas"]
            assert (broker["brokerName"], broker["cluster"]) == (name, CLUSTER_OF_COMMAND)
            assert broker["brokerAddrs"] == {"0": "127.0.0.1:10911"}
            assert (queues["readQueueNums"], queues["writeQueueNums"]) == (4, 5)
            until(lambda: route_of(asker(address), "TopicA") is None, "the broker goes")


@pytest.mark.parametrize("release", BOTH)
def test_our_broker_serves_clients_of_rocketmqs_name_server(tmp_path, release):
    with java_name_server(release, tmp_path / "namesrv") as address:
        ask = asker(address)
        until(lambda: answers(ask), "the name server answers")
        # nobody listens at the second, which keeps the registration with the first up for no time:
        # the next one is half a minute later
        others = f"namesrvAddr={address};127.0.0.1:{free_port()}"
        with serving(tmp_path / "store", "-c", others) as (process, facts):
            began = time.monotonic()
            addrs, _ = until(lambda: route_of(ask, "TBW102"), "our broker has registered")
            assert time.monotonic() - began < 25
            assert addrs == {"broker-a": {"0": facts["broker"]}}
            with (
                Producer(address) as producer,
                Consumer(address, "CG", {"T": "*"}, start="first") as consumer,
            ):
                producer.send("T", b"through its route")
                message = consumer.receive(60)
                assert message is not None
                assert bytes(message.body) == b"through its route"
                consumer.ack(message)
            process.terminate()
            until(lambda: route_of(ask, "TBW102") is None, "our broker unregisters")


@pytest.mark.parametrize("release", BOTH)
def test_a_broker_registers_is_found_and_unregisters(tmp_path, release):
    with (
        name_server(order_message_enable=True) as (address, ask),
        java_broker(release, tmp_path / "broker", address, "broker-j") as (process, broker_addr),
    ):
        addrs, queues = until(lambda: route_of(ask, "TBW102"), "the broker registers")
        assert addrs == {"broker-j": {"0": broker_addr}}
        assert queues["broker-j"]["perm"] == 7
        # 4.9 fails at this before it has sampled its own figures once
        figures = asker(broker_addr)
        until(
            lambda: figures(RequestCode.GET_BROKER_RUNTIME_INFO).code == ResponseCode.SUCCESS,
            "the broker tells its figures",
        )
        printed, errors = mqadmin(
            release,
            tmp_path / "admin",
            address,
            "clusterList",
            "topicList -c",
            "topicRoute -t TBW102",
            f"updateTopic -t Ordered -c {CLUSTER} -r 3 -w 5 -o true",
            f"updateTopic -t Plain -c {CLUSTER} -r 2 -w 2",
            "topicRoute -t Ordered",
            "wipeWritePerm -b broker-j",
            f"deleteTopic -t Plain -c {CLUSTER}",
        )
        assert "Exception" not in errors
        assert broker_addr in printed["clusterList"]
        assert "TBW102" in printed["topicList -c"]
        assert broker_addr in printed["topicRoute -t TBW102"]
        assert '"orderTopicConf":"broker-j:5"' in printed["topicRoute -t Ordered"]
        assert "OK, " in printed["wipeWritePerm -b broker-j"]
        _, queues = route_of(ask, "Ordered")
        assert (queues["broker-j"]["readQueueNums"], queues["broker-j"]["writeQueueNums"]) == (3, 5)
        assert route_of(ask, "Plain") is None
        process.terminate()
        until(lambda: route_of(ask, "TBW102") is None, "the broker unregisters")


@pytest.mark.parametrize("release", BOTH)
def test_a_broker_registers_compressed_and_goes_with_its_connection(tmp_path, release):
    with (
        name_server() as (address, ask),
        java_broker(
            release, tmp_path / "broker", address, "broker-z", compressedRegister="true"
        ) as (process, broker_addr),
    ):
        addrs, queues = until(lambda: route_of(ask, "TBW102"), "the broker registers")
        assert addrs == {"broker-z": {"0": broker_addr}}
        assert queues["broker-z"]["readQueueNums"] == 8
        process.kill()
        until(lambda: route_of(ask, "TBW102") is None, "the connection is lost")
