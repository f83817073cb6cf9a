"""What becomes of a changed topic: written, told to the name servers, and nothing waits for it."""

import asyncio
import itertools
import json
import socket
import threading
from contextlib import asynccontextmanager
from functools import partial

import pytest
from broker.conftest import SMALL, Peer
from patience import TIMEOUT_S, until, until_async

from rmqcore.broker import Broker
from rmqcore.errors import DiskFullError
from rmqcore.files.config_file import ConfigFile
from rmqcore.namesrv import NameServer
from rmqcore.remoting import RemotingClient, RemotingCommand, RequestCode, ResponseCode

pytestmark = pytest.mark.engine

TOPIC = {
    **{"topic": "T", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4"},
    **{"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "perm": "6"},
}


async def ask(client, address, code, fields):
    answer = await client.invoke(address, RemotingCommand(code, fields), TIMEOUT_S * 1000)
    assert answer.code == 0, answer.remark
    return answer


@asynccontextmanager
async def registered(path):
    """A name server's address, a broker that registers there, and a client."""
    names = NameServer(port=0)
    await names.start()
    served_by = f"127.0.0.1:{names.port}"
    broker = Broker(path, {"listenPort": 0, **SMALL, "namesrvAddr": served_by})
    client = RemotingClient()
    await broker.start()
    try:
        yield served_by, broker, client
    finally:
        await client.close()
        await broker.stop()
        await names.stop()


def test_name_servers_hear_of_the_last_of_several_changes_when_the_disk_is_slow(
    tmp_path, monkeypatch
):
    # no registration comes by itself
    monkeypatch.setattr("rmqcore.broker.replication.registration._FIRST_PERIOD_S", 3600)

    async def main():
        names = NameServer(port=0)
        await names.start()
        served_by = f"127.0.0.1:{names.port}"
        broker = Broker(tmp_path, {"listenPort": 0, **SMALL, "namesrvAddr": served_by})
        await broker.start()
        client, table = RemotingClient(), broker.store.topics
        persist, begun, goes_on = table.persist, threading.Event(), threading.Event()

        def slowly():
            # what is written is what the table holds now
            written = persist()
            begun.set()
            assert goes_on.wait(TIMEOUT_S)
            return written

        async def change(perm):
            fields = {**TOPIC, "perm": perm}
            await ask(client, broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

        async def perm_told():
            fields = {"topic": "T", "acceptStandardJsonOnly": "true"}
            route = await ask(client, served_by, RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
            (queues,) = json.loads(bytes(route.body))["queueDatas"]
            return queues["perm"]

        async def last_is_told():
            return await perm_told() == 2

        try:
            table.persist = slowly
            changes = []
            for perm in (6, 4, 2):
                changes.append(asyncio.create_task(change(str(perm))))
                await until_async(
                    lambda perm=perm: getattr(table.get("T"), "perm", None) == perm,
                    f"the table has the topic with perm={perm}",
                )
                await until_async(begun.is_set, "the table is being written")
            goes_on.set()
            await asyncio.gather(*changes)
            await until_async(last_is_told, "the name server knows the last change")
        finally:
            goes_on.set()
            await client.close()
            await broker.stop()
            await names.stop()

    asyncio.run(main())


def test_name_servers_know_all_topics_that_are_changed_at_the_same_time(tmp_path, monkeypatch):
    # as long as the test does, the broker waits for them
    monkeypatch.setattr(
        "rmqcore.broker.replication.registration._START_TIMEOUT_MS", TIMEOUT_S * 1000
    )

    async def main():
        async with registered(tmp_path) as (served_by, broker, client):

            async def change(number, perm):
                topic = {**TOPIC, "topic": f"T{number}", "perm": perm}
                await ask(client, broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, topic)

            async def told(number):
                fields = {"topic": f"T{number}", "acceptStandardJsonOnly": "true"}
                route = await ask(client, served_by, RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
                (queues,) = json.loads(bytes(route.body))["queueDatas"]
                return queues["perm"]

            async def all_are_told():
                return [await told(number) for number in range(10)] == [4] * 10

            for perm in ("6", "4"):
                await asyncio.gather(*(change(number, perm) for number in range(10)))
            # the whole table may come behind them as it was when it was begun, and then as it is
            await until_async(all_are_told, "the name server knows all")

    asyncio.run(main())


def test_offsets_are_written_while_topics_change_all_the_time(with_broker):
    async def scenario(broker, peer):
        await peer.send("T", b"x")
        broker.store.consumer_offsets.commit("T", "G", 0, 1)
        path = broker.store.consumer_offsets.path

        def written():
            return path.exists() and '"T@G":{0:1' in "".join(path.read_text().split())

        async def another_topic():
            await peer.send(f"T{next(numbers)}", b"x")
            return written()

        numbers = itertools.count()
        await until_async(another_topic, "the offset is in its file")

    with_broker(scenario, flushConsumerOffsetInterval=400)


def test_topics_that_are_created_at_the_same_time_are_written_together(with_broker):
    async def scenario(broker, peer):
        table, written = broker.store.topics, []
        persist, all_of_them = table.persist, len(table) + 100

        def counted():
            written.append(len(table))
            until(lambda: len(table) >= all_of_them, "all topics are in the table")
            return persist()

        table.persist = counted
        await asyncio.gather(*(peer.send(f"T{number}", b"x") for number in range(100)))
        assert len(written) <= 10

    with_broker(scenario)


def test_name_servers_know_a_topic_when_its_creation_is_answered(tmp_path, monkeypatch):
    # as long as the test does, the broker waits for them
    monkeypatch.setattr(
        "rmqcore.broker.replication.registration._START_TIMEOUT_MS", TIMEOUT_S * 1000
    )

    async def main():
        async with registered(tmp_path) as (served_by, broker, client):
            for number in range(20):
                topic = {**TOPIC, "topic": f"T{number}"}
                await ask(client, broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
                route = {"topic": f"T{number}"}
                await ask(client, served_by, RequestCode.GET_ROUTEINFO_BY_TOPIC, route)

    asyncio.run(main())


def test_a_name_server_that_hangs_keeps_no_other_from_hearing_of_changes(tmp_path, monkeypatch):
    # who waited for it would wait for longer than the test does, and none registers by itself
    monkeypatch.setattr("rmqcore.broker.replication.registration._FIRST_PERIOD_S", 3600)
    monkeypatch.setattr("rmqcore.broker.replication.registration._START_TIMEOUT_MS", 50)
    never = {"registerBrokerTimeoutMills": 3_600_000}

    async def main():
        hanging = socket.create_server(("127.0.0.1", 0))
        names = NameServer(port=0)
        await names.start()
        served_by = f"127.0.0.1:{names.port}"
        addresses = f"127.0.0.1:{hanging.getsockname()[1]};{served_by}"
        broker = Broker(tmp_path, {"listenPort": 0, "namesrvAddr": addresses, **SMALL, **never})
        peer, client = Peer(broker), RemotingClient()

        async def is_routed(topic):
            asked = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            return (await client.invoke(served_by, asked)).code == 0

        try:
            await broker.start()
            for topic in ("First", "Second"):
                await peer.send(topic, b"x")
                await until_async(partial(is_routed, topic), f"{topic} is known")
        finally:
            # whoever is being waited for is let go
            hanging.close()
            await client.close()
            await peer.client.close()
            await broker.stop()
            await names.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G", "cleanOffset": "true"}),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "T", "group": "G", "timestamp": "0"}),
        (RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G", "destGroup": "H"}),
    ],
    ids=lambda value: value.name if isinstance(value, RequestCode) else "",
)
def test_what_a_full_disk_does_not_take_is_refused_and_done_later(
    with_broker, monkeypatch, code, fields
):
    full = []

    def store(file, text, really=ConfigFile.store):
        if full:
            raise DiskFullError(file.path)
        really(file, text)

    monkeypatch.setattr(ConfigFile, "store", store)

    async def scenario(broker, peer):
        await peer.send("T", b"x")
        broker.store.consumer_offsets.commit("T", "G", 0, 1)
        full.append(True)
        assert (await peer.ask(code, fields)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        full.clear()
        assert (await peer.ask(code, fields)).code == ResponseCode.SUCCESS

    with_broker(scenario)


def test_nothing_is_stored_again_and_again_for_a_topic_that_cannot_be_written(
    with_broker, topics_refused
):
    async def scenario(broker, peer):
        assert (await peer.send("T", b"x")).code == ResponseCode.SUCCESS
        topics_refused.append(True)
        tries = (
            lambda: peer.ask(
                RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "CG", "offset": 0, "delayLevel": 1}
            ),
            # what a consumer does whose message is not taken back
            lambda: peer.send("%RETRY%CG", b"x", properties={"DELAY": "1"}),
            lambda: peer.send("%RETRY%Others", b"x", properties={"DELAY": "1"}),
            lambda: peer.send("New", b"x"),
        )
        end = broker.store.max_phy_offset
        for again in tries * 2:
            assert (await again()).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert broker.store.max_phy_offset == end
        topics_refused.clear()
        for again in tries:
            assert (await again()).code == ResponseCode.SUCCESS

    with_broker(scenario)
