"""Answers where a request is odd: those of RocketMQ's broker, seen at one of 5.5.0."""

import json

import pytest
from broker.conftest import records
from broker.test_pop import pop
from patience import until_async

from rmqcore.remoting import RequestCode, ResponseCode
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine

TOPIC = {"topic": "C", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
REFUSED = ResponseCode.SYSTEM_ERROR


async def change(peer, attributes):
    fields = {**TOPIC, "attributes": attributes}
    return await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


async def attributes_of(peer, topic="C"):
    told = await peer.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
    return json.loads(told.body)["attributes"] if told.code == 0 else None


def beat(*consumers, producers=()):
    body = {
        "clientID": "c",
        "consumerDataSet": [
            {"groupName": group, "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}
            for group in consumers
        ],
        "producerDataSet": [{"groupName": group} for group in producers],
    }
    return json.dumps(body).encode()


WRONG = (
    "+message.type=BAD",
    "+nosuch=1",
    "+reserve.time=-2",
    "+reserve.time=9223372036854775808",
    "+reserve.time=1.5",
    "+lite.topic.expiration=43201",
    "+cleanup.policy=COMPACTION",
    "+message.type",
    "message.type=FIFO",
    "-message.type",
    "-message.type=FIFO",
    "+=1",
    "+message.type=FIFO,+message.type=DELAY",
)


@pytest.mark.parametrize("there", [False, True])
def test_attributes_that_are_wrong_are_refused(with_broker, there):
    async def scenario(_, peer):
        if there:
            assert (await change(peer, "+reserve.time=5")).code == 0
        before = await attributes_of(peer)
        for wrong in WRONG:
            answer = await change(peer, wrong)
            assert (answer.code, await attributes_of(peer)) == (REFUSED, before), wrong
        for wrong in ({"+message.type": "BAD"}, {"message.type": "BAD"}, {"+nosuch": "1"}):
            listed = [{"topicName": "L", "attributes": {"+reserve.time": "1"}}]
            listed.append({"topicName": "C", "attributes": wrong})
            body = json.dumps({"topicConfigList": listed}).encode()
            answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
            assert answer.code == REFUSED, wrong
        assert await attributes_of(peer) == before
        assert await attributes_of(peer, "L") is None

    with_broker(scenario)


def test_a_topic_that_rocketmq_compacts_takes_nothing(lives, tmp_path, caplog):
    """Retention would delete the last message of a key, which RocketMQ keeps."""

    async def as_it_is(_, peer):
        assert (await peer.send("T", b"before")).code == ResponseCode.SUCCESS

    def compacted():
        file = tmp_path / "store" / "config" / "topics.json"
        content = json.loads(file.read_text())
        attributes = {"cleanup.policy": "COMPACTION"}
        content["topicConfigTable"]["T"]["attributes"] = attributes
        file.write_text(json.dumps(content))

    async def refused(_, peer):
        assert "1 topics have cleanup.policy=COMPACTION" in caplog.text
        for properties in ({"KEYS": "k"}, {"KEYS": "k", "DELAY": "1"}, {"TRAN_MSG": "true"}):
            sent = await peer.send("T", b"behind", properties=properties)
            assert sent.code == ResponseCode.NO_PERMISSION
            assert "COMPACTION" in sent.remark
        assert [m.body for m in records((await peer.pull("T")).body)] == [b"before"]

    lives(as_it_is)
    compacted()
    lives(refused)


def test_a_static_topic_of_rocketmqs_is_not_served_as_a_plain_one(lives, tmp_path, caplog):
    """Its offsets and queue ids are others': who goes on there would pass messages over."""

    async def as_it_is(_, peer):
        assert (await peer.send("T", b"before")).code == ResponseCode.SUCCESS

    def mapped():
        file = tmp_path / "store" / "config" / "topicQueueMapping.json"
        item = {"gen": 0, "queueId": 0, "bname": "broker-a", "logicOffset": 100, "startOffset": 0}
        detail = {"topic": "T", "totalQueues": 1, "bname": "broker-a", "hostedQueues": {0: [item]}}
        file.write_text(json.dumps({"topicQueueMappingDetailMap": {"T": detail, "S": detail}}))

    async def refused(broker, peer):
        assert (
            "2 topics are static ones of RocketMQ's, which are not served here: S, T" in caplog.text
        )
        fields = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "commitOffset": 0}
        answers = [
            *[await peer.send("T", b"x", properties=each) for each in ({}, {"DELAY": "1"})],
            await peer.pull("T"),
            await pop(peer),
            await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields),
        ]
        assert {answer.code for answer in answers} == {ResponseCode.NO_PERMISSION}
        assert all("static" in answer.remark for answer in answers)
        assert broker.store.max_queue_offset("T", 0) == 1
        assert (await peer.send("Other", b"x")).code == ResponseCode.SUCCESS

    async def made_anew(broker, peer):
        deleted = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert deleted.code == ResponseCode.SUCCESS
        await plain(broker, peer)

    async def plain(_, peer):
        assert (await peer.send("T", b"x")).code == ResponseCode.SUCCESS
        assert (await peer.pull("T")).code == ResponseCode.SUCCESS
        assert (await peer.pull("S")).code == ResponseCode.NO_PERMISSION

    lives(as_it_is)
    mapped()
    lives(refused, made_anew, plain)


def test_attributes_are_added_changed_and_taken_away(with_broker):
    async def scenario(_, peer):
        kinds = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED")
        for kind in kinds:
            assert (await change(peer, f"+message.type={kind}")).code == 0
        assert (await change(peer, "+reserve.time=9223372036854775807, -message.type")).code == 0
        assert await attributes_of(peer) == {"reserve.time": "9223372036854775807"}
        listed = {"topicName": "L", "attributes": {"+message.type": "FIFO", "reserve.time": "-1"}}
        body = json.dumps({"topicConfigList": [listed]}).encode()
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)).code == 0
        assert await attributes_of(peer, "L") == {"message.type": "FIFO", "reserve.time": "-1"}

    with_broker(scenario)


def test_a_static_topic_is_refused_by_name(with_broker):
    async def scenario(broker, peer):
        answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, TOPIC, b"{}")
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert "static topics are not supported, and C was not created" in answer.remark
        assert broker.store.topics.get("C") is None

    with_broker(scenario)


@pytest.mark.parametrize("names", [{}, {"expressionType": "SQL92", "subscription": "a = 1"}])
def test_a_pull_at_a_negative_offset_is_sent_to_the_first(with_broker, names):
    async def scenario(_, peer):
        for body in (b"1", b"2"):
            await peer.send("T", body)
        moved = await peer.pull("T", offset=-5, **names)
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert moved.remark == "OFFSET_TOO_SMALL"
        assert moved.ext_fields["nextBeginOffset"] == "0"
        none = await peer.pull("T", queue_id=1, offset=-5, **names)
        assert none.code == ResponseCode.PULL_OFFSET_MOVED
        assert none.ext_fields["nextBeginOffset"] == "0"

    with_broker(scenario, enablePropertyFilter=True)


@pytest.mark.parametrize(("committed", "following"), [(None, 4), (2, 2), (4, 4)])
def test_who_pulls_behind_the_end_goes_on_where_its_group_is(with_broker, committed, following):
    """Its offset is of a queue that was deleted, or lost, while it was away."""

    async def scenario(_, peer):
        for body in (b"0", b"1", b"2", b"3"):
            await peer.send("T", body)
        place = {"consumerGroup": "CG", "topic": "T", "queueId": 0}
        if committed is not None:
            fields = place | {"commitOffset": committed}
            assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0
        moved = await peer.pull("T", offset=9, commitOffset=9, sysFlag=5)
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert moved.ext_fields["nextBeginOffset"] == str(following)

    with_broker(scenario)


def test_a_clock_that_is_behind_does_not_keep_a_notification_or_a_peek(with_broker):
    async def scenario(_, peer):
        await peer.send("T", b"x")
        late = {"bornTime": wall_clock_ms() - 60_000, "pollTime": 0, "invisibleTime": 1000}
        asked = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "maxMsgNums": 1, **late}
        told = await peer.ask(RequestCode.NOTIFICATION, asked)
        assert (told.code, told.ext_fields["hasMsg"]) == (0, "true")
        assert (await peer.ask(RequestCode.PEEK_MESSAGE, asked)).code == 0
        popped = await peer.ask(RequestCode.POP_MESSAGE, asked)
        assert popped.code == ResponseCode.POLLING_TIMEOUT

    with_broker(scenario)


@pytest.mark.parametrize("bad", ["bad!", "g" * 300, "\ud83d"])
def test_one_bad_group_of_a_heart_beat_is_passed_over(with_broker, bad):
    async def scenario(broker, peer):
        answer = await peer.ask(RequestCode.HEART_BEAT, body=beat(bad, "Good", producers=["P"]))
        assert answer.code == 0
        assert set(broker.managers.consumers.groups) == {"Good"}
        assert set(broker.managers.producers.groups) == {"P"}
        listed = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "Good"})
        assert json.loads(listed.body) == {"consumerIdList": ["c"]}

    with_broker(scenario)


def test_a_query_by_key_gives_64_messages_at_most(with_broker):
    async def scenario(broker, peer):
        for number in range(70):
            await peer.send("T", b"%d" % number, properties={"KEYS": "k", "UNIQ_KEY": f"u{number}"})
        asked = {"topic": "T", "key": "k", "maxNum": 500, "beginTimestamp": 0}
        asked["endTimestamp"] = wall_clock_ms() + 60_000

        async def found():
            return records((await peer.ask(RequestCode.QUERY_MESSAGE, asked)).body)

        await until_async(lambda: _is_full(found), "all are in the index")

    with_broker(scenario)


async def _is_full(found):
    messages = await found()
    assert len(messages) <= 64
    return len(messages) == 64


def test_offsets_that_cannot_be_are_not_kept(with_broker):
    async def scenario(broker, peer):
        await peer.send("T", b"x")
        await peer.pull("T")

        async def commit(offset, queue_id=0):
            place = {"consumerGroup": "CG", "topic": "T", "queueId": queue_id}
            fields = {**place, "commitOffset": offset}
            return await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)

        assert (await commit(1)).code == 0
        beyond = await commit(1000)
        assert (beyond.code, beyond.remark) == (
            0,
            "beyond the end of the queue, 1, and passed over",
        )
        for queue_id in (4, 1000, 2**31 - 1):
            assert (await commit(0, queue_id)).code == ResponseCode.INVALID_PARAMETER
        assert (await commit(0, 3)).code == 0
        assert broker.store.consumer_offsets.queues("T", "CG") == {0: 1, 3: 0}
        reset = {"topic": "T", "group": "CG", "timestamp": -1, "isForce": "true"}
        for offset in (2, 1000):
            answer = await peer.ask(
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**reset, "queueId": 0, "offset": offset}
            )
            assert answer.code == REFUSED
        assert broker.managers.offsets.resets == {}

    with_broker(scenario)


def test_units_of_a_queue_that_is_not_there_are_refused(with_broker):
    async def scenario(_, peer):
        await peer.send("T", b"x")
        asked = {"index": 0, "count": 1, "queueId": 0}
        code = RequestCode.QUERY_CONSUME_QUEUE
        assert (await peer.ask(code, {**asked, "topic": "T"})).code == 0
        for missing in ({"topic": "no"}, {"topic": "T", "queueId": 3}):
            assert (await peer.ask(code, {**asked, **missing})).code == REFUSED

    with_broker(scenario)


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    ],
)
def test_a_message_without_a_body_is_refused(with_broker, code):
    async def scenario(_, peer):
        # plain sends to a topic that is there are answered natively
        assert (await peer.send("T", b"x")).code == 0
        fields = {"a": "PG", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
        fields |= {"producerGroup": "PG", "topic": "T", "defaultTopic": "TBW102", "queueId": 0}
        fields |= {"defaultTopicQueueNums": 4, "sysFlag": 0, "bornTimestamp": 1, "flag": 0}
        answer = await peer.ask(code, {**fields, "i": "UNIQ_KEY\x017F000001\x02"})
        assert answer.code == REFUSED
        assert "body is empty" in answer.remark
        assert (await peer.pull("T", offset=1)).code == ResponseCode.PULL_NOT_FOUND

    with_broker(scenario)
