"""A slave becomes the master: nothing is passed over of what takes the place of what is lost."""

import asyncio
import errno
import os
import shutil

import pytest
from broker.conftest import SMALL, records
from broker.test_pop import handed_out, pop, send_many
from broker.test_state import COMMITS, commit
from killed_copy import copy_as_killed
from patience import until_async

from rmqcore import open_store
from rmqcore.broker import Broker
from rmqcore.broker.pop.receipts import REVIVE_QUEUES
from rmqcore.broker.state.topics_of_log import unknown_topics
from rmqcore.client import MessageQueue
from rmqcore.files import config_file
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.files.delay_offset_table import DelayOffsetTable
from rmqcore.files.service_topics import REVIVE_GROUP
from rmqcore.files.store_dir import StoreDir
from rmqcore.files.timer_check import TimerCheck
from rmqcore.ha.resync import Divergence, cut
from rmqcore.remoting import PortTakenError, RequestCode, ResponseCode
from rmqcore.scan.cluster import Access, Cluster, QueueRange
from rmqcore.scan.cluster.pulls import RangePull
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine

ACCESS = Access(namesrv_addr="127.0.0.1:9876")
SLAVE = {"brokerRole": "SLAVE", "brokerId": 1}


def becomes_a_slave(broker):
    """Have a broker leave, when it ends, what a slave leaves."""
    broker.store.topics.follow()
    broker.managers.offsets.resets.follow(broker.store.max_phy_offset)


def a_slave(sent, committed):
    """The life of a slave that has so many messages, of which its group has read so many."""

    async def life(broker, peer):
        await send_many(peer, sent, queues=1)
        await commit(peer, committed)
        becomes_a_slave(broker)

    return life


async def sent_to(peer, offset, **more):
    """Where a pull is sent that is from an offset; None: it is answered there."""
    answer = await peer.pull("T", offset=offset, **more)
    following = int(answer.ext_fields["nextBeginOffset"])
    moved = answer.code == ResponseCode.PULL_OFFSET_MOVED
    # who keeps its offset itself goes on there at once
    moved |= answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and following < offset
    return following if moved else None


def test_who_has_read_what_only_the_old_master_had_passes_over_nothing_of_the_new_one(
    lives, tmp_path
):
    as_a_slave = a_slave(3, 3)

    async def as_the_master(broker, peer):
        await send_many(peer, 6, queues=1)
        for _ in range(2):
            answer = await peer.pull("T", offset=5, sysFlag=COMMITS, commitOffset=5)
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
            assert answer.ext_fields["nextBeginOffset"] == "3"
        assert (await commit(peer, 5)).code == ResponseCode.SUCCESS
        assert broker.store.consumer_offsets.get("T", "CG", 0) == 3
        for offset in (2, 7):
            answer = await peer.pull("T", offset=offset, sysFlag=COMMITS, commitOffset=offset)
            assert answer.code == ResponseCode.SUCCESS
        assert broker.store.consumer_offsets.get("T", "CG", 0) == 7

    async def again(broker, peer):
        ends = broker.managers.offsets.resets.ends
        assert ends.get(("CG", "T", 0)) == (None if pulled else 3)

    async def before_it_is_pulled_from(broker, peer):
        await send_many(peer, 6, queues=1)

    pulled = True
    lives(as_a_slave, as_the_master, again)
    (tmp_path / "store").rename(tmp_path / "before")
    pulled = False
    lives(as_a_slave, before_it_is_pulled_from, again)


def test_who_was_unknown_to_the_master_before_passes_over_nothing_of_it(lives):
    """The one before that has told the slave of the group, and not the one that took its place."""

    async def as_a_slave(broker, peer):
        await send_many(peer, 3, queues=1)
        await commit(peer, 2)
        becomes_a_slave(broker)
        broker.managers.offsets.resets.adopt({"unknownGroupsOfLost": {"T": {"": {"0": 3}}}})
        await send_many(peer, 3, queues=1)

    async def as_the_master(broker, peer):
        assert await sent_to(peer, 5) == 2
        assert await sent_to(peer, 2) is None

    lives(as_a_slave, as_the_master)


@pytest.mark.parametrize("told", [True, False], ids=["named", "long followed"])
def test_what_is_put_before_a_slave_is_the_master_takes_no_place_that_was_read(
    lives, tmp_path, monkeypatch, told
):
    """A program opens its store between; so does a broker that is killed before it serves."""
    if not told:
        monkeypatch.setattr("rmqcore.broker.parts.ALL_CAME_S", -1)

    async def as_a_slave(broker, peer):
        if not told:
            await send_many(peer, 1, queues=1)
            becomes_a_slave(broker)
        await send_many(peer, 3 if told else 2, queues=1)
        await commit(peer, 3)
        if told:
            becomes_a_slave(broker)
            broker.managers.offsets.resets.adopt({})

    async def as_the_master(_, peer):
        assert await sent_to(peer, 5) == 3
        assert await sent_to(peer, 3) is None

    lives(as_a_slave)
    with open_store(tmp_path / "store") as store:
        for number in range(2):
            store.put("T", b"between %d" % number)
    lives(as_the_master)


def test_what_is_put_behind_a_master_that_was_a_slave_once_is_read_once(lives, tmp_path):
    """A program opens its store between, and a reader that keeps its offset has all of it."""
    ends = []

    async def as_the_master(broker, peer):
        await send_many(peer, 3, queues=1)
        assert await sent_to(peer, 0, group="OTHER") is None
        ends.append(broker.store.max_queue_offset("T", 0))

    async def again(_, peer):
        assert await sent_to(peer, ends[0] + 2, group="OTHER") is None

    lives(a_slave(3, 3), as_the_master)
    with open_store(tmp_path / "store") as store:
        for number in range(2):
            store.put("T", b"between %d" % number)
    lives(again)


@pytest.mark.parametrize("long_ago", [False, True])
def test_who_has_read_what_a_slave_lacked_when_its_masters_log_came_is_sent_back_for_a_while(
    lives, monkeypatch, long_ago
):
    """A master that no name server knows does not tell who has."""
    if long_ago:
        monkeypatch.setattr("rmqcore.broker.parts.ALL_CAME_S", -1)

    async def as_a_slave(broker, peer):
        await send_many(peer, 3, queues=1)
        becomes_a_slave(broker)
        await send_many(peer, 3, queues=1)

    async def as_the_master(broker, peer):
        await send_many(peer, 3, queues=1)
        assert await sent_to(peer, 8) == (6 if long_ago else 3)

    lives(as_a_slave, as_the_master)


@pytest.mark.parametrize(("waited_ms", "end"), [(0, 3), (3_600_000, 7)])
def test_each_master_counts_whose_log_came_behind_another_that_told_nothing(
    lives, clock, waited_ms, end
):
    """Long behind the first one, who has read what only the second had comes to its end here."""

    async def as_a_slave(broker, peer):
        await send_many(peer, 3, queues=1)
        becomes_a_slave(broker)
        await send_many(peer, 3, queues=1)
        clock.go_on(waited_ms)
        await send_many(peer, 1, queues=1)
        broker.managers.follow_from(broker.store.max_phy_offset)
        await send_many(peer, 3, queues=1)

    async def as_the_master(broker, peer):
        await send_many(peer, 3, queues=1)
        assert await sent_to(peer, 9) == end

    lives(as_a_slave, as_the_master)


def test_who_has_read_what_is_lost_goes_on_at_what_was_not_consumed_before_it(lives):
    as_a_slave = a_slave(6, 2)

    async def as_the_master(broker, peer):
        await send_many(peer, 6, queues=1)
        # a client has 2 to 8, and drops them when it is told
        answer = await peer.pull("T", offset=9)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.ext_fields["nextBeginOffset"] == "2"

    lives(as_a_slave, as_the_master)


def test_a_master_that_was_a_slave_once_takes_over_a_log_once(lives):
    as_a_slave = a_slave(3, 3)

    async def as_the_master(broker, peer):
        assert broker.managers.offsets.resets.ends["CG", "T", 0] == 3
        assert (await peer.pull("T", offset=3)).code == ResponseCode.PULL_NOT_FOUND

    async def again(broker, peer):
        assert not broker.managers.offsets.resets.ends

    lives(as_a_slave, as_the_master, again)


@pytest.mark.parametrize("between", ["a broker that cannot serve", "another program"])
def test_a_crash_is_known_to_the_next_broker_that_serves(with_broker, tmp_path, between):
    async def scenario(broker, peer):
        await send_many(peer, 3, queues=1)
        await commit(peer, 3)
        broker.store.flush()
        path = tmp_path / "killed"
        copy_as_killed(broker.store.path, path)
        if between == "another program":
            open_store(path).close()
        else:
            taken = {"haListenPort": broker.config.listen_port}
            with pytest.raises(PortTakenError):
                await Broker(path, {"listenPort": 0, **SMALL, **taken}).start()
        for sent_back in (1, 0):
            again = Broker(path, {"listenPort": 0, **SMALL})
            await again.start()
            assert len(again.managers.offsets.resets.ends) == sent_back
            again.managers.offsets.moved_to(("CG", "T", 0), 3)
            await again.stop()

    with_broker(scenario)


def test_an_older_copy_that_was_given_what_a_slave_has_sends_back_who_has_read_more(
    lives, tmp_path
):
    """It was closed in order, and knows of none of those who have read since."""
    path, older = tmp_path / "store", tmp_path / "older"

    async def when_it_was_copied(broker, peer):
        await send_many(peer, 3, queues=1)
        await commit(peer, 2)

    async def as_the_slave_has_it(broker, peer):
        await send_many(peer, 2, queues=1)

    async def given_back(broker, peer):
        await send_many(peer, 6, queues=1)
        assert await sent_to(peer, 9) == 2
        assert await sent_to(peer, 2) is None

    async def again(broker, peer):
        assert await sent_to(peer, 9) is None

    lives(when_it_was_copied)
    shutil.copytree(path, older)
    lives(as_the_slave_has_it)
    with open_store(path) as slave, open_store(older, broker_role="SLAVE") as master:
        end = master.max_phy_offset
        master.followed_log.append_data(slave.followed_log.bytes_at(end, 1 << 20), end)
    shutil.rmtree(path)
    older.rename(path)
    lives(given_back, again)


def test_a_group_that_is_to_begin_where_another_is_begins_there(lives):
    as_a_slave = a_slave(3, 3)

    async def as_the_master(broker, peer):
        await send_many(peer, 6, queues=1)
        await peer.pull("T", offset=0, group="OTHER")
        await peer.pull("T", offset=7, group="OTHER", sysFlag=COMMITS, commitOffset=7)
        fields = {"srcGroup": "OTHER", "destGroup": "CG", "topic": "T"}
        cloned = await peer.ask(RequestCode.CLONE_GROUP_OFFSET, fields)
        assert cloned.code == ResponseCode.SUCCESS
        written = ConsumerOffsetTable(broker.managers.folder, clock=wall_clock_ms)
        assert written.get("T", "CG", 0) == 7
        answer = await peer.pull("T", offset=7, sysFlag=COMMITS, commitOffset=7)
        assert answer.code == ResponseCode.SUCCESS

    lives(as_a_slave, as_the_master)


def test_a_group_that_was_deleted_and_made_again_begins_where_it_wants(lives):
    as_a_slave = a_slave(3, 3)

    async def as_the_master(broker, peer):
        await send_many(peer, 6, queues=1)
        fields = {"groupName": "CG", "cleanOffset": "true"}
        deleted = await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
        assert deleted.code == ResponseCode.SUCCESS
        answer = await peer.pull("T", offset=8, sysFlag=COMMITS, commitOffset=8)
        assert answer.code == ResponseCode.SUCCESS
        assert broker.store.consumer_offsets.get("T", "CG", 0) == 8
        assert not broker.managers.offsets.resets.ends

    lives(as_a_slave, as_the_master)


@pytest.mark.parametrize("first", ["marks", "range"])
def test_a_scan_by_a_group_begins_anywhere_behind_what_is_lost(lives, first):
    as_a_slave = a_slave(3, 3)

    async def as_the_master(broker, peer):
        await send_many(peer, 9, queues=1)
        queue = MessageQueue("T", "broker-a", 0)
        queues = {queue: (broker.address,)}

        def marks():
            with Cluster(ACCESS) as cluster:
                assert cluster.marks(queues, {queue: 9}, "CG")[queue].phy_offset > 0

        def pulled():
            pull = RangePull(ACCESS, QueueRange(queue, (broker.address,), 7, 11), "CG")
            return [m.queue_offset for each in pull.run() for m in records(each.records)]

        if first == "marks":
            await asyncio.to_thread(marks)
        assert await asyncio.to_thread(pulled) == [7, 8, 9, 10]

    lives(as_a_slave, as_the_master)


def test_an_offset_ends_where_its_queue_did_before_delayed_messages_came(lives):
    async def scene(broker, peer):
        await send_many(peer, 2, queues=1)
        opened_at = broker.store.max_phy_offset
        await send_many(peer, 2, queues=1)
        await pop(peer, queue_id=0, order="true")
        await commit(peer, 4)
        offsets, order = broker.managers.offsets, broker.managers.pop_order
        end_of = offsets.ends_at(opened_at)
        offsets.bring_back(end_of, may_be_shorter=False)
        assert broker.store.consumer_offsets.get("T", "CG", 0) == 2
        assert order.due_ms(("T", "CG", 0), None, 4) > 0
        order.bring_back(end_of)
        assert order.due_ms(("T", "CG", 0), None, 4) == 0

    lives(scene)


def test_an_offset_in_a_light_queue_ends_where_it_did_before_delayed_messages_came(lives):
    light = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}

    async def scene(broker, peer):
        await peer.send("T", b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%b"})
        opened_at = broker.store.max_phy_offset
        for _ in range(2):
            await peer.send("T", b"x", properties=light)
        end_of = broker.managers.offsets.ends_at(opened_at)
        assert [end_of(name, 0) for name in ("%LMQ%a", "%LMQ%b", "T")] == [0, 1, 1]

    lives(scene, enableLmq=True, enableMultiDispatch=True)


def test_what_a_master_had_beyond_a_log_that_it_follows_now_counts_no_more(
    with_broker, tmp_path, clock
):
    """Its new master may know nothing of it, and puts others there."""
    ends = []

    async def as_the_master(broker, peer):
        await send_many(peer, 3, queues=1)
        ends.append(broker.store.max_phy_offset)
        await send_many(peer, 3, queues=1)
        await commit(peer, 6)
        for later in ({"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}):
            await peer.send("Later", b"x", properties=later)
            count = broker.store.max_queue_offset("Later", 0)
            clock.go_on(2000, broker)
            await until_async(
                lambda count=count: broker.store.max_queue_offset("Later", 0) > count, "it comes"
            )

    async def as_a_slave(broker, _):
        config = broker.managers.folder
        assert broker.store.max_queue_offset("T", 0) == 3
        kept = ConsumerOffsetTable(config, clock=wall_clock_ms)
        assert kept.get("T", "CG", 0) == 3
        assert DelayOffsetTable(config, clock=wall_clock_ms).get(1) == 0
        told = TimerCheck(config).load()
        assert (told.first_pending, told.read_offset) == (0, 0)

    with_broker(as_the_master)
    cut(StoreDir(tmp_path / "store"), Divergence(0, ends[0], 1 << 20, False))
    with_broker(as_a_slave, on_corruption="truncate", **SLAVE)


def test_a_slave_does_not_say_that_what_its_master_has_handed_out_is_done_with(lives, tmp_path):
    async def handed_out_by_the_master(broker, peer):
        await send_many(peer, 1, queues=1)
        assert len(handed_out(await pop(peer, queue_id=0))) == 1
        log = bytes(broker.store.followed_log.bytes_at(0, broker.store.max_phy_offset))
        slave = Broker(tmp_path / "slave", {"listenPort": 0, **SMALL, **SLAVE})
        await slave.start()
        try:
            checkpoints, store = slave.managers.checkpoints, slave.store
            await asyncio.to_thread(store.followed_log.append_data, log, 0)
            queues = [(checkpoints.topic, queue_id) for queue_id in range(REVIVE_QUEUES)]
            await until_async(
                lambda: sum(store.max_queue_offset(*queue) for queue in queues) == 1, "it has it"
            )
            checkpoints.commit()
            assert not store.consumer_offsets.queues(checkpoints.topic, REVIVE_GROUP)
        finally:
            await slave.stop()

    lives(handed_out_by_the_master)


def test_a_full_disk_keeps_no_broker_from_starting_behind_a_crash(lives, monkeypatch):
    full = []

    def write(path, raw, really=config_file._write):
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        really(path, raw)

    monkeypatch.setattr(config_file, "_write", write)

    as_a_slave = a_slave(3, 3)

    async def as_the_master(broker, peer):
        full.clear()
        assert broker.managers.offsets.resets.ends == {("CG", "T", 0): 3}
        assert (await peer.pull("T", offset=2)).code == ResponseCode.SUCCESS

    lives(as_a_slave)
    full.append(True)
    lives(as_the_master)


@pytest.mark.parametrize("full_for_long", [False, True])
def test_a_topic_of_the_log_is_not_forgotten_when_it_could_not_be_written(
    lives, tmp_path, topics_refused, full_for_long
):
    """Whoever is killed before the table is written looks for it once more."""

    async def as_a_slave(broker, peer):
        await send_many(peer, 3, queues=1)
        becomes_a_slave(broker)
        assert broker.store.topics.remove("T")

    async def as_the_master(broker, peer):
        assert len(records((await peer.pull("T")).body)) == 3
        sent = await peer.send("T", b"not acknowledged")
        assert sent.code == ResponseCode.SERVICE_NOT_AVAILABLE
        if not full_for_long:
            copy_as_killed(broker.store.path, tmp_path / "killed")
        topics_refused.clear()
        # it is tried again
        await until_async(
            lambda: broker.managers.topics.file.is_saved("T"), "the table is written after all"
        )
        assert (await peer.send("T", b"acknowledged")).code == ResponseCode.SUCCESS
        if full_for_long:
            copy_as_killed(broker.store.path, tmp_path / "killed")

    async def again(broker, peer):
        # the one that was not answered for is there, too
        bodies = [bytes(message.body) for message in records((await peer.pull("T")).body)]
        assert bodies[:3] == [b"0", b"1", b"2"]
        assert (b"acknowledged" in bodies) == full_for_long

    lives(as_a_slave)
    topics_refused.append(True)
    lives(as_the_master, flushConsumerOffsetInterval=100)
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "killed").rename(tmp_path / "store")
    lives(again)


def test_a_damaged_message_hides_no_topic_of_those_that_wait_beside_it(store_path):
    with open_store(store_path, mapped_file_size_commit_log=1 << 20, deliver_delayed=True) as store:
        for topic in ("First", "Second", "Third"):
            assert store.put(topic, b"x" * 200, delay_level=18).ok
        damaged = store.get_message("SCHEDULE_TOPIC_XXXX", 17, 1, max_messages=1).messages[0]
        log = store_path / "commitlog" / f"{0:020d}"
        with log.open("r+b") as file:
            file.seek(damaged.phy_offset + damaged.store_size // 2)
            file.write(b"rot")
        assert unknown_topics(store) == [("First", 0), ("Third", 0)]
