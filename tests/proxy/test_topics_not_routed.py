"""Topics that brokers have and that no name server knows, such as one that was just started."""

import asyncio

import pytest
from broker.conftest import Peer
from proxy.test_remote import (
    another_proxy,
    forgotten_by_name_server,
    of_the_group,
    run,
)
from proxy.test_transactions import telemetry

from rmqcore.proxy.codes import Code
from rmqcore.proxy.messages import MessageType
from rmqcore.remoting import RemotingCommand, RequestCode, ResponseCode

pytestmark = pytest.mark.engine

FIFO = {"message_group": "g", "message_type": MessageType.FIFO}


def hide(served, topic):
    """Let the name server know nothing of a topic."""
    processors = served.name_server._server.processors
    route = processors[RequestCode.GET_ROUTEINFO_BY_TOPIC]

    def without(connection, request):
        if request.ext_fields["topic"] == topic:
            return RemotingCommand(ResponseCode.TOPIC_NOT_EXIST, {}, b"", "no route")
        return route(connection, request)

    processors[RequestCode.GET_ROUTEINFO_BY_TOPIC] = without


async def made_on(broker, **fields):
    peer = Peer(broker)
    topic = {"topic": "T", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6, **fields}
    await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
    await peer.client.close()


def test_a_topic_that_one_broker_has_is_as_it_has_it_and_is_made_on_no_other(tmp_path):
    async def scenario(served):
        first, second = served.brokers
        hide(served, "T")
        await made_on(second, attributes="+message.type=FIFO")
        wire = await served.connect()
        refused = await wire.send("T", b"x")
        assert refused.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert (await wire.send("T", b"x", **FIFO)).status.code == Code.OK
        assert first.managers.topics.get("T") is None
        assert second.managers.topics.get("T").attributes == {"message.type": "FIFO"}
        assert [message.body for message in (await wire.receive("T"))[1]] == [b"x"]

    run(tmp_path, scenario, 2)


def test_a_topic_of_a_broker_that_has_still_to_register_is_made_on_no_other(tmp_path):
    async def scenario(served):
        first, second = served.brokers
        await made_on(first, attributes="+message.type=FIFO")
        wire = await served.connect()
        # the proxy hears of both brokers
        await telemetry(wire, subscription={"group": {"name": "G"}})
        await forgotten_by_name_server(served)
        assert (await wire.send("T", b"x", **FIFO)).status.code == Code.OK
        assert second.managers.topics.get("T") is None
        assert first.store.message_at(0).body == b"x"

    run(tmp_path, scenario, 2)


def test_an_ordered_group_keeps_its_order_in_such_a_topic(tmp_path):
    async def scenario(served):
        _, second = served.brokers
        second.managers.groups.put("G", {"consumeMessageOrderly": True})
        hide(served, "T")
        peer = Peer(second)
        for number in range(2):
            await peer.send("T", b"%d" % number)
        await peer.client.close()
        wire = await served.connect()
        _, (message,) = await wire.receive("T", count=1)
        assert message.body == b"0"
        assert (await wire.receive("T"))[0].code == Code.MESSAGE_NOT_FOUND

    run(tmp_path, scenario, 2)


def test_of_two_that_send_to_a_new_topic_at_once_the_first_says_what_it_takes(tmp_path):
    async def scenario(served):
        wire = await served.connect()
        sent = await asyncio.gather(wire.send("T", b"1", **FIFO), wire.send("T", b"2"))
        conflict = Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert [each.status.code for each in sent] == [Code.OK, conflict]
        for broker in served.brokers:
            assert broker.managers.topics.get("T").attributes == {"message.type": "FIFO"}

    run(tmp_path, scenario, 2)


@pytest.mark.parametrize("with_slave", [False, True])
def test_while_the_only_broker_is_away_who_asks_is_told_to_ask_again(tmp_path, with_slave):
    async def scenario(served):
        slave = of_the_group(tmp_path / "slave", served, 1)
        if with_slave:
            await slave.start()
        wire = await served.connect()
        assert (await wire.send("T", b"x")).status.code == Code.OK
        await served.broker.stop()
        topic, group = {"name": "T"}, {"name": "G"}
        try:
            # whoever is known no more is called first
            await wire.send("T", b"x")
            async with another_proxy(served) as next_wire:
                for each in (wire, next_wire):
                    entry = await each.send("T", b"x")
                    route = await each.call("QueryRoute", topic=topic)
                    assigned = await each.call("QueryAssignment", topic=topic, group=group)
                    received, _ = await each.receive("T")
                    said = [entry.status, route.status, assigned.status, received]
                    assert [status.code for status in said] == [Code.INTERNAL_SERVER_ERROR] * 4
        finally:
            await slave.stop()

    run(tmp_path, scenario)
