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

from rmqcore.proxy import RemoteCluster
from rmqcore.proxy.cluster import TEMPLATE_TOPIC
from rmqcore.proxy.codes import Code, RefusedError
from rmqcore.proxy.messages import MessageType
from rmqcore.remoting import RemotingCommand, RequestCode, ResponseCode
from rmqcore.world import World, monotonic_s

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


async def sent_to_a_fifo_topic(served, broker):
    """A client that has sent to a topic which one broker has."""
    await made_on(broker, attributes="+message.type=FIFO")
    wire = await served.connect()
    assert (await wire.send("T", b"0", **FIFO)).status.code == Code.OK
    return wire


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


def test_a_broker_that_comes_back_is_read_from_when_a_client_asks_for_it(tmp_path):
    ahead_s = 0.0

    async def scenario(served):
        nonlocal ahead_s
        first = served.broker
        wire = await served.connect()
        for number in range(8):
            assert (await wire.send("T", b"%d" % number)).status.code == Code.OK
        where = {"topic": {"name": "T"}, "id": -1, "broker": {"name": "b0"}}
        await first.stop()
        while (await wire.send("T", b"x")).status.code != Code.OK:
            continue  # who called it last has to find that it is gone
        for _ in range(2):
            status, _ = await wire.receive("T", message_queue=where)
            assert status.code == Code.INTERNAL_SERVER_ERROR
        await first.start()
        ahead_s = 1.0
        both = await asyncio.gather(*(wire.receive("T", message_queue=where) for _ in range(2)))
        assert sum(len(messages) for _, messages in both) == 4
        # of two that ask at once both wait for the answer
        assert {status.code for status, _ in both} == {Code.OK, Code.MESSAGE_NOT_FOUND}
        where = {"topic": {"name": "U"}, "id": -1, "broker": {"name": "b1"}}
        await made_on(first, topic="U")
        assert (await wire.receive("U", message_queue=where))[0].code == Code.FORBIDDEN

    run(tmp_path, scenario, 2, world=World(monotonic_s=lambda: monotonic_s() + ahead_s))


def test_name_servers_are_asked_once_a_second_for_what_a_client_names(tmp_path):
    now, asked = [1000.0], []

    async def scenario(served):
        await made_on(served.broker)
        processors = served.name_server._server.processors
        for code in (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO):
            answered = processors[code]

            def counted(connection, request, answered=answered):
                if request.ext_fields.get("topic") != TEMPLATE_TOPIC:
                    asked.append((request.code, now[0]))
                return answered(connection, request)

            processors[code] = counted
        address = f"127.0.0.1:{served.name_server.port}"
        remote = RemoteCluster(address, world=World(monotonic_s=lambda: now[0]))
        assert await remote.topic_on("T", "b0")
        for number in range(20):
            now[0] += number == 10
            with pytest.raises(RefusedError, match="not known to the name servers"):
                await remote.topic_on("T", f"no{number}")
            assert await remote.topic_to_be("U") is None
        await remote.stop()

    run(tmp_path, scenario, autoCreateTopicEnable="false")
    assert sorted(asked) == [
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, 1000.0),
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, 1000.0),
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, 1001.0),
        (RequestCode.GET_BROKER_CLUSTER_INFO, 1000.0),
        (RequestCode.GET_BROKER_CLUSTER_INFO, 1001.0),
    ]


def test_a_topic_is_made_on_no_other_broker_while_its_own_is_away(tmp_path):
    ahead_s = 0.0

    async def scenario(served):
        nonlocal ahead_s
        first, second = served.brokers
        wire = await sent_to_a_fifo_topic(served, first)
        await first.stop()
        for _ in range(3):
            assert (await wire.send("T", b"x")).status.code != Code.OK
            assert (await wire.send("T", b"x", **FIFO)).status.code == Code.INTERNAL_SERVER_ERROR
            assert (await wire.receive("T"))[0].code == Code.INTERNAL_SERVER_ERROR
        assert second.managers.topics.get("T") is None
        assert (await wire.send("U", b"x")).status.code == Code.OK
        await first.start()
        assert (await wire.send("T", b"1", **FIFO)).status.code == Code.OK
        # one that was deleted is made where any is
        peer = Peer(first)
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        await peer.client.close()
        hide(served, "T")
        ahead_s = 31.0
        assert (await wire.send("T", b"x")).status.code == Code.OK
        assert second.managers.topics.get("T").attributes == {"message.type": "NORMAL"}

    run(tmp_path, scenario, 2, world=World(monotonic_s=lambda: monotonic_s() + ahead_s))


def test_a_topic_is_as_its_broker_tells_while_that_has_still_to_register(tmp_path):
    ahead_s = 0.0

    async def scenario(served):
        nonlocal ahead_s
        wire = await sent_to_a_fifo_topic(served, served.broker)
        await forgotten_by_name_server(served)
        ahead_s = 31.0
        route = await wire.call("QueryRoute", topic={"name": "T"})
        assert {each.broker.name for each in route.message_queues} == {"b0"}
        assert {kind for each in route.message_queues for kind in each.accept_message_types} == {
            MessageType.FIFO
        }
        assert (await wire.send("T", b"1", **FIFO)).status.code == Code.OK
        assert (await wire.call("QueryRoute", topic={"name": "U"})).status.code == (
            Code.TOPIC_NOT_FOUND
        )

    world = World(monotonic_s=lambda: monotonic_s() + ahead_s)
    run(tmp_path, scenario, 2, world=world, autoCreateTopicEnable="false")


def test_a_topic_whose_broker_has_gone_for_good_is_made_on_others(tmp_path):
    ahead_s = 0.0

    async def scenario(served):
        nonlocal ahead_s
        first, second = served.brokers
        wire = await sent_to_a_fifo_topic(served, first)
        await first.stop()
        await wire.send("T", b"x", **FIFO)
        # who asks after a while may find it away for a second time
        for passed_s in (1, 700, 50, *(55,) * 9):
            ahead_s += passed_s
            assert (await wire.send("T", b"x")).status.code == Code.INTERNAL_SERVER_ERROR
        ahead_s += 58
        assert (await wire.send("T", b"x")).status.code == Code.OK
        assert second.managers.topics.get("T").attributes == {"message.type": "NORMAL"}
        # one that comes back nevertheless is found
        await first.start()
        ahead_s += 31
        route = await wire.call("QueryRoute", topic={"name": "T"})
        assert {each.broker.name for each in route.message_queues} == {"b0", "b1"}

    run(tmp_path, scenario, 2, world=World(monotonic_s=lambda: monotonic_s() + ahead_s))


def test_a_broker_that_answers_and_that_no_name_server_knows_has_not_gone(tmp_path):
    ahead_s = 0.0

    async def scenario(served):
        nonlocal ahead_s
        wire = await sent_to_a_fifo_topic(served, served.broker)
        await forgotten_by_name_server(served)
        for _ in range(20):
            ahead_s += 50.0
            where = {"topic": {"name": "T"}, "id": -1, "broker": {"name": "none"}}
            assert (await wire.receive("T", message_queue=where))[0].code != Code.OK
            assert (await wire.send("T", b"x", **FIFO)).status.code == Code.OK

    run(tmp_path, scenario, 2, world=World(monotonic_s=lambda: monotonic_s() + ahead_s))


def test_whoever_waits_for_a_new_topic_waits_once_where_a_broker_does_not_answer(tmp_path):
    async def scenario(served):
        wire = await served.connect()
        asked = []

        def tells_nothing(_, request):
            asked.append(request)
            return RemotingCommand(ResponseCode.SYSTEM_BUSY, {}, b"", "not now")

        await wire.send("U", b"x")
        served.broker._server.processors[RequestCode.GET_TOPIC_CONFIG] = tells_nothing
        sent = await asyncio.gather(*(wire.send("T", b"x") for _ in range(5)))
        assert {each.status.code for each in sent} == {Code.TOO_MANY_REQUESTS}
        assert len(asked) == 1

    run(tmp_path, scenario, 2)
