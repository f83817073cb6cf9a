"""Pulls that are answered natively: as the processor answers them, or left to it."""

import asyncio
import dataclasses
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from broker.conftest import SMALL
from hypothesis import given
from hypothesis import strategies as st

import rmqcore
from rmqcore.broker.pull.cold_reads import ColdReads
from rmqcore.broker.pull.pull import PullMessages
from rmqcore.broker.state.clients import Consumers
from rmqcore.broker.state.groups import Groups
from rmqcore.broker.state.offsets import Offsets
from rmqcore.broker.state.resets import Resets
from rmqcore.broker.state.settings import BrokerConfig
from rmqcore.broker.state.topics import Topics
from rmqcore.broker.state.traffic import Traffic
from rmqcore.files.config_tables import TopicConfig, TopicConfigTable
from rmqcore.files.group_table import SubscriptionGroupTable
from rmqcore.remoting import (
    FrameDecoder,
    FrameLimits,
    RemotingCommand,
    RemotingServer,
    RequestCode,
    RequestRefusedError,
    encode_command,
    failure,
)
from rmqcore.remoting.serves import processors_of
from rmqcore.world import REAL

pytestmark = pytest.mark.engine

LIMITS, PEER = FrameLimits(), "10.0.0.9:5000"
PLAIN = {
    **{"consumerGroup": "CG", "topic": "Orders", "queueId": "0", "queueOffset": "3"},
    **{"maxMsgNums": "32", "sysFlag": "7", "commitOffset": "2", "suspendTimeoutMillis": "15000"},
    **{"subscription": "*", "subVersion": "0", "expressionType": "TAG", "bname": "broker-a"},
}
LARGE = 9000


class Connection:
    remote_address = PEER
    closed = False


class Held:
    """Notes what waits."""

    def __init__(self):
        self.pulls = []

    def add(self, pull, timeout_s):
        self.pulls.append(pull)


class Pulls:
    """Both ways to answer a pull, on a store of 20 messages and one with large ones."""

    def __init__(self, folder, config=None):
        folder = Path(folder)
        self.store = rmqcore.open_store(folder / "store", **SMALL)
        for number in range(20):
            self.store.put("Orders", b"%d" % number, tags="ab"[number % 2], queue_id=0)
        for number in range(10):
            self.store.put("Orders", b"%d" % number * LARGE, queue_id=1)
        self.store.flush()
        self.config = config or BrokerConfig()
        table = TopicConfigTable(folder / "topics.json", clock=lambda: 0)
        self.topics = Topics(table, self.settings, lambda: None)
        for name, perm in (("Orders", 6), ("Shut", 2)):
            self.topics.put(TopicConfig(topic_name=name, perm=perm))
        groups = SubscriptionGroupTable(folder / "groups.json", clock=lambda: 0)
        self.groups = Groups(groups, self.settings, lambda: None)
        self.groups.table.put("Closed", {"consumeEnable": False})
        resets = Resets(folder)
        self.offsets = Offsets(self.store, self.topics, self.groups, resets, REAL.monotonic_s)
        self.traffic, self.held = Traffic(), Held()
        shared = SimpleNamespace(
            world=REAL,
            store=self.store,
            config=self.settings,
            topics=self.topics,
            groups=self.groups,
            consumers=Consumers(lambda group: None),
            offsets=self.offsets,
            traffic=self.traffic,
        )
        self.pulls = PullMessages(shared, self.held, ColdReads(shared))
        server = RemotingServer()
        server.processors.update(processors_of(self.pulls))
        server.direct = (self.pulls.direct_answers(),)
        (self.answer,) = server.direct

    def settings(self):
        return self.config

    def close(self):
        self.store.close()

    def begin(self, resets):
        self.traffic.fetched.clear()
        self.held.pulls.clear()
        self.offsets.resets.clear()
        self.offsets.resets.update(resets)
        self.offsets.commit("CG", "Orders", 0, 0)

    def state(self):
        """What a pull changes besides its answer."""
        counts = {key: dataclasses.astuple(out) for key, out in self.traffic.fetched.items()}
        committed = self.store.consumer_offsets.queues("Orders", "CG")
        return counts, dict(committed), dict(self.offsets.resets), len(self.held.pulls)

    def by_processor(self, request, resets=()):
        """The frame that the processor answers with, and what it has changed."""
        self.begin(resets)
        try:
            answer = self.pulls.pull(Connection(), request)
        except RequestRefusedError as error:
            answer = failure(error.code, error.remark)
        if answer is None:
            return b"", self.state()
        answer.opaque, answer.flag = request.opaque, 1
        return frame_of(answer), self.state()

    def directly(self, received, resets=()):
        """Where what is answered directly ends, the answers, and what that has changed."""
        self.begin(resets)
        at, answers = self.answer(received, 0, LIMITS, PEER)
        return at, answers, self.state()


@pytest.fixture(scope="module")
def pulls():
    with tempfile.TemporaryDirectory() as folder:
        pulls = Pulls(folder)
        yield pulls
        pulls.close()


def frame_of(command):
    return b"".join(encode_command(command)[0])


def request(fields, code=RequestCode.PULL_MESSAGE, **more):
    return RemotingCommand(code, dict(fields), opaque=7, **more)


@pytest.mark.parametrize(
    ("fields", "code", "count"),
    [
        (PLAIN, RequestCode.PULL_MESSAGE, 17),
        (PLAIN, RequestCode.LITE_PULL_MESSAGE, 17),
        (PLAIN | {"maxMsgNums": "0"}, RequestCode.PULL_MESSAGE, 1),
        (PLAIN | {"maxMsgNums": "5", "sysFlag": "4"}, RequestCode.PULL_MESSAGE, 5),
        (PLAIN | {"subscription": "a || c"}, RequestCode.PULL_MESSAGE, 8),
        (PLAIN | {"queueId": "1", "maxMsgNums": "4"}, RequestCode.PULL_MESSAGE, 4),
    ],
)
def test_a_plain_pull_is_answered_as_by_the_processor(pulls, fields, code, count):
    answer, state = pulls.by_processor(request(fields, code))
    received = frame_of(request(fields, code))
    assert pulls.directly(received) == (len(received), answer, state)
    ((messages, _, calls),) = state[0].values()
    assert (messages, calls) == (count, 1)


#: what a field may hold besides what a plain pull has in it
ODD = {
    "consumerGroup": ["Closed", "New", "", "%", "é", None],
    "topic": ["Shut", "Unknown", "", "é", 'a"', None],
    "queueId": ["1", "2", "99", "-1", "4294967296", "x", None],
    "queueOffset": ["0", "19", "20", "21", "-1", "9223372036854775808", "007", "x", None],
    "maxMsgNums": ["0", "1", "2000", "-3", "x", None],
    "sysFlag": ["0", "2", "4", "5", "6", "-1", "x", None],
    "commitOffset": ["20", "21", "-1", "x", None],
    "suspendTimeoutMillis": ["0", "-1", "x", None],
    "subscription": ["a", "a || b", "zz", " ", "é", 'a"b', None],
    "expressionType": ["SQL92", "", "?", None],
    "subVersion": ["5", "-1", "x", None],
}
CHANGES = st.dictionaries(st.sampled_from(sorted(ODD)), st.integers(0, 20), max_size=3)
CODES = [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.HEART_BEAT]


@given(CHANGES, st.sampled_from(CODES), st.sampled_from([0, 0, 0, 2]), st.booleans())
def test_every_pull_is_answered_as_by_the_processor_or_left_to_it(pulls, chosen, code, flag, reset):
    changes = {name: ODD[name][number % len(ODD[name])] for name, number in chosen.items()}
    fields = {name: text for name, text in (PLAIN | changes).items() if text is not None}
    resets = {("CG", "Orders", 0): 1} if reset else {}
    received = frame_of(request(fields, code, flag=flag))
    before = pulls.directly(b"", resets)[2]
    at, answers, state = pulls.directly(received, resets)
    if at == 0:
        assert (answers, state) == (b"", before)
        return
    assert (at, code in CODES[:2], flag) == (len(received), True, 0)
    assert (answers, state) == pulls.by_processor(request(fields, code), resets)


@given(st.data())
def test_hostile_bytes_are_left_or_answered_whole(pulls, data):
    received = bytearray(frame_of(request(PLAIN)))
    for _ in range(data.draw(st.integers(1, 3))):
        received[data.draw(st.integers(0, len(received) - 1))] = data.draw(st.integers(0, 255))
    received = received[: data.draw(st.integers(0, len(received)))]
    at, answers, _ = pulls.directly(received)
    assert bool(at) == bool(answers)
    if answers:
        decoder = FrameDecoder(LIMITS)
        decoder.feed(answers)
        assert decoder.next().code == 0
        assert decoder.size == 0


def test_frames_are_answered_up_to_the_first_that_is_no_plain_pull(pulls):
    plain, other = frame_of(request(PLAIN)), frame_of(request(PLAIN | {"queueOffset": "20"}))
    answer, _ = pulls.by_processor(request(PLAIN))
    at, answers, _ = pulls.directly(b"".join([plain, plain, other, plain]))
    assert (at, answers) == (2 * len(plain), 2 * answer)
    assert pulls.directly(plain[:-1])[0] == 0


def test_what_is_above_a_limit_is_left(pulls):
    plain = frame_of(request(PLAIN))
    for limits in (
        FrameLimits(frame_size=len(plain) - 1),
        FrameLimits(frame_size=65536),
        FrameLimits(header_size=100),
        FrameLimits(field_count=3),
    ):
        assert pulls.answer(plain, 0, limits, PEER) == (0, b"")


def test_large_answers_are_left_to_the_processor_that_does_not_copy_them(pulls):
    fields = PLAIN | {"queueId": "1", "queueOffset": "0"}
    received = frame_of(request(fields))
    assert pulls.directly(received)[0] == 0
    assert len(pulls.by_processor(request(fields))[0]) > 10 * LARGE


def test_many_pulls_that_come_at_once_are_answered_a_mebibyte_at_a_time(pulls):
    one = frame_of(request(PLAIN | {"queueId": "1", "queueOffset": "0", "maxMsgNums": "7"}))
    at, answers, _ = pulls.directly(one * 100)
    assert 0 < at < 30 * len(one)
    assert 1 << 20 <= len(answers) < (1 << 20) + 8 * LARGE


def test_a_slave_and_the_master_of_one_that_is_read_answer_none_directly(tmp_path):
    for config in (BrokerConfig(broker_id=1), BrokerConfig(slave_read_enable=True)):
        pulls = Pulls(tmp_path / str(config.broker_id), config)
        assert pulls.directly(frame_of(request(PLAIN)))[0] == 0
        pulls.close()


def test_a_broker_answers_pulls_that_come_at_once_in_order(with_broker):
    """Pulls that find something, one that is refused and one that waits, in one write."""

    async def scenario(broker, peer):
        for number in range(40):
            await peer.send("Orders", b"%d" % number)
        reader, writer = await asyncio.open_connection(*broker.address.rsplit(":", 1))
        offsets = [*range(30), 99, 40, *range(30, 40)]
        for opaque, offset in enumerate(offsets):
            group = "" if offset == 99 else "CG"
            command = request(PLAIN | {"consumerGroup": group, "queueOffset": str(offset)})
            command.opaque = opaque
            writer.write(frame_of(command))
        decoder, answered = FrameDecoder(LIMITS), {}
        while len(answered) < len(offsets) - 1:
            decoder.feed(await reader.read(65536))
            while (answer := decoder.next()) is not None:
                answered[answer.opaque] = answer
        assert answered.pop(30).code != 0
        assert [answered[k].ext_fields["nextBeginOffset"] for k in sorted(answered)] == [
            *(str(min(40, offset + 32)) for offset in range(40))
        ]
        await peer.send("Orders", b"the next one")
        while decoder.feed(await reader.read(65536)) or (answer := decoder.next()) is None:
            continue
        assert (answer.opaque, answer.code, answer.ext_fields["nextBeginOffset"]) == (31, 0, "41")
        writer.close()

    with_broker(scenario)
