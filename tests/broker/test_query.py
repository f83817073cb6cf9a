"""Messages are found by their place as soon as they are acknowledged, and by their keys."""

import asyncio
import itertools
import threading
from unittest.mock import Mock

import pytest
from broker.conftest import Peer, records
from patience import TIMEOUT_S, until_async

from rmqcore._codec import decode_message_id
from rmqcore.errors import StoreClosedError
from rmqcore.remoting import RequestCode, ResponseCode
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine


def query(key, count, topic="T", **more):
    return {
        "topic": topic,
        "key": key,
        "maxNum": count,
        "beginTimestamp": 0,
        "endTimestamp": wall_clock_ms() + 60_000,
        **more,
    }


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"flushDiskType": "SYNC_FLUSH"},
        {"transientStorePoolEnable": True, "transientStorePoolSize": 2},
        {"mappedFileSizeCommitLog": 8192},
    ],
    ids=["", "SYNC_FLUSH", "pool", "rolls"],
)
def test_a_message_is_at_the_place_that_its_answer_names(with_broker, settings):
    async def scenario(broker, peer):
        for number in range(60):
            sent = await peer.send("T", b"%d" % number * 50, queue_id=number % 4)
            assert sent.code == ResponseCode.SUCCESS
            _, offset = decode_message_id(sent.text("msgId"))
            fields = {"offset": offset, "topic": "T"}
            answer = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, fields)
            assert [each.body for each in records(answer.body)] == [b"%d" % number * 50]

    with_broker(scenario, **settings)


def test_a_key_has_64_messages_at_most_in_an_answer_and_the_newest(with_broker):
    async def scenario(broker, peer):
        for number in range(100):
            await peer.send("T", b"%d" % number, properties={"KEYS": "k", "UNIQ_KEY": "u"})

        async def found(key, count, **more):
            answer = await peer.ask(RequestCode.QUERY_MESSAGE, query(key, count, **more))
            return [int(each.body) for each in records(answer.body)]

        async def indexed():
            return (await found("k", 1)) == [99]

        await until_async(indexed, "the last key")
        assert await found("k", 500) == list(range(36, 100))
        assert await found("k", 64) == list(range(36, 100))
        assert await found("k", 3) == [97, 98, 99]
        assert await found("u", 1, _UNIQUE_KEY_QUERY="true") == list(range(68, 100))

    with_broker(scenario)


def test_an_answer_has_as_many_of_a_keys_messages_as_a_frame_holds(with_broker):
    async def scenario(broker, peer):
        for number in range(6):
            body = b"%d" % number + b"x" * (4 << 20)
            sent = await peer.send("T", body[: 4 << 20], properties={"KEYS": "k"})
            assert sent.code == ResponseCode.SUCCESS

        async def found():
            answer = await peer.ask(RequestCode.QUERY_MESSAGE, query("k", 32))
            return [each.body[:1] for each in records(answer.body)]

        async def indexed():
            return b"5" in await found()

        await until_async(indexed, "the last key")
        assert await found() == [b"3", b"4", b"5"]

    with_broker(scenario, mappedFileSizeCommitLog=32 << 20)


def test_keys_are_looked_up_one_by_one_of_each_connection_in_turn(with_broker, monkeypatch):
    asked, at_once, go_on = [], [], threading.Event()
    under_way = itertools.count()

    def look(self, topic, key, really=DefaultMessageStore.query_message, **more):
        at_once.append(next(under_way) - len(asked))
        go_on.wait(TIMEOUT_S)
        found = really(self, topic, key, **more)
        asked.append(key)
        return found

    async def scenario(broker, peer):
        other = Peer(broker)
        await peer.send("T", b"one", properties={"KEYS": "k"})
        await other.send("T", b"two", properties={"KEYS": "k"})
        monkeypatch.setattr(DefaultMessageStore, "query_message", look)
        many = [
            asyncio.create_task(peer.ask(RequestCode.QUERY_MESSAGE, query(f"m{n}", 1)))
            for n in range(4)
        ]
        await until_async(lambda: at_once, "the first key is looked up")
        one = asyncio.create_task(other.ask(RequestCode.QUERY_MESSAGE, query("o", 1)))
        connections = broker._server.connections
        await until_async(
            lambda: all("query turn" in each.attributes for each in connections), "both have asked"
        )
        go_on.set()
        await asyncio.gather(*many, one)
        await other.client.close()
        assert asked.index("o") <= 2
        assert set(at_once) == {0}

    with_broker(scenario)


def test_without_an_index_no_record_is_called_damaged(with_broker):
    async def scenario(broker, peer):
        await peer.send("T", b"one", properties={"KEYS": "k"})
        answer = await peer.ask(RequestCode.QUERY_MESSAGE, query("k", 32))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "message_index_enable" in answer.remark

    with_broker(scenario, messageIndexEnable=False)


def test_who_asks_while_the_store_is_closed_is_not_told_where_it_lies(with_broker, monkeypatch):
    async def scenario(broker, peer):
        closed = StoreClosedError(f"{broker.store.path}: the store has been closed")
        monkeypatch.setattr(DefaultMessageStore, "query_message", Mock(side_effect=closed))
        answer = await peer.ask(RequestCode.QUERY_MESSAGE, query("K", 1))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "no key is looked up: the broker is about to stop"

    with_broker(scenario)
