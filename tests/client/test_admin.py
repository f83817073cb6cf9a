"""An admin creates, measures, resets and deletes."""

import pytest
from client.test_produce_and_consume import receive
from patience import until_async

from rmqcore.client import Admin, Consumer, GroupNotFoundError, NoRouteError, Producer
from rmqcore.remoting import RequestRefusedError

pytestmark = pytest.mark.engine


def test_a_topic_is_created_measured_and_deleted(rocketmq_broker, rocketmq_topic, run):
    async def scenario():
        namesrv = rocketmq_broker.namesrv_addr
        async with Admin(namesrv) as admin, Producer(namesrv) as producer:
            with pytest.raises(NoRouteError):
                await admin.route(rocketmq_topic)
            await admin.create_topic(rocketmq_topic, queues=3)

            async def listed():
                return rocketmq_topic in await admin.topics()

            await until_async(listed, "the topic")
            route = await admin.route(rocketmq_topic)
            (data,) = route.queues
            assert (data.read_queue_count, data.write_queue_count, data.perm) == (3, 3, 6)
            assert route.addresses == [rocketmq_broker.broker_addr]
            for number in range(2):
                await producer.send(rocketmq_topic, b"%d" % number, queue_id=1)

            async def measured():
                stats = await admin.topic_stats(rocketmq_topic)
                return [each.max_offset for each in stats] == [0, 2, 0] and stats

            stats = await until_async(measured, "both messages")
            assert [each.queue.queue_id for each in stats] == [0, 1, 2]
            assert stats[1].last_update_ms > 0
            await admin.delete_topic(rocketmq_topic)
            assert not await listed()
            with pytest.raises(RequestRefusedError):
                await admin.create_topic("not a topic")

    run(scenario())


def test_a_group_is_created_watched_reset_and_deleted(rocketmq_broker, rocketmq_topic, run):
    namesrv, group = rocketmq_broker.namesrv_addr, "G-" + rocketmq_topic[-20:]

    async def scenario():
        async with Admin(namesrv) as admin, Producer(namesrv, group="PG-admin") as producer:
            await admin.create_group(group, retry_max_times=3)
            assert (await admin.groups())[group]["retryMaxTimes"] == 3
            for number in range(3):
                await producer.send(rocketmq_topic, b"%d" % number, queue_id=0)
            consumer = Consumer(namesrv, group, {rocketmq_topic: "*"}, start="first")
            async with consumer:
                await receive(consumer, 2)
                (connected,) = await admin.consumers(group)
                assert connected.client_id == consumer.client_id
                assert connected.language == "PYTHON"
            assert await admin.consumers(group) == []

            async def lag():
                progress = await admin.consumer_progress(group, rocketmq_topic)
                return {each.queue.queue_id: each.lag for each in progress}.get(0)

            async def one_is_left():
                return await lag() == 1

            await until_async(one_is_left, "the offset")
            for topic in (rocketmq_topic, None):
                with pytest.raises(GroupNotFoundError, match=f"did you mean {group}") as unknown:
                    await admin.consumer_progress("G" + group, topic)
                assert (unknown.value.group, unknown.value.nearest) == ("G" + group, group)
            with pytest.raises(GroupNotFoundError, match=r"consumer group \?$"):
                await admin.consumer_progress("?")
            with pytest.raises(NoRouteError):
                await admin.consumer_progress(group, "Unknown")
            assert group in await admin.topic_groups(rocketmq_topic)
            offsets = await admin.reset_offsets(group, rocketmq_topic, 0)
            assert set(offsets.values()) == {0}
            async with Consumer(namesrv, group, {rocketmq_topic: "*"}) as again:
                found = [message.body for message in await receive(again, 3)]
            await admin.delete_group(group)
            assert group not in await admin.groups()
        return found

    assert run(scenario()) == [b"0", b"1", b"2"]


def test_brokers_tell_their_settings_and_figures(rocketmq_broker, run):
    async def scenario():
        async with Admin(rocketmq_broker.namesrv_addr) as admin:
            (entry,) = await admin.clusters()
            assert (entry.broker_name, entry.cluster) == ("broker-a", "DefaultCluster")
            address = rocketmq_broker.broker_addr
            assert entry.addresses == {0: address}
            assert "putTps" in await admin.runtime_info(address)
            await admin.update_broker_config(address, {"longPollingEnable": "false"})
            assert (await admin.broker_config(address))["longPollingEnable"] == "false"
            await admin.update_broker_config(address, {"longPollingEnable": "true"})
            assert await admin.set_write_permission("broker-a", False) > 0
            assert await admin.set_write_permission("broker-a", True) > 0

    run(scenario())


def test_a_producer_is_known_to_a_broker_that_it_has_used(rocketmq_broker, rocketmq_topic, run):
    namesrv = rocketmq_broker.namesrv_addr

    async def scenario():
        async with Admin(namesrv) as admin, Producer(namesrv, group="PG-known") as producer:

            async def known():
                found = await admin.producers("PG-known", rocketmq_topic)
                return [each.client_id for each in found]

            await producer.send(rocketmq_topic, b"x")
            first = await until_async(known, "the producer at the broker")
            # over another connection it is a stranger again
            producer._instance.remoting.disconnect(rocketmq_broker.broker_addr)

            async def unknown():
                return not await known()

            await until_async(unknown, "the broker has seen the connection's end")
            await producer.send(rocketmq_topic, b"y")
            again = await until_async(known, "the producer at the broker")
            assert first == again == [producer.client_id]

    run(scenario())


def test_messages_are_found_by_id_and_key(rocketmq_broker, rocketmq_topic, run):
    namesrv = rocketmq_broker.namesrv_addr

    async def scenario():
        async with Admin(namesrv) as admin, Producer(namesrv) as producer:
            sent = []
            for number in range(3):
                keys = ("k", f"k{number}")
                sent += [await producer.send(rocketmq_topic, b"%d" % number, keys=keys)]

            async def indexed():
                if rocketmq_topic not in await admin.topics():
                    return False
                # RocketMQ indexes a message's keys one after the other: this one is the last of all
                return len(await admin.messages_by_key(rocketmq_topic, "k2")) == 1

            await until_async(indexed, "all three in the index")
            assert len(await admin.messages_by_key(rocketmq_topic, "k")) == 3
            one = await admin.message_by_id(sent[1].offset_message_id)
            (key,) = await admin.messages_by_key(rocketmq_topic, "k2")
            (unique,) = await admin.messages_by_key(rocketmq_topic, sent[0].message_id, unique=True)
            assert await admin.messages_by_key(rocketmq_topic, "nobody") == []
        return one.body, key.body, unique.body, unique.broker_name

    assert run(scenario()) == (b"1", b"2", b"0", "broker-a")
