"""The name server and the client as they are, over the simulated network."""

import json
from contextlib import asynccontextmanager

import pytest
from namesrv.brokers import register_command

from rmqcore.broker.replication.registration import Registration
from rmqcore.broker.state.settings import BrokerConfig
from rmqcore.client.instance import ClientInstance
from rmqcore.files.config_tables import TopicConfig, TopicConfigTable
from rmqcore.namesrv import NameServer, NamesrvConfig
from rmqcore.remoting import RemotingClient, RemotingCommand, RequestCode, ResponseCode
from rmqcore.world import World

pytestmark = [pytest.mark.logic, pytest.mark.seeded]
PORT = 9876
SETTINGS = NamesrvConfig(kv_config_path="/nowhere/kvConfig.json")
#: after so long a name server that hears nothing of a broker lets it go
SILENCE_S = 120 + 5


@pytest.fixture
def nodes(machines):
    return machines("namesrv", "broker", "client")


@asynccontextmanager
async def serving(loop, node):
    async def start():
        server = NameServer(node.address, PORT, SETTINGS, world=World(monotonic_s=loop.time))
        await server.start()
        return server

    server = await loop.spawn(node, start())
    try:
        yield f"{node.address}:{PORT}"
    finally:
        await loop.spawn(node, server.stop())


async def register(address):
    client = RemotingClient()
    answer = await client.invoke(address, register_command())
    assert answer.code == ResponseCode.SUCCESS
    return client


async def route(address, topic):
    client = ClientInstance("admin", address)
    await client.start()
    try:
        return await client.fetch_route(topic)
    finally:
        await client.close()


def scene_of(loop, nodes, play):
    async def scene():
        async with serving(loop, nodes[0]) as address:
            await play(address)

    loop.run_until_complete(scene())


def test_a_client_learns_of_a_broker_until_its_connection_ends(loop, nodes):
    _, broker, client = nodes

    async def play(address):
        assert await loop.spawn(client, route(address, "TopicA")) is None
        remoting = await loop.spawn(broker, register(address))
        found = await loop.spawn(client, route(address, "TopicA"))
        assert found.addresses == ["127.0.0.1:10911"]
        await loop.spawn(broker, remoting.close())
        await loop.pause(1)
        assert await loop.spawn(client, route(address, "TopicA")) is None

    scene_of(loop, nodes, play)


def test_a_broker_that_is_cut_off_is_forgotten_when_it_was_silent_for_too_long(loop, nodes):
    namesrv, broker, client = nodes

    async def play(address):
        await loop.spawn(broker, register(address))
        loop.network.close_link(broker.address, namesrv.address)
        await loop.pause(SILENCE_S - 15)
        assert await loop.spawn(client, route(address, "TopicA")) is not None
        await loop.pause(20)
        assert await loop.spawn(client, route(address, "TopicA")) is None

    scene_of(loop, nodes, play)


def test_a_broker_that_a_name_server_has_not_heard_is_known_soon_after(loop, nodes, tmp_path):
    """It was cut off for so long that the name server has closed the connection."""
    namesrv, broker, client = nodes

    async def begin(address):
        config = BrokerConfig(namesrv_addr=address, broker_ip1=broker.address)
        topics = TopicConfigTable(tmp_path, clock=lambda: 0)
        for name in ("TopicA", "TopicB"):
            topics.put(TopicConfig(topic_name=name))
        registration = Registration(lambda: config, topics, RemotingClient())
        await registration.start()
        return registration

    async def play(address):
        registration = await loop.spawn(broker, begin(address))
        loop.network.close_link(broker.address, namesrv.address)
        await loop.pause(SILENCE_S + 40)
        loop.network.open_link(broker.address, namesrv.address)
        assert await loop.spawn(client, route(address, "TopicA")) is None
        await loop.pause(5)
        assert await loop.spawn(client, route(address, "TopicA")) is not None
        await loop.spawn(broker, registration.stop())

    scene_of(loop, nodes, play)


def test_a_request_whose_answer_is_lost_runs_into_its_time_limit(loop, nodes):
    namesrv, _, client = nodes

    async def ask(address):
        remoting = RemotingClient()
        command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        answer = await remoting.invoke(address, command)
        assert json.loads(answer.body)["brokerAddrTable"] == {}
        loop.network.close_link(namesrv.address, client.address)
        with pytest.raises(TimeoutError):
            await remoting.invoke(address, command, 1500)
        loop.network.open_link(namesrv.address, client.address)
        await remoting.close()

    async def play(address):
        await loop.spawn(client, ask(address))

    scene_of(loop, nodes, play)
