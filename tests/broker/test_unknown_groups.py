"""A new master sends back groups whose offsets it never had, and lets new ones begin."""

import json

import pytest
from broker.conftest import Peer
from broker.test_pop import send_many
from broker.test_pop_kills import killed
from broker.test_promoted import becomes_a_slave, sent_to
from broker.test_state import COMMITS, commit, delete
from patience import until

from rmqcore import Message
from rmqcore.broker.state import offsets, resets, topics
from rmqcore.files.config_tables import TopicConfig
from rmqcore.remoting import RequestCode, ResponseCode
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine


async def as_a_slave(broker, peer):
    """The life of a slave that has three messages, and nobody's offset."""
    await send_many(peer, 3, queues=1)
    becomes_a_slave(broker)


async def join(peer, group, model, *topics):
    """Let a consumer of a group tell that it is sent messages, to whom, and of which topics."""
    wanted = [{"topic": topic, "subString": "*", "subVersion": 0} for topic in topics]
    data = {"groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": model}
    beat = {"clientID": group, "consumerDataSet": [data | {"subscriptionDataSet": wanted}]}
    answer = await peer.ask(RequestCode.HEART_BEAT, body=json.dumps(beat).encode())
    assert answer.code == ResponseCode.SUCCESS


@pytest.mark.parametrize("first", ["pull", "commit"])
def test_who_has_no_offset_here_passes_over_nothing_of_the_new_master(lives, tmp_path, first):
    """A slave whose own disk fails has taken over none of its master's, and clients go on."""

    async def as_the_master(broker, peer):
        await send_many(peer, 6, queues=1)
        for _ in range(2):
            if first == "commit":
                assert (await commit(peer, 5)).code == ResponseCode.SUCCESS
            assert await sent_to(peer, 5, sysFlag=COMMITS, commitOffset=5) == 3
        assert (await commit(peer, 5)).code == ResponseCode.SUCCESS
        kept = {"pull": None, "commit": 3}[first]
        assert broker.store.consumer_offsets.get("T", "CG", 0) == kept

    async def again(broker, peer):
        assert await sent_to(peer, 8) == 3
        for offset in (3, 7):
            answer = await peer.pull("T", offset=offset, sysFlag=COMMITS, commitOffset=offset)
            assert answer.code == ResponseCode.SUCCESS
        assert broker.store.consumer_offsets.get("T", "CG", 0) == 7

    async def and_again(broker, peer):
        assert await sent_to(peer, 8) is None

    async def before_it_comes(broker, peer):
        await send_many(peer, 6, queues=1)

    lives(as_a_slave, as_the_master, again, and_again)
    (tmp_path / "store").rename(tmp_path / "before")
    lives(as_a_slave, before_it_comes, again, and_again)


def test_who_has_no_offset_here_is_sent_to_what_its_client_has_not_consumed(lives):
    """A client drops what it has pulled and not consumed when it is sent elsewhere."""

    async def as_a_slave(broker, peer):
        await send_many(peer, 6, queues=1)
        becomes_a_slave(broker)

    async def as_the_master(broker, peer):
        await send_many(peer, 6, queues=1)
        # with each pull a client says what it has consumed; one that follows no group says 0
        assert await sent_to(peer, 8, group="TOLD", commitOffset=2) == 2
        assert await sent_to(peer, 8, group="BEHIND", commitOffset=7) == 6
        assert await sent_to(peer, 8, group="READER") == 6
        # one that has consumed nothing, also before its group is known by a heart-beat
        assert await sent_to(peer, 8, group="NOTHING", commitOffset=-1) == 0
        for group, model, place in (
            ("BEGUN", "CLUSTERING", 0),
            ("ALL", "BROADCASTING", 6),
        ):
            await join(peer, group, model)
            assert await sent_to(peer, 8, group=group) == place
        await commit(peer, 4)
        assert await sent_to(peer, 8) == 4

    lives(as_a_slave, as_the_master)


def test_who_asks_where_it_is_and_has_no_offset_begins_where_it_wants(lives):
    async def as_the_master(broker, peer):
        await send_many(peer, 6, queues=1)
        other = Peer(broker)
        try:
            for group in ("CG", "NEW"):
                fields = {"consumerGroup": group, "topic": "T", "queueId": 0}
                fields["setZeroIfNotFound"] = "false"
                answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
                assert answer.code == ResponseCode.QUERY_NOT_FOUND
            # another of the group, who goes on where it was
            assert await sent_to(other, 8, group="NEW") == 3
            assert await sent_to(peer, 8, group="NEW") == 3
        finally:
            await other.client.close()
        await commit(peer, 8)
        assert broker.store.consumer_offsets.get("T", "CG", 0) == 8
        assert await sent_to(peer, 8) is None

    lives(as_a_slave, as_the_master)


def test_who_keeps_its_offsets_itself_is_sent_back_once(lives):
    async def as_the_master(broker, peer):
        await send_many(peer, 6, queues=1)
        assert await sent_to(peer, 5, group="SOME") == 3
        for offset in (3, 5):
            assert await sent_to(peer, offset, group="SOME") is None
        # tools have one group for all that they look at
        assert await sent_to(peer, 5, group="TOOLS_CONSUMER") is None

    async def again(broker, peer):
        assert await sent_to(peer, 5, group="SOME") is None
        assert broker.store.consumer_offsets.get("T", "SOME", 0) is None

    async def crashed(broker, peer):
        # a group that has come since has read nothing of what was lost before
        broker.managers.offsets.bring_back(lambda *_: 7, may_be_shorter=True)
        await send_many(peer, 3, queues=1)
        assert await sent_to(peer, 9, group="SOME") == 7
        assert await sent_to(peer, 9, group="LATE") == 3

    lives(as_a_slave, as_the_master, again, crashed)


@pytest.mark.parametrize(
    "code", [RequestCode.GET_MAX_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP]
)
def test_who_keeps_its_offsets_itself_and_has_none_begins_where_it_is_told(lives, code):
    """It asks for no offset of its group, but for the end of the queue, or by time."""

    async def as_the_master(broker, peer):
        await send_many(peer, 6, queues=1)
        timestamp_ms = wall_clock_ms() + 60_000
        fields = {"topic": "T", "queueId": 0, "timestamp": timestamp_ms, "boundaryType": "UPPER"}
        told = int((await peer.ask(code, fields)).ext_fields["offset"])
        assert told > 3
        # another of the group, who was told nothing; and this one, where it was not told to
        other = Peer(broker)
        try:
            assert await sent_to(other, told, group="OTHERS") == 3
        finally:
            await other.client.close()
        assert await sent_to(peer, told - 1, group="AHEAD") == 3
        assert await sent_to(peer, told, group="NEW") is None

    lives(as_a_slave, as_the_master)


def test_who_commits_first_and_has_no_offset_has_consumed_what_is_left(lives):
    """A client that goes on does so with its time, an administrator for a group that is new."""

    async def as_the_master(broker, peer):
        await send_many(peer, 6, queues=1)
        for group, offset, kept in (("BEHIND", 5, 3), ("BEFORE", 2, 2)):
            await commit(peer, offset, group=group)
            assert broker.store.consumer_offsets.get("T", group, 0) == kept
            assert await sent_to(peer, 8, group=group) == kept

    lives(as_a_slave, as_the_master)


def test_a_queue_of_which_nothing_is_left_ends_at_its_beginning(lives):
    async def as_a_slave(broker, peer):
        await send_many(peer, 1, queues=1)
        becomes_a_slave(broker)

    async def as_the_master(broker, peer):
        assert ("T", 1) not in broker.store.queues()
        for _ in range(4):
            await peer.send("T", b"x", queue_id=1)
        assert await sent_to(peer, 2, queue_id=1) == 0

    lives(as_a_slave, as_the_master)


def test_no_number_of_queues_keeps_a_new_master_from_starting(lives, monkeypatch):
    """Its master's table may name any, and so may a message in the log."""
    monkeypatch.setattr(topics, "QUEUES_MAX", 16)

    async def as_a_slave(broker, peer):
        await send_many(peer, 3, queues=1)
        wide = TopicConfig(topic_name="WIDE", read_queue_nums=1000, write_queue_nums=1)
        broker.store.topics.put(wide)
        for topic, queue_id in (("T", 2000), ("NEW", 3000), ("NEWER", 11)):
            assert broker.store.put_message(Message(topic, b"x", queue_id=queue_id)).ok
        becomes_a_slave(broker)

    async def as_the_master(broker, peer):
        table = broker.store.topics
        known = {name: table.get(name).read_queue_nums for name in ("T", "NEW", "NEWER")}
        assert known == {"T": 4, "NEW": 8, "NEWER": 12}
        noted = {
            key[2] for key in broker.managers.offsets.resets.unknown_groups if key[1] == "WIDE"
        }
        assert noted == set(range(16))

    lives(as_a_slave, as_the_master)


def test_what_is_due_while_a_broker_ends_makes_its_log_no_other(lives, clock, monkeypatch):
    """It comes behind the end that the broker notes, or with its next start."""
    due = [1000]

    def close(store, really=DefaultMessageStore.close):
        upkeep = store.parts.upkeep
        if due:
            clock.go_on(due.pop())
            upkeep.delayed.wakeup()
            until(
                lambda: (
                    store.max_queue_offset("T", 0) or not upkeep.runner.is_running(upkeep.delayed)
                ),
                "it is delivered, or nothing is any more",
            )
        really(store)

    async def ends(_, peer):
        await peer.send("T", b"later", properties={"DELAY": "1"})

    async def again(broker, peer):
        await send_many(peer, 6, queues=1)
        assert await sent_to(peer, 5) is None

    monkeypatch.setattr(DefaultMessageStore, "close", close)
    lives(ends, again)


def test_who_may_have_read_a_deleted_topic_passes_over_nothing_of_the_next(lives):
    """Its clients outlive a broker that was killed before it kept their offsets."""

    async def as_the_master(broker, peer):
        await delete(peer)
        await send_many(peer, 6, queues=1)
        assert await sent_to(peer, 5) == 0
        assert await sent_to(peer, 0) is None
        # who asks first begins where it wants
        asked = {"consumerGroup": "NEW", "topic": "T", "queueId": "0", "setZeroIfNotFound": "false"}
        await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, asked)
        assert await sent_to(peer, 5, group="NEW") is None

    lives(as_a_slave, as_the_master)


def test_who_has_read_a_deleted_topic_and_committed_nothing_passes_over_nothing_of_the_next(lives):
    """No heart-beat says that it reads: its broker was started again, or it sends none."""

    async def as_the_master(broker, peer):
        await send_many(peer, 6, queues=1)
        for group in ("QUIET", "OTHER"):
            assert (await peer.pull("T", offset=5, group=group)).code == ResponseCode.SUCCESS
        await delete(peer)
        await send_many(peer, 6, queues=1)
        assert await sent_to(peer, 5, group="QUIET") == 0
        for offset in (0, 5):
            assert await sent_to(peer, offset, group="QUIET") is None

    async def again(broker, peer):
        assert await sent_to(peer, 5, group="OTHER") == 0
        assert await sent_to(peer, 5, group="QUIET") is None
        # one that begins now is told where the queue ends, and then where the next one does
        for group in ("NEW", "NEWER"):
            fields = {"topic": "T", "queueId": 0}
            told = int((await peer.ask(RequestCode.GET_MAX_OFFSET, fields)).ext_fields["offset"])
            assert await sent_to(peer, told, group=group) is None
            await delete(peer)
            await send_many(peer, 7, queues=1)
            assert await sent_to(peer, told, group=group) == 0

    lives(as_the_master, again)


@pytest.mark.parametrize(
    ("topics", "shared"),
    [(("T",), False), ((), False), (("T",), True)],
    ids=["known", "unknown", "with an offset of before"],
)
def test_each_client_that_reads_all_of_a_deleted_topic_passes_over_nothing_of_the_next(
    lives, monkeypatch, topics, shared
):
    async def as_the_master(broker, peer):
        other = Peer(broker)
        try:
            await join(peer, "ALL", "BROADCASTING", *topics)
            for _ in range(2):
                await send_many(peer, 6, queues=1)
                if shared:
                    await commit(peer, 0, group="ALL")
                    await commit(peer, 4, group="ALL")
                await delete(peer)
            await send_many(peer, 6, queues=1)
            for each in (peer, other):
                assert await sent_to(each, 5, group="ALL") == 0
                for offset in (0, 5):
                    assert await sent_to(each, offset, group="ALL") is None
            # long after that they go on where they are
            monkeypatch.setattr(offsets, "ALL_CAME_S", 0.0)
            assert await sent_to(peer, 5, group="ALL") is None
            assert await sent_to(other, 5, group="ALL") is None
        finally:
            await other.client.close()

    lives(as_the_master)


@pytest.mark.parametrize("model", ["", "BROADCASTING"], ids=["unknown", "broadcast"])
def test_a_deletion_that_was_answered_is_known_behind_a_kill(lives, tmp_path, model):
    async def as_the_master(broker, peer):
        if model:
            await join(peer, "QUIET", model, "T")
        await send_many(peer, 6, queues=1)
        assert (await peer.pull("T", offset=5, group="QUIET")).code == ResponseCode.SUCCESS
        await delete(peer)
        await send_many(peer, 6, queues=1)
        async with killed(broker, tmp_path) as (_, next_peer):
            if model:
                await join(next_peer, "QUIET", model, "T")
            assert await sent_to(next_peer, 5, group="QUIET") == 0

    lives(as_the_master)


def test_a_topic_is_deleted_though_the_disk_takes_no_note_of_who_has_read_it(lives, monkeypatch):
    async def as_the_master(broker, peer):
        await send_many(peer, 6, queues=1)
        known = broker.managers.offsets.resets
        store = known._ends_file.store
        monkeypatch.setattr(known._ends_file, "store", refuses)
        await delete(peer)
        monkeypatch.setattr(known._ends_file, "store", store)
        known.persist_ends()
        assert known._ends_file.load().unknown_groups["", "T", 0] == 0

    def refuses(_):
        raise OSError(28, "no room")

    lives(as_the_master)


def test_of_queues_that_were_deleted_and_are_gone_the_last_ones_are_known(lives, monkeypatch):
    monkeypatch.setattr(resets, "_GONE_MAX", 3)
    monkeypatch.setattr(offsets, "ALL_CAME_S", 0.0)

    async def as_the_master(broker, peer):
        known = broker.managers.offsets.resets.unknown_groups
        known._counted_at = 3
        for number in range(8):
            await peer.send(f"T{number}", b"x")
            await delete(peer, f"T{number}")
        assert len(known) <= 6
        assert [key[1] for key in known][-3:] == ["T5", "T6", "T7"]
        assert list(broker.managers.offsets._deleted_s) == ["T7"]

    lives(as_the_master)


def test_groups_without_offsets_are_noted_as_long_as_there_is_room(lives, monkeypatch):
    async def as_the_master(broker, peer):
        await send_many(peer, 6, queues=1)
        unknown_groups = broker.managers.offsets.resets.unknown_groups
        monkeypatch.setattr(resets, "_UNKNOWN_MAX", len(unknown_groups) + 1)
        for group, place in (("A", 3), ("B", None), ("C", None)):
            assert await sent_to(peer, 5, group=group) == place
        # one that has an offset is known by it
        for offset in (3, 5):
            await peer.pull("T", offset=offset, group="A", sysFlag=COMMITS, commitOffset=offset)
        assert await sent_to(peer, 5, group="C") == 3

    lives(as_a_slave, as_the_master)


def test_each_client_that_reads_all_is_sent_back_by_itself(lives, monkeypatch):
    """A broadcast's clients keep their offsets themselves; what one has read no other has."""

    async def as_the_master(broker, peer):
        await send_many(peer, 6, queues=1)
        await join(peer, "ALL", "BROADCASTING")
        peers = [peer, Peer(broker), Peer(broker)]
        try:
            for each in peers:
                for _ in range(2):
                    assert await sent_to(each, 6, group="ALL") == 3
                # a client of 4.9 does not go where it is told that its offset has moved
                answer = await each.pull("T", offset=6, group="ALL")
                assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
                for offset in (3, 6):
                    assert await sent_to(each, offset, group="ALL") is None
            # one that is new begins where it is told
            await peers[1].client.close()
            peers[1] = Peer(broker)
            fields = {"topic": "T", "queueId": 0}
            assert (await peers[1].ask(RequestCode.GET_MAX_OFFSET, fields)).code == 0
            await send_many(peer, 1, queues=1)
            for offset in (9, 10):
                assert await sent_to(peers[1], offset, group="ALL") is None
            # long after that another one is started, and goes on where it was
            monkeypatch.setattr(offsets, "ALL_CAME_S", 0.0)
            await peers[2].client.close()
            peers[2] = Peer(broker)
            assert await sent_to(peers[2], 6, group="ALL") is None
        finally:
            for each in peers[1:]:
                await each.client.close()

    lives(as_a_slave, as_the_master)


def test_of_many_that_read_all_some_are_sent_back(lives, monkeypatch):
    async def as_the_master(broker, peer):
        await send_many(peer, 6, queues=1)
        await join(peer, "ALL", "BROADCASTING")
        monkeypatch.setattr(resets, "_ANSWERS_MAX", 1)
        for offset in (3, 6):
            assert await sent_to(peer, offset, group="ALL") is None
        other = Peer(broker)
        try:
            assert await sent_to(other, 6, group="ALL") is None
        finally:
            await other.client.close()

    lives(as_a_slave, as_the_master)
