"""Where a client finds brokers, as name servers tell it from time to time."""

import pytest
from client.test_failures import name_server, started

from rmqcore.client import Admin, Consumer, Producer

pytestmark = pytest.mark.engine


def test_a_broker_is_where_it_was_said_last_to_be_whatever_topic_has_gone_since(tmp_path, run):
    """A topic's route stays when it is deleted; the broker had another address then."""

    async def scenario():
        async with (
            name_server() as namesrv,
            Producer(namesrv) as producer,
            Consumer(namesrv, "G", {"Gone": "*", "T": "*"}, start="first") as consumer,
        ):
            broker = await started(tmp_path / "s", namesrv)
            for topic in ("Gone", "T"):
                await producer.send(topic, b"before")
                assert (await consumer.receive(None)).body == b"before"
            async with Admin(namesrv) as admin:
                await admin.delete_topic("Gone")
            await broker.stop()
            broker = await started(tmp_path / "s", namesrv)
            try:
                await producer.send("T", b"after")
                assert (await consumer.receive(None)).body == b"after"
            finally:
                await broker.stop()

    run(scenario())


def test_a_topic_that_is_gone_is_made_again_where_its_broker_is_now(tmp_path, run):
    """Name servers say no more where a deleted topic was; its broker has another address now."""

    async def scenario():
        async with name_server() as namesrv, Producer(namesrv) as producer:
            broker = await started(tmp_path / "s", namesrv)
            await producer.send("T", b"before")
            async with Admin(namesrv) as admin:
                await admin.delete_topic("T")
            await broker.stop()
            broker = await started(tmp_path / "s", namesrv)
            try:
                assert (await producer.send("T", b"after")).queue_offset == 0
            finally:
                await broker.stop()

    run(scenario())
