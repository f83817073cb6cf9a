"""What consumers send back: again, later, as dead letters; and delay levels, as RocketMQ does."""

import asyncio
import json
import threading

import pytest
from broker.conftest import SMALL, records
from broker.test_pop import pop
from killed_copy import copy_as_killed
from patience import TIMEOUT_S, until_async

from rmqcore import Message, open_store
from rmqcore._codec import encode_batch
from rmqcore.broker.state import offsets
from rmqcore.files.config_tables import TopicConfig
from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.engine

RETRY, DEAD = "%RETRY%CG", "%DLQ%CG"


async def resend(peer, **fields):
    """What a consumer sends itself when 36 has failed."""
    return await peer.send(RETRY, b"again", **fields)


@pytest.mark.parametrize(
    ("fields", "topic"),
    [
        ({"j": 16}, RETRY),
        ({"j": 17}, DEAD),
        ({"j": 3, "l": 3}, RETRY),
        ({"j": 4, "l": 3}, DEAD),
        ({"j": 17, "l": 20}, RETRY),
    ],
)
def test_a_message_that_was_tried_often_enough_is_a_dead_letter(with_broker, fields, topic):
    async def scenario(broker, peer):
        sent = await resend(peer, properties={"RETRY_TOPIC": "T", "DELAY": "-1"}, **fields)
        assert sent.code == ResponseCode.SUCCESS
        (message,) = records((await peer.pull(topic)).body)
        assert message.reconsume_times == fields["j"]
        assert message.properties["RETRY_TOPIC"] == "T"
        dead = broker.store.topics.get(DEAD)
        assert (dead is not None) == (topic == DEAD)
        assert dead is None or (dead.write_queue_nums, dead.perm) == (1, 6)

    with_broker(scenario)


def test_a_dead_letter_waits_for_nothing(with_broker):
    async def scenario(_, peer):
        await resend(peer, j=17, properties={"DELAY": "18"})
        (message,) = records((await peer.pull(DEAD)).body)
        assert message.properties["DELAY"] == "-1"

    with_broker(scenario)


def test_a_group_that_consumes_in_order_sends_dead_letters_only(with_broker):
    async def scenario(_, peer):
        queue = {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
        lock = {"clientId": "c", "consumerGroup": "CG", "mqSet": [queue]}
        answer = await peer.ask(RequestCode.LOCK_BATCH_MQ, body=json.dumps(lock).encode())
        assert len(json.loads(answer.body)["lockOKMQSet"]) == 1
        await resend(peer, j=1)
        assert len(records((await peer.pull(DEAD)).body)) == 1

    with_broker(scenario)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group": "Unknown"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"offset": 3}, ResponseCode.SYSTEM_ERROR),
        ({"offset": 1 << 40}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_what_cannot_be_sent_back_is_refused(with_broker, fields, code):
    async def scenario(_, peer):
        await peer.send("T", b"x")
        group = {"groupName": "CG"}
        await peer.ask(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(group).encode()
        )
        back = {"group": "CG", "offset": 0, "delayLevel": 0, **fields}
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == code

    with_broker(scenario, autoCreateSubscriptionGroup="false")


def test_another_message_than_the_consumer_has_is_not_given_back(with_broker):
    """The log may have lost its end, and have another message in that place now."""

    async def scenario(_, peer):
        sent = await peer.send("T", b"x", properties={"UNIQ_KEY": "mine"})
        offset_id = sent.ext_fields["msgId"]
        other_host, other_place = "FF" * 8 + offset_id[16:], offset_id[:-1] + "7"
        for message_id, code in (
            ("theirs", ResponseCode.SYSTEM_ERROR),
            (other_place, ResponseCode.SYSTEM_ERROR),
            ("mine", 0),
            (offset_id, 0),
            (other_host, 0),
            ("", 0),
        ):
            back = {"group": "CG", "offset": 0, "delayLevel": 0, "originMsgId": message_id}
            answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
            assert answer.code == code, message_id

    with_broker(scenario)


@pytest.mark.parametrize(
    ("back", "topic", "queue_id", "delay"),
    [
        ({"delayLevel": 0}, "SCHEDULE_TOPIC_XXXX", 2, "3"),
        ({"delayLevel": 5}, "SCHEDULE_TOPIC_XXXX", 4, "5"),
        ({"delayLevel": -1}, DEAD, 0, "0"),
        ({"delayLevel": 0, "maxReconsumeTimes": 0}, DEAD, 0, "0"),
    ],
)
def test_what_comes_back_waits_by_its_level_or_is_dead(with_broker, back, topic, queue_id, delay):
    async def scenario(_, peer):
        sent = await peer.send("T", b"x", properties={"TAGS": "a"})
        request = {"group": "CG", "offset": 0, **back}
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, request)).code == 0
        (message,) = records((await peer.pull(topic, queue_id=queue_id)).body)
        properties = message.properties
        assert properties["DELAY"] == delay
        assert (properties["RETRY_TOPIC"], properties["WAIT"]) == ("T", "false")
        assert properties["ORIGIN_MESSAGE_ID"] == sent.ext_fields["msgId"]
        assert (message.reconsume_times, message.tags) == (1, "a")

    with_broker(scenario)


def test_a_level_above_the_last_is_the_last_and_the_answer_names_the_queue_asked_for(with_broker):
    async def scenario(_, peer):
        sent = await peer.send("T", b"x", queue_id=3, properties={"DELAY": "99"})
        assert sent.ext_fields["queueId"] == "3"
        (message,) = records((await peer.pull("SCHEDULE_TOPIC_XXXX", queue_id=17)).body)
        assert sent.ext_fields["msgId"] == message.message_id
        assert message.properties["DELAY"] == "18"
        assert (message.properties["REAL_TOPIC"], message.properties["REAL_QID"]) == ("T", "3")

    with_broker(scenario)


def test_a_batch_to_a_retry_topic_is_refused(with_broker):
    async def scenario(_, peer):
        answer = await peer.send(RETRY, b"x", code=RequestCode.SEND_BATCH_MESSAGE, m="true")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL

    with_broker(scenario)


def test_a_message_that_was_timed_is_not_timed_again_when_it_comes_back(with_broker):
    async def scenario(_, peer):
        await peer.send("T", b"x", properties={"TIMER_DELAY_MS": "50"})

        async def delivered():
            return records((await peer.pull("T")).body)

        found = await until_async(delivered, "the message is delivered")
        back = {"group": "CG", "offset": found[0].phy_offset, "delayLevel": -1}
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
        (dead,) = records((await peer.pull(DEAD)).body)
        assert dead.body == b"x"

    with_broker(scenario)


@pytest.mark.parametrize("level", [-1, 1])
def test_who_gives_back_one_of_a_stored_batch_has_to_send_it_itself(with_broker, tmp_path, level):
    kinds = {"topic_queue_types": (("B", "BatchCQ"),)}
    with open_store(tmp_path / "store", config={**SMALL, **kinds}) as store:
        body = encode_batch([Message("B", b"0"), Message("B", b"1")])
        properties = {"INNER_NUM": "2", "UNIQ_KEY": "u"}
        batch = store.put("B", body, sys_flag=0x80 | 0x40, properties=properties)
        attributes = {"queue.type": "BatchCQ"}
        store.topics.put(TopicConfig(topic_name="B", attributes=attributes))

    async def scenario(broker, peer):
        fields = {"group": "CG", "offset": batch.phy_offset, "delayLevel": level}
        answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "send the message itself" in answer.remark
        assert broker.store.queues() == [("B", 0)]

    with_broker(scenario)


def test_a_pop_of_a_retry_topic_passes_over_nothing_that_lies_there(with_broker, monkeypatch):
    """A group that pops has never been in its retry topic: what was given back before is there."""
    monkeypatch.setattr(offsets, "_YOUNG_BYTES", 0)

    async def scenario(_, peer):
        for topic in ("T", "%RETRY%CG"):
            for body in (b"0", b"1"):
                await peer.send(topic, body)
        popped = await pop(peer, queue_id=0, topic="%RETRY%CG", initMode=1)
        assert [each.body for each in records(popped.body)] == [b"0", b"1"]
        popped = await pop(peer, queue_id=0, initMode=1)
        assert [each.body for each in records(popped.body)] == [b"1"]

    with_broker(scenario)


def test_what_is_given_back_for_later_has_a_topic_behind_a_kill(with_broker, tmp_path, monkeypatch):
    """Its queue is there only when its time has come: till then the table alone knows the topic."""
    written, going = threading.Event(), threading.Event()

    async def scenario(broker, peer):
        await peer.send("T", b"x")
        table = broker.managers.topics.table
        persist = table.persist

        def later():
            going.set()
            return written.wait(TIMEOUT_S) and persist()

        monkeypatch.setattr(table, "persist", later)
        back = {"group": "CG", "offset": 0, "delayLevel": 3}
        given = asyncio.create_task(peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back))
        await until_async(going.is_set, "the table is being written")
        for _ in range(2):
            await peer.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})
        answered_before = given.done()
        written.set()
        assert not answered_before
        assert (await given).code == ResponseCode.SUCCESS
        copy_as_killed(broker.store.path, tmp_path / "killed")

    with_broker(scenario)
    assert RETRY in (tmp_path / "killed/config/topics.json").read_text()
