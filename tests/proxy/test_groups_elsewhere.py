"""Which of several brokers tells of a group, and what counts while none does."""

import pytest
from broker.conftest import Peer
from proxy.test_remote import another_proxy, busy, run
from proxy.test_topics_not_routed import made_on
from proxy.test_transactions import telemetry

from rmqcore.proxy import clients
from rmqcore.proxy.codes import Code
from rmqcore.proxy.messages import ClientType, TelemetryCommand
from rmqcore.remoting import RequestCode
from rmqcore.world import World, monotonic_s

pytestmark = pytest.mark.engine


def test_a_group_is_as_the_brokers_of_its_topic_know_it_beside_topics_of_others(tmp_path):
    async def scenario(served):
        _, second = served.brokers
        second.managers.groups.put("G", {"consumeMessageOrderly": True})
        for broker, topic in zip(served.brokers, "UT", strict=True):
            # name servers know it when that is answered; one that a send makes, a moment later
            await made_on(broker, topic=topic)
            peer = Peer(broker)
            await peer.send(topic, b"x")
            await peer.client.close()
        wire = await served.connect()
        assert (await wire.receive("U", "G"))[0].code == Code.OK
        _, answer = await telemetry(
            wire,
            subscription={"group": {"name": "G"}, "subscriptions": [{"topic": {"name": "T"}}]},
        )
        assert answer.settings.subscription.fifo
        _, (message,) = await wire.receive("T")
        assert (await wire.receive("T"))[0].code == Code.MESSAGE_NOT_FOUND
        await wire.ack("T", message)
        assert second.store.consumer_offsets.get("T", "G", 0) == 1

    run(tmp_path, scenario, 2)


def test_a_push_consumer_is_told_of_its_group_as_soon_as_a_broker_tells(tmp_path, monkeypatch):
    """Until then its client is not told that the group has no order: it would believe it."""
    monkeypatch.setattr(clients, "_ASKED_AGAIN_S", 0.01)

    async def scenario(served):
        wire = await served.connect()
        await served.broker.stop()
        group = {"subscription": {"group": {"name": "G"}}}
        stream, answer = await telemetry(wire, client_type=ClientType.PUSH_CONSUMER, **group)
        assert answer.status.code == Code.INTERNAL_SERVER_ERROR
        assert not answer.HasField("settings")
        _, answer = await telemetry(wire, client_type=ClientType.SIMPLE_CONSUMER, **group)
        assert answer.HasField("settings")
        await served.broker.start()
        served.broker.managers.groups.put("G", {"consumeMessageOrderly": True})
        await stream.until(lambda: len(stream.messages()) == 2)
        answer = TelemetryCommand.FromString(stream.messages()[1])
        assert (answer.status.code, answer.settings.subscription.fifo) == (Code.OK, True)

    run(tmp_path, scenario)


def test_a_group_is_as_it_was_while_its_only_broker_is_busy(tmp_path):
    ahead_s = 0.0

    async def scenario(served):
        nonlocal ahead_s
        served.broker.managers.groups.put("G", {"consumeMessageOrderly": True})
        wire = await served.connect()
        for number in range(2):
            await wire.send("T", b"%d" % number, message_group="g", message_type=2)
        _, (first,) = await wire.receive("T", count=1)
        busy(served.broker, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
        ahead_s = 6.0
        assert (await wire.receive("T"))[0].code == Code.MESSAGE_NOT_FOUND
        await wire.ack("T", first)
        assert [message.body for message in (await wire.receive("T"))[1]] == [b"1"]

    run(tmp_path, scenario, world=World(monotonic_s=lambda: monotonic_s() + ahead_s))


def test_each_broker_has_its_turn_with_a_group_that_nobody_has_looked_up(tmp_path):
    async def scenario(served):
        wire = await served.connect()
        for number in range(8):
            assert (await wire.send("T", b"%d" % number)).status.code == Code.OK
        found = []
        for _ in range(8):
            found += [message.body for message in (await wire.receive("T", count=1))[1]]
        assert sorted(found) == [b"%d" % number for number in range(8)]

    run(tmp_path, scenario, 2)


def test_a_group_is_as_it_was_while_its_broker_is_busy_and_another_one_tells(tmp_path):
    ahead_s = 0.0

    async def scenario(served):
        nonlocal ahead_s
        first, _ = served.brokers
        first.managers.groups.put("G", {"consumeMessageOrderly": True})
        await made_on(first)
        wire = await served.connect()
        # the proxy hears of both brokers
        await telemetry(wire, subscription={"group": {"name": "H"}})
        for number in range(2):
            await wire.send("T", b"%d" % number, message_group="g", message_type=2)
        async with another_proxy(served) as next_wire:
            assert len((await wire.receive("T", count=1))[1]) == 1
            busy(first, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
            ahead_s = 6.0
            assert (await wire.receive("T"))[0].code == Code.MESSAGE_NOT_FOUND
            # this one has no last answer, and the other broker makes the group as it is asked
            assert (await next_wire.receive("T"))[0].code == Code.TOO_MANY_REQUESTS

    run(tmp_path, scenario, 2, world=World(monotonic_s=lambda: monotonic_s() + ahead_s))


def test_a_push_consumer_is_told_nothing_while_the_brokers_of_its_topic_are_away(tmp_path):
    async def scenario(served):
        first, _ = served.brokers
        first.managers.groups.put("G", {"consumeMessageOrderly": True})
        await made_on(first)
        wire = await served.connect()
        assert (await wire.send("T", b"x")).status.code == Code.OK
        await first.stop()
        # whoever is known no more is called first
        await wire.send("T", b"x")
        named = {"group": {"name": "G"}, "subscriptions": [{"topic": {"name": "T"}}]}
        for kind, told in ((ClientType.PUSH_CONSUMER, False), (ClientType.SIMPLE_CONSUMER, True)):
            _, answer = await telemetry(wire, client_type=kind, subscription=named)
            assert answer.HasField("settings") is told

    run(tmp_path, scenario, 2)


def test_a_new_push_consumer_is_told_by_the_next_broker_of_its_topic(tmp_path):
    async def scenario(served):
        wire = await served.connect()
        assert (await wire.send("T", b"x")).status.code == Code.OK
        busy(served.broker, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
        named = {"group": {"name": "G"}, "subscriptions": [{"topic": {"name": "T"}}]}
        _, answer = await telemetry(wire, client_type=ClientType.PUSH_CONSUMER, subscription=named)
        assert answer.status.code == Code.OK
        assert answer.HasField("settings")
        topic, group = {"name": "T"}, {"name": "H"}
        assigned = await wire.call("QueryAssignment", topic=topic, group=group)
        assert assigned.status.code == Code.OK

    run(tmp_path, scenario, 2)
