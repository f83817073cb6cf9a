"""What administrators ask of a consumer through its broker: how it does, to consume a message."""

import asyncio

import pytest
from client.test_produce_and_consume import get_nothing_more, receive
from patience import TIMEOUT_S, until_async

from rmqcore.client import Consumer, Producer
from rmqcore.java.json import parse_java_json
from rmqcore.remoting import RemotingClient, RemotingCommand, RequestCode, ResponseCode

pytestmark = pytest.mark.engine


async def ask(broker, code, consumer, **fields):
    client = RemotingClient()
    try:
        named = {"consumerGroup": consumer.group, "clientId": consumer.client_id, **fields}
        command = RemotingCommand(code, named)
        return await client.invoke(broker.broker_addr, command, 1000 * TIMEOUT_S)
    finally:
        await client.close()


def test_a_consumer_tells_how_it_does(rocketmq_broker, rocketmq_topic, run):
    async def scenario():
        namesrv = rocketmq_broker.namesrv_addr
        async with (
            Producer(namesrv) as producer,
            Consumer(namesrv, "CG-307", {rocketmq_topic: "a || b"}, start="first") as consumer,
        ):
            for number in range(3):
                await producer.send(rocketmq_topic, b"%d" % number, queue_id=0, tags="a")
            await receive(consumer, 1)

            def has_its_queues_and_messages():
                topics = {each.queue.topic for each in consumer.assigned}
                cached = sum(each.cached[2] for each in consumer.assigned)
                return topics == {rocketmq_topic, "%RETRY%CG-307"} and cached == 2

            await until_async(has_its_queues_and_messages, "its queues and messages")
            code = RequestCode.GET_CONSUMER_RUNNING_INFO
            answer = await ask(rocketmq_broker, code, consumer, jstackEnable="true")
            plain = await ask(rocketmq_broker, code, consumer, jstackEnable="false")
        assert (answer.code, plain.code) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)
        assert "jstack" not in parse_java_json(bytes(plain.body).decode())
        return parse_java_json(bytes(answer.body).decode())

    info = run(scenario())
    table = {parse_java_json(key)["topic"]: {} for key in info["mqTable"]}
    assert rocketmq_topic in table
    (progress,) = [
        value
        for key, value in info["mqTable"].items()
        if (name := parse_java_json(key))["topic"] == rocketmq_topic and name["queueId"] == 0
    ]
    assert (progress["cachedMsgCount"], progress["commitOffset"]) == (2, 1)
    assert (progress["cachedMsgMinOffset"], progress["cachedMsgMaxOffset"]) == (1, 2)
    assert progress["lastPullTimestamp"] > 0
    assert progress["lastConsumeTimestamp"] > 0
    assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert {each["topic"] for each in info["subscriptionSet"]} == set(table)
    assert "_running_info" in info["jstack"] or "_pull_on" in info["jstack"]


@pytest.mark.parametrize(("settled", "result"), [("ack", "CR_SUCCESS"), ("nack", "CR_LATER")])
@pytest.mark.parametrize("orderly", [False, True])
def test_a_consumer_consumes_one_message_once_more(
    rocketmq_broker, rocketmq_topic, run, settled, result, orderly
):
    async def scenario():
        namesrv = rocketmq_broker.namesrv_addr
        group = f"CG-309-{settled}-{orderly}"
        async with (
            Producer(namesrv) as producer,
            Consumer(
                namesrv, group, {rocketmq_topic: "*"}, start="first", orderly=orderly
            ) as consumer,
        ):
            sent = await producer.send(rocketmq_topic, b"x", queue_id=0)
            await receive(consumer, 1)
            code = RequestCode.CONSUME_MESSAGE_DIRECTLY
            asked = asyncio.ensure_future(
                ask(rocketmq_broker, code, consumer, msgId=sent.offset_message_id)
            )
            again = await consumer.receive(TIMEOUT_S)
            assert (again.body, again.topic) == (b"x", rocketmq_topic)
            await getattr(consumer, settled)(again)
            answer = await asyncio.wait_for(asked, TIMEOUT_S)
            await get_nothing_more(producer, consumer, rocketmq_topic, [0])
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return parse_java_json(bytes(answer.body).decode())

    told = run(scenario())
    assert (told["consumeResult"], told["order"]) == (result, orderly)


def test_a_message_that_nobody_settles_is_told_in_time(
    rocketmq_broker, rocketmq_topic, run, monkeypatch
):
    monkeypatch.setattr("rmqcore.client.admin_questions._SETTLED_WITHIN_S", 0.05)

    async def scenario():
        namesrv = rocketmq_broker.namesrv_addr
        async with (
            Producer(namesrv) as producer,
            Consumer(namesrv, "CG-309-late", {rocketmq_topic: "*"}, start="first") as consumer,
        ):
            sent = await producer.send(rocketmq_topic, b"x", queue_id=0)
            await receive(consumer, 1)
            code = RequestCode.CONSUME_MESSAGE_DIRECTLY
            answer = await ask(rocketmq_broker, code, consumer, msgId=sent.offset_message_id)
            await get_nothing_more(producer, consumer, rocketmq_topic, [0])
        return answer.code

    assert run(scenario()) == ResponseCode.CONSUME_MSG_TIMEOUT
