"""Every request of brokers, clients and operators, over a connection, as RocketMQ answers it."""

import asyncio
import contextlib
import json

import pytest
from namesrv.brokers import (
    CLUSTER,
    JAVA_BODY,
    JAVA_COMPRESSED,
    Clock,
    plain_body,
    register_command,
)
from patience import TIMEOUT_S, until_async

from rmqcore.namesrv import NameServer, NamesrvConfig
from rmqcore.remoting import (
    ClientSettings,
    RemotingClient,
    RemotingCommand,
    RemotingServer,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
)
from rmqcore.world import REAL, World

pytestmark = pytest.mark.engine

PATIENCE_MS = 1000 * TIMEOUT_S
PATIENT = ClientSettings(connect_timeout_ms=PATIENCE_MS)
BROKER = {"clusterName": CLUSTER, "brokerName": "b", "brokerAddr": "127.0.0.1:10911"}


class Scene:
    """A name server and a client of it."""

    def __init__(self, server, client):
        self.server = server
        self.client = client
        self.address = f"127.0.0.1:{server.port}"

    async def send(self, command):
        return await self.client.invoke(self.address, command, PATIENCE_MS)

    async def ask(self, code, fields=None, body=b"", version=513):
        command = RemotingCommand(code, dict(fields or {}), body, version=version)
        return await self.send(command)

    async def body_of(self, code, fields=None, version=513):
        answer = await self.ask(code, fields, version=version)
        assert answer.code == ResponseCode.SUCCESS
        return answer.body.decode()

    async def register(self, *args, **fields):
        answer = await self.send(register_command(*args, **fields))
        assert answer.code == ResponseCode.SUCCESS
        return answer


@contextlib.asynccontextmanager
async def scene(clock=None, gate=None, **settings):
    world = World(monotonic_s=clock) if clock else REAL
    server = NameServer(port=0, config=NamesrvConfig(**settings), gate=gate, world=world)
    await server.start()
    client = RemotingClient(settings=PATIENT)
    try:
        yield Scene(server, client)
    finally:
        await client.close()
        await server.stop(1)


def run(coroutine):
    return asyncio.run(coroutine)


def test_a_route_is_written_as_java_writes_it_for_old_and_new_clients():
    async def play():
        async with scene() as at:
            await at.register("bröker")
            await at.register("bröker", 1)
            expected = (
                '{"brokerDatas":[{"brokerAddrs":{%s},"brokerName":"bröker","cluster":"C",'
                '"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":'
                '"bröker","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":5}]}'
            )
            bare = expected % '0:"127.0.0.1:10911",1:"127.0.0.1:10912"'
            quoted = expected % '"0":"127.0.0.1:10911","1":"127.0.0.1:10912"'
            code, fields = RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA"}
            assert await at.body_of(code, fields, version=400) == bare
            assert await at.body_of(code, fields, version=401) == quoted
            standard = fields | {"acceptStandardJsonOnly": "true"}
            assert await at.body_of(code, standard, version=0) == quoted

    run(play())


def test_a_topic_without_route_does_not_exist():
    async def play():
        async with scene() as at:
            answer = await at.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            assert answer.remark == (
                "No topic route info in name server for the topic: T\n"
                "See http://rocketmq.apache.org/docs/faq/ for further details."
            )

    run(play())


def test_routes_are_refused_for_a_while_where_that_is_configured():
    async def play():
        clock = Clock()
        async with scene(clock, need_wait_for_service=True, wait_for_service_s=5) as at:
            await at.register()
            fields = {"topic": "TopicA"}
            answer = await at.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
            assert (answer.code, answer.remark) == (1, "name server not ready")
            clock.now_s += 5
            assert (await at.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)).code == 0

    run(play())


def test_a_compressed_registration_is_taken():
    async def play():
        async with scene() as at:
            await at.register("b", 0, JAVA_COMPRESSED, compressed="true")
            await at.register("c", 1, JAVA_COMPRESSED, compressed="false")
            topics = json.loads(await at.body_of(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
            assert sorted(topics["topicList"]) == ["T2", "TopicA"]

    run(play())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bodyCrc32": "7"}, "crc32 not match"),
        ({"brokerName": ""}, "brokerName is empty"),
        ({"clusterName": " "}, "clusterName is empty"),
        ({"brokerId": "-1"}, "brokerId has to be 0 or more"),
        ({"brokerId": "one"}, "brokerId has to be a whole number"),
        ({"heartbeatTimeoutMillis": "0"}, "heartbeatTimeoutMillis has to be above 0"),
    ],
)
def test_a_registration_that_is_wrong_is_refused_with_words(changes, said):
    async def play():
        async with scene() as at:
            answer = await at.send(register_command(**changes))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert said in answer.remark

    run(play())


@pytest.mark.parametrize("field", ["clusterName", "brokerName", "brokerAddr", "haServerAddr"])
def test_a_registration_names_what_is_required(field):
    async def play():
        async with scene() as at:
            command = register_command()
            del command.ext_fields[field]
            answer = await at.send(command)
            assert answer.remark == f"the header field {field} is missing"

    run(play())


def test_a_single_topic_before_a_full_registration_is_refused_as_java_does():
    async def play():
        async with scene() as at:
            answer = await at.send(register_command(body=plain_body({"T": {}})))
            assert (answer.code, answer.remark) == (1, "register broker failed")

    run(play())


def test_a_slave_is_told_its_master_and_every_broker_the_order_configuration():
    async def play():
        async with scene() as at:
            answer = await at.register()
            assert (answer.ext_fields, answer.body) == ({}, b"")
            order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "b:4"}
            await at.ask(RequestCode.PUT_KV_CONFIG, order)
            answer = await at.register("b", 1)
            assert answer.ext_fields == {
                "haServerAddr": "127.0.0.1:20911",
                "masterAddr": "127.0.0.1:10911",
            }
            assert answer.body == b'{"table":{"T":"b:4"}}'
            body = b"returnOrderTopicConfigToBroker=false"
            await at.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
            assert (await at.register()).body == b""

    run(play())


def test_a_route_names_the_order_configuration_where_that_is_configured():
    async def play():
        async with scene(order_message_enable=True) as at:
            await at.register()
            fields = {"topic": "TopicA"}
            route = json.loads(await at.body_of(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields))
            assert "orderTopicConf" not in route
            order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicA", "value": "b:4"}
            await at.ask(RequestCode.PUT_KV_CONFIG, order)
            route = json.loads(await at.body_of(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields))
            assert route["orderTopicConf"] == "b:4"

    run(play())


def test_unregistering_takes_the_routes_away():
    async def play():
        async with scene() as at:
            await at.register()
            answer = await at.ask(RequestCode.UNREGISTER_BROKER, BROKER | {"brokerId": "0"})
            assert answer.code == 0
            empty = '{"brokerAddrTable":{},"clusterAddrTable":{}}'
            assert await at.body_of(RequestCode.GET_BROKER_CLUSTER_INFO) == empty

    run(play())


def test_a_broker_goes_when_its_connection_is_closed():
    async def play():
        async with scene() as at:
            broker = RemotingClient(settings=PATIENT)
            await broker.invoke(at.address, register_command(), PATIENCE_MS)
            assert at.server.routes.topics()
            await broker.close()
            await until_async(lambda: not at.server.routes.topics(), "the broker to be forgotten")

    run(play())


def count_calls(monkeypatch, where, name):
    """Let a method note its calls in a list, which is returned."""
    calls, method = [], getattr(where, name)

    def noted(*arguments):
        calls.append(arguments)
        return method(*arguments)

    monkeypatch.setattr(where, name, noted)
    return calls


def test_a_broker_that_is_silent_for_its_time_is_disconnected(monkeypatch):
    async def play():
        clock, lost = Clock(), []
        async with scene(clock, scan_not_active_broker_interval_ms=5) as at:
            broker = RemotingClient(
                settings=PATIENT, on_close=lambda address, _: lost.append(address)
            )
            register = register_command(heartbeatTimeoutMillis="1000")
            await broker.invoke(at.address, register, PATIENCE_MS)
            clock.now_s += 0.9
            beat = RemotingCommand(RequestCode.BROKER_HEARTBEAT, dict(BROKER, brokerId="0"))
            assert (await broker.invoke(at.address, beat, PATIENCE_MS)).code == 0
            clock.now_s += 0.9
            looks = count_calls(monkeypatch, at.server.routes, "expire")
            await until_async(lambda: len(looks) > 2, "two looks at who is silent")
            assert at.server.routes.topics()
            assert lost == []
            clock.now_s += 0.2
            await until_async(
                lambda: lost and not at.server.routes.topics(), "the broker's disconnection"
            )
            await broker.close()

    run(play())


def test_a_data_version_is_compared_and_told():
    async def play():
        async with scene() as at:
            code = RequestCode.QUERY_DATA_VERSION
            same = b'{"counter":7,"stateVersion":0,"timestamp":1700000000000}'
            answer = await at.ask(code, BROKER, same)
            assert (answer.ext_fields, answer.body) == ({"changed": "true"}, b"")
            await at.register()
            answer = await at.ask(code, BROKER, same)
            assert (answer.ext_fields, answer.body) == ({"changed": "false"}, same)
            answer = await at.ask(code, BROKER, b'{"counter":8,"timestamp":1700000000000}')
            assert (answer.ext_fields, answer.body) == ({"changed": "true"}, same)
            assert (await at.ask(code, BROKER, b"{")).code == ResponseCode.SYSTEM_ERROR

    run(play())


def test_groups_and_clusters_are_written_as_java_writes_them():
    async def play():
        async with scene() as at:
            group = RequestCode.GET_BROKER_MEMBER_GROUP
            assert await at.body_of(group, BROKER) == (
                '{"brokerMemberGroup":{"brokerAddrs":{},"brokerName":"b","cluster":"C"}}'
            )
            await at.register()
            await at.register("b", 1)
            ids = '{0:"127.0.0.1:10911",1:"127.0.0.1:10912"}'
            assert await at.body_of(group, BROKER) == (
                f'{{"brokerMemberGroup":{{"brokerAddrs":{ids},"brokerName":"b","cluster":"C"}}}}'
            )
            assert await at.body_of(RequestCode.GET_BROKER_CLUSTER_INFO) == (
                f'{{"brokerAddrTable":{{"b":{{"brokerAddrs":{ids},"brokerName":"b","cluster":"C",'
                '"enableActingMaster":false}},"clusterAddrTable":{"C":["b"]}}'
            )

    run(play())


def test_topics_are_listed():
    async def play():
        async with scene() as at:
            await at.register()
            queues = {"brokerName": "b", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
            for topic, flag in (("unit", 1), ("sub", 2)):
                body = json.dumps({"queueDatas": [queues | {"topicSysFlag": flag}]}).encode()
                code = RequestCode.REGISTER_TOPIC_IN_NAMESRV
                assert (await at.ask(code, {"topic": topic}, body)).code == 0
            expected = {
                RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: ["T2", "TopicA", "sub", "unit"],
                RequestCode.GET_TOPICS_BY_CLUSTER: ["T2", "TopicA", "sub", "unit"],
                RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: ["C", "b"],
                RequestCode.GET_UNIT_TOPIC_LIST: ["unit"],
                RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: ["sub"],
                RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: ["sub"],
            }
            for code, topics in expected.items():
                members = json.loads(await at.body_of(code, {"cluster": CLUSTER}))
                assert sorted(members.pop("topicList")) == topics
                system = code == RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS
                assert members == ({"brokerAddr": "127.0.0.1:10911"} if system else {})
            body = b"enableAllTopicList=false\nenableTopicList=false"
            assert (await at.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)).code == 0
            for code in expected:
                answer = await at.ask(code, {"cluster": CLUSTER})
                assert (answer.code, answer.remark) == (1, "disable")

    run(play())


def test_keys_are_put_told_listed_and_removed():
    async def play():
        async with scene() as at:
            key = {"namespace": "N", "key": "k"}
            missing = await at.ask(RequestCode.GET_KV_CONFIG, key)
            assert missing.code == ResponseCode.QUERY_NOT_FOUND
            assert missing.remark == "No config item, Namespace: N Key: k"
            missing = await at.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, key)
            assert missing.remark == "No config item, Namespace: N"
            assert (await at.ask(RequestCode.PUT_KV_CONFIG, key)).code == 1
            assert (await at.ask(RequestCode.PUT_KV_CONFIG, key | {"value": "v"})).code == 0
            assert (await at.ask(RequestCode.GET_KV_CONFIG, key)).ext_fields == {"value": "v"}
            assert await at.body_of(RequestCode.GET_KVLIST_BY_NAMESPACE, key) == (
                '{"table":{"k":"v"}}'
            )
            for _ in range(2):
                assert (await at.ask(RequestCode.DELETE_KV_CONFIG, key)).code == 0
            assert (await at.ask(RequestCode.GET_KV_CONFIG, key)).code == 22

    run(play())


def test_a_key_that_cannot_be_kept_is_refused_and_no_path_leaves(tmp_path, caplog):
    path = tmp_path / "kvConfig.json"

    async def play():
        async with scene(kv_config_path=str(path)) as at:
            path.with_name("kvConfig.json.tmp").mkdir()
            fields = {"namespace": "N", "key": "k", "value": "v"}
            answer = await at.ask(RequestCode.PUT_KV_CONFIG, fields)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert str(tmp_path) not in answer.remark
            shown = await at.body_of(RequestCode.GET_NAMESRV_CONFIG)
            assert str(tmp_path) not in shown

    run(play())
    assert str(path) in caplog.text


def test_write_permission_is_wiped_and_added():
    async def play():
        async with scene() as at:
            await at.register()
            answer = await at.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, BROKER)
            assert answer.ext_fields == {"wipeTopicCount": "2"}
            topic = {"topic": "T2"}
            assert '"perm":4' in await at.body_of(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic)
            answer = await at.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, BROKER)
            assert answer.ext_fields == {"addTopicCount": "2"}
            assert '"perm":6' in await at.body_of(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic)

    run(play())


def test_a_topic_is_deleted_in_its_cluster_or_everywhere():
    async def play():
        async with scene() as at:
            await at.register()
            code, all_topics = RequestCode.DELETE_TOPIC_IN_NAMESRV, at.server.routes.topics
            assert (await at.ask(code, {"topic": "T2", "clusterName": "D"})).code == 0
            assert sorted(all_topics()) == ["T2", "TopicA"]
            assert (await at.ask(code, {"topic": "T2", "clusterName": CLUSTER})).code == 0
            assert (await at.ask(code, {"topic": "TopicA"})).code == 0
            assert all_topics() == []

    run(play())


@pytest.mark.parametrize(
    "text",
    [
        b"configStorePath=/etc/passwd",
        b"kvConfigPath=/etc/passwd\norderMessageEnable=true",
        b"rocketmqHome=/tmp",
        b"listenPort=1",
        b"orderMessageEnable=perhaps",
        b"orderMessageEnable=\\u12",
        b"orderMessageEnable=true\n" * 5000,
        b"\xff=1",
    ],
)
def test_only_what_is_allowed_is_changed_by_a_request_and_nothing_else_with_it(text):
    async def play():
        async with scene() as at:
            before = await at.body_of(RequestCode.GET_NAMESRV_CONFIG)
            answer = await at.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=text)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert answer.remark.startswith("nothing was changed: ")
            assert await at.body_of(RequestCode.GET_NAMESRV_CONFIG) == before

    run(play())


def test_a_setting_that_is_allowed_is_changed():
    async def play():
        async with scene() as at:
            body = b"orderMessageEnable=true\n"
            assert (await at.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)).code == 0
            assert "orderMessageEnable=true" in await at.body_of(RequestCode.GET_NAMESRV_CONFIG)
            assert at.server.config.order_message_enable

    run(play())


def test_brokers_of_a_group_are_told_of_their_lowest_id():
    async def play():
        told = asyncio.Queue()
        slave = RemotingServer()
        slave.register(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, lambda _, r: told.put_nowait(r))
        await slave.start()
        async with scene(notify_min_broker_id_changed=True) as at:
            await at.register()
            address = f"127.0.0.1:{slave.port}"
            await at.register("b", 1, JAVA_BODY, brokerAddr=address, enableActingMaster="true")
            await at.ask(RequestCode.UNREGISTER_BROKER, BROKER | {"brokerId": "0"})
            request = await asyncio.wait_for(told.get(), TIMEOUT_S)
            assert request.is_oneway
            assert request.ext_fields == {
                "minBrokerId": "1",
                "brokerName": "b",
                "minBrokerAddr": address,
                "offlineBrokerAddr": "127.0.0.1:10911",
                "haBrokerAddr": "127.0.0.1:20912",
            }
        await slave.stop()

    run(play())


def test_what_a_name_server_does_not_serve_is_not_supported():
    async def play():
        async with scene() as at:
            for code in set(RequestCode) - set(at.server._server.processors):
                answer = await at.ask(code)
                assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    run(play())


def test_a_gate_guards_every_request():
    def closed(connection, request):
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, "sign your requests")

    async def play():
        async with scene(gate=closed) as at:
            for code in RequestCode:
                assert (await at.ask(code)).code == ResponseCode.NO_PERMISSION

    run(play())


def test_every_request_survives_a_header_and_body_of_nothing_and_of_nonsense():
    async def play():
        async with scene() as at:
            await at.register()
            nonsense = dict.fromkeys(("topic", "brokerName", "cluster", "brokerId", "key"), "%")
            for code in at.server._server.processors:
                for fields, body in (({}, b""), (nonsense, b"\0\xff{"), (BROKER, b"[]")):
                    answer = await at.ask(code, fields, body)
                    assert "failed; the log" not in (answer.remark or "")

    run(play())
