"""A topic is forbidden to a group: nobody reads it for the group, over restarts, until allowed."""

import asyncio
import json

import pytest
from broker.conftest import LONG_MS, held, records
from broker.test_pop import pop

from rmqcore.java.json import format_java_json, parse_java_json
from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.engine

#: RocketMQ's bits: 4 reading, 2 writing
JAVAS = {
    "dataVersion": {"counter": 3, "stateVersion": 0, "timestamp": 1700000000000},
    "forbiddenTable": {"CG": {"T": 6, "U": 4}, "Other": {"T": 2, "U": -1}},
    "subscriptionGroupTable": {"CG": {"groupName": "CG", "retryMaxTimes": 3}},
}
REMARK = "the consumer group[CG] is forbidden for topic[T]"


async def set_readable(peer, readable, group="CG", topic="T"):
    fields = {"group": group, "topic": topic}
    if readable is not None:
        fields["readable"] = str(readable).lower()
    return await peer.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, fields)


def table_in(path):
    text = (path / "store" / "config" / "subscriptionGroup.json").read_text("utf-8")
    return parse_java_json(text)["forbiddenTable"]


async def lite_pull(peer):
    fields = {
        **{"consumerGroup": "CG", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 10},
        **{"sysFlag": 22, "commitOffset": 0, "suspendTimeoutMillis": 20000, "subVersion": 0},
        "subscription": "*",
    }
    return await peer.ask(RequestCode.LITE_PULL_MESSAGE, fields)


async def pull_as_push_consumer(peer):
    """Refer to the subscription of a heart-beat."""
    subscription = {"topic": "T", "subString": "*", "subVersion": 1}
    group = {"groupName": "CG", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
    beat = {
        "clientID": "c",
        "consumerDataSet": [{**group, "subscriptionDataSet": [subscription]}],
    }
    await peer.ask(RequestCode.HEART_BEAT, body=format_java_json(beat).encode())
    return await peer.pull("T", sysFlag=0, subVersion=1)


async def peek(peer):
    fields = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "maxMsgNums": 1}
    return await peer.ask(RequestCode.PEEK_MESSAGE, fields)


READS = {
    "pull": lambda peer: peer.pull("T"),
    "push consumer": pull_as_push_consumer,
    "lite pull": lite_pull,
    "pop": lambda peer: pop(peer, invisible_ms=1000),
    "peek": peek,
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_who_reads_for_the_group_is_refused_until_it_is_allowed(with_broker, read):
    async def scenario(_, peer):
        await peer.send("T", b"x")
        told = await set_readable(peer, False)
        assert (told.code, told.remark) == (ResponseCode.SUCCESS, "")
        assert told.body == b'{"group":"CG","readable":false,"topic":"T"}'
        refused = await read(peer)
        assert (refused.code, refused.remark) == (ResponseCode.NO_PERMISSION, REMARK)
        assert bytes(refused.body) == b""
        await set_readable(peer, True)
        assert [m.body for m in records((await read(peer)).body)] == [b"x"]

    with_broker(scenario)


def test_other_groups_and_topics_go_on(with_broker):
    async def scenario(_, peer):
        for topic in ("T", "U"):
            await peer.send(topic, b"x")
        await set_readable(peer, False)
        assert (await peer.pull("U")).code == ResponseCode.SUCCESS
        assert (await peer.pull("T", group="Other")).code == ResponseCode.SUCCESS
        # what was read before can be settled
        fields = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "commitOffset": 1}
        settled = await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        assert settled.code == ResponseCode.SUCCESS

    with_broker(scenario)


@pytest.mark.parametrize("read", ["pull", "pop"])
@pytest.mark.usefixtures("long_hold")
def test_who_waits_meanwhile_is_refused_when_a_message_comes(with_broker, read):
    async def scenario(broker, peer):
        await peer.send("Other", b"x")
        await peer.send("T", b"first")
        if read == "pull":
            hold = broker.managers.waiting_pulls
            waiting = asyncio.ensure_future(peer.pull("T", offset=1, suspend_ms=LONG_MS))
        else:
            hold = broker.managers.waiting_pops
            assert (await pop(peer)).code == ResponseCode.SUCCESS
            waiting = asyncio.ensure_future(pop(peer, poll_ms=LONG_MS))
        await held(hold)
        await set_readable(peer, False)
        await peer.send("T", b"second")
        refused = await waiting
        assert (refused.code, refused.remark) == (ResponseCode.NO_PERMISSION, REMARK)

    with_broker(scenario)


def test_it_is_on_the_disk_when_it_is_answered_and_holds_after_a_restart(with_broker, tmp_path):
    async def first(_, peer):
        await peer.send("T", b"x")
        for group, topic in (("CG", "T"), ("CG", "U"), ("Other", "T")):
            await set_readable(peer, False, group, topic)
        assert table_in(tmp_path) == {"CG": {"T": 4, "U": 4}, "Other": {"T": 4}}

    async def again(_, peer):
        assert (await peer.pull("T")).code == ResponseCode.NO_PERMISSION
        told = await set_readable(peer, None)
        assert json.loads(told.body)["readable"] is False
        await set_readable(peer, True)
        assert table_in(tmp_path) == {"CG": {"U": 4}, "Other": {"T": 4}}
        await set_readable(peer, True, "Other")
        assert table_in(tmp_path) == {"CG": {"U": 4}}

    with_broker(first)
    with_broker(again)


def test_what_cannot_be_written_is_answered_so(with_broker):
    async def scenario(broker, peer):
        def refuse():
            raise OSError(28, "no room")

        broker.managers.groups.table.ahead = refuse
        assert (await set_readable(peer, False)).code == ResponseCode.SERVICE_NOT_AVAILABLE

    with_broker(scenario)


def test_what_java_has_forbidden_is_and_its_other_bits_are_kept(with_broker, tmp_path):
    path = tmp_path / "store" / "config" / "subscriptionGroup.json"
    path.parent.mkdir(parents=True)
    path.write_text(format_java_json(JAVAS), "utf-8")

    async def scenario(_, peer):
        for topic in ("T", "U"):
            await peer.send(topic, b"x")
            assert (await peer.pull(topic)).code == ResponseCode.NO_PERMISSION
            assert (await peer.pull(topic, group="Other")).code == ResponseCode.SUCCESS
        listed = await peer.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        assert json.loads(listed.body)["forbiddenTable"] == JAVAS["forbiddenTable"]
        await set_readable(peer, True)
        assert (await peer.pull("T")).code == ResponseCode.SUCCESS
        assert table_in(tmp_path) == {"CG": {"T": 2, "U": 4}, "Other": {"T": 2, "U": -1}}

    with_broker(scenario)


def test_what_is_forbidden_to_a_group_goes_with_it(with_broker, tmp_path):
    async def scenario(_, peer):
        await peer.send("T", b"x")
        await set_readable(peer, False)
        await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "CG"})
        assert table_in(tmp_path) == {}
        assert (await peer.pull("T")).code == ResponseCode.SUCCESS

    with_broker(scenario)


@pytest.mark.parametrize(
    ("group", "topic"), [("", "T"), ("CG", ""), ("C/G", "T"), ("CG", "T" * 128)]
)
def test_what_is_no_name_is_not_forbidden(with_broker, group, topic):
    async def scenario(broker, peer):
        told = await set_readable(peer, False, group, topic)
        assert told.code == ResponseCode.INVALID_PARAMETER
        assert broker.managers.groups.table.forbidden() == {}

    with_broker(scenario)
