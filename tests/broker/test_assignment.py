"""Who gets which queues when the broker decides, and by pulls or by POP."""

import asyncio
import json
from dataclasses import replace

import pytest
from broker.conftest import Peer
from namesrv.brokers import register_command
from patience import until_async

from rmqcore.broker.admin.assignment import Queue, _by_circle, _on_average, _popped_by
from rmqcore.namesrv import NameServer, NamesrvConfig
from rmqcore.remoting import RemotingClient, RemotingCommand, RequestCode, ResponseCode
from rmqcore.world import World

pytestmark = pytest.mark.engine


async def ask(peer, code, **body):
    return await peer.ask(code, body=json.dumps(body).encode())


async def assigned(peer, topic="T", client="c1", **more):
    answer = await ask(
        peer,
        RequestCode.QUERY_ASSIGNMENT,
        **{
            "clientId": client,
            "consumerGroup": "CG",
            "messageModel": "CLUSTERING",
            "strategyName": "AVG",
            "topic": topic,
            **more,
        },
    )
    assert answer.code == ResponseCode.SUCCESS
    found = json.loads(answer.body)
    if not found:
        return None
    entries = found["messageQueueAssignments"]
    return [(e["messageQueue"]["queueId"], e["mode"]) for e in entries]


def beat_of(client):
    data = {"groupName": "CG", "subscriptionDataSet": [{"topic": "T"}]}
    return json.dumps({"clientID": client, "consumerDataSet": [data]}).encode()


async def beat(peer, client):
    answer = await peer.ask(RequestCode.HEART_BEAT, body=beat_of(client))
    assert answer.code == ResponseCode.SUCCESS


def test_clients_that_come_together_are_told_of_each_other_together(with_broker):
    """Fifty heart-beats that are taken before the event loop has a moment make one notice each."""
    told = []

    async def scenario(broker, _):
        peers = [Peer(broker) for _ in range(50)]
        peers[0].client.register(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, lambda _, request: told.append(request)
        )
        asked = [peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO) for peer in peers]
        await asyncio.gather(*asked)
        for number, connection in enumerate(broker._server.connections):
            taken = broker._server.processors[RequestCode.HEART_BEAT]
            request = RemotingCommand(RequestCode.HEART_BEAT, {}, beat_of(f"c{number}"))
            assert taken(connection, request).code == ResponseCode.SUCCESS
        answer = await peers[0].ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "CG"})
        assert len(json.loads(answer.body)["consumerIdList"]) == 50
        # a notice goes before the answer on its connection
        assert [each.ext_fields for each in told] == [{"consumerGroup": "CG"}]
        await asyncio.gather(*(peer.client.close() for peer in peers))

    with_broker(scenario)


def test_clients_share_the_queues_by_pulls_until_they_are_to_pop(with_broker):
    async def set_and_ask(broker, peer):
        await peer.send("T", b"x")
        other = Peer(broker)
        assert await assigned(peer) is None
        await beat(peer, "c1")
        await beat(other, "c2")
        assert await assigned(peer) == [(0, "PULL"), (1, "PULL")]
        assert await assigned(peer, client="c2") == [(2, "PULL"), (3, "PULL")]
        assert await assigned(peer, strategyName="AVG_BY_CIRCLE") == [(0, "PULL"), (2, "PULL")]
        everything = await assigned(peer, messageModel="BROADCASTING")
        assert everything == [(n, "PULL") for n in range(4)]
        assert await assigned(peer, strategyName="MINE") is None
        assert await assigned(peer, topic="Unknown") is None
        pop = {"consumerGroup": "CG", "mode": "POP", "popShareQueueNum": 0, "topic": "T"}
        assert (await ask(peer, RequestCode.SET_MESSAGE_REQUEST_MODE, **pop)).code == 0
        assert await assigned(peer) == [(-1, "POP")]
        assert await assigned(peer, topic="%RETRY%CG") == [(0, "PULL")]
        for wrong, code in (
            ({"topic": "%RETRY%CG"}, ResponseCode.NO_PERMISSION),
            ({"topic": "Unknown"}, ResponseCode.TOPIC_NOT_EXIST),
            ({"mode": "PUSH"}, ResponseCode.INVALID_PARAMETER),
        ):
            refused = await ask(peer, RequestCode.SET_MESSAGE_REQUEST_MODE, **{**pop, **wrong})
            assert refused.code == code
        await other.client.close()

    async def kept(_, peer):
        listed = await peer.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        modes = json.loads(listed.body)["messageRequestModeMap"]
        assert modes["T"]["CG"]["mode"] == "POP"
        await beat(peer, "c1")
        assert await assigned(peer) == [(-1, "POP")]

    with_broker(set_and_ask)
    with_broker(kept)


def test_the_queues_of_every_broker_of_the_route_are_shared(with_broker):
    async def scenario(broker, peer):
        names = NameServer(port=0, config=NamesrvConfig())
        await names.start()
        broker.config = replace(broker.config, namesrv_addr=f"127.0.0.1:{names.port}")
        await peer.send("TopicA", b"x")
        await beat(peer, "c1")
        other = RemotingClient()
        registered = await other.invoke(broker.config.namesrv_addr, register_command("broker-z"))
        assert registered.code == ResponseCode.SUCCESS
        shared = await ask(
            peer,
            RequestCode.QUERY_ASSIGNMENT,
            clientId="c1",
            consumerGroup="CG",
            topic="TopicA",
        )
        queues = [e["messageQueue"] for e in json.loads(shared.body)["messageQueueAssignments"]]
        assert {queue["brokerName"] for queue in queues} == {"broker-z"}
        await other.close()
        await names.stop()

    with_broker(scenario)


def test_without_a_name_server_the_broker_knows_its_own_queues(with_broker):
    async def scenario(_, peer):
        await peer.send("T", b"x")
        await beat(peer, "c1")
        assert await assigned(peer) == [(n, "PULL") for n in range(4)]

    with_broker(scenario, namesrvAddr="127.0.0.1:1")


QUEUES = [Queue("T", name, n) for name in ("a", "b") for n in range(4)]


@pytest.mark.parametrize("share_out", [_on_average, _by_circle])
@pytest.mark.parametrize("clients", [1, 3, 8, 11])
def test_every_queue_goes_to_one_client(share_out, clients):
    given = [queue for n in range(clients) for queue in share_out(QUEUES, n, clients)]
    assert sorted(given) == QUEUES


@pytest.mark.parametrize(
    ("share", "clients", "expected"),
    [
        (0, 4, [("a", -1), ("b", -1)]),
        (3, 4, [("a", -1), ("b", -1)]),
        (1, 4, [("a", 0), ("a", 1), ("a", 2), ("a", 3)]),
        (1, 9, [("a", 0)]),
    ],
)
def test_a_client_pops_a_broker_or_its_queues_and_its_neighbours(share, clients, expected):
    ids = [f"c{n}" for n in range(clients)]
    mine = _popped_by(QUEUES, ids, "c0", share, _on_average)
    assert [(queue.broker_name, queue.queue_id) for queue in mine] == expected


def test_locks_of_queues_that_nobody_renews_are_forgotten(with_broker, monkeypatch):
    now_s = 1000.0
    monkeypatch.setattr("rmqcore.broker.broker.SAMPLE_S", 0.01)

    async def scenario(broker, peer):
        nonlocal now_s

        async def lock(client, queue_ids):
            queues = [{"brokerName": "b", "queueId": n, "topic": "T"} for n in queue_ids]
            fields = {"clientId": client, "consumerGroup": "CG", "mqSet": queues}
            answer = await ask(peer, RequestCode.LOCK_BATCH_MQ, **fields)
            return [each["queueId"] for each in json.loads(answer.body)["lockOKMQSet"]]

        assert await lock("c1", [0, 1, 2]) == [0, 1, 2]
        now_s += 40
        assert await lock("c1", [0]) == [0]
        now_s += 20
        broker.managers.locks.drop_old()
        assert len(broker.managers.locks) == 3
        assert await lock("c2", [0, 1]) == []
        now_s += 0.01
        await until_async(lambda: len(broker.managers.locks) == 1, "two locks are forgotten")
        assert await lock("c2", [0, 1]) == [1]

    with_broker(scenario, World(monotonic_s=lambda: now_s))


def test_giving_back_what_nobody_has_locked_changes_nothing(with_broker):
    async def scenario(_, peer):
        queue = {"brokerName": "b", "queueId": 0, "topic": "T"}
        for client in ("c1", ""):
            answer = await ask(
                peer, RequestCode.UNLOCK_BATCH_MQ, clientId=client, consumerGroup="G", mqSet=[queue]
            )
            assert answer.code == ResponseCode.SUCCESS

    with_broker(scenario)
