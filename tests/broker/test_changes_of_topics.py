"""What becomes of a changed topic: written, told to the name servers, and nothing waits for it."""

import asyncio
import json
import socket
import time

import pytest
from broker.conftest import SMALL, Peer

from rmqcore.broker import Broker
from rmqcore.namesrv import NameServer
from rmqcore.remoting import RemotingClient, RemotingCommand, RequestCode

pytestmark = pytest.mark.engine

TOPIC = {
    **{"topic": "T", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4"},
    **{"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "perm": "6"},
}


async def ask(client, address, code, fields):
    answer = await client.invoke(address, RemotingCommand(code, fields), 5000)
    assert answer.code == 0, answer.remark
    return answer


def test_name_servers_hear_of_the_last_of_several_changes_when_the_disk_is_slow(tmp_path):
    async def main():
        names = NameServer(port=0)
        await names.start()
        served_by = f"127.0.0.1:{names.port}"
        broker = Broker(tmp_path, {"listenPort": 0, "namesrvAddr": served_by})
        await broker.start()
        client, table = RemotingClient(), broker.store.topics
        persist = table.persist

        def slowly():
            time.sleep(0.1)
            return persist()

        table.persist = slowly
        try:
            for perm in ("6", "4", "2"):
                change = {**TOPIC, "perm": perm}
                await ask(client, broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, change)
                await asyncio.sleep(0.03)
            fields, perm = {"topic": "T", "acceptStandardJsonOnly": "true"}, None
            # sooner than the registration that comes by itself
            async with asyncio.timeout(20):
                while perm != 2:
                    await asyncio.sleep(0.05)
                    route = await ask(client, served_by, RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
                    (queues,) = json.loads(bytes(route.body))["queueDatas"]
                    perm = queues["perm"]
        finally:
            await client.close()
            await broker.stop()
            await names.stop()

    asyncio.run(main())


def test_offsets_are_written_while_topics_change_all_the_time(with_broker):
    async def scenario(broker, peer):
        await peer.send("T", b"x")
        broker.store.consumer_offsets.commit("T", "G", 0, 1)
        path = broker.store.consumer_offsets.path

        def written():
            return path.exists() and '"T@G":{0:1' in "".join(path.read_text().split())

        number = 0
        while number < 400 and not written():
            await peer.send(f"T{number}", b"x")
            await asyncio.sleep(0.05)
            number += 1
        assert written()

    with_broker(scenario, flushConsumerOffsetInterval=400)


def test_topics_that_are_created_at_the_same_time_are_written_together(with_broker):
    async def scenario(broker, peer):
        table, written = broker.store.topics, []
        persist, all_of_them = table.persist, len(table) + 100
        end = time.monotonic() + 20

        def counted():
            written.append(len(table))
            while len(table) < all_of_them and time.monotonic() < end:
                time.sleep(0.01)
            return persist()

        table.persist = counted
        await asyncio.gather(*(peer.send(f"T{number}", b"x") for number in range(100)))
        assert len(written) <= 10

    with_broker(scenario)


def test_name_servers_know_a_topic_when_its_creation_is_answered(tmp_path):
    async def main():
        names = NameServer(port=0)
        await names.start()
        served_by = f"127.0.0.1:{names.port}"
        broker = Broker(tmp_path, {"listenPort": 0, "namesrvAddr": served_by})
        await broker.start()
        client = RemotingClient()
        try:
            for number in range(20):
                topic = {**TOPIC, "topic": f"T{number}"}
                await ask(client, broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
                route = {"topic": f"T{number}"}
                await ask(client, served_by, RequestCode.GET_ROUTEINFO_BY_TOPIC, route)
        finally:
            await client.close()
            await broker.stop()
            await names.stop()

    asyncio.run(main())


def test_a_name_server_that_hangs_keeps_no_other_from_hearing_of_changes(tmp_path):
    async def main():
        hanging = socket.create_server(("127.0.0.1", 0))
        names = NameServer(port=0)
        await names.start()
        served_by = f"127.0.0.1:{names.port}"
        addresses = f"127.0.0.1:{hanging.getsockname()[1]};{served_by}"
        broker = Broker(tmp_path, {"listenPort": 0, "namesrvAddr": addresses, **SMALL})
        peer, client = Peer(broker), RemotingClient()

        async def is_routed(topic):
            asked = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            return (await client.invoke(served_by, asked)).code == 0

        try:
            async with asyncio.timeout(25):
                await broker.start()
                for topic in ("First", "Second"):
                    await peer.send(topic, b"x")
                    while not await is_routed(topic):
                        await asyncio.sleep(0.01)
        finally:
            await client.close()
            await peer.client.close()
            await broker.stop()
            await names.stop()
            hanging.close()

    asyncio.run(main())
