"""The same service in front of brokers elsewhere, which name servers know."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from broker.conftest import Peer
from patience import until_async
from proxy.conftest import SMALL, Served
from proxy.test_access import ACCOUNTS, ADMIN, ORDERS, signed
from proxy.test_transactions import COMMIT, ended, prepared, telemetry

from rmqcore.broker import Broker
from rmqcore.broker.requests import NEEDS
from rmqcore.namesrv import NameServer
from rmqcore.proxy import GrpcServer, RemoteCluster, Service, consuming
from rmqcore.proxy.codes import Code, RefusedError
from rmqcore.proxy.messages import MessageType, TelemetryCommand
from rmqcore.remoting import (
    AccessGate,
    RemotingClient,
    RemotingCommand,
    RequestCode,
    ResponseCode,
)
from rmqcore.remoting.codes import VERSION_5_0_0
from rmqcore.world import REAL, World, monotonic_s, wall_clock_ms

pytestmark = pytest.mark.engine


@asynccontextmanager
async def cluster(path, count=1, *, accounts=None, world=REAL, broker_world=REAL, **properties):
    """Brokers, their name server, and a proxy in front of them."""
    async with AsyncExitStack() as stack:
        gate = AccessGate(accounts, NEEDS) if accounts else None
        name_server = NameServer("127.0.0.1", 0, gate=gate)
        await name_server.start()
        stack.push_async_callback(name_server.stop)
        address = f"127.0.0.1:{name_server.port}"
        brokers = []
        for number in range(count):
            places = {"listenPort": 0, "namesrvAddr": address, "brokerName": f"b{number}"}
            broker = Broker(
                path / f"store{number}",
                {**SMALL, **places, **properties},
                accounts=accounts,
                world=broker_world,
            )
            await broker.start()
            stack.push_async_callback(broker.stop)
            brokers.append(broker)
        remote = RemoteCluster(f"127.0.0.1:1;{address}", accounts, world=world)
        stack.push_async_callback(remote.stop)
        service = Service(remote, accounts, world=world)
        server = GrpcServer(service, "127.0.0.1", 0)
        await server.start()
        stack.push_async_callback(server.stop)
        served = Served(brokers[0], service, server)
        served.brokers, served.name_server = brokers, name_server
        try:
            yield served
        finally:
            for wire in served.wires:
                await wire.close()


def run(path, scenario, count=1, **settings):
    async def main():
        async with cluster(path, count, **settings) as served:
            await scenario(served)

    asyncio.run(main())


def test_messages_go_through_two_brokers(tmp_path):
    async def scenario(served):
        wire = await served.connect()
        for number in range(8):
            assert (await wire.send("T", b"%d" % number)).status.code == Code.OK
        for broker in served.brokers:
            offsets = [broker.store.max_queue_offset("T", each) for each in range(4)]
            assert offsets == [1, 1, 1, 1]
        answer = await wire.call("QueryAssignment", topic={"name": "T"}, group={"name": "G"})
        names = [each.message_queue.broker.name for each in answer.assignments]
        assert sorted(names) == ["b0", "b1"]
        found = []
        for name in names:
            queue = {"topic": {"name": "T"}, "id": -1, "broker": {"name": name}}
            _, messages = await wire.receive("T", message_queue=queue)
            found += messages
        assert sorted(message.body for message in found) == [b"%d" % n for n in range(8)]
        for message in found:
            assert (await wire.ack("T", message)).status.code == Code.OK
        for broker in served.brokers:
            assert broker.managers.checkpoints.next_due_ms() is None

    run(tmp_path, scenario, 2)


def test_a_topic_is_made_with_its_type_on_every_broker(tmp_path):
    async def scenario(served):
        wire = await served.connect()
        fifo = MessageType.FIFO
        entry = await wire.send("T", b"x", message_group="g", message_type=fifo)
        assert entry.status.code == Code.OK
        for broker in served.brokers:
            assert broker.managers.topics.get("T").attributes == {"message.type": "FIFO"}
        refused = await wire.send("T", b"x")
        assert refused.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE

    run(tmp_path, scenario, 2)


def test_a_receive_waits_at_a_broker_elsewhere(tmp_path):
    async def scenario(served):
        wire = await served.connect()
        await wire.send("T", b"first")
        assert len((await wire.receive("T"))[1]) == 1
        waiting = asyncio.create_task(wire.receive("T", wait_s=20))
        await until_async(lambda: len(served.broker.managers.waiting_pops) == 1, "a receive waits")
        await wire.send("T", b"second")
        assert (await waiting)[1][0].body == b"second"

    run(tmp_path, scenario)


def test_what_a_broker_hands_out_too_late_is_given_back(tmp_path, monkeypatch):
    monkeypatch.setattr(consuming, "_POP_LATE_MS", 500)

    async def scenario(served):
        processors, held = served.broker._server.processors, asyncio.Event()
        pop = processors[RequestCode.POP_MESSAGE]

        async def pop_late(connection, request):
            # at once, as there is a message
            answer = pop(connection, request)
            await held.wait()
            return answer

        wire = await served.connect()
        await wire.send("T", b"x")
        processors[RequestCode.POP_MESSAGE] = pop_late
        answer, _ = await wire.receive("T", wait_s=0, invisible_s=60)
        assert answer.code == Code.PROXY_TIMEOUT
        held.set()
        processors[RequestCode.POP_MESSAGE] = pop
        _, (message,) = await wire.receive("T", wait_s=20)
        assert message.body == b"x"

    run(tmp_path, scenario)


def test_a_producer_elsewhere_is_asked_for_its_transaction(tmp_path):
    async def scenario(served):
        wire = await served.connect()
        await wire.send("U", b"x")
        stream, _ = await telemetry(wire, client_type=1, publishing={"topics": [{"name": "T"}]})
        producers = served.broker.managers.producers
        await until_async(lambda: "T" in producers.groups, "the broker knows the producer")
        entry = await prepared(wire, "T", b"body")
        while not await served.broker.managers.transactions.check():
            await asyncio.sleep(0)
        await stream.until(lambda: len(stream.messages()) == 2)
        command = TelemetryCommand.FromString(stream.messages()[1])
        asked = command.recover_orphaned_transaction_command
        assert asked.transaction_id == entry.transaction_id
        assert await ended(wire, "T", entry, COMMIT) == Code.OK

    run(tmp_path, scenario, transactionTimeOut=1, transactionCheckInterval=3_600_000)


def test_a_broker_sees_the_account_of_each_client(tmp_path):
    async def scenario(served):
        wire = await served.connect(headers=signed(ORDERS))
        assert (await wire.send("Orders", b"x")).status.code == Code.OK
        assert (await wire.send("Others", b"x")).status.code == Code.FORBIDDEN
        admin = await served.connect(headers=signed(ADMIN))
        assert (await admin.send("Others", b"x")).status.code == Code.OK
        assert (await wire.send("Others", b"x")).status.code == Code.FORBIDDEN
        assert (await wire.receive("Orders", "H"))[0].code == Code.FORBIDDEN
        assert len((await wire.receive("Orders"))[1]) == 1

    run(tmp_path, scenario, accounts=ACCOUNTS)


def test_a_broker_that_is_gone_is_said_and_found_again_at_another_port(tmp_path):
    async def scenario(served):
        wire = await served.connect()
        assert (await wire.send("T", b"x")).status.code == Code.OK
        await served.broker.stop()
        assert (await wire.send("T", b"x")).status.code == Code.INTERNAL_SERVER_ERROR
        await served.broker.start()
        assert (await wire.send("U", b"x")).status.code == Code.OK

    run(tmp_path, scenario)


def test_a_broker_that_is_gone_for_good_keeps_nobody_from_the_others(tmp_path):
    async def scenario(served):
        wire = await served.connect()
        for _ in range(8):
            assert (await wire.send("T", b"x")).status.code == Code.OK
        await served.broker.stop()
        while (await wire.send("T", b"y")).status.code != Code.OK:
            continue  # who called it last has to find that it is gone
        where = {"topic": {"name": "T"}, "id": -1, "broker": {"name": "b1"}}
        for group in ("G", "H"):
            status, messages = await wire.receive("T", group, message_queue=where)
            assert status.code == Code.OK
            assert len(messages) == 5
        assert (await wire.send("U", b"z")).status.code == Code.OK

    run(tmp_path, scenario, 2)


def of_the_group(path, served, number, port=0):
    """One more broker of the first one's group, 0 for a master; it is not started."""
    role = "SLAVE" if number else "ASYNC_MASTER"
    address = f"127.0.0.1:{served.name_server.port}"
    places = {"listenPort": port, "namesrvAddr": address, "brokerName": "b0"}
    return Broker(path, {**SMALL, **places, "brokerRole": role, "brokerId": number})


def test_a_master_that_comes_back_is_known_at_once(tmp_path):
    async def scenario(served):
        wire = await served.connect()
        slave = of_the_group(tmp_path / "slave", served, 1)
        await slave.start()
        try:
            assert (await wire.send("T", b"x")).status.code == Code.OK
            await served.broker.stop()
            for _ in range(3):
                # at last by a route with a slave in it and no master
                assert (await wire.send("T", b"x")).status.code != Code.OK
            await served.broker.start()
            assert (await wire.send("T", b"x")).status.code == Code.OK
        finally:
            await slave.stop()

    run(tmp_path, scenario)


def test_who_has_taken_a_masters_place_is_found_though_that_is_a_slave_now(tmp_path):
    async def scenario(served):
        wire = await served.connect()
        assert (await wire.send("T", b"x")).status.code == Code.OK
        port = int(served.broker.address.rpartition(":")[2])
        await served.broker.stop()
        others = [of_the_group(tmp_path / "s", served, 1, port)]
        others.append(of_the_group(tmp_path / "m", served, 0))
        for other in others:
            await other.start()
        try:
            assert (await wire.send("T", b"x")).status.code != Code.OK
            assert (await wire.send("T", b"x")).status.code == Code.OK
        finally:
            for other in others:
                await other.stop()

    run(tmp_path, scenario)


def test_a_broker_that_takes_nothing_lets_name_servers_be_asked_once_a_second(tmp_path):
    now, asked = [1000.0], []

    async def scenario(served):
        wire = await served.connect()
        assert (await wire.send("T", b"x")).status.code == Code.OK
        route = served.name_server._server.processors[RequestCode.GET_ROUTEINFO_BY_TOPIC]

        def counted(connection, request):
            asked.append(now[0])
            return route(connection, request)

        served.name_server._server.processors[RequestCode.GET_ROUTEINFO_BY_TOPIC] = counted
        served.broker._server.processors[RequestCode.RECALL_MESSAGE] = lambda *_: RemotingCommand(
            ResponseCode.SERVICE_NOT_AVAILABLE, {}, b"", "the disk is full"
        )
        address = f"127.0.0.1:{served.name_server.port}"
        remote = RemoteCluster(address, world=World(monotonic_s=lambda: now[0]))
        await remote.topic("T")
        for number in range(20):
            now[0] += number == 10
            answer = await remote.ask("b0", RemotingCommand(RequestCode.RECALL_MESSAGE, {}), None)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert await remote.topic("T")
        await remote.stop()

    run(tmp_path, scenario)
    assert asked == [1000.0, 1000.0, 1001.0]


def test_a_group_is_ordered_for_who_asks_first(tmp_path):
    """A proxy that was just started has asked for no topic, and knows no broker."""

    async def scenario(served):
        served.broker.managers.groups.put("G", {"consumeMessageOrderly": True})
        peer = Peer(served.broker)
        for number in range(2):
            await peer.send("T", b"%d" % number)
        await peer.client.close()
        wire = await served.connect()
        _, answer = await telemetry(wire, subscription={"group": {"name": "G"}})
        assert (answer.status.code, answer.settings.subscription.fifo) == (Code.OK, True)
        _, (first,) = await wire.receive("T", count=1)
        assert (await wire.receive("T"))[0].code == Code.MESSAGE_NOT_FOUND
        await wire.ack("T", first)
        assert [message.body for message in (await wire.receive("T"))[1]] == [b"1"]

    run(tmp_path, scenario)


def test_a_group_is_as_the_brokers_of_its_topic_know_it(tmp_path):
    """A name server may know brokers of several clusters."""

    async def scenario(served):
        _, second = served.brokers
        second.managers.groups.put("G", {"consumeMessageOrderly": True})
        peer = Peer(second)
        for number in range(2):
            await peer.send("T", b"%d" % number)
        await peer.client.close()
        wire = await served.connect()
        # of no topic yet: all brokers are asked for
        await telemetry(wire, subscription={"group": {"name": "H"}})
        _, (message,) = await wire.receive("T", count=1)
        assert message.body == b"0"
        assert (await wire.receive("T"))[0].code == Code.MESSAGE_NOT_FOUND

    run(tmp_path, scenario, 2)


def test_a_group_is_not_told_of_while_no_broker_is_known(tmp_path):
    async def scenario(served):
        wire = await served.connect()
        await served.broker.stop()
        _, answer = await telemetry(wire, subscription={"group": {"name": "G"}})
        assert answer.status.code == Code.INTERNAL_SERVER_ERROR
        await served.broker.start()
        served.broker.managers.groups.put("G", {"consumeMessageOrderly": True})
        _, answer = await telemetry(wire, subscription={"group": {"name": "G"}})
        assert answer.settings.subscription.fifo

    run(tmp_path, scenario)


def test_a_producer_that_has_sent_nothing_is_known_to_all_brokers(tmp_path):
    """What it sent through a proxy that has gone may be undecided."""

    async def scenario(served):
        wire = await served.connect()
        await telemetry(wire, publishing={"topics": [{"name": "T"}]})
        for broker in served.brokers:
            producers = broker.managers.producers
            await until_async(lambda each=producers: each.any_of("T", "T"), "a producer is known")

    run(tmp_path, scenario, 2)


def test_topics_are_as_they_were_while_no_name_server_answers(tmp_path):
    ahead_s = 0.0

    async def scenario(served):
        nonlocal ahead_s
        wire = await served.connect()
        assert (await wire.send("T", b"first")).status.code == Code.OK
        await served.name_server.stop()
        ahead_s = 31.0
        assert (await wire.send("T", b"second")).status.code == Code.OK
        bodies = [message.body for message in (await wire.receive("T"))[1]]
        assert sorted(bodies) == [b"first", b"second"]
        # what is not known is not made up
        assert (await wire.send("U", b"x")).status.code == Code.INTERNAL_SERVER_ERROR

    run(tmp_path, scenario, world=World(monotonic_s=lambda: monotonic_s() + ahead_s))


@pytest.mark.parametrize("version", [407, 413])
def test_a_broker_without_a_timer_is_given_no_message_that_is_due_later(
    tmp_path, monkeypatch, version
):
    real = RemotingClient.invoke

    async def invoke(client, address, command, timeout_ms=3000):
        answer = await real(client, address, command, timeout_ms)
        answer.version = version
        return answer

    monkeypatch.setattr(RemotingClient, "invoke", invoke)

    async def scenario(served):
        wire = await served.connect()
        due = {"delivery_timestamp": {"seconds": wall_clock_ms() // 1000 + 60}, "message_type": 3}
        refused = version < VERSION_5_0_0
        for topic in ("T", "T", "U"):
            code = (await wire.send(topic, b"later", **due)).status.code
            assert code == (Code.VERSION_UNSUPPORTED if refused else Code.OK)
        assert (await wire.send("V", b"now")).status.code == Code.OK
        assert sum(served.broker.store.max_queue_offset("T", each) for each in range(4)) == 0

    run(tmp_path, scenario)


async def forgotten_by_name_server(served):
    """Let the name server know of no broker, as one that was just started."""
    server, config = served.name_server, served.broker.config
    fields = {
        "clusterName": config.broker_cluster_name,
        "brokerName": config.broker_name,
        "brokerAddr": served.broker.address,
        "brokerId": "0",
    }
    client = RemotingClient()
    command = RemotingCommand(RequestCode.UNREGISTER_BROKER, fields)
    answer = await client.invoke(f"127.0.0.1:{server.port}", command)
    await client.close()
    assert answer.code == ResponseCode.SUCCESS


@pytest.mark.parametrize("release", [4, 5])
def test_a_topic_that_no_name_server_knows_yet_keeps_its_queues_and_its_messages(tmp_path, release):
    ahead_s = 0.0

    async def scenario(served):
        nonlocal ahead_s
        if release == 4:
            served.broker._server.processors[RequestCode.GET_TOPIC_CONFIG] = lambda *_: (
                RemotingCommand(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, {}, b"", "not known")
            )
        peer = Peer(served.broker)
        sixteen = {"topic": "T", "readQueueNums": 16, "writeQueueNums": 16, "perm": 6}
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, sixteen)
        await peer.client.close()
        wire = await served.connect()
        for number in range(16):
            assert (await wire.send("T", b"%d" % number)).status.code == Code.OK
        ahead_s = 29.0
        # what new topics are made after is known until later than T
        assert (await wire.send("U", b"x")).status.code == Code.OK
        await forgotten_by_name_server(served)
        ahead_s = 31.0
        assert (await wire.send("T", b"16")).status.code == Code.OK
        assert served.broker.managers.topics.get("T").read_queue_nums == 16
        bodies = {message.body for message in (await wire.receive("T"))[1]}
        assert bodies == {b"%d" % number for number in range(17)}

    run(tmp_path, scenario, world=World(monotonic_s=lambda: monotonic_s() + ahead_s))


@asynccontextmanager
async def another_proxy(served, world=REAL):
    """A proxy that has asked for nothing yet, as one that was started again; a client of it."""
    remote = RemoteCluster(f"127.0.0.1:{served.name_server.port}", world=world)
    server = GrpcServer(Service(remote, world=world), "127.0.0.1", 0)
    await server.start()
    try:
        yield await served.connect(port=server.port)
    finally:
        await server.stop()
        await remote.stop()


def test_what_clients_have_of_a_proxy_that_has_gone_is_good_at_the_next_at_once(tmp_path):
    async def scenario(served):
        wire = await served.connect()
        await wire.send("T", b"x")
        _, (message,) = await wire.receive("T")
        entry = await prepared(wire, "U", b"y")
        async with another_proxy(served) as next_wire:
            assert (await next_wire.ack("T", message)).status.code == Code.OK
        assert served.broker.managers.checkpoints.next_due_ms() is None
        async with another_proxy(served) as next_wire:
            assert await ended(next_wire, "U", entry, COMMIT) == Code.OK
        async with another_proxy(served) as next_wire:
            queue = {"topic": {"name": "T"}, "id": 0, "broker": {"name": "b0"}}
            answer = await next_wire.call(
                "QueryOffset", message_queue=queue, query_offset_policy="END"
            )
            assert answer.status.code == Code.OK

    run(tmp_path, scenario)


def test_name_servers_are_asked_once_a_second_for_brokers_that_nobody_knows(tmp_path):
    now, asked = [1000.0], []

    async def scenario(served):
        processors = served.name_server._server.processors
        brokers = processors[RequestCode.GET_BROKER_CLUSTER_INFO]

        def counted(connection, request):
            asked.append(now[0])
            return brokers(connection, request)

        processors[RequestCode.GET_BROKER_CLUSTER_INFO] = counted
        address = f"127.0.0.1:{served.name_server.port}"
        remote = RemoteCluster(address, world=World(monotonic_s=lambda: now[0]))
        for number in range(20):
            now[0] += number == 10
            with pytest.raises(RefusedError, match="not known to the name servers"):
                await remote.ask(f"no{number}", RemotingCommand(RequestCode.ACK_MESSAGE, {}), None)
        assert await remote.ask("b0", RemotingCommand(RequestCode.ACK_MESSAGE, {}), None)
        await remote.stop()

    run(tmp_path, scenario)
    assert asked == [1000.0, 1001.0]


def busy(broker, asked, answer=ResponseCode.SYSTEM_BUSY):
    broker._server.processors[asked] = lambda *_: RemotingCommand(answer, {}, b"", "not now")


@pytest.mark.parametrize("count", [1, 2])
def test_an_ordered_group_keeps_its_order_while_a_broker_is_busy(tmp_path, count):
    async def scenario(served):
        for broker in served.brokers:
            broker.managers.groups.put("G", {"consumeMessageOrderly": True})
        peer = Peer(served.broker)
        for number in range(2):
            await peer.send("T", b"%d" % number)
        await peer.client.close()
        wire = await served.connect()
        busy(served.broker, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
        found = []
        for _ in range(2):
            found += (await wire.receive("T", count=1))[1]
        # another broker tells of the group; of one alone nothing is handed out now
        assert [message.body for message in found] == [b"0"] * (count - 1)

    run(tmp_path, scenario, count)


def test_a_topic_takes_what_it_took_while_its_broker_is_busy(tmp_path):
    ahead_s = 0.0

    async def scenario(served):
        nonlocal ahead_s
        wire = await served.connect()
        in_order = {"message_group": "g", "message_type": MessageType.FIFO}
        assert (await wire.send("T", b"0", **in_order)).status.code == Code.OK
        busy(served.broker, RequestCode.GET_TOPIC_CONFIG)
        ahead_s = 31.0
        refused = await wire.send("T", b"x")
        assert refused.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert (await wire.send("T", b"1", **in_order)).status.code == Code.OK
        async with another_proxy(served) as next_wire:
            assert (await next_wire.send("T", b"x")).status.code == Code.TOO_MANY_REQUESTS

    run(tmp_path, scenario, world=World(monotonic_s=lambda: monotonic_s() + ahead_s))


def test_clients_are_served_where_the_proxy_itself_may_ask_for_nothing(tmp_path):
    """Its accounts have no administrator."""

    async def scenario(served):
        wire = await served.connect()
        assert (await wire.send("T", b"0")).status.code == Code.OK
        for asked in (RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG):
            busy(served.broker, asked, ResponseCode.NO_PERMISSION)
        async with another_proxy(served) as next_wire:
            assert (await next_wire.send("T", b"1")).status.code == Code.OK
            assert len((await next_wire.receive("T"))[1]) == 2

    run(tmp_path, scenario)
