"""Requests get their replies, and transactions decide what consumers get."""

import asyncio
import time

import pytest
from client.test_produce_and_consume import get_nothing_more, receive
from patience import TIMEOUT_S

from rmqcore.client import Consumer, Producer, TransactionState
from rmqcore.errors import MessageIllegalError
from rmqcore.remoting import RemotingTimeoutError
from rmqcore.testing import running_broker

pytestmark = pytest.mark.engine


def test_a_request_gets_the_consumers_reply(rocketmq_broker, rocketmq_topic, run):
    namesrv, wanted = rocketmq_broker.namesrv_addr, {rocketmq_topic: "*"}

    async def scenario():
        async with (
            Producer(namesrv, group="PG-ask") as asking,
            Producer(namesrv, group="PG-answer") as answering,
            Consumer(namesrv, "CG-answer", wanted, start="first") as consumer,
        ):

            async def answer():
                async for message in consumer:
                    await answering.reply(message, b"pong to " + message.body)
                    await consumer.ack(message)

            task = asyncio.ensure_future(answer())
            asked = [asking.request(rocketmq_topic, b"%d" % n) for n in range(5)]
            replies = await asyncio.gather(*asked)
            task.cancel()
        return [reply.body for reply in replies]

    assert run(scenario()) == [b"pong to %d" % number for number in range(5)]


def test_a_request_that_nobody_answers_ends_in_time(
    rocketmq_broker, rocketmq_topic, run, monkeypatch
):
    send = Producer._send

    async def sent(producer, message, queue_id, deadline):
        result = await send(producer, message, queue_id, deadline)
        # what sending takes leaves a moment for the reply
        deadline._end_s = time.monotonic() + 0.05
        return result

    monkeypatch.setattr(Producer, "_send", sent)

    async def scenario():
        async with Producer(rocketmq_broker.namesrv_addr) as producer:
            with pytest.raises(RemotingTimeoutError, match=f"the consumer of {rocketmq_topic}"):
                await producer.request(rocketmq_topic, b"?", timeout_ms=1000 * TIMEOUT_S)

    run(scenario())


def test_a_message_that_asks_nothing_gets_no_reply(rocketmq_broker, rocketmq_topic, run):
    namesrv, wanted = rocketmq_broker.namesrv_addr, {rocketmq_topic: "*"}

    async def scenario():
        async with Producer(namesrv) as producer:
            await producer.send(rocketmq_topic, b"x")
            async with Consumer(namesrv, "CG-none", wanted, start="first") as consumer:
                (message,) = await receive(consumer, 1)
            with pytest.raises(MessageIllegalError, match="no reply"):
                await producer.reply(message, b"y")

    run(scenario())


def test_only_a_commit_lets_consumers_have_the_message(rocketmq_broker, rocketmq_topic, run):
    namesrv, wanted = rocketmq_broker.namesrv_addr, {rocketmq_topic: "*"}

    async def later(result):
        assert result.message_id
        return TransactionState.COMMIT

    async def scenario():
        async with Producer(namesrv, group="PG-tran") as producer:
            kept = await producer.send_in_transaction(rocketmq_topic, b"kept", later, keys="k")
            dropped = await producer.send_in_transaction(
                rocketmq_topic, b"dropped", lambda _: TransactionState.ROLLBACK
            )

            def fail(_):
                raise KeyError("work")

            with pytest.raises(KeyError, match="work"):
                await producer.send_in_transaction(rocketmq_topic, b"unknown", fail)
            async with Consumer(namesrv, "CG-tran", wanted, start="first") as consumer:
                found = await receive(consumer, 1)
                await get_nothing_more(producer, consumer, rocketmq_topic)
        return kept, dropped, found

    kept, dropped, (message,) = run(scenario())
    assert kept.transaction_state is TransactionState.COMMIT
    assert dropped.transaction_state is TransactionState.ROLLBACK
    assert (message.body, message.keys, message.topic) == (b"kept", ("k",), rocketmq_topic)
    assert message.message_id == kept.message_id == kept.transaction_id


def test_a_broker_asks_what_became_of_a_transaction(tmp_path, rocketmq_topic, run):
    asked = []

    async def check(message):
        asked.append((message.body, message.topic))
        return TransactionState.COMMIT

    async def scenario(namesrv):
        async with (
            Producer(namesrv, group="PG-check", check_transaction=check) as producer,
            Consumer(namesrv, "CG-check", {rocketmq_topic: "*"}, start="first") as consumer,
        ):
            await producer.send_in_transaction(rocketmq_topic, b"one", lambda _: None)
            (message,) = await receive(consumer, 1)
        return message.body

    settings = {"transactionTimeOut": 100, "transactionCheckInterval": 100}
    with running_broker(tmp_path / "store", **settings) as broker:
        assert run(scenario(broker.namesrv_addr)) == b"one"
    assert asked[0] == (b"one", rocketmq_topic)
