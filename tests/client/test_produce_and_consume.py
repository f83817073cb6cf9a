"""What a producer sends, a consumer gets."""

import asyncio
import time
from collections import Counter

import pytest
from patience import TIMEOUT_S, until_async

from rmqcore.client import Admin, Consumer, MessageQueue, NoRouteError, Producer, SendStatus
from rmqcore.client.group_requests import GroupRequests
from rmqcore.errors import ArgumentError, MessageIllegalError
from rmqcore.message import Message, decode_message_id
from rmqcore.remoting import RemotingConnectError
from rmqcore.world import World

pytestmark = pytest.mark.engine


async def receive(consumer, count):
    """So many messages, each settled."""
    found = []
    async with asyncio.timeout(TIMEOUT_S):
        async for message in consumer:
            found.append(message)
            await consumer.ack(message)
            if len(found) == count:
                return found
    raise AssertionError(f"{len(found)} of {count} messages")


async def get_nothing_more(producer, consumer, topic, queue_ids=range(4), **more):
    """A consumer has had all of these queues: the next of each is what is sent to it now."""
    for queue_id in queue_ids:
        await producer.send(topic, b"the last", queue_id=queue_id, **more)
    found = [
        (message.queue_id, message.body) for message in await receive(consumer, len(queue_ids))
    ]
    assert sorted(found) == [(queue_id, b"the last") for queue_id in queue_ids]


def test_a_message_arrives_with_all_that_was_sent(rocketmq_broker, rocketmq_topic, run):
    async def scenario():
        async with Producer(
            rocketmq_broker.namesrv_addr, group="PG", world=World(lambda: 1_234_567_890_123)
        ) as producer:
            result = await producer.send(
                rocketmq_topic, b"one", tags="TagA", keys=("k1", "k2"), properties={"colour": "red"}
            )
        async with Consumer(
            rocketmq_broker.namesrv_addr, "CG-all", {rocketmq_topic: "*"}, start="first"
        ) as consumer:
            (message,) = await receive(consumer, 1)
        return result, message

    result, message = run(scenario())
    assert result.status is SendStatus.SEND_OK
    assert (result.queue_id, result.queue_offset) == (message.queue_id, message.queue_offset)
    assert result.message_id == message.message_id == message.unique_key
    assert len(result.message_id) == 32
    assert message.born_timestamp_ms == 1_234_567_890_123
    assert result.offset_message_id == message.offset_message_id
    assert decode_message_id(result.offset_message_id) == (
        rocketmq_broker.broker_addr,
        message.phy_offset,
    )
    assert (message.topic, message.body, message.tags) == (rocketmq_topic, b"one", "TagA")
    assert message.keys == ("k1", "k2")
    assert message.properties["colour"] == "red"
    assert message.reconsume_times == 0
    assert message.to_dict()["message_id"] == result.message_id


def test_a_group_goes_on_where_it_has_stopped(rocketmq_broker, rocketmq_topic, run):
    namesrv = rocketmq_broker.namesrv_addr

    async def scenario():
        async with Producer(namesrv) as producer:
            for number in range(20):
                await producer.send(rocketmq_topic, b"%d" % number)
            async with Consumer(namesrv, "CG-on", {rocketmq_topic: "*"}, start="first") as consumer:
                first = await receive(consumer, 12)
            async with Consumer(namesrv, "CG-on", {rocketmq_topic: "*"}, start="first") as consumer:
                rest = await receive(consumer, 8)
                await get_nothing_more(producer, consumer, rocketmq_topic)
        return [message.body for message in first + rest]

    assert sorted(run(scenario()), key=int) == [b"%d" % number for number in range(20)]


def test_what_was_not_settled_comes_again(rocketmq_broker, rocketmq_topic, run):
    namesrv = rocketmq_broker.namesrv_addr

    async def scenario():
        async with Producer(namesrv) as producer:
            for number in range(4):
                await producer.send(rocketmq_topic, b"%d" % number, queue_id=0)
            async with Consumer(namesrv, "CG-un", {rocketmq_topic: "*"}, start="first") as consumer:
                taken = [await consumer.receive(TIMEOUT_S) for _ in range(4)]
                await consumer.ack(taken[0])
                await consumer.ack(taken[2])
            async with Consumer(namesrv, "CG-un", {rocketmq_topic: "*"}, start="first") as consumer:
                again = await receive(consumer, 3)
                await get_nothing_more(producer, consumer, rocketmq_topic)
        return [message.body for message in again]

    assert run(scenario()) == [b"1", b"2", b"3"]


def test_start_says_where_a_new_group_begins(rocketmq_broker, rocketmq_topic, run):
    namesrv, wanted = rocketmq_broker.namesrv_addr, {rocketmq_topic: "*"}

    async def scenario():
        async with Admin(namesrv) as admin:
            # a queue that the name server tells of after the consumer's start is read whole
            await admin.create_topic(rocketmq_topic)
        async with Producer(namesrv) as producer:
            await producer.send(rocketmq_topic, b"old", queue_id=0)
            sent_ms = time.time_ns() // 1_000_000
            await until_async(lambda: time.time_ns() // 1_000_000 > sent_ms, "the next millisecond")
            middle = await producer.send(rocketmq_topic, b"middle", queue_id=0)
            async with Consumer(namesrv, "CG-first", wanted, start="first") as first:
                old, found = await receive(first, 2)
            # RocketMQ tells the end of a queue of what consumers can have, a moment after a send
            async with Consumer(namesrv, "CG-last", wanted, start="last") as last:
                await producer.send(rocketmq_topic, b"new", queue_id=0)
                (new,) = await receive(last, 1)
            when = found.store_timestamp_ms
            async with Consumer(namesrv, "CG-time", wanted, start=when) as timed:
                since = await receive(timed, 2)
        assert found.queue_offset == middle.queue_offset
        return old.body, new.body, [message.body for message in since]

    assert run(scenario()) == (b"old", b"new", [b"middle", b"new"])


def test_a_start_whose_first_request_failed_is_still_a_start(
    rocketmq_broker, rocketmq_topic, run, monkeypatch
):
    namesrv, asked = rocketmq_broker.namesrv_addr, Counter()
    stored_offset = GroupRequests.stored_offset

    async def failing_once(requests, queue):
        asked[queue] += 1
        if asked[queue] == 1:
            raise RemotingConnectError("127.0.0.1:1", "not now")
        return await stored_offset(requests, queue)

    monkeypatch.setattr(GroupRequests, "stored_offset", failing_once)
    monkeypatch.setattr("rmqcore.client.assignment._PULL_PAUSE_S", 0.02)

    async def scenario():
        async with Admin(namesrv) as admin:
            await admin.create_topic(rocketmq_topic)
        async with Producer(namesrv) as producer:
            await producer.send(rocketmq_topic, b"old", queue_id=0)
            async with Consumer(namesrv, "CG", {rocketmq_topic: "*"}, start="last") as consumer:
                queue = MessageQueue(rocketmq_topic, "broker-a", 0)
                await until_async(
                    lambda: queue in {each.queue for each in consumer.assigned}, "the queue"
                )
                assert asked[queue] == 2
                await producer.send(rocketmq_topic, b"new", queue_id=0)
                (new,) = await receive(consumer, 1)
        return new.body

    assert run(scenario()) == b"new"


def test_tags_choose(rocketmq_broker, rocketmq_topic, run):
    namesrv = rocketmq_broker.namesrv_addr

    async def scenario():
        async with Producer(namesrv) as producer:
            for number, tag in enumerate(("a", "b", "c", None, "a")):
                await producer.send(rocketmq_topic, b"%d" % number, tags=tag, queue_id=0)
            expression = {rocketmq_topic: "a || c"}
            async with Consumer(namesrv, "CG-tags", expression, start="first") as consumer:
                found = await receive(consumer, 3)
                await get_nothing_more(producer, consumer, rocketmq_topic, tags="c")
        return [message.body for message in found]

    assert run(scenario()) == [b"0", b"2", b"4"]


def test_a_batch_lies_in_one_queue(rocketmq_broker, rocketmq_topic, run):
    namesrv = rocketmq_broker.namesrv_addr

    async def scenario():
        async with Producer(namesrv) as producer:
            many = [b"a", Message(rocketmq_topic, b"b", tags="t", keys="k"), b"c"]
            result = await producer.send_batch(rocketmq_topic, many)
        async with Consumer(namesrv, "CG-batch", {rocketmq_topic: "*"}, start="first") as consumer:
            return result, await receive(consumer, 3)

    result, found = run(scenario())
    assert [message.body for message in found] == [b"a", b"b", b"c"]
    assert {message.queue_id for message in found} == {result.queue_id}
    assert [message.queue_offset for message in found] == [0, 1, 2]
    assert result.message_id.split(",") == [message.message_id for message in found]
    assert result.offset_message_id.split(",") == [m.offset_message_id for m in found]
    assert (found[1].tags, found[1].keys) == ("t", ("k",))


def test_oneway_and_compressed_bodies_arrive(rocketmq_broker, rocketmq_topic, run):
    namesrv, large = rocketmq_broker.namesrv_addr, b"large " * 2000

    async def scenario():
        async with Producer(namesrv) as producer:
            await producer.send_oneway(rocketmq_topic, b"small")
            await producer.send(rocketmq_topic, large)
        async with Consumer(namesrv, "CG-one", {rocketmq_topic: "*"}, start="first") as consumer:
            return await receive(consumer, 2)

    found = sorted(run(scenario()), key=lambda message: len(message.body))
    assert [message.body for message in found] == [b"small", large]
    assert found[1].store_size < 1000


def test_two_consumers_share_the_queues(rocketmq_broker, rocketmq_topic, run, monkeypatch):
    monkeypatch.setattr("rmqcore.client.assignment._COMMIT_INTERVAL_S", 0.01)
    namesrv, wanted = rocketmq_broker.namesrv_addr, {rocketmq_topic: "*"}

    async def scenario():
        async with Producer(namesrv) as producer, Admin(namesrv) as admin:
            await producer.send(rocketmq_topic, b"first", queue_id=0)
            async with Consumer(namesrv, "CG-two", wanted, start="first") as one:
                await receive(one, 1)

                async def is_known():
                    progress = await admin.consumer_progress("CG-two", rocketmq_topic)
                    return any(each.consumer_offset == 1 for each in progress)

                # a broker is told later: another one would be given it again before
                await until_async(is_known, "the broker knows that the first is done with")

                async def shares(size, *consumers):
                    found = [
                        {each.queue for each in consumer.assigned if each.queue.topic[0] != "%"}
                        for consumer in consumers
                    ]
                    return {len(share) for share in found} == {size} and found

                # the first one has all before there is another, and takes none any more
                await until_async(lambda: shares(4, one), "four queues of the first")
                async with Consumer(namesrv, "CG-two", wanted, start="first") as two:
                    both = await until_async(lambda: shares(2, one, two), "two queues of each")
                    assert not set.intersection(*both)
                    for queue_id in range(4):
                        await producer.send(rocketmq_topic, b"%d" % queue_id, queue_id=queue_id)
                    bodies = [await receive(one, 2), await receive(two, 2)]
        return sorted(message.body for part in bodies for message in part)

    assert run(scenario()) == [b"0", b"1", b"2", b"3"]


def test_broadcasting_gives_everybody_all(rocketmq_broker, rocketmq_topic, run):
    namesrv, wanted = rocketmq_broker.namesrv_addr, {rocketmq_topic: "*"}

    async def scenario():
        async with Producer(namesrv) as producer:
            for number in range(8):
                await producer.send(rocketmq_topic, b"%d" % number)
            found = []
            for _ in range(2):
                async with Consumer(
                    namesrv, "CG-cast", wanted, start="first", mode="broadcasting"
                ) as consumer:
                    found.append({message.body for message in await receive(consumer, 8)})
        return found

    assert run(scenario()) == [{b"%d" % number for number in range(8)}] * 2


def test_in_order_one_message_of_a_queue_at_a_time(
    rocketmq_broker, rocketmq_topic, run, monkeypatch
):
    namesrv, wanted = rocketmq_broker.namesrv_addr, {rocketmq_topic: "*"}
    monkeypatch.setattr("rmqcore.client.consumer._LEVELS_S", (0.1,))

    async def scenario():
        async with Producer(namesrv) as producer:
            for number in range(3):
                await producer.send(rocketmq_topic, b"%d" % number, queue_id=1)
        found = []
        async with Consumer(namesrv, "CG-order", wanted, start="first", orderly=True) as consumer:
            first = await consumer.receive(TIMEOUT_S)
            await until_async(
                lambda: sum(each.cached[2] for each in consumer.assigned) == 3, "all three here"
            )
            assert await consumer.receive(timeout_s=0) is None
            await consumer.nack(first, delay_level=1)
            assert await consumer.receive(timeout_s=0) is None
            for message in await receive(consumer, 3):
                found += [(message.body, message.reconsume_times)]
        return found

    assert run(scenario()) == [(b"0", 1), (b"1", 0), (b"2", 0)]


def test_what_fails_in_order_dies_at_last(rocketmq_broker, rocketmq_topic, run):
    namesrv, wanted = rocketmq_broker.namesrv_addr, {rocketmq_topic: "*"}

    async def scenario():
        async with Producer(namesrv) as producer:
            for body in (b"bad", b"good"):
                await producer.send(rocketmq_topic, body, queue_id=0)
        group = "CG-order-dead"
        async with Consumer(
            namesrv, group, wanted, start="first", orderly=True, reconsume_max=0
        ) as consumer:
            await consumer.nack(await consumer.receive(TIMEOUT_S))
            (good,) = await receive(consumer, 1)
        async with Consumer(
            namesrv, "CG-dead-order", {f"%DLQ%{group}": "*"}, start="first"
        ) as dead:
            return good.body, (await receive(dead, 1))[0].body

    assert run(scenario()) == (b"good", b"bad")


def test_what_is_given_back_comes_again_and_dies_at_last(rocketmq_broker, rocketmq_topic, run):
    namesrv, wanted = rocketmq_broker.namesrv_addr, {rocketmq_topic: "*"}

    async def scenario():
        async with Producer(namesrv) as producer:
            sent = await producer.send(rocketmq_topic, b"bad", keys="k")
        async with Consumer(namesrv, "CG-back", wanted, start="first", reconsume_max=1) as consumer:
            first = await consumer.receive(TIMEOUT_S)
            await consumer.nack(first, delay_level=1)
            second = await consumer.receive(TIMEOUT_S)
            await consumer.nack(second, delay_level=1)
        async with Consumer(namesrv, "CG-dead", {"%DLQ%CG-back": "*"}, start="first") as consumer:
            (dead,) = await receive(consumer, 1)
        return sent, first, second, dead

    sent, first, second, dead = run(scenario())
    assert (first.topic, first.reconsume_times) == (rocketmq_topic, 0)
    assert (second.topic, second.reconsume_times) == (rocketmq_topic, 1)
    assert second.stored.topic == "%RETRY%CG-back"
    assert dead.topic == "%DLQ%CG-back"
    assert {each.message_id for each in (first, second, dead)} == {sent.message_id}
    assert second.properties["ORIGIN_MESSAGE_ID"] == sent.offset_message_id


async def delayed_by_ms(broker, topic):
    """How much later than sent a message of the first level of delay is stored."""
    async with Producer(broker.namesrv_addr) as producer:
        await producer.send(topic, b"now")
        async with Consumer(
            broker.namesrv_addr, "CG-delay", {topic: "*"}, start="first"
        ) as consumer:
            await receive(consumer, 1)
            # the last level is two hours
            await producer.send(topic, b"much later", delay_level=18)
            await producer.send(topic, b"late", delay_level=1)
            (late,) = await receive(consumer, 1)
    assert late.body == b"late"
    return late.store_timestamp_ms - late.born_timestamp_ms


def test_a_delayed_message_comes_later(rocketmq_broker, rocketmq_topic, run):
    assert run(delayed_by_ms(rocketmq_broker, rocketmq_topic)) >= 900


@pytest.mark.measure
def test_a_delayed_message_comes_in_time(rocketmq_broker, rocketmq_topic, run, figure):
    took_ms = run(delayed_by_ms(rocketmq_broker, rocketmq_topic))
    # the fourth level is half a minute
    figure("the first level of delay", took_ms / 1000, "s", at_most=30)


def test_a_topic_that_comes_later_is_consumed_whole(rocketmq_broker, rocketmq_topic, run):
    namesrv, wanted = rocketmq_broker.namesrv_addr, {rocketmq_topic: "*"}

    async def scenario():
        async with (
            Consumer(namesrv, "CG-later", wanted) as consumer,
            Producer(namesrv) as producer,
        ):
            for number in range(4):
                await producer.send(rocketmq_topic, b"%d" % number, queue_id=0)
            return [message.body for message in await receive(consumer, 4)]

    assert run(scenario()) == [b"0", b"1", b"2", b"3"]


def test_what_is_wrong_is_said(rocketmq_broker, rocketmq_topic, run):
    async def scenario():
        async with Producer(rocketmq_broker.namesrv_addr) as producer:
            with pytest.raises(MessageIllegalError, match="no queue 99"):
                await producer.send(rocketmq_topic, b"x", queue_id=99)
            with pytest.raises(MessageIllegalError, match="4194304 at most"):
                await producer.send(rocketmq_topic, bytes(4 * 1024 * 1024 + 1))
            with pytest.raises(MessageIllegalError, match="the body is empty"):
                await producer.send(rocketmq_topic, b"")
            with pytest.raises(MessageIllegalError, match="the body is empty"):
                await producer.send_batch(rocketmq_topic, [b"x", b""])
            with pytest.raises(MessageIllegalError, match="use keys"):
                await producer.send(rocketmq_topic, b"x", properties={"KEYS": "k"})
            with pytest.raises(ArgumentError, match="topic='bad topic'"):
                await producer.send("bad topic", b"x")
        async with Producer("127.0.0.1:1") as nobody:
            with pytest.raises(RemotingConnectError):
                await nobody.send(rocketmq_topic, b"x")

    run(scenario())


def test_no_route_is_said_where_topics_are_not_created(tmp_path, run):
    from rmqcore.testing import running_broker

    async def scenario(namesrv):
        async with Producer(namesrv) as producer:
            with pytest.raises(NoRouteError, match="Unknown"):
                await producer.send("Unknown", b"x")

    with running_broker(tmp_path / "store", autoCreateTopicEnable=False) as broker:
        run(scenario(broker.namesrv_addr))
