"""Priority: the message of the highest number is handed out first, as a group wants it."""

import json

import pytest
from broker.conftest import records
from broker.test_pop import handed_out, pop, pop_until

from rmqcore.broker.state import pop_scan
from rmqcore.broker.state.pop_scan import QueueScan, priority_factor
from rmqcore.broker.state.settings import BrokerConfig
from rmqcore.files.config_tables import TopicConfig
from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.engine

QUEUES = 4


async def topic_of_priorities(peer):
    fields = {
        **{"topic": "T", "defaultTopic": "TBW102", "readQueueNums": QUEUES},
        **{"writeQueueNums": QUEUES, "perm": 6, "topicFilterType": "SINGLE_TAG"},
        "attributes": "+message.type=PRIORITY",
    }
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0


async def send(peer, priority, body=None, **properties):
    named = {"_SYS_MSG_PRIORITY_": str(priority), **properties}
    return await peer.send("T", body or b"%d" % priority, queue_id=1, properties=named)


async def group_with(peer, **attributes):
    body = json.dumps({"groupName": "CG", "attributes": attributes}).encode()
    return await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


async def popped(peer, count, **fields):
    """The bodies of so many pops of one message, in their order."""
    bodies = []
    for _ in range(count):
        bodies += [m.body for m, _ in handed_out(await pop(peer, count=1, **fields))]
    return bodies


def test_a_message_goes_to_the_queue_of_its_priority(with_broker):
    async def scenario(broker, peer):
        await topic_of_priorities(peer)
        for priority, queue_id in ((0, 0), (2, 2), (3, 3), (7, 3), (2**31, 3)):
            assert (await send(peer, priority)).ext_fields["queueId"] == str(queue_id)
        assert [broker.store.max_queue_offset("T", q) for q in range(QUEUES)] == [1, 0, 1, 3]
        for other in ({"__SHARDINGKEY": "k"}, {"_SYS_MSG_PRIORITY_": "-1"}, {"DELAY": "1"}):
            assert (await send(peer, 3, **other)).ext_fields["queueId"] == "1"
        (first, second) = records((await peer.pull("T", queue_id=1)).body)
        assert "_SYS_MSG_PRIORITY_" not in first.properties
        assert "_SYS_MSG_PRIORITY_" not in second.properties
        (message,) = records((await peer.pull("T", queue_id=2)).body)
        assert message.properties["_SYS_MSG_PRIORITY_"] == "2"

    with_broker(scenario)


@pytest.mark.parametrize(("ascending", "order"), [("true", (3, 2, 1, 0)), ("false", (0, 1, 2, 3))])
def test_pops_go_by_priority(with_broker, ascending, order):
    async def scenario(_, peer):
        await topic_of_priorities(peer)
        for priority in (1, 3, 0, 2, 1, 3, 0, 2):
            await send(peer, priority)
        wanted = [b"%d" % priority for priority in order for _ in range(2)]
        assert await popped(peer, 8) == wanted

    with_broker(scenario, priorityOrderAsc=ascending)


@pytest.mark.parametrize(("percent", "at"), [("0", -1), ("100", 0)])
def test_what_comes_again_is_the_last_or_the_first(with_broker, clock, percent, at):
    async def scenario(broker, peer):
        await topic_of_priorities(peer)
        await send(peer, 3, b"again")
        assert await popped(peer, 1, invisible_ms=1000) == [b"again"]
        for priority in (0, 3):
            await send(peer, priority)
        clock.go_on(1000)
        broker.managers.pop_acks.revive_due()
        wanted = [b"3", b"0"]
        wanted.insert(len(wanted) if at else 0, b"again")
        assert await popped(peer, 3) == wanted

    with_broker(scenario, popFromRetryProbabilityForPriority=percent)


def test_what_comes_again_may_keep_its_priority(with_broker, clock):
    async def scenario(broker, peer):
        await topic_of_priorities(peer)
        await send(peer, 0, b"early")
        assert await popped(peer, 1, invisible_ms=1000) == [b"early"]
        clock.go_on(1000)
        broker.managers.pop_acks.revive_due()
        # from now on each queue has one of its own
        broker._change({"useSeparateRetryQueue": "true"})
        for priority in (0, 2, 3, 1):
            await send(peer, priority)
        assert sorted(await popped(peer, 5, invisible_ms=1000))[-1] == b"early"
        clock.go_on(1000)
        broker.managers.pop_acks.revive_due()
        retry = broker.store.topics.get("%RETRY%CG_T")
        assert (retry.read_queue_nums, retry.write_queue_nums) == (QUEUES, QUEUES)
        assert await popped(peer, 5) == [b"3", b"2", b"1", b"early", b"0"]

    with_broker(scenario)


def test_an_ordered_pop_and_a_group_that_does_not_want_it_go_by_no_priority(monkeypatch):
    topic = TopicConfig(topic_name="T", attributes={"message.type": "PRIORITY"})
    config = BrokerConfig.from_properties({})

    def first(chance, *, ordered=False, factor=None, of=topic):
        monkeypatch.setattr(pop_scan, "randrange", lambda _: chance)
        group = {} if factor is None else {"attributes": {"priority.factor": factor}}
        return QueueScan.of(of, group, config, ordered=ordered).first == 0

    assert first(0)
    assert first(99)
    assert first(49, factor="50")
    assert not first(50, factor="50")
    assert not first(0, factor="0")
    assert not first(0, ordered=True)
    assert not first(0, of=TopicConfig(topic_name="T"))


def test_each_queue_is_looked_at_once_wherever_it_begins():
    for downwards in (True, False):
        for first in range(9):
            found = QueueScan(False, first, downwards).queues(QUEUES)
            assert sorted(found) == list(range(QUEUES))
    assert QueueScan(False, 0, True).queues(QUEUES) == [3, 2, 1, 0]
    assert QueueScan(False, 0, False).queues(QUEUES) == [0, 1, 2, 3]


def test_the_factor_of_a_group_is_set_and_checked(with_broker):
    async def scenario(broker, peer):
        def factor():
            return priority_factor(broker.managers.groups.expect("CG"))

        assert factor() == 100
        assert (await group_with(peer, **{"+priority.factor": "30"})).code == 0
        assert factor() == 30
        assert (await group_with(peer)).code == 0
        assert factor() == 30
        for wrong in (
            {"+priority.factor": "101"},
            {"+priority.factor": -1},
            {"priority.factor": "5"},
            {"+made.up": "5"},
        ):
            assert (await group_with(peer, **wrong)).code == ResponseCode.INVALID_PARAMETER
        assert (await group_with(peer, **{"-priority.factor": ""})).code == 0
        assert factor() == 100

    with_broker(scenario)


def test_a_batch_of_a_priority_pops_whole(with_broker):
    async def scenario(_, peer):
        await topic_of_priorities(peer)
        for priority in (0, 3, 1):
            await send(peer, priority)
        found = await pop_until(peer, 3)
        assert [m.body for m, _ in found] == [b"3", b"1", b"0"]

    with_broker(scenario)
