"""What clients name is kept up to a bound, and who wants more is told so."""

import asyncio
import json
import sys
import time

import pytest
from broker.conftest import LONG_MS, Peer, held
from broker.test_answers import beat
from patience import until_async

from rmqcore.broker.pop import checkpoints
from rmqcore.broker.send import light_queues
from rmqcore.broker.state import (
    budgets,
    clients,
    groups,
    offsets,
    queue_locks,
    request_modes,
    topics,
)
from rmqcore.broker.state.clients import Client, Producers
from rmqcore.remoting import LanguageCode, RequestCode, RequestRefusedError, ResponseCode
from rmqcore.remoting.json_body import BODY_SIZE_MAX, ENTRIES_MAX

pytestmark = pytest.mark.engine

REFUSED = ResponseCode.SYSTEM_ERROR
BEAT = RequestCode.HEART_BEAT


class Connected:
    """A connection as far as the tables of clients know one."""

    closed = False


def client_of(connection, client_id="c"):
    return Client(connection, client_id, LanguageCode.JAVA, 0, 0.0, 0)


def lock(group, queues, client_id="c"):
    listed = [{"brokerName": "b", "topic": topic, "queueId": number} for topic, number in queues]
    return json.dumps({"consumerGroup": group, "clientId": client_id, "mqSet": listed}).encode()


@pytest.mark.logic
def test_members_of_groups_have_bounds_for_each_client_and_for_all(monkeypatch):
    monkeypatch.setattr(clients, "GROUPS_OF_CLIENT", 3)
    monkeypatch.setattr(clients, "MEMBERS_MAX", 5)
    monkeypatch.setattr(clients, "RESERVED_GROUPS", 1)
    producers, first, second, usual = Producers(), Connected(), Connected(), Connected()
    for group in "abc":
        producers.register(group, client_of(first))
    with pytest.raises(RequestRefusedError, match="groups of producers in one client: 3 at most"):
        producers.register("d", client_of(first))
    producers.register("a", client_of(first))
    for group in "ab":
        producers.register(group, client_of(second))
    with pytest.raises(RequestRefusedError, match="too many producers in groups: 5 at most"):
        producers.register("c", client_of(second))
    # who has only what is usual has it all the same
    producers.register("c", client_of(usual))
    producers.forget(usual)
    producers.unregister("a", first)
    producers.register("c", client_of(second))
    with pytest.raises(RequestRefusedError, match="256 characters: 255 at most"):
        producers.register("g" * 256, client_of(first))
    for connection in (first, second):
        producers.forget(connection)
    assert len(producers.members) == 0
    assert producers.groups == {}
    assert (producers._by_id, producers._clients) == ({}, {})


@pytest.mark.logic
def test_bytes_of_members_are_counted_and_given_back(monkeypatch):
    monkeypatch.setattr(clients, "SIZE_OF_CLIENT", 100)
    monkeypatch.setattr(clients, "MEMBERS_SIZE_MAX", 150)
    monkeypatch.setattr(clients, "RESERVED_SIZE", 20)
    members, first, second = clients.Members("consumers"), Connected(), Connected()
    members.add(first, "a", 60)
    with pytest.raises(RequestRefusedError, match="bytes of what one client subscribes: 100"):
        members.add(first, "b", 60)
    members.add(first, "a", 10)
    members.add(first, "b", 60)
    with pytest.raises(RequestRefusedError, match="bytes of what clients subscribe: 150"):
        members.add(second, "c", 90)
    members.add(second, "d", 19)
    with pytest.raises(RequestRefusedError):
        members.add(second, "d", 80)
    members.remove(second, "d")
    members.remove(first, "b")
    members.add(second, "c", 90)


@pytest.mark.logic
def test_a_client_that_leaves_is_found_without_looking_through_all():
    def steps(others):
        producers, mine, counted = Producers(), Connected(), 0
        for number in range(others):
            producers.register(f"g{number}", client_of(Connected(), f"c{number}"))
        producers.register("mine", client_of(mine, "mine"))

        def count(_, event, __):
            nonlocal counted
            counted += event == "line"
            return count

        traced = sys.gettrace()
        sys.settrace(count)
        try:
            assert producers.by_client_id("mine") is mine
            producers.forget(mine)
        finally:
            sys.settrace(traced)
        assert len(producers.groups) == others
        return counted

    assert steps(2000) == steps(20)


def test_a_heart_beat_makes_no_more_groups_than_a_client_has(with_broker, monkeypatch):
    monkeypatch.setattr(clients, "GROUPS_OF_CLIENT", 8)

    async def scenario(broker, peer):
        before = len(broker.store.topics)
        names = [f"g{number}" for number in range(100)]
        refused = await peer.ask(BEAT, body=beat(*names))
        assert refused.code == REFUSED
        assert refused.remark == "too many groups of consumers in one client: 8 at most"
        assert len(broker.managers.consumers.groups) == 8
        assert len(broker.store.topics) <= before + 9
        refused = await peer.ask(BEAT, body=beat(producers=names))
        assert refused.remark == "too many groups of producers in one client: 8 at most"
        # what it has goes on
        assert (await peer.ask(BEAT, body=beat(*names[:8], producers=names[:8]))).code == 0
        for wrong in (b" " * (BODY_SIZE_MAX + 1), json.dumps({"clientID": "c" * 256}).encode()):
            assert (await peer.ask(BEAT, body=wrong)).code == REFUSED
        await peer.client.close()
        managers = broker.managers
        await until_async(lambda: not managers.consumers.groups, "its groups go with it")
        assert (len(managers.consumers.members), len(managers.producers.members)) == (0, 0)

    with_broker(scenario)


def test_groups_and_topics_are_not_created_without_end(with_broker, monkeypatch):
    async def scenario(broker, peer):
        monkeypatch.setattr(groups, "GROUPS_CREATED_MAX", len(broker.managers.groups.table) + 1)
        await peer.send("T", b"x")
        assert (await peer.pull("T", group="g1")).code == 0
        refused = await peer.pull("T", group="g2")
        assert refused.remark.startswith("too many groups to create one more")
        assert (await peer.ask(BEAT, body=beat("g3", "g1"))).code == REFUSED
        assert (await peer.pull("T", group="g1")).code == 0
        by_hand = b'{"groupName":"g4"}'
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert (await peer.ask(code, body=by_hand)).code == 0
        large = json.dumps({"groupName": "g4", "x": "y" * budgets.GROUP_SIZE_MAX}).encode()
        assert (await peer.ask(code, body=large)).code == REFUSED
        monkeypatch.setattr(groups, "GROUPS_MAX", len(broker.managers.groups.table))
        assert (await peer.ask(code, body=by_hand)).code == 0
        assert (await peer.ask(code, body=b'{"groupName":"g5"}')).code == REFUSED

        monkeypatch.setattr(topics, "TOPICS_CREATED_MAX", len(broker.store.topics) + 1)
        assert (await peer.send("U", b"x")).code == 0
        for topic in ("V", "%RETRY%made-up"):
            refused = await peer.send(topic, b"x")
            assert refused.remark.startswith("too many topics to create one more")
        assert (await peer.send("U", b"x")).code == 0
        fields = {"topic": "V", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        create = RequestCode.UPDATE_AND_CREATE_TOPIC
        assert (await peer.ask(create, fields)).code == 0
        monkeypatch.setattr(topics, "TOPICS_MAX", len(broker.store.topics))
        assert (await peer.ask(create, fields)).code == 0
        assert (await peer.ask(create, {**fields, "topic": "W"})).code == REFUSED

    with_broker(scenario)


def test_messages_name_so_many_light_queues(with_broker, monkeypatch):
    monkeypatch.setattr(light_queues, "_FULL_S", 0)

    async def scenario(broker, peer):
        async def code_of(*names):
            named = ",".join(f"%LMQ%{name}" for name in names)
            answer = await peer.send("T", b"x", properties={"INNER_MULTI_DISPATCH": named})
            assert answer.code == 0 or answer.remark == "too many light queues: 3 at most"
            return answer.code

        assert await code_of("a", "b") == 0
        assert await code_of("c", "d") == REFUSED
        assert await code_of("a", "c") == 0
        assert await code_of("d") == REFUSED
        assert await code_of("a", "b", "c") == 0
        lights = [name for name, _ in broker.store.queues() if name.startswith("%LMQ%")]
        assert lights == ["%LMQ%a", "%LMQ%b", "%LMQ%c"]
        broker.store.delete_topic("%LMQ%b")
        assert await code_of("d") == 0
        assert await code_of("e") == REFUSED
        changed = b"maxLmqConsumeQueueNum=4"
        assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=changed)).code == 0
        assert await code_of("e") == 0

    with_broker(scenario, enableLmq=True, enableMultiDispatch=True, maxLmqConsumeQueueNum=3)


def test_locks_have_bounds_for_each_client_and_for_all(with_broker, monkeypatch):
    monkeypatch.setattr(queue_locks, "LOCKS_OF_CLIENT", 3)
    monkeypatch.setattr(queue_locks, "LOCKS_MAX", 4)
    monkeypatch.setattr(queue_locks, "RESERVED_LOCKS", 1)
    code = RequestCode.LOCK_BATCH_MQ

    async def scenario(broker, peer):
        other = Peer(broker)
        queues = [("T", number) for number in range(5)]
        refused = await peer.ask(code, body=lock("G", queues))
        assert (refused.code, len(broker.managers.locks)) == (REFUSED, 3)
        assert refused.remark == "too many queues that one client locks: 3 at most"
        assert (await peer.ask(code, body=lock("G", queues[:3]))).code == 0
        refused = await other.ask(code, body=lock("H", queues[:3], "d"))
        assert (refused.code, len(broker.managers.locks)) == (REFUSED, 4)
        assert refused.remark == "too many queues that are locked: 4 at most"
        usual = Peer(broker)
        assert (await usual.ask(code, body=lock("U", queues[:1], "u"))).code == 0
        await usual.ask(RequestCode.UNLOCK_BATCH_MQ, body=lock("U", queues[:1], "u"))
        await usual.client.close()
        await peer.ask(RequestCode.UNLOCK_BATCH_MQ, body=lock("G", queues[:2]))
        assert (await other.ask(code, body=lock("H", queues[:3], "d"))).code == 0
        assert broker.managers.locks.holds_any("G")
        await peer.ask(RequestCode.UNLOCK_BATCH_MQ, body=lock("G", queues))
        await other.ask(RequestCode.UNLOCK_BATCH_MQ, body=lock("H", queues, "d"))
        assert len(broker.managers.locks) == 0
        assert not broker.managers.locks.holds_any("G")
        for wrong in (lock("G" * 256, queues[:1]), lock("G", [("T" * 256, 0)])):
            assert (await peer.ask(code, body=wrong)).code == REFUSED
        await other.client.close()

    with_broker(scenario)


def test_offsets_are_kept_of_so_many_groups_and_topics(with_broker, monkeypatch):
    async def scenario(broker, peer):
        table = broker.store.consumer_offsets
        await peer.send("T", b"x")

        async def commit(group):
            place = {"consumerGroup": group, "topic": "T", "queueId": 0, "commitOffset": 1}
            return await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, place)

        for group in ("g1", "g2"):
            await peer.pull("T", group=group)
        assert (await commit("g1")).code == 0
        monkeypatch.setattr(offsets, "OFFSETS_MAX", table.offset_count())
        refused = await commit("g2")
        assert refused.code == REFUSED
        assert refused.remark.startswith("too many offsets of groups")
        assert (await commit("g1")).code == 0
        counted, count = [], type(table).offset_count
        monkeypatch.setattr(type(table), "offset_count", lambda t: counted.append(t) or count(t))
        for _ in range(20):
            assert (await commit("g2")).code == REFUSED
        assert counted == []
        # who only pulls is given messages
        assert (await peer.pull("T", group="g2", sysFlag=5, commitOffset=1)).code == 0
        asked = {"consumerGroup": "g2", "topic": "T", "queueId": 0, "maxMsgNums": 1}
        asked |= {"invisibleTime": 1000, "pollTime": 0, "bornTime": 0, "initMode": 0}
        assert (await peer.ask(RequestCode.POP_MESSAGE, asked)).code == REFUSED
        assert table.queues("T", "g2") == {}
        monkeypatch.setattr(offsets, "_FULL_S", 0.0)
        await until_async(lambda: broker.managers.offsets._full_until_s < time.monotonic(), "later")
        table.remove(topic="T", group="g1")
        assert (await commit("g2")).code == 0
        assert len(counted) == 1

    with_broker(scenario)


def test_what_an_administrator_says_of_groups_has_a_bound(with_broker, monkeypatch):
    monkeypatch.setattr(groups, "PAIRS_MAX", 2)
    monkeypatch.setattr(request_modes, "PAIRS_MAX", 2)

    async def scenario(_, peer):
        async def forbid(topic, readable="false"):
            fields = {"group": "G", "topic": topic, "readable": readable}
            return (await peer.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, fields)).code

        async def set_mode(topic):
            body = {"topic": topic, "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 0}
            code = RequestCode.SET_MESSAGE_REQUEST_MODE
            return (await peer.ask(code, body=json.dumps(body).encode())).code

        for topic in "ABC":
            await peer.send(topic, b"x")
        for change in (forbid, set_mode):
            codes = [await change(topic) for topic in ("A", "B", "C", "A")]
            assert codes == [0, 0, REFUSED, 0]
        assert await forbid("A", "true") == 0
        assert await forbid("C") == 0

    with_broker(scenario)


def test_lists_and_settings_have_a_size(with_broker):
    async def scenario(_, peer):
        many = json.dumps({"consumerDataSet": [{}] * (budgets.GROUPS_OF_CLIENT + 1)}).encode()
        refused = await peer.ask(BEAT, body=many)
        assert refused.remark == "1025 entries of consumerDataSet: 1024 at most"
        locked = lock("G", [])[:-3] + b"[" + b",".join([b"{}"] * (ENTRIES_MAX + 1)) + b"]}"
        assert (await peer.ask(RequestCode.LOCK_BATCH_MQ, body=locked)).code == REFUSED
        settings = b"#" * (budgets.SETTINGS_SIZE_MAX + 1)
        assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=settings)).code == REFUSED
        assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=settings[1:])).code == 0

    with_broker(scenario)


def test_a_dead_letter_is_counted_for_a_topic_that_there_is(with_broker):
    async def scenario(broker, peer):
        await peer.send("T", b"x", properties={"RETRY_TOPIC": "made-up"})
        back = {"group": "G", "offset": 0, "delayLevel": -1}
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
        assert broker.managers.traffic.dead == {("T", "G"): 1}

    with_broker(scenario)


def test_a_pop_that_could_need_one_topic_more_is_refused(with_broker, monkeypatch):
    async def scenario(broker, peer):
        await peer.send("T", b"x")
        asked = {"consumerGroup": "G", "topic": "T", "queueId": 0, "maxMsgNums": 1}
        asked |= {"invisibleTime": 1000, "pollTime": 0, "bornTime": 0, "initMode": 0}
        monkeypatch.setattr(topics, "TOPICS_CREATED_MAX", len(broker.store.topics))
        monkeypatch.setattr(topics, "TOPICS_MAX", len(broker.store.topics))
        refused = await peer.ask(RequestCode.POP_MESSAGE, asked)
        assert refused.remark.startswith("too many topics to create one more")
        # what was handed out before comes again all the same
        assert broker.managers.topics.for_group("%RETRY%G_T").topic_name == "%RETRY%G_T"
        assert (await peer.ask(RequestCode.POP_MESSAGE, asked)).code == 0

    with_broker(scenario)


def test_pops_that_are_not_acknowledged_have_a_bound_and_each_group_has_some(
    with_broker, monkeypatch
):
    monkeypatch.setattr(checkpoints, "CHECKPOINTS_MAX", 4)
    monkeypatch.setattr(checkpoints, "RESERVED_CHECKPOINTS", 2)
    full = "too many pops that are not acknowledged: 4 at most"

    async def scenario(broker, peer):
        for number in range(12):
            await peer.send("T", b"%d" % number, queue_id=0)

        async def pop(group, count=1, **more):
            asked = {"consumerGroup": group, "topic": "T", "queueId": 0, "maxMsgNums": count}
            asked |= {"invisibleTime": LONG_MS, "pollTime": 0, "bornTime": 0, "initMode": 0}
            return await peer.ask(RequestCode.POP_MESSAGE, asked | more)

        def named(group, popped, offset):
            fields = popped.ext_fields
            start = fields["startOffsetInfo"].split(" ")[2]
            words = [
                start,
                fields["popTime"],
                LONG_MS,
                fields["reviveQid"],
                0,
                "broker-a",
                0,
                offset,
            ]
            return {
                **{"consumerGroup": group, "topic": "T", "queueId": 0, "offset": offset},
                **{"extraInfo": " ".join(map(str, words)), "invisibleTime": LONG_MS},
            }

        first = await pop("G", 2)
        assert first.code == 0
        for _ in range(3):
            assert (await pop("G")).code == 0
        refused = await pop("G")
        assert (refused.code, refused.remark) == (ResponseCode.POLLING_FULL, full)
        change = named("G", first, 0)
        refused = await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)
        assert (refused.code, refused.remark) == (ResponseCode.POLLING_FULL, full)
        # what others have taken keeps no group from the first ones
        assert [(await pop("H")).code for _ in range(3)] == [0, 0, ResponseCode.POLLING_FULL]
        # nor does a refusal cost anything: what is acknowledged makes room
        for offset in (0, 1):
            done = await peer.ask(RequestCode.ACK_MESSAGE, named("G", first, offset))
            assert done.code == 0
        assert len(broker.managers.checkpoints) == 5
        monkeypatch.setattr(checkpoints, "CHECKPOINTS_MAX", 6)
        assert (await pop("G")).ext_fields["msgOffsetInfo"] == "0 0 5"

    with_broker(scenario)


async def pop_one(peer, group, queue_id=0, **more):
    asked = {"consumerGroup": group, "topic": "T", "queueId": queue_id, "maxMsgNums": 1}
    asked |= {"invisibleTime": LONG_MS, "pollTime": 0, "bornTime": 0, "initMode": 0}
    return await peer.ask(RequestCode.POP_MESSAGE, asked | more)


def test_a_pop_that_waits_is_handed_nothing_beyond_the_bound(with_broker, monkeypatch):
    monkeypatch.setattr(checkpoints, "CHECKPOINTS_MAX", 1)
    monkeypatch.setattr(checkpoints, "RESERVED_CHECKPOINTS", 1)

    async def scenario(broker, peer):
        await peer.send("T", b"first", queue_id=0)
        waiting = asyncio.ensure_future(pop_one(peer, "G", 1, pollTime=LONG_MS))
        await held(broker.managers.waiting_pops)
        assert (await pop_one(peer, "G")).code == 0
        await peer.send("T", b"second", queue_id=1)
        assert (await waiting).code == ResponseCode.POLLING_FULL
        assert len(broker.managers.checkpoints) == 1
        # it is there for who may have it
        monkeypatch.setattr(checkpoints, "CHECKPOINTS_MAX", 2)
        assert (await pop_one(peer, "G", 1)).ext_fields["msgOffsetInfo"] == "0 1 0"

    with_broker(scenario)


def test_what_is_open_counts_after_a_restart_until_its_topic_is_deleted(lives, monkeypatch):
    monkeypatch.setattr(checkpoints, "CHECKPOINTS_MAX", 2)
    monkeypatch.setattr(checkpoints, "RESERVED_CHECKPOINTS", 2)

    async def pops(broker, peer):
        for number in range(4):
            await peer.send("T", b"%d" % number, queue_id=0)
        assert [(await pop_one(peer, "G")).code for _ in range(2)] == [0, 0]

    async def again(broker, peer):
        assert (await pop_one(peer, "G")).code == ResponseCode.POLLING_FULL
        assert (await pop_one(peer, "H")).code == 0
        deleted = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert deleted.code == 0
        await until_async(lambda: len(broker.managers.checkpoints) == 0, "nothing is open")
        await peer.send("T", b"new", queue_id=0)
        for _ in range(3):
            assert (await pop_one(peer, "G")).code != ResponseCode.POLLING_FULL

    lives(pops, again)
