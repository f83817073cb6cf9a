"""A topic gets more queues: a slave has them in time, and as the master what came to them."""

import asyncio
from functools import partial

import pytest
from ha.test_brokers import SMALL, asks_when_told, running  # noqa: F401 - a fixture
from patience import until_async

from rmqcore.broker import Broker
from rmqcore.broker.replication import slave_synchronize
from rmqcore.broker.state import topics_of_log
from rmqcore.files.config_tables import TopicConfigTable
from rmqcore.remoting import RequestCode, ResponseCode
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine


async def set_queues(pair, count, read=None):
    fields = {"topic": "Wide", "defaultTopic": "TBW102", "perm": 6, "topicSysFlag": 0}
    fields |= {"readQueueNums": read or count, "writeQueueNums": count, "order": "false"}
    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    made = await pair.ask(pair.master, code, **fields, topicFilterType="SINGLE_TAG")
    assert made.code == ResponseCode.SUCCESS, made.remark


async def send_to(pair, queue_id, topic="Wide"):
    fields = {"a": "PG", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1}
    sent = await pair.ask(pair.master, RequestCode.SEND_MESSAGE_V2, b"x", **fields, h=0, i="")
    assert sent.code == ResponseCode.SUCCESS, sent.remark


@pytest.mark.usefixtures("asks_when_told")
def test_a_slave_that_is_made_master_has_the_queues_that_came_with_the_log_alone(tmp_path):
    """Their topic got them just before its master died; what its readers are denied they are."""

    async def scenario():
        async with running(tmp_path) as pair:
            await set_queues(pair, 4, read=2)
            await send_to(pair, 3)
            await pair.in_step()
            await pair.synchronize()
            await set_queues(pair, 8)
            await send_to(pair, 6)
            await pair.in_step()
        broker = Broker(tmp_path / "s", SMALL)
        await broker.start()
        try:
            found = broker.store.topics.get("Wide")
            assert (found.read_queue_nums, found.write_queue_nums) == (7, 4)
        finally:
            await broker.stop()
        # so do its slaves, and its next life
        stored = TopicConfigTable(tmp_path / "s" / "config", clock=int)
        assert stored.get("Wide").read_queue_nums == 7

    asyncio.run(scenario())


@pytest.mark.usefixtures("asks_when_told")
def test_a_slave_that_is_made_master_gives_back_no_queue_that_was_taken_away(tmp_path, monkeypatch):
    monkeypatch.setattr(topics_of_log, "_NEW_MS", 0)

    async def scenario():
        async with running(tmp_path) as pair:
            await set_queues(pair, 8)
            await send_to(pair, 6)
            await set_queues(pair, 4)
            await until_async(lambda: wall_clock_ms() > stored_ms(pair), "it is later")
            await send_to(pair, 1)
            await pair.in_step()
            await pair.synchronize()
        broker = Broker(tmp_path / "s", SMALL)
        await broker.start()
        try:
            assert broker.store.topics.get("Wide").read_queue_nums == 4
        finally:
            await broker.stop()

    def stored_ms(pair):
        return pair.master.store.get_message("Wide", 6, 0).messages[0].store_timestamp_ms

    asyncio.run(scenario())


@pytest.mark.usefixtures("asks_when_told")
@pytest.mark.parametrize("told", [True, False])
def test_a_slave_that_was_never_told_of_topics_has_all_of_its_log_when_it_is_made_master(
    tmp_path, monkeypatch, told
):
    """Without a name server, or an account, they do not come; nor does what was deleted."""
    monkeypatch.setattr(topics_of_log, "_NEW_MS", 0)

    async def scenario():
        async with running(tmp_path) as pair:
            await pair.in_step()
            await send_to(pair, 0, "Newer")
            if told:
                await pair.synchronize()
            await send_to(pair, 2, "Old")
            await until_async(lambda: wall_clock_ms() > stored_ms(pair), "it is later")
            await send_to(pair, 0, "Newer")
            await pair.in_step()
        broker = Broker(tmp_path / "s", SMALL)
        await broker.start()
        try:
            assert (broker.store.topics.get("Old") is None) == told
        finally:
            await broker.stop()
        # a master that follows now has a table of its own, and knows what it has taken away
        follows = Broker(tmp_path / "m", {**SMALL, "brokerRole": "SLAVE", "brokerId": 1})
        await follows.start()
        try:
            assert follows.store.topics.is_of_a_leader
        finally:
            await follows.stop()

    def stored_ms(pair):
        return pair.master.store.get_message("Old", 2, 0).messages[0].store_timestamp_ms

    asyncio.run(scenario())


def test_a_queue_that_comes_with_the_log_is_asked_for(tmp_path, monkeypatch):
    """Its topic has been known for long, with fewer."""
    monkeypatch.setattr(slave_synchronize, "_PERIOD_S", 3600)

    async def scenario():
        async with running(tmp_path) as pair:
            topics = pair.slave.store.topics

            def has(count):
                return topics.get("Wide") and topics.get("Wide").read_queue_nums == count

            # what it asks for at its start, and for the topic, may come late
            for count in (4, 8, 16, 32):
                await set_queues(pair, count)
                await send_to(pair, count - 1)
                await until_async(partial(has, count), f"the slave has {count} queues")

    asyncio.run(scenario())
