"""What goes on while a topic is deleted, and what is written down of its readers."""

import asyncio
import json
import sys
import threading
from contextlib import asynccontextmanager

import pytest
from broker.conftest import Peer, records
from broker.test_pop import pop, send_many
from broker.test_state import COMMITS, bodies, delete
from broker.test_unknown_groups import join
from patience import TIMEOUT_S, until, until_async

from rmqcore.broker.state import offsets
from rmqcore.broker.state.resets import Resets
from rmqcore.errors import StoreError
from rmqcore.files.config_file import ConfigFile
from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("how", ["direct", "processor"])
def test_what_is_sent_to_a_topic_that_is_being_deleted_is_not_left_without_one(
    with_broker, monkeypatch, how
):
    async def scenario(broker, peer):
        more = {} if how == "direct" else {"properties": {"DELAY": "0"}}
        await peer.send("T", b"old", **more)
        begun, go_on, table = threading.Event(), threading.Event(), broker.store.topics
        remove = table.remove

        def slowly(topic):
            # the queues have gone, and begin anew
            begun.set()
            assert go_on.wait(TIMEOUT_S)
            return remove(topic)

        monkeypatch.setattr(table, "remove", slowly)
        deleting = asyncio.ensure_future(delete(peer))
        await until_async(begun.is_set, "the queues are deleted")
        answer = await peer.send("T", b"meanwhile", **more)
        go_on.set()
        await deleting
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (await peer.send("T", b"new", **more)).code == ResponseCode.SUCCESS
        assert bodies(await pop(peer, queue_id=0)) == [b"new"]

    with_broker(scenario)


def test_topics_that_are_deleted_at_the_same_time_begin_anew_for_who_has_read_them(
    lives, monkeypatch
):
    async def first(broker, peer):
        begun, go_on, topics = threading.Event(), threading.Event(), ("T", "U")
        for topic in topics:
            await peer.send(topic, b"x")
            await peer.pull(topic, offset=1, sysFlag=COMMITS, commitOffset=1)
        delete_together = broker.store.parts.topics.delete_together

        def slowly(names):
            if "T" in names:
                begun.set()
                assert go_on.wait(TIMEOUT_S)
            return delete_together(names)

        monkeypatch.setattr(broker.store.parts.topics, "delete_together", slowly)
        deleting = asyncio.ensure_future(delete(peer, "T"))
        await until_async(begun.is_set, "the deletion has begun")
        await delete(peer, "U")
        go_on.set()
        await deleting

    async def second(_, peer):
        for topic in ("T", "U"):
            for number in range(2):
                await peer.send(topic, b"%d" % number)
            answer = await peer.pull(topic, offset=1, sysFlag=COMMITS, commitOffset=1)
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
            assert answer.ext_fields["nextBeginOffset"] == "0"

    lives(first, second)


def test_what_is_written_of_lost_ends_beside_an_older_write_is_the_newest(tmp_path, monkeypatch):
    begun, go_on, store = threading.Event(), threading.Event(), ConfigFile.store
    resets = Resets(tmp_path)

    def slowly_at_first(file, text):
        if not begun.is_set():
            begun.set()
            assert go_on.wait(TIMEOUT_S)
        store(file, text)

    monkeypatch.setattr(ConfigFile, "store", slowly_at_first)
    older, newer = (threading.Thread(target=resets.persist_ends) for _ in range(2))
    resets.begin()
    older.start()
    assert begun.wait(TIMEOUT_S)
    resets.end(0)
    newer.start()

    def waits_or_is_done():
        frame = sys._current_frames().get(newer.ident)
        return frame is None or frame.f_code is Resets.persist_ends.__code__

    until(waits_or_is_done, "the newer one waits, or is done")
    go_on.set()
    older.join()
    newer.join()
    assert Resets(tmp_path).was_serving is False


@asynccontextmanager
async def being_deleted(peer, store, topic):
    """A topic whose queues have gone already, and which is gone itself behind the context."""
    begun, go_on, remove = threading.Event(), threading.Event(), store.topics.remove

    def slowly(name):
        begun.set()
        assert go_on.wait(TIMEOUT_S)
        return remove(name)

    store.topics.remove = slowly
    deleting = asyncio.ensure_future(delete(peer, topic))
    try:
        await until_async(begun.is_set, "the queues are deleted")
        yield
    finally:
        go_on.set()
        await deleting
        del store.topics.remove


@pytest.mark.parametrize("level", [-1, 1])
def test_what_is_given_back_to_a_topic_that_is_being_deleted_is_not_left_without_one(
    with_broker, level
):
    name = "%DLQ%CG" if level < 0 else "%RETRY%CG"

    async def scenario(broker, peer):
        async def give_back(message):
            fields = {"group": "CG", "offset": message.phy_offset, "delayLevel": level}
            return (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code

        await send_many(peer, 2, queues=1)
        first, second = records((await peer.pull("T")).body)
        assert await give_back(first) == ResponseCode.SUCCESS
        async with being_deleted(peer, broker.store, name):
            assert await give_back(second) == ResponseCode.SERVICE_NOT_AVAILABLE
        assert await give_back(second) == ResponseCode.SUCCESS
        assert broker.managers.topics.get(name) is not None

    with_broker(scenario)


def test_what_comes_again_waits_while_its_retry_topic_is_deleted(with_broker, clock):
    async def scenario(broker, peer):
        await send_many(peer, 1, queues=1)
        broker.managers.topics.for_group("%RETRY%CG_T")
        assert bodies(await pop(peer)) == [b"0"]
        async with being_deleted(peer, broker.store, "%RETRY%CG_T"):
            clock.now_ms += 60_000
            with pytest.raises(StoreError):
                broker.managers.pop_acks.revive_due()
        broker.managers.pop_acks.revive_due()
        assert bodies(await pop(peer)) == [b"0"]

    with_broker(scenario)


@pytest.mark.parametrize("is_here", [True, False], ids=["connected", "gone"])
def test_a_group_that_is_deleted_beside_its_topic_passes_over_nothing_while_it_reads(
    with_broker, is_here
):
    async def scenario(broker, peer):
        await send_many(peer, 2, queues=1)
        await peer.pull("T", offset=2, sysFlag=COMMITS, commitOffset=2)
        await delete(peer)
        wanted = [{"topic": "T", "subString": "*", "subVersion": 1}]
        group = {"groupName": "CG", "subscriptionDataSet": wanted}
        beat = {"clientID": "c", "consumerDataSet": [group] if is_here else []}
        await peer.ask(RequestCode.HEART_BEAT, body=json.dumps(beat).encode())
        fields = {"groupName": "CG", "cleanOffset": "true"}
        assert (await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)).code == 0
        await send_many(peer, 3, queues=1)
        answer = await peer.pull("T", offset=2, sysFlag=COMMITS, commitOffset=2)
        moved = ResponseCode.PULL_OFFSET_MOVED if is_here else ResponseCode.SUCCESS
        assert answer.code == moved
        if is_here:
            assert answer.ext_fields["nextBeginOffset"] == "0"
            assert (await peer.pull("T", offset=0)).code == ResponseCode.SUCCESS
            assert (await peer.pull("T", offset=2)).code == ResponseCode.SUCCESS

    with_broker(scenario)


@pytest.mark.parametrize("lately", [True, False], ids=["lately", "long ago"])
@pytest.mark.parametrize("way", ["pull", "commit", "commit with a pull"])
def test_who_was_cut_off_while_a_topic_was_made_anew_takes_nothing_from_others(
    with_broker, monkeypatch, way, lately
):
    """It counts a queue as its own that another client of its group reads anew meanwhile."""
    place = {"consumerGroup": "CG", "topic": "T", "queueId": 0}

    async def scenario(broker, other):
        cut_off = Peer(broker)
        for _ in range(5):
            await other.send("T", b"old")
        await join(other, "CG", "CLUSTERING", "T")
        await cut_off.pull("T", offset=5, sysFlag=COMMITS, commitOffset=5)
        await delete(other, "T")
        for number in range(9):
            await other.send("T", b"%d" % number)
        assert (await other.pull("T", offset=5)).ext_fields["nextBeginOffset"] == "0"
        assert len(records((await other.pull("T", maxMsgNums=8)).body)) == 8
        await other.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 2})
        if not lately:
            monkeypatch.setattr(offsets, "ALL_CAME_S", 0.0)
        if way == "commit":
            await cut_off.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": 5})
        elif way == "pull":
            moved = await cut_off.pull("T", offset=5)
            assert moved.ext_fields["nextBeginOffset"] == ("2" if lately else "9")
            assert len(records((await cut_off.pull("T", offset=2)).body)) == 7
        else:
            await cut_off.pull("T", offset=2, maxMsgNums=1, sysFlag=COMMITS, commitOffset=5)
        kept = await other.ask(RequestCode.QUERY_CONSUMER_OFFSET, place)
        assert kept.ext_fields["offset"] == ("2" if lately or way == "pull" else "5")
        # the other one goes on as before
        answer = await other.pull("T", offset=8, sysFlag=COMMITS, commitOffset=7)
        assert len(records(answer.body)) == 1
        kept = await other.ask(RequestCode.QUERY_CONSUMER_OFFSET, place)
        assert kept.ext_fields["offset"] == "7"
        await cut_off.client.close()

    with_broker(scenario)


def test_who_reads_where_it_wants_is_sent_nowhere_in_a_topic_made_anew(with_broker):
    """Tools, and consumers that ask for messages themselves, share no queues."""

    async def scenario(_, peer):
        await peer.send("T", b"old")
        await delete(peer, "T")
        for number in range(5):
            await peer.send("T", b"%d" % number)
        assert len(records((await peer.pull("T", maxMsgNums=1)).body)) == 1
        assert len(records((await peer.pull("T", offset=3)).body)) == 2

    with_broker(scenario)
