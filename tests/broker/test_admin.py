"""What an administrator asks and changes, over the wire."""

import asyncio
import json
import re

import pytest
from broker.conftest import LONG_MS, Peer, held, records
from broker.test_pop import handed_out, pop, send_many

from rmqcore.broker.state import topics
from rmqcore.broker.state.pop_scan import QueueScan
from rmqcore.config import StoreConfig, parse_broker_conf
from rmqcore.errors import DiskFullError
from rmqcore.files.config_file import ConfigFile
from rmqcore.files.config_tables import TopicConfig
from rmqcore.java.json import parse_java_json
from rmqcore.remoting import RequestCode, ResponseCode, success

pytestmark = pytest.mark.engine

#: what a monitor reads as numbers from RocketMQ's broker 5.5, and fails at when it is missing
RUNTIME_NUMBERS = {
    *(f"{p}ThreadPoolQueueSize" for p in ("send", "pull", "litePull", "query", "ack")),
    *(f"{p}ThreadPoolQueueCapacity" for p in ("send", "pull", "litePull", "query", "ack")),
    *(f"{p}ThreadPoolQueueHeadWaitTimeMills" for p in ("send", "pull", "query", "ack")),
    *("bootTimestamp", "brokerVersion", "commitLogMaxOffset", "commitLogMinOffset"),
    *("dispatchBehindBytes", "dispatchMaxBuffer", "earliestMessageTimeStamp"),
    *("EndTransactionQueueSize", "EndTransactionThreadPoolQueueCapacity"),
    *("getMessageEntireTimeMax", "msgGetTotalTodayMorning", "msgGetTotalTodayNow"),
    *("msgGetTotalYesterdayMorning", "msgPutTotalTodayMorning", "msgPutTotalTodayNow"),
    *("msgPutTotalYesterdayMorning", "pageCacheLockTimeMills", "putMessageEntireTimeMax"),
    *("putMessageFailedTimes", "putMessageSizeTotal", "putMessageTimesTotal"),
    *("remainHowManyDataToFlush", "remainTransientStoreBufferNumbs"),
    *("startAcceptSendRequestTimeStamp", "timerCongestNum", "timerOffsetBehind"),
    "timerReadBehind",
}
#: the others
RUNTIME_NAMES = RUNTIME_NUMBERS | {
    *("brokerActive", "brokerVersionDesc", "commitLogDirCapacity", "commitLogDiskRatio"),
    *("consumeQueueDiskRatio", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps"),
    *("putLatency99", "putLatency999", "putMessageAverageSize", "putMessageDistributeTime"),
    *("putTps", "runtime", "timerDequeueTps", "timerEnqueueTps"),
}


async def create(peer, topic, queues=2):
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
    }
    return await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


def test_a_topic_that_is_deleted_and_made_again_begins_anew(with_broker):
    async def scenario(broker, peer):
        assert (await create(peer, "T")).code == ResponseCode.SUCCESS
        for number in range(3):
            await peer.send("T", b"old %d" % number)
        deleted = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert deleted.code == ResponseCode.SUCCESS
        assert (await peer.pull("T")).code == ResponseCode.TOPIC_NOT_EXIST
        await create(peer, "T")
        sent = await peer.send("T", b"new")
        assert sent.ext_fields["queueOffset"] == "0"
        assert [m.body for m in records((await peer.pull("T")).body)] == [b"new"]

    with_broker(scenario)

    async def again(_, peer):
        assert [m.body for m in records((await peer.pull("T")).body)] == [b"new"]

    with_broker(again)


def test_a_system_topic_can_neither_be_changed_nor_deleted(with_broker):
    async def scenario(_, peer):
        assert (await create(peer, "TBW102")).code == ResponseCode.INVALID_PARAMETER
        deleted = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "TBW102"})
        assert deleted.code == ResponseCode.INVALID_PARAMETER

    with_broker(scenario)


def test_statistics_of_a_topic_are_keyed_by_queues(with_broker):
    async def scenario(_, peer):
        await create(peer, "T")
        await peer.send("T", b"x", queue_id=1)
        stats = await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
        table = parse_java_json(stats.body.decode())["offsetTable"]
        offsets = {json.loads(key)["queueId"]: entry["maxOffset"] for key, entry in table.items()}
        assert offsets == {0: 0, 1: 1}

    with_broker(scenario)


def test_no_request_looks_at_more_queues_than_a_topic_may_have(with_broker, monkeypatch):
    """The table of another broker, which a slave takes over, may name 2^31 of them, and more."""
    monkeypatch.setattr(topics, "QUEUES_MAX", 3)

    async def scenario(broker, peer):
        await create(peer, "T")
        await peer.pull("T")
        many = TopicConfig(topic_name="T", read_queue_nums=20, write_queue_nums=20)
        broker.store.topics.put(many)
        broker.store.consumer_offsets.commit("T", "CG", 0, 0)
        fields = {"topic": "T", "group": "CG", "consumerGroup": "CG", "timestamp": "0"}
        for code, member in (
            (RequestCode.GET_TOPIC_STATS_INFO, "offsetTable"),
            (RequestCode.QUERY_CONSUME_TIME_SPAN, "consumeTimeSpanSet"),
            (RequestCode.GET_CONSUME_STATS, "offsetTable"),
            (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, "offsetTable"),
        ):
            answer = await peer.ask(code, {**fields, "offset": "-1"})
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            assert len(parse_java_json(answer.body.decode())[member]) == 3
        await peer.send("T", b"x", queue_id=1)
        assert [found.queue_id for found, _ in handed_out(await pop(peer))] == [1]

    with_broker(scenario)


def test_a_pop_looks_at_no_more_queues_than_a_topic_may_have(monkeypatch):
    monkeypatch.setattr(topics, "QUEUES_MAX", 3)
    for downwards in (False, True):
        assert sorted(QueueScan(False, 1, downwards).queues(20)) == [0, 1, 2]
        assert sorted(QueueScan(False, 1, downwards).queues(2)) == [0, 1]


def test_a_topic_of_an_unknown_filter_type_is_refused_and_not_made(with_broker):
    async def scenario(_, peer):
        for fields in ({"topicFilterType": "x"}, {"topicFilterType": ""}):
            wanted = {"topicName": "T", **fields}
            body = json.dumps({"topicConfigList": [wanted]}).encode()
            answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert "SINGLE_TAG" in answer.remark
        told = await peer.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})
        assert told.code == ResponseCode.TOPIC_NOT_EXIST

    with_broker(scenario)


def test_a_master_has_no_flush_offset_to_reset(with_broker):
    async def scenario(_, peer):
        await peer.send("T", b"x")
        fields = {"masterFlushOffset": 1 << 40}
        answer = await peer.ask(RequestCode.RESET_MASTER_FLUSH_OFFSET, fields)
        assert answer.code == ResponseCode.SUCCESS
        assert (await peer.pull("T")).code == ResponseCode.SUCCESS

    with_broker(scenario)


def test_half_a_character_is_told_as_java_writes_it(with_broker):
    async def scenario(_, peer):
        body = b'{"topicConfigList":[{"topicName":"T","attributes":{"a":"\\ud83d"}}]}'
        answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
        assert answer.code == ResponseCode.SUCCESS
        told = await peer.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})
        assert json.loads(told.body)["attributes"] == {"a": "?"}

    with_broker(scenario)


@pytest.mark.parametrize("name", ["message.type", "+message.type", "a"])
@pytest.mark.parametrize("value", ["null", "1", "[]", "{}"])
def test_an_attribute_that_is_no_text_is_refused(with_broker, name, value):
    async def scenario(_, peer):
        body = f'{{"topicConfigList":[{{"topicName":"T","attributes":{{"{name}":{value}}}}}]}}'
        answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body.encode())
        assert answer.remark == f"attribute '{name.lstrip('+')}': its value is no text"

    with_broker(scenario)


@pytest.mark.parametrize("code", [11, 14, 15, 29, 30, 31, 32, 222, 321, 200050])
def test_a_queue_beyond_32_bits_is_refused_by_name(with_broker, caplog, code):
    async def scenario(_, peer):
        await peer.send("T", b"x")
        fields = {"topic": "T", "consumerGroup": "G", "group": "G", "queueId": 1 << 31}
        # what the requests have besides, in front of it
        fields |= dict.fromkeys(("index", "count", "queueOffset", "maxMsgNums", "sysFlag"), 1)
        fields |= dict.fromkeys(("commitOffset", "timestamp", "offset", "invisibleTime"), 1)
        fields |= {"pollTime": 1, "bornTime": 1, "initMode": 0, "isForce": "true"}
        answer = await peer.ask(code, fields)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "the header field queueId has to be a whole number of 32 bits"
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []

    with_broker(scenario)


def test_the_times_of_a_topic_name_its_queues(with_broker):
    async def scenario(_, peer):
        await create(peer, "T")
        await peer.send("T", b"x", queue_id=1)
        asked = {"topic": "T", "group": "CG"}
        answer = await peer.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, asked)
        spans = json.loads(answer.body)["consumeTimeSpanSet"]
        queues = [{"brokerName": "broker-a", "queueId": n, "topic": "T"} for n in range(2)]
        assert [span["messageQueue"] for span in spans] == queues
        assert spans[0]["maxTimeStamp"] == -1
        assert spans[1]["minTimeStamp"] == spans[1]["maxTimeStamp"] > 0

    with_broker(scenario)


def test_runtime_information_has_the_names_of_rocketmqs_broker(with_broker):
    async def told(peer):
        answer = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        return json.loads(answer.body)["table"]

    async def scenario(_, peer):
        assert (await told(peer))["earliestMessageTimeStamp"] == "-1"
        await peer.send("T", b"x")
        await peer.pull("T")
        info = await told(peer)
        assert RUNTIME_NAMES - info.keys() == set()
        assert all(re.fullmatch(r"-?\d+", info[name]) for name in RUNTIME_NUMBERS)
        assert info["msgPutTotalTodayNow"] == info["msgGetTotalTodayNow"] == "1"
        assert int(info["earliestMessageTimeStamp"]) >= int(info["bootTimestamp"])
        assert re.fullmatch(r"\[ 0 days, 0 hours, 0 minutes, \d+ seconds ]", info["runtime"])

    with_broker(scenario)


def test_a_group_that_is_set_back_is_told_so_by_its_next_pull(with_broker):
    async def scenario(_, peer):
        for number in range(5):
            await peer.send("T", b"%d" % number)
        commit = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "commitOffset": 5}
        await peer.pull("T")
        assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
        reset = {"topic": "T", "group": "CG", "timestamp": 0, "isForce": "true"}
        answer = await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
        assert answer.code == ResponseCode.SUCCESS
        moved = await peer.pull("T", offset=5)
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert moved.ext_fields["nextBeginOffset"] == "0"
        assert (await peer.pull("T", offset=0)).code == ResponseCode.SUCCESS

    with_broker(scenario)


@pytest.mark.usefixtures("long_hold")
@pytest.mark.parametrize("full", [False, True], ids=["", "full disk"])
@pytest.mark.parametrize("way", ["pull", "pop"])
def test_who_waits_is_told_at_once_that_its_group_is_set_back(with_broker, monkeypatch, way, full):
    def refuse(file, _):
        raise DiskFullError(file.path)

    async def scenario(broker, peer):
        await send_many(peer, 1, queues=1)
        if way == "pull":
            asked, code = (
                peer.pull("T", offset=1, suspend_ms=LONG_MS),
                ResponseCode.PULL_OFFSET_MOVED,
            )
            hold = broker.managers.waiting_pulls
        else:
            assert len(handed_out(await pop(peer, queue_id=0))) == 1
            asked, code = pop(peer, queue_id=0, poll_ms=LONG_MS), ResponseCode.SUCCESS
            hold = broker.managers.waiting_pops
        waits = asyncio.ensure_future(asked)
        await held(hold)
        if full:
            monkeypatch.setattr(ConfigFile, "store", refuse)
        reset = {"topic": "T", "group": "CG", "timestamp": 0, "isForce": "true"}
        answer = await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
        refused = ResponseCode.SERVICE_NOT_AVAILABLE
        assert answer.code == (refused if full else ResponseCode.SUCCESS)
        assert (await waits).code == code
        monkeypatch.undo()

    with_broker(scenario)


def test_settings_that_may_not_change_are_refused_and_nothing_changes(with_broker):
    async def scenario(broker, peer):
        body = b"enablePropertyFilter=true\nlistenPort=1\n"
        refused = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)
        assert refused.code == ResponseCode.NO_PERMISSION
        assert not broker.config.enable_property_filter
        taken = await peer.ask(
            RequestCode.UPDATE_BROKER_CONFIG, body=b"enablePropertyFilter=true\n"
        )
        assert taken.code == ResponseCode.SUCCESS
        assert broker.config.enable_property_filter
        shown = await peer.ask(RequestCode.GET_BROKER_CONFIG)
        assert b"enablePropertyFilter=true" in shown.body

    with_broker(scenario)


def test_a_topic_of_inner_batches_is_refused(with_broker):
    async def scenario(broker, peer):
        fields = {"topic": "B", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        fields["attributes"] = "+queue.type=BatchCQ"
        refused = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert "queue.type cannot be changed, nor be BatchCQ" in refused.remark
        assert broker.store.topics.get("B") is None
        fields["attributes"] = "+queue.type=SimpleCQ"
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0

    with_broker(scenario)


def test_settings_are_told_that_are_as_rocketmqs_defaults(with_broker):
    async def scenario(broker, peer):
        shown = (await peer.ask(RequestCode.GET_BROKER_CONFIG)).body
        told = dict(line.split("=", 1) for line in bytes(shown).decode().splitlines())
        asked_for_by_4_9 = (
            *("brokerName", "brokerClusterName", "brokerId", "brokerRole", "fileReservedTime"),
            *("filterServerNums", "flushDiskType", "maxMessageSize", "messageDelayLevel"),
            *("msgTraceTopicName", "slaveReadEnable", "traceOn", "traceTopicEnable", "useTLS"),
            *("autoCreateTopicEnable", "autoCreateSubscriptionGroup"),
        )
        assert set(asked_for_by_4_9) <= told.keys()
        assert (told["flushDiskType"], told["fileReservedTime"]) == ("ASYNC_FLUSH", "72")
        assert "None" not in told.values()
        # a broker.conf with these lines opens the same store
        StoreConfig.from_properties(parse_broker_conf(bytes(shown).decode()))

    with_broker(scenario)


def test_a_setting_of_the_store_changes_while_it_is_served(with_broker):
    async def scenario(broker, peer):
        body = b"fileReservedTime=7\nenablePropertyFilter=true\n"
        assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)).code == 0
        assert broker.store.config.file_reserved_time_hours == 7
        body = b"enablePropertyFilter=false\nmappedFileSizeCommitLog=4096\n"
        refused = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)
        assert refused.code == ResponseCode.NO_PERMISSION
        assert broker.config.enable_property_filter

    with_broker(scenario)


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"messageQueueTable":[1]}',
        b'{"messageQueueTable":"x"}',
        b'{"messageQueueTable":{"[1]":1}}',
    ],
)
def test_a_client_that_tells_no_offsets_keeps_nobody_from_those_of_others(with_broker, told):
    queue = r"{\"brokerName\":\"broker-a\",\"queueId\":0,\"topic\":\"T\"}"

    async def scenario(broker, peer):
        answers = {"odd": told, "even": f'{{"messageQueueTable":{{"{queue}":7}}}}'.encode()}
        for name, body in answers.items():
            client = Peer(broker)
            client.client.register(
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
                lambda _, __, body=body: success(body=body),
            )
            beat = f'{{"clientID":"{name}","consumerDataSet":[{{"groupName":"CG"}}]}}'.encode()
            assert (await client.ask(RequestCode.HEART_BEAT, body=beat)).code == 0
            clients.append(client.client)
        asked = {"topic": "T", "group": "CG"}
        answer = await peer.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, asked)
        assert answer.code == ResponseCode.SUCCESS
        table = parse_java_json(bytes(answer.body).decode())["consumerTable"]
        assert table["odd"] == {}
        assert list(table["even"].values()) == [7]
        for client in clients:
            await client.close()

    clients = []
    with_broker(scenario)
