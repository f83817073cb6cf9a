"""A topic that a master has deleted is deleted on its slave, and begins anew as it does there."""

import asyncio
import errno
import shutil
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from ha.pair import SMALL, fill, following, has_all, master_store, serving, slave_store
from ha.test_brokers import SMALL as BROKER
from ha.test_brokers import Pair, asks_when_told, running  # noqa: F401 - a fixture
from killed_copy import copy_as_killed, written_apart
from patience import until_async

from rmqcore import open_store
from rmqcore.broker import Broker
from rmqcore.client import Producer
from rmqcore.doctor import verify
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.files.mapped_file import MappedFile
from rmqcore.files.store_dir import StoreDir
from rmqcore.ha.resync import Divergence, cut, find_divergence
from rmqcore.rebuild import rebuild_consume_queues
from rmqcore.remoting import RemotingClient, RemotingCommand, RequestCode, ResponseCode

pytestmark = pytest.mark.engine

OLD, NEW = 50, 3


def bodies(store, queue_id=0, topic="T"):
    return [bytes(m.body) for m in store.messages(topic, queue_id)]


def numbered(word, count):
    return [b"%s %d" % (word, number) for number in range(count)]


def put(store, word, count, queue_id=0):
    for body in numbered(word, count):
        store.put("T", body, queue_id=queue_id)
        store.put("Other", body, queue_id=queue_id)


# ---- by the numbers of the new topic alone, as a master of RocketMQ tells no more


@pytest.mark.parametrize("away", [False, True], ids=["there", "away"])
@pytest.mark.parametrize("old", [1, OLD])
@pytest.mark.parametrize("new", [1, NEW])
def test_numbers_that_begin_again_begin_a_queue_anew(tmp_path, away, old, new):
    async def scenario(master):
        async with serving(master) as service:
            with slave_store(tmp_path / "s") as slave:
                async with following(slave, service.port, master):
                    put(master, b"old", old)
                    master.consumer_offsets.commit("T", "G", 0, old)
                    master.consumer_offsets.commit("Other", "G", 0, 1)
                    await has_all(slave, master)
                    slave.consumer_offsets.adopt(master.consumer_offsets.to_text())
                    if not away:
                        master.delete_topic("T")
                        put(master, b"new", new)
                        await has_all(slave, master)
                        check(slave)
            if away:
                master.delete_topic("T")
                put(master, b"new", new)
                with slave_store(tmp_path / "s") as slave:
                    async with following(slave, service.port, master):
                        await has_all(slave, master)
                        check(slave)

    def check(store):
        assert bodies(store) == numbered(b"new", new)
        assert bodies(store, topic="Other") == numbered(b"old", old) + numbered(b"new", new)
        assert store.consumer_offsets.get("T", "G", 0) is None
        assert store.consumer_offsets.get("Other", "G", 0) == 1
        written = ConsumerOffsetTable(store.path / "config", clock=int)
        assert written.get("T", "G", 0) is None

    def check_as_masters(path):
        with open_store(path, **SMALL) as store:
            check(store)
            assert store.put("T", b"next").queue_offset == new

    with master_store(tmp_path / "m") as master:
        asyncio.run(scenario(master))
    killed = shutil.copytree(tmp_path / "s", tmp_path / "killed")
    (killed / "abort").touch()
    check_as_masters(tmp_path / "s")
    check_as_masters(killed)


def test_a_slave_that_is_killed_behind_each_message_hands_out_nothing_old(tmp_path):
    async def scenario(master, slave):
        async with serving(master) as service, following(slave, service.port, master):
            put(master, b"old", 4)
            await has_all(slave, master)
            master.delete_topic("T")
            for number in range(3):
                master.put("T", b"new %d" % number)
                await has_all(slave, master)
                assert bodies(slave) == numbered(b"new", number + 1)
                shutil.copytree(tmp_path / "s", tmp_path / f"{number}")

    with master_store(tmp_path / "m") as master, slave_store(tmp_path / "s") as slave:
        asyncio.run(scenario(master, slave))
    for number in range(3):
        with open_store(tmp_path / f"{number}", **SMALL) as store:
            assert bodies(store) == numbered(b"new", number + 1)
            assert store.put("T", b"next").queue_offset == number + 1


def test_a_full_disk_that_refuses_to_forget_what_was_consumed_is_asked_again(tmp_path, monkeypatch):
    """Else what was consumed of the old topic would pass over the new one's messages."""
    full = False

    def refuse(table):
        if full and table is slave.consumer_offsets:
            raise OSError(errno.ENOSPC, "there is none")
        return persist(table)

    def end():
        queue = slave.consume_queues.find("T", 0)
        return queue and queue.max_offset

    async def scenario():
        nonlocal full
        async with serving(master) as service, following(slave, service.port, master):
            put(master, b"old", 4)
            await has_all(slave, master)
            assert bodies(slave) == numbered(b"old", 4)
            slave.consumer_offsets.commit("T", "G", 0, 4)
            full = True
            master.delete_topic("T")
            master.put("T", b"new 0")
            await until_async(
                lambda: "no room" in (slave.followed_log.why_not_appended() or ""),
                "the slave says so",
            )
            assert end() == 4
            full = False
            await until_async(lambda: end() == 1, "the new queue is there")
            assert bodies(slave) == [b"new 0"]
            assert slave.consumer_offsets.get("T", "G", 0) is None
            assert slave.followed_log.why_not_appended() is None

    persist = ConsumerOffsetTable.persist
    monkeypatch.setattr(ConsumerOffsetTable, "persist", refuse)
    with master_store(tmp_path / "m") as master, slave_store(tmp_path / "s") as slave:
        asyncio.run(scenario())


# ---- as the master tells it


def test_what_a_master_tells_counts_when_the_log_has_it(tmp_path):
    async def scenario(master):
        async with serving(master) as service, AsyncExitStack() as stack:
            slave = stack.enter_context(slave_store(tmp_path / "s"))
            put(master, b"old", OLD)
            put(master, b"old", OLD, queue_id=1)
            master.delete_topic("T")
            ((topic, at),) = master.followed_log.deletions().items()
            assert topic == "T"
            assert not slave.followed_log.follow_deletion("T", at)
            assert slave.followed_log.deletions() == {}
            put(master, b"new", NEW)
            await stack.enter_async_context(following(slave, service.port, master))
            await has_all(slave, master)
            assert bodies(slave) == numbered(b"new", NEW)
            assert bodies(slave, 1) == numbered(b"old", OLD)
            for _ in range(2):
                assert slave.followed_log.follow_deletion("T", at)
                assert bodies(slave) == numbered(b"new", NEW)
                assert bodies(slave, 1) == []
                assert slave.followed_log.deletions() == {"T": at}
                assert slave.followed_log.has_messages("T", at)
                assert not slave.followed_log.has_messages("T", slave.max_phy_offset)

    with master_store(tmp_path / "m") as master:
        asyncio.run(scenario(master))
    rebuild_consume_queues(tmp_path / "s")
    with open_store(tmp_path / "s", **SMALL) as store:
        assert bodies(store) == numbered(b"new", NEW)
        assert bodies(store, 1) == []
        assert store.put("T", b"next", queue_id=1).queue_offset == 0


@pytest.mark.parametrize("on", ["slave", "master"])
def test_files_that_could_not_be_removed_are_removed_by_the_next_call(tmp_path, monkeypatch, on):
    """Whoever reads the directory from outside saw the old queues until the next opening."""
    refused = []

    def refuse(file):
        if not refused:
            refused.append(file)
            raise OSError(errno.EIO, "it stays")
        destroy(file)

    async def scenario(master, slave):
        async with serving(master) as service, following(slave, service.port, master):
            for queue_id in (0, 1):
                put(master, b"old", OLD, queue_id=queue_id)
            await has_all(slave, master)
            assert len(bodies(slave)) == OLD
            store = slave if on == "slave" else master

            def delete():
                if store is master:
                    return master.delete_topic("T")
                return slave.followed_log.follow_deletion("T", master.max_phy_offset)

            monkeypatch.setattr(MappedFile, "destroy", refuse)
            with pytest.raises(OSError, match="it stays"):
                delete()
            queues = store.path / "consumequeue"
            assert any((queues / "T").rglob("0*"))
            assert delete() or store is master
            assert not (queues / "T").exists()
            assert len(bodies(store, topic="Other")) == OLD

    destroy = MappedFile.destroy
    with master_store(tmp_path / "m") as master, slave_store(tmp_path / "s") as slave:
        asyncio.run(scenario(master, slave))


@pytest.mark.parametrize("how", ["opened", "rebuilt"])
def test_what_was_sent_where_nobody_knew_of_a_deletion_is_derived_again(tmp_path, how):
    """The master died when it had deleted a topic, and the slave that took its place goes on."""
    with master_store(tmp_path / "m") as master:
        put(master, b"old", 5)
        master.flush()
        shutil.copytree(tmp_path / "m", tmp_path / "s")
        assert master.delete_topic("T")

    async def scenario(new, old):
        async with serving(new) as service, following(old, service.port, new):
            await has_all(old, new)

    with master_store(tmp_path / "s") as new:
        put(new, b"new", 3)
        with slave_store(tmp_path / "m") as old:
            asyncio.run(scenario(new, old))
            assert bodies(old)[-3:] == numbered(b"new", 3)
    if how == "opened":
        shutil.rmtree(tmp_path / "m" / "consumequeue")
    else:
        rebuild_consume_queues(tmp_path / "m")
    with open_store(tmp_path / "m", mode="a") as store:
        assert bodies(store) == numbered(b"new", 3)
        assert (store.min_queue_offset("T", 0), store.max_queue_offset("T", 0)) == (5, 8)
    assert verify(tmp_path / "m").findings == []


@pytest.mark.usefixtures("asks_when_told")
@pytest.mark.parametrize("away", [False, True], ids=["there", "away"])
@pytest.mark.parametrize("again", [False, True], ids=["gone", "again"])
def test_brokers_agree_on_a_topic_that_was_deleted(tmp_path, away, again):
    async def scenario():
        async with running(tmp_path) as pair, Producer(pair.namesrv) as producer:
            for queue_id in (0, 1):
                for body in numbered(b"old", OLD):
                    await producer.send("T", body, queue_id=queue_id)
                pair.master.store.consumer_offsets.commit("T", "CG", queue_id, OLD)
            await pair.in_step()
            await pair.synchronize()
            assert (await pair.pull(pair.slave)).code == ResponseCode.SUCCESS
            assert pair.slave.store.consumer_offsets.get("T", "CG", 1) == OLD
            if away:
                await pair.slave.stop()
            deleted = await pair.ask(pair.master, RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
            assert deleted.code == ResponseCode.SUCCESS
            if again:
                for body in numbered(b"new", NEW):
                    pair.master.store.put("T", body, durability="page_cache")
                pair.master.managers.topics.put(pair.master.managers.topics.expect("TBW102"))
                pair.master.managers.topics.for_send("T", "TBW102", 4)
                pair.master.store.consumer_offsets.commit("T", "CG", 0, 1)
            if away:
                pair.slave = Pair(tmp_path, pair.namesrv, {}).slave
                await pair.slave.start()
                await pair.follows()
            await pair.in_step()
            await until_async(lambda: pair.slave.replication.client.agrees, "it has compared")
            await pair.synchronize()
            slave = pair.slave.store
            assert bodies(slave) == (numbered(b"new", NEW) if again else [])
            assert bodies(slave, 1) == []
            assert slave.consumer_offsets.queues("T", "CG") == ({0: 1} if again else {})
            assert (slave.topics.get("T") is not None) == again

    async def alone():
        broker = Broker(tmp_path / "s", BROKER)
        await broker.start()
        try:
            store = broker.store
            assert bodies(store) == (numbered(b"new", NEW) if again else [])
            assert bodies(store, 1) == []
            assert store.put("T", b"next").queue_offset == (NEW if again else 0)
            assert store.put("T", b"next", queue_id=1).queue_offset == 0
        finally:
            await broker.stop()

    asyncio.run(scenario())
    asyncio.run(alone())


# ---- as nobody has deleted it


@pytest.mark.usefixtures("asks_when_told")
async def made_again(pair, producer):
    """Have the master delete a topic, and get five messages for another one of its name."""
    deleted = await pair.ask(pair.master, RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    assert deleted.code == ResponseCode.SUCCESS
    for body in numbered(b"new", 5):
        await producer.send("T", body, queue_id=0)
    await pair.in_step()


@asynccontextmanager
async def with_an_old_topic(path):
    """A pair whose group has consumed six messages of a topic, and a producer."""
    async with running(path) as pair, Producer(pair.namesrv) as producer:
        for body in numbered(b"old", 6):
            await producer.send("T", body, queue_id=0)
        await pair.in_step()
        pair.master.managers.offsets.commit("CG", "T", 0, 6)
        await pair.synchronize()
        yield pair, producer


def between(synchronize, monkeypatch, code, then):
    """Let something happen once, behind the answer to a question of a slave's."""
    ask, left = synchronize._ask, [then]

    async def asked(address, asks):
        text = await ask(address, asks)
        if asks == code and left:
            await left.pop()()
        return text

    monkeypatch.setattr(synchronize, "_ask", asked)


@pytest.mark.usefixtures("asks_when_told")
def test_a_slave_that_is_asked_to_delete_a_topic_keeps_what_came_to_the_next_of_its_name(tmp_path):
    """Tools ask one broker after the other, and what was sent meanwhile is acknowledged."""

    async def scenario():
        async with with_an_old_topic(tmp_path) as (pair, producer):
            await made_again(pair, producer)
            deleted = await pair.ask(pair.slave, RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
            assert deleted.code == ResponseCode.SUCCESS
            await pair.synchronize()
            assert bodies(pair.slave.store) == numbered(b"new", 5)
            assert pair.slave.store.topics.get("T") is not None
            # nobody tells it any more
            await pair.master.stop()
            replication = pair.slave.replication
            await until_async(lambda: not replication.follows, "the slave knows")
            deleted = await pair.ask(pair.slave, RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
            assert deleted.code == ResponseCode.SYSTEM_ERROR
            assert bodies(pair.slave.store) == numbered(b"new", 5)

    asyncio.run(scenario())


def test_a_slave_whose_master_no_name_server_knows_deletes_a_topic_itself(tmp_path):
    """Nobody tells it what its master has deleted."""

    async def scenario():
        async with AsyncExitStack() as stack:
            client = RemotingClient()
            stack.push_async_callback(client.close)
            master = Broker(tmp_path / "m", {**BROKER, "brokerRole": "ASYNC_MASTER"})
            await master.start()
            stack.push_async_callback(master.stop)
            port = f"127.0.0.1:{master.replication.service.port}"
            its = {"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": port}
            slave = Broker(tmp_path / "s", {**BROKER, **its})
            await slave.start()
            stack.push_async_callback(slave.stop)
            put(master.store, b"old", 2)
            await until_async(
                lambda: slave.store.max_phy_offset == master.store.max_phy_offset, "it has all"
            )
            request = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            deleted = await client.invoke(slave.address, request, 10_000)
            assert deleted.code == ResponseCode.SUCCESS
            assert bodies(slave.store) == []
            assert bodies(slave.store, topic="Other") == numbered(b"old", 2)

    asyncio.run(scenario())


@pytest.mark.usefixtures("asks_when_told")
def test_a_slave_to_which_no_topics_come_refuses_to_delete_one(tmp_path):
    async def scenario():
        async with running(tmp_path) as pair, Producer(pair.namesrv) as producer:
            await producer.send("T", b"x", queue_id=0)
            await pair.in_step()
            deleted = await pair.ask(pair.slave, RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
            assert deleted.code == ResponseCode.SYSTEM_ERROR
            assert bodies(pair.slave.store) == [b"x"]

    asyncio.run(scenario())


@pytest.mark.usefixtures("asks_when_told")
def test_no_offset_of_a_topic_that_was_deleted_counts_for_the_next_of_its_name(
    tmp_path, monkeypatch
):
    """The answer is on its way while the master deletes the topic and makes it again."""

    async def scenario():
        async with with_an_old_topic(tmp_path) as (pair, producer):
            synchronize = pair.slave.replication._synchronize
            code = RequestCode.GET_ALL_CONSUMER_OFFSET
            between(synchronize, monkeypatch, code, lambda: made_again(pair, producer))
            assert not await synchronize.synchronize()
            assert bodies(pair.slave.store) == numbered(b"new", 5)
            assert pair.slave.store.consumer_offsets.get("T", "CG", 0) is None

    asyncio.run(scenario())


@pytest.mark.usefixtures("asks_when_told")
def test_no_offset_counts_that_is_taken_over_while_its_queue_begins_anew(tmp_path, monkeypatch):
    """The slave has the log when it looks, and comes to what the log tells a moment later."""

    async def scenario():
        async with with_an_old_topic(tmp_path) as (pair, producer):
            synchronize = pair.slave.replication._synchronize
            reput = pair.slave.store.parts.log_services.reput
            dispatch, fit = reput._dispatch_below, ConsumerOffsetTable._fitted

            def fitted(table, told):
                monkeypatch.setattr(reput, "_dispatch_below", dispatch)
                return fit(table, told)

            async def again():
                monkeypatch.setattr(reput, "_dispatch_below", lambda _: None)
                monkeypatch.setattr(ConsumerOffsetTable, "_fitted", fitted)
                await made_again(pair, producer)

            between(synchronize, monkeypatch, RequestCode.GET_ALL_CONSUMER_OFFSET, again)
            assert not await synchronize.synchronize()
            assert bodies(pair.slave.store) == numbered(b"new", 5)
            assert pair.slave.store.consumer_offsets.get("T", "CG", 0) is None

    asyncio.run(scenario())


@pytest.mark.usefixtures("asks_when_told")
def test_a_deletion_that_is_followed_late_takes_no_offset_of_the_next_topic(tmp_path, monkeypatch):
    """The master may be gone before it tells them once more, and who has to begin with it."""

    async def scenario():
        async with with_an_old_topic(tmp_path) as (pair, producer):
            offsets = pair.slave.store.consumer_offsets
            synchronize = pair.slave.replication._synchronize

            async def again():
                await made_again(pair, producer)
                pair.master.managers.offsets.commit("CG", "T", 0, 3)
                # which dispatches: a queue that begins anew meanwhile has it ask once more
                assert pair.slave.store.max_queue_offset("T", 0) == 5

            between(synchronize, monkeypatch, RequestCode.GET_ALL_TOPIC_CONFIG, again)
            assert await synchronize.synchronize()
            assert offsets.get("T", "CG", 0) == 3
            assert "T" not in pair.slave.store.followed_log.deletions()
            await tables_alone(synchronize, monkeypatch)
            assert "T" in pair.slave.store.followed_log.deletions()
            assert offsets.get("T", "CG", 0) == 3
            assert pair.slave.managers.offsets.resets["CG", "T", 0] == 0

    asyncio.run(scenario())


@pytest.mark.usefixtures("asks_when_told")
def test_a_deletion_that_is_known_takes_nothing_of_where_groups_have_to_go_on(
    tmp_path, monkeypatch
):
    """It is told again and again; where groups go on comes only when the log is there."""
    lost = ("CG", "T", 0)

    async def scenario():
        async with with_an_old_topic(tmp_path) as (pair, producer):
            await made_again(pair, producer)
            master, slave = (each.managers.offsets for each in (pair.master, pair.slave))
            master.resets.take_over({lost: 3})
            await pair.synchronize()
            await tables_alone(pair.slave.replication._synchronize, monkeypatch)
            assert slave.resets.ends == {lost: 3}
            assert slave.resets[lost] == 0

    asyncio.run(scenario())


async def tables_alone(synchronize, monkeypatch):
    """Let a slave have topics and groups, and no offsets."""

    async def lags():
        return False

    monkeypatch.setattr(synchronize, "_has_all", lags)
    await synchronize.synchronize()


@pytest.mark.usefixtures("asks_when_told")
def test_a_topic_whose_queues_a_power_cut_took_before_the_table_came_is_there(
    tmp_path, monkeypatch
):
    """The slave has not asked for topics yet, and no file of the queue has come to the disk."""

    async def scenario():
        async with running(tmp_path) as pair, Producer(pair.namesrv) as producer:
            for body in numbered(b"new", NEW):
                await producer.send("T", body, queue_id=0)
            await pair.in_step()
            pair.slave.store.flush_log()
            assert pair.slave.store.topics.get("T") is None
            copy_as_killed(tmp_path / "s", tmp_path / "cut")

    written_apart(monkeypatch)
    asyncio.run(scenario())
    # the slave may not have dispatched yet
    shutil.rmtree(tmp_path / "cut" / "consumequeue" / "T", ignore_errors=True)
    with open_store(tmp_path / "cut") as store:
        assert bodies(store) == numbered(b"new", NEW)


@pytest.mark.parametrize("again", [False, True], ids=["gone", "again"])
def test_what_a_slave_has_deleted_as_a_master_meanwhile_comes_back_with_the_masters_log(
    tmp_path, again
):
    with master_store(tmp_path / "m") as master:
        put(master, b"old", OLD)
        master.delete_topic("T")
        put(master, b"both", 10)
        # the opening walks the last files only
        fill(master, 200)
        end = master.max_phy_offset
    shutil.copytree(tmp_path / "m", tmp_path / "s")
    with master_store(tmp_path / "s") as other:
        other.put("Other", b"its own")
        other.delete_topic("T")
        if again:
            put(other, b"its own", 3)

    async def scenario(master):
        async with serving(master, ha_send_heartbeat_interval=20) as service:
            with slave_store(tmp_path / "s") as slave:
                found = await find_divergence(slave.followed_log, f"127.0.0.1:{service.port}")
            assert found.common_end == end
            cut(StoreDir(tmp_path / "s"), found)
            with slave_store(tmp_path / "s", open_check_bytes=0, on_corruption="truncate") as slave:
                async with following(slave, service.port, master):
                    await has_all(slave, master)
                    for _ in range(2):
                        for topic in ("T", "Other"):
                            assert bodies(slave, topic=topic) == bodies(master, topic=topic)
                        # and what its master has deleted it tells again
                        ((topic, at),) = master.followed_log.deletions().items()
                        assert slave.followed_log.follow_deletion(topic, at)

    with master_store(tmp_path / "m") as master:
        put(master, b"new", NEW)
        assert bodies(master) == numbered(b"both", 10) + numbered(b"new", NEW)
        asyncio.run(scenario(master))


def test_a_topic_that_is_cut_behind_its_first_message_has_that_alone(tmp_path):
    """Its queue goes on with units of what was cut off, as those of the topic before it did."""
    with master_store(tmp_path / "s") as store:
        put(store, b"old", 2)
        store.delete_topic("T")
        put(store, b"new", 1)
        end = store.max_phy_offset
        store.put("Other", b"cut off")
        store.delete_topic("T")
        put(store, b"cut off", OLD)
        found = Divergence(store.min_phy_offset, end, store.max_phy_offset, master_goes_on=True)
    cut(StoreDir(tmp_path / "s"), found)
    for _ in range(2):
        with slave_store(tmp_path / "s", open_check_bytes=0, on_corruption="truncate") as slave:
            assert bodies(slave) == numbered(b"new", 1)
            assert slave.max_queue_offset("T", 0) == 1
    assert verify(tmp_path / "s").clean
