"""A topic of several brokers is one frame and one stream, whichever of them come, go and return."""

import asyncio
import contextlib

import pytest
from frames.test_cluster import Stream, batch

from rmqcore._codec import decode_message_id
from rmqcore.broker import Broker
from rmqcore.client import Admin, MessageQueue, Producer
from rmqcore.namesrv import NameServer
from rmqcore.remoting import RemotingError
from rmqcore.scan.cluster import Cluster
from rmqcore.testing import SMALL_FILES, RunningBroker

pytestmark = pytest.mark.engine


def counts(rows):
    brokers = [row["broker"] for row in rows]
    return {broker: brokers.count(broker) for broker in sorted(set(brokers))}


@contextlib.asynccontextmanager
async def name_server():
    server = NameServer("127.0.0.1", 0)
    await server.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def running(path, address, name):
    """A broker of this name with a queue of topic T."""
    place = {"namesrvAddr": address, "listenPort": 0, "brokerName": name}
    broker = Broker(path / name, {**SMALL_FILES, **place})
    await broker.start()
    try:
        async with Admin(address) as admin:
            await admin.create_topic("T", queues=1, brokers=[broker.address])
        yield
    finally:
        await broker.stop()


async def send(address, count):
    async with Producer(address) as producer:
        for _ in range(count):
            await producer.send("T", b"x")


def test_brokers_that_come_go_and_return(tmp_path):
    async def scenario():
        async with name_server() as address, running(tmp_path, address, "a"):
            there = RunningBroker(address, "", tmp_path)
            await send(address, 3)
            options = {"subscribe": "T", "startingOffsets": "earliest"}
            stream = await asyncio.to_thread(Stream, there, **options)
            assert counts(await asyncio.to_thread(stream.trigger)) == {"a": 3}
            async with running(tmp_path, address, "b"):
                await send(address, 10)
                assert counts(await asyncio.to_thread(stream.trigger)) == {"a": 5, "b": 5}
                whole = await asyncio.to_thread(batch, there, subscribe="T")
                assert counts(whole) == {"a": 8, "b": 5}
            await send(address, 2)
            assert counts(await asyncio.to_thread(stream.trigger)) == {"a": 2}
            assert stream.at["queues"]["T"] == {"a": {"0": 10}, "b": {"0": 5}}
            async with running(tmp_path, address, "b"):
                await send(address, 4)
                assert counts(await asyncio.to_thread(stream.trigger)) == {"a": 2, "b": 2}

    asyncio.run(scenario())


def test_each_column_says_of_which_broker_s_message_it_is(tmp_path):
    async def scenario():
        async with (
            name_server() as address,
            running(tmp_path, address, "a"),
            running(tmp_path, address, "b"),
            Producer(address) as producer,
        ):
            there, sent = RunningBroker(address, "", tmp_path), {}
            for number in range(4):
                more = {
                    "tags": f"t{number}",
                    "keys": f"k{number}",
                    "properties": {"p": f"{number}"},
                }
                result = await producer.send("T", b"%d" % number, **more)
                sent[result.broker_name, result.queue_offset] = (number, result)
            assert {broker for broker, _ in sent} == {"a", "b"}
            rows = await asyncio.to_thread(batch, there, subscribe="T")
            assert [(row["broker"], row["queue_offset"]) for row in rows] == sorted(sent)
            for row in rows:
                number, result = sent[row["broker"], row["queue_offset"]]
                assert row["unique_key"] == result.message_id
                assert decode_message_id(result.offset_message_id)[1] == row["phy_offset"]
                assert (row["topic"], row["queue_id"], row["body"]) == ("T", 0, b"%d" % number)
                assert (row["tags"], row["keys"]) == (f"t{number}", f"k{number}")
                assert row["born_timestamp"] <= row["store_timestamp"]

    asyncio.run(scenario())


def test_a_broker_that_does_not_answer_is_left_out_and_named(tmp_path, caplog, monkeypatch):
    lost = {MessageQueue("T", "gone", 0): ("127.0.0.1:1",)}

    async def scenario():
        async with name_server() as address, running(tmp_path, address, "a"):
            there = RunningBroker(address, "", tmp_path)
            stream = await asyncio.to_thread(Stream, there, subscribe="T")
            found = Cluster.queues
            monkeypatch.setattr(Cluster, "queues", lambda self, topics: found(self, topics) | lost)
            for _ in range(2):
                assert await asyncio.to_thread(stream.trigger) == []
            for promises_all in (
                stream.reader.prepareForTriggerAvailableNow,
                lambda: batch(there, subscribe="T"),
            ):
                with pytest.raises(RemotingError, match=r"127\.0\.0\.1:1"):
                    await asyncio.to_thread(promises_all)

    asyncio.run(scenario())
    said = [record.getMessage() for record in caplog.records if "gone" in record.getMessage()]
    assert len(said) == 1
