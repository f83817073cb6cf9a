"""Who reads what is not in memory waits for the disk; nobody else does."""

import asyncio
import threading
import time

import pytest

import rmqcore
from rmqcore.broker import Broker
from rmqcore.files.config_tables import TopicConfig
from rmqcore.remoting import RemotingClient, RemotingCommand, RequestCode, ResponseCode
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.testing import SMALL_FILES

PULL = {
    **{"consumerGroup": "CG", "topic": "T", "queueId": 1, "queueOffset": 2, "maxMsgNums": 32},
    **{"sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0},
}
SEND = {
    **{"producerGroup": "PG", "topic": "T", "queueId": 0, "sysFlag": 0, "bornTimestamp": 0},
    **{"flag": 0, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4},
}
POP = {
    **{"consumerGroup": "CG", "topic": "T", "queueId": -1, "maxMsgNums": 8, "initMode": 0},
    **{"invisibleTime": 60_000, "pollTime": 0, "bornTime": 1 << 60, "expType": "TAG", "exp": "*"},
}


@pytest.fixture
def store_path(tmp_path):
    """Forty messages in two queues."""
    with rmqcore.open_store(tmp_path / "s", **SMALL_FILES) as store:
        store.topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
        for number in range(40):
            store.put("T", b"%d" % number, queue_id=number % 2, tags="ab"[number // 2 % 2])
    return tmp_path / "s"


@pytest.fixture
def cold(monkeypatch):
    """Lets a store say that all of it is on the disk, and holds the disk up until it is told."""
    fetched, disk = [], threading.Event()
    fetch = DefaultMessageStore.fetch

    def slow(self, topic, queue_id, queue_offset, **bounds):
        assert disk.wait(30)
        fetch(self, topic, queue_id, queue_offset, **bounds)
        fetched.append((topic, queue_id, queue_offset))

    monkeypatch.setattr(DefaultMessageStore, "is_cached", lambda *_, **__: False)
    monkeypatch.setattr(DefaultMessageStore, "get_cached", lambda *_: None)
    monkeypatch.setattr(DefaultMessageStore, "fetch", slow)
    return fetched, disk


def served(path, scenario):
    async def run():
        broker = Broker(path, {"listenPort": 0, **SMALL_FILES})
        await broker.start()
        client = RemotingClient()

        async def ask(code, **fields):
            texts = {name: str(value) for name, value in fields.items()}
            return await client.invoke(broker.address, RemotingCommand(code, texts), 60_000)

        try:
            async with asyncio.timeout(60):
                return await scenario(ask)
        finally:
            await client.close()
            await broker.stop()

    return asyncio.run(run())


@pytest.mark.parametrize("subscription", ["*", "a", "b || c"])
def test_others_are_answered_while_a_pull_waits_for_the_disk(store_path, cold, subscription):
    fetched, disk = cold

    async def scenario(ask):
        pull = asyncio.create_task(ask(RequestCode.PULL_MESSAGE, **PULL, subscription=subscription))
        for _ in range(20):
            other = await ask(RequestCode.GET_MAX_OFFSET, topic="T", queueId=1)
            assert other.ext_fields["offset"] == "20"
        assert not pull.done()
        assert not fetched
        disk.set()
        answer = await pull
        assert answer.code == ResponseCode.SUCCESS
        return answer.ext_fields["nextBeginOffset"]

    assert served(store_path, scenario) == "20"
    assert fetched == [("T", 1, 2)]


def test_others_are_answered_while_a_pop_waits_for_the_disk(store_path, cold):
    fetched, disk = cold

    async def scenario(ask):
        pop = asyncio.create_task(ask(RequestCode.POP_MESSAGE, **POP))
        for _ in range(20):
            assert (await ask(RequestCode.GET_MAX_OFFSET, topic="T", queueId=1)).code == 0
        assert not pop.done()
        disk.set()
        return (await pop).code

    assert served(store_path, scenario) == ResponseCode.SUCCESS
    assert sorted(fetched) == [("T", 0, 0), ("T", 1, 0)]


def test_others_are_answered_while_a_timer_message_is_read_from_the_disk(store_path, cold):
    fetched, disk = cold

    async def scenario(ask):
        due = str(int(time.time() * 1000) + 300)
        properties = f"TIMER_DELIVER_MS\x01{due}\x02"
        sent = await ask(RequestCode.SEND_MESSAGE, **SEND, properties=properties)
        assert sent.code == ResponseCode.SUCCESS, sent.remark
        offset = "20"
        while offset == "20":
            end = await ask(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0)
            offset = end.ext_fields["offset"]
            if not disk.is_set():
                assert offset == "20"
                if time.time() * 1000 > int(due) + 200:
                    disk.set()

    served(store_path, scenario)
    assert fetched == [("rmq_sys_wheel_timer", 0, 0)]
