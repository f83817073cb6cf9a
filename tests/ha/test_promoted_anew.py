"""A slave becomes the master before the former one has told who begins a topic anew."""

import asyncio
import shutil

import pytest
from ha.pair import master_store
from ha.test_brokers import SMALL as BROKER
from ha.test_brokers import Pair, asks_when_told, running  # noqa: F401 - a fixture
from ha.test_deleted_topics import (
    bodies,
    made_again,
    numbered,
    put,
    tables_alone,
    with_an_old_topic,
)
from killed_copy import copy_as_killed, written_apart

from rmqcore import open_store
from rmqcore.broker import Broker
from rmqcore.client import Producer
from rmqcore.doctor import repair
from rmqcore.doctor.verify import verify
from rmqcore.rebuild import rebuild_consume_queues
from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("asks_when_told")]


async def promoted(pair, path, meanwhile=""):
    """Let the slave be the master, which is gone; it is started again or killed before, or not."""
    if meanwhile == "killed":
        copy_as_killed(path / "s", path / "cut" / "s")
        path /= "cut"
    await pair.master.stop()
    await pair.slave.stop()
    if meanwhile == "started again":
        pair.slave = Pair(path, pair.namesrv, {}).slave
        await pair.slave.start()
        await pair.slave.stop()
    as_master = {"namesrvAddr": pair.namesrv, "brokerRole": "ASYNC_MASTER"}
    pair.slave = Broker(path / "s", {**BROKER, **as_master})
    await pair.slave.start()


async def sent_to(pair, offset, group):
    """Where the promoted slave sends a group that pulls; None: it gets what it wants."""
    answer = await pair.pull(pair.slave, offset, consumerGroup=group)
    if answer.code == ResponseCode.SUCCESS:
        return None
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    return int(answer.ext_fields["nextBeginOffset"])


async def all_begin_anew(pair):
    """Groups come to the first message of the new topic, and go on from there."""
    for group in ("CG", "UNKNOWN"):
        assert await sent_to(pair, 6, group) == 0
        assert await sent_to(pair, 3, group) == 0
        for offset in (0, 3):
            assert await sent_to(pair, offset, group) is None


async def killed_before_dispatch(pair, producer, path, monkeypatch):
    """Leave in `cut` a slave that has the records of the new topic, and no queue of it."""
    with monkeypatch.context() as patch:
        reput = pair.slave.store.parts.log_services.reput
        patch.setattr(reput, "_dispatch_below", lambda _: None)
        await made_again(pair, producer)
        copy_as_killed(path / "s", path / "cut" / "s")


@pytest.mark.parametrize("meanwhile", ["", "started again", "killed"])
@pytest.mark.parametrize("told", [False, True], ids=["by its numbers", "told"])
def test_who_has_read_a_topic_gets_all_of_the_next_of_its_name(
    tmp_path, monkeypatch, told, meanwhile
):
    """Also a group of which the slave has never had an offset."""
    written_apart(monkeypatch)

    async def scenario():
        async with with_an_old_topic(tmp_path) as (pair, producer):
            if told:
                code = RequestCode.DELETE_TOPIC_IN_BROKER
                deleted = await pair.ask(pair.master, code, topic="T")
                assert deleted.code == ResponseCode.SUCCESS
                await tables_alone(pair.slave.replication._synchronize, monkeypatch)
                assert "T" in pair.slave.store.followed_log.deletions()
            await made_again(pair, producer)
            assert bodies(pair.slave.store) == numbered(b"new", 5)
            await promoted(pair, tmp_path, meanwhile)
            await all_begin_anew(pair)

    asyncio.run(scenario())


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after one more kill"])
def test_who_has_read_a_topic_gets_all_of_the_next_that_a_killed_slave_has_not_dispatched(
    tmp_path, monkeypatch, again
):
    written_apart(monkeypatch)

    async def scenario():
        async with with_an_old_topic(tmp_path) as (pair, producer):
            await killed_before_dispatch(pair, producer, tmp_path, monkeypatch)
            if again:
                with open_store(tmp_path / "cut" / "s", broker_role="SLAVE"):
                    copy_as_killed(tmp_path / "cut" / "s", tmp_path / "cut" / "cut" / "s")
            await promoted(pair, tmp_path / "cut" / "cut" if again else tmp_path / "cut")
            assert bodies(pair.slave.store) == numbered(b"new", 5)
            await all_begin_anew(pair)

    asyncio.run(scenario())


def test_who_has_begun_anew_goes_on_where_the_former_master_has_told_it_is(tmp_path):
    async def scenario():
        async with with_an_old_topic(tmp_path) as (pair, producer):
            await made_again(pair, producer)
            assert bodies(pair.slave.store) == numbered(b"new", 5)
            assert pair.slave.managers.offsets.resets.unknown_groups == {("", "T", 0): 0}
            assert (await pair.pull(pair.master, 0)).code == ResponseCode.SUCCESS
            pair.master.managers.offsets.commit("CG", "T", 0, 3)
            await pair.synchronize()
            resets = pair.master.managers.offsets.resets
            assert pair.slave.managers.offsets.resets.unknown_groups == resets.unknown_groups
            assert pair.slave.managers.offsets.resets == resets
            await promoted(pair, tmp_path)
            assert pair.slave.store.consumer_offsets.get("T", "CG", 0) == 3
            assert await sent_to(pair, 3, "CG") is None

    asyncio.run(scenario())


@pytest.mark.parametrize("lost", ["topics.json", "consumerOffset.json", "readersOfLost.json"])
def test_who_has_read_more_than_a_promoted_slave_has_is_sent_back_though_a_table_is_lost(
    tmp_path, lost
):
    async def scenario():
        async with running(tmp_path) as pair, Producer(pair.namesrv) as producer:
            for body in numbered(b"both", 3):
                await producer.send("T", body, queue_id=0)
            await pair.in_step()
            pair.master.managers.offsets.commit("CG", "T", 0, 3)
            await pair.synchronize()
            await pair.slave.stop()
            for path in (tmp_path / "s" / "config").glob(f"{lost}*"):
                path.unlink()
            await promoted(pair, tmp_path)
            # what the former master alone had took these places
            for body in numbered(b"new", 5):
                pair.slave.store.put("T", body)
            for group in ("CG", "UNKNOWN"):
                assert await sent_to(pair, 6, group) == 3

    asyncio.run(scenario())


def test_a_deletion_that_no_master_since_had_heard_of_deletes_nothing(tmp_path):
    """The former master has noted it, was promoted again, and tells of it: numbers went on."""
    with master_store(tmp_path / "s") as store:
        put(store, b"old", 2)
        end = store.max_phy_offset
        put(store, b"went on", 2)
        assert store.followed_log.follow_deletion("T", end)
        assert bodies(store) == numbered(b"old", 2) + numbered(b"went on", 2)
        assert store.followed_log.deletions() == {}
    assert verify(tmp_path / "s").clean


def rebuilt(path):
    assert rebuild_consume_queues(path).begun_anew == [("T", 0)]


def rebuilt_in_parts(path):
    assert rebuild_consume_queues(path, jobs=map, split_size=200).begun_anew == [("T", 0)]


def repaired(path):
    assert repair(path).left == []


@pytest.mark.parametrize("put_right", [rebuilt, rebuilt_in_parts, repaired])
@pytest.mark.parametrize("lost", [False, True], ids=["", "queue lost"])
def test_who_has_read_a_topic_gets_all_of_the_next_of_a_killed_slave_that_was_put_right(
    tmp_path, monkeypatch, put_right, lost
):
    """What puts it right drops the queue of the topic before, and with it what recovery asks."""
    written_apart(monkeypatch)

    async def scenario():
        async with with_an_old_topic(tmp_path) as (pair, producer):
            await killed_before_dispatch(pair, producer, tmp_path, monkeypatch)
            if lost:
                shutil.rmtree(tmp_path / "cut" / "s" / "consumequeue" / "T")
            put_right(tmp_path / "cut" / "s")
            await promoted(pair, tmp_path / "cut")
            assert bodies(pair.slave.store) == numbered(b"new", 5)
            await all_begin_anew(pair)

    asyncio.run(scenario())
