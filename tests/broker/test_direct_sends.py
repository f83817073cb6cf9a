"""Sends that are answered natively: as the processor answers them, or left to it."""

import asyncio
import inspect
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import TIMEOUT_S

from rmqcore.broker.send.send import SendMessages
from rmqcore.broker.state.settings import BrokerConfig
from rmqcore.broker.state.topics import Topics
from rmqcore.broker.state.traffic import Traffic
from rmqcore.errors import MessageIllegalError, StoreClosedError
from rmqcore.files.config_tables import TopicConfig, TopicConfigTable
from rmqcore.native.format._receipt import PutMessageResult
from rmqcore.remoting import (
    FrameDecoder,
    FrameLimits,
    LaterAnswers,
    RemotingClient,
    RemotingCommand,
    RemotingServer,
    RequestCode,
    RequestRefusedError,
    ResponseCode,
    encode_command,
)
from rmqcore.remoting.serves import processors_of
from rmqcore.status import PutMessageStatus
from rmqcore.world import REAL

pytestmark = pytest.mark.engine

LIMITS, PEER = FrameLimits(), "10.0.0.9:5000"
KEY = "UNIQ_KEY\x017F000001\x02"
PLAIN = {
    **{"a": "group", "b": "Orders", "c": "TBW102", "d": "4", "e": "3", "f": "0"},
    **{"g": "1763800000000", "h": "0", "i": KEY, "j": "0", "k": "false", "m": "false"},
    "n": "broker-a",
}


class Store:
    """Notes what is appended, and what is waited for, which ends as `ending` says."""

    def __init__(self):
        self.appended, self.confirms = [], []
        self.refuses = self.waits = False
        self.phy_offsets = None
        self.ending = PutMessageStatus.PUT_OK

    def append_now(self, message):
        if self.refuses:
            raise MessageIllegalError("not this one")
        self.appended.append(tuple(message))
        return PutMessageResult(
            PutMessageStatus.PUT_OK,
            phy_offset=4711,
            queue_offset=42,
            store_size=300 + len(self.appended),
            message_count=1,
            phy_offsets=self.phy_offsets,
            store_host=b"\x7f\x00\x00\x01\x00\x00\x2a\x9f",
        )

    async def confirmed(self, receipt):
        self.confirms.append(receipt.store_size)
        if self.ending is None:
            raise StoreClosedError("closed meanwhile")
        return receipt.with_flush(self.ending, receipt.durability, "")

    def not_waited_for(self, receipt):
        return receipt


class Connection:
    remote_address = PEER


class Sends:
    """Both ways to answer a send, on a store that only notes."""

    def __init__(self, folder, config=None):
        self.store, self.config, self.arrived = Store(), config or BrokerConfig(), []
        table = TopicConfigTable(Path(folder), clock=lambda: 0)
        self.topics = topics = Topics(table, self.settings, lambda: None)
        for name, kind in (("Orders", "SINGLE_TAG"), ("Many", "MULTI_TAG")):
            topics.put(TopicConfig(topic_name=name, topic_filter_type=kind))
        asyncio.run(topics.file.save())
        self.traffic = Traffic()
        shared = SimpleNamespace(
            world=REAL,
            store=self.store,
            config=self.settings,
            topics=topics,
            groups=None,
            locks=None,
            traffic=self.traffic,
            arrived=self.note,
        )
        self.sends = SendMessages(shared)
        server = RemotingServer()
        server.processors.update(processors_of(self.sends))
        server.direct = (self.sends.direct_answers(),)
        (self.answer,) = server.direct

    def settings(self):
        return self.config

    def note(self, topic, queue_id):
        self.arrived.append((topic, queue_id))

    def by_processor(self, request):
        """What the processor appends, and the frame that it answers with."""
        self.store.appended.clear()
        answer = self.sends.send(Connection(), request)
        if inspect.isawaitable(answer):
            answer = asyncio.run(self.when_saved(answer))
        answer.opaque, answer.flag = request.opaque, 1
        return list(self.store.appended), frame_of(answer)

    async def when_saved(self, answer):
        """The answer to a send that has created its topic."""
        _, done = await asyncio.gather(self.topics.file.save(), answer)
        return done

    def directly(self, received):
        """What is appended directly, where that ends, and the answers."""
        self.store.appended.clear()
        at, answers = self.answer(received, 0, LIMITS, PEER)
        if isinstance(answers, LaterAnswers):
            answers = asyncio.run(answers.frames)
        return list(self.store.appended), at, answers


@pytest.fixture(scope="module")
def sends():
    with tempfile.TemporaryDirectory() as folder:
        yield Sends(folder)


def frame_of(command):
    return b"".join(encode_command(command)[0])


def request(fields, body=b"body", code=RequestCode.SEND_MESSAGE_V2, **more):
    return RemotingCommand(code, dict(fields), body, opaque=7, **more)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        (PLAIN, RequestCode.SEND_MESSAGE_V2),
        (PLAIN | {"b": "Many", "f": "1", "h": "5", "j": "2"}, RequestCode.SEND_MESSAGE_V2),
        (PLAIN | {"i": f"{KEY}TAGS\x01é\x02__SHARDINGKEY\x01s"}, RequestCode.SEND_MESSAGE_V2),
        (PLAIN | {"m": "true"}, RequestCode.SEND_BATCH_MESSAGE),
        (PLAIN | {"i": ""}, RequestCode.SEND_BATCH_MESSAGE),
    ],
)
def test_a_plain_send_is_answered_as_by_the_processor(sends, fields, code):
    wanted, answer = sends.by_processor(request(fields, code=code))
    received = frame_of(request(fields, code=code))
    assert sends.directly(received) == (wanted, len(received), answer)
    assert wanted


#: what a field may hold besides what a plain send has in it
ODD = {
    "a": [None],
    "b": ["Many", "Unknown", "%RETRY%group", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "é", "", None],
    "e": ["0", "15", "16", "-1", "99999999999", "x", "", None],
    "f": ["1", "2", "4", "8", "16", "32", "48", "255", "-1", "2147483648", "x", None],
    "g": ["0", "-1", "x", None],
    "h": ["2147483647", "2147483648", "-5", None],
    "i": [
        *("", "TAGS\x01a\x02", f"{KEY}DELAY\x013\x02", f"{KEY}TRAN_MSG\x01true\x02", f"{KEY}é"),
        *(f"{KEY}TIMER_DELAY_MS\x019\x02", 'UNIQ_KEY\x01"\\\x02', "UNIQ_KEY\x01\x02", None),
        *(f"POP_CK\x011\x02{KEY}", f"{KEY}WAIT\x01false\x02", f"{KEY}\x02\x02", KEY[:-1], "\ud83d"),
    ],
    "j": ["3", "-1", None],
    "l": ["16", "x"],
    "m": ["true", "FALSE", "", None],
    "z": ["1"],
    "lo": ["true"],
}
CHANGES = st.dictionaries(st.sampled_from(sorted(ODD)), st.integers(0, 20), max_size=3)
SENDS = [
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_MESSAGE,
    RequestCode.HEART_BEAT,
]


@given(CHANGES, st.sampled_from(SENDS), st.sampled_from([0, 0, 0, 2]), st.binary(max_size=9))
def test_every_send_is_answered_as_by_the_processor_or_left_to_it(sends, chosen, code, flag, body):
    changes = {name: ODD[name][number % len(ODD[name])] for name, number in chosen.items()}
    fields = {name: text for name, text in (PLAIN | changes).items() if text is not None}
    received = frame_of(request(fields, body, code, flag=flag))
    appended, at, answers = sends.directly(received)
    if at == 0:
        assert (appended, answers) == ([], b"")
        return
    assert (at, code in SENDS[:2], flag) == (len(received), True, 0)
    assert (appended, answers) == sends.by_processor(request(fields, body, code))


@given(st.data())
def test_hostile_bytes_are_left_or_answered_whole(sends, data):
    received = bytearray(frame_of(request(PLAIN)))
    for _ in range(data.draw(st.integers(1, 3))):
        received[data.draw(st.integers(0, len(received) - 1))] = data.draw(st.integers(0, 255))
    received = received[: data.draw(st.integers(0, len(received)))]
    appended, at, answers = sends.directly(received)
    assert len(appended) == bool(at) == bool(answers)


def test_frames_are_answered_up_to_the_first_that_is_no_plain_send(sends):
    plain, other = frame_of(request(PLAIN)), frame_of(request(PLAIN | {"b": "Unknown"}))
    sends.arrived.clear()
    appended, at, answers = sends.directly(b"".join([plain, plain, other, plain]))
    assert (len(appended), at) == (2, 2 * len(plain))
    assert answers == 2 * sends.by_processor(request(PLAIN))[1]
    assert sends.arrived[:2] == [("Orders", 3)] * 2
    assert sends.directly(plain[:-1])[1] == 0


def test_what_is_above_a_limit_is_left(sends):
    plain = frame_of(request(PLAIN))
    for limits in (
        FrameLimits(frame_size=len(plain) - 1),
        FrameLimits(header_size=100),
        FrameLimits(field_count=3),
    ):
        assert sends.answer(plain, 0, limits, PEER) == (0, b"")
    assert sends.answer(plain, 0, FrameLimits(frame_size=len(plain)), PEER)[0] == len(plain)


def test_a_refused_append_is_left_to_the_processor(sends):
    sends.store.refuses = True
    try:
        assert sends.directly(frame_of(request(PLAIN))) == ([], 0, b"")
        with pytest.raises(RequestRefusedError, match="not this one"):
            sends.by_processor(request(PLAIN))
    finally:
        sends.store.refuses = False


def test_nothing_is_direct_while_the_broker_may_not_write(tmp_path):
    plain = frame_of(request(PLAIN))
    assert Sends(tmp_path, BrokerConfig(broker_permission=4)).directly(plain)[1] == 0


@pytest.mark.parametrize(
    "ending",
    [
        PutMessageStatus.PUT_OK,
        PutMessageStatus.FLUSH_DISK_TIMEOUT,
        PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
        PutMessageStatus.SLAVE_NOT_AVAILABLE,
        PutMessageStatus.UNKNOWN_ERROR,
    ],
)
def test_answers_wait_for_disk_and_slaves_once_for_all_that_came_at_once(tmp_path, ending):
    sends = Sends(tmp_path)
    sends.store.waits, sends.store.ending = True, ending
    plain = request(PLAIN)
    other = request(PLAIN | {"b": "Many"}, code=RequestCode.SEND_BATCH_MESSAGE)
    wanted = b"".join(sends.by_processor(each)[1] for each in (plain, other))
    assert (b'"code":0,' in wanted) == (ending is PutMessageStatus.PUT_OK)
    sends.store.confirms.clear()
    sends.arrived.clear()
    received = frame_of(plain) + frame_of(other)
    appended, at, answers = sends.directly(received)
    assert (len(appended), at) == (2, len(received))
    assert answers == wanted
    assert sends.store.confirms == [302]
    # they may not be readable yet; dispatch tells of them
    assert sends.arrived == []


def test_answers_that_wait_tell_of_any_number_of_messages(tmp_path):
    sends = Sends(tmp_path)
    sends.store.waits, sends.store.ending = True, PutMessageStatus.FLUSH_SLAVE_TIMEOUT
    sends.store.phy_offsets = range(4711, 13711)
    batch = request(PLAIN, code=RequestCode.SEND_BATCH_MESSAGE)
    answers = sends.directly(2 * frame_of(batch))[2]
    assert answers == 2 * sends.by_processor(batch)[1]
    assert len(answers) > 2 * FrameLimits().header_size


def test_each_is_told_when_nobody_knows_whether_they_are_safe(tmp_path, caplog):
    sends = Sends(tmp_path)
    sends.store.waits, sends.store.ending = True, None
    decoder = FrameDecoder()
    decoder.feed(sends.directly(frame_of(request(PLAIN)) + frame_of(request(PLAIN)))[2])
    told = [decoder.next(), decoder.next()]
    assert [(each.code, each.opaque) for each in told] == [(ResponseCode.SYSTEM_ERROR, 7)] * 2
    assert "the log of the server says why" in told[0].remark
    assert "closed meanwhile" in caplog.text


def test_a_batch_whose_answer_could_be_too_large_is_left(sends):
    """The header of an answer names every message, and has three bytes for its size."""
    for size, left in ((4 << 20, False), ((4 << 20) + 1, True)):
        batch = frame_of(request(PLAIN, bytes(size), RequestCode.SEND_BATCH_MESSAGE))
        assert (sends.directly(batch)[1] == 0) == left


def test_who_does_not_want_to_wait_is_left_to_the_processor_where_others_wait(tmp_path):
    hasty = frame_of(request(PLAIN | {"i": f"{KEY}WAIT\x01false\x02"}))
    sends = Sends(tmp_path)
    assert sends.directly(hasty)[1] == len(hasty)
    sends.store.waits = True
    assert sends.directly(hasty) == ([], 0, b"")
    plain = frame_of(request(PLAIN))
    assert sends.directly(plain + hasty)[1] == len(plain)
    sends.store.waits = False
    assert sends.directly(hasty)[1] == len(hasty)


def test_a_send_counts_whatever_becomes_of_telling_others(sends, monkeypatch):
    def fails(topic, queue_id):
        raise OSError(topic, queue_id)

    monkeypatch.setattr(sends.sends, "_arrived", fails)
    appended, at, answers = sends.directly(frame_of(request(PLAIN)))
    assert (len(appended), bool(at), b'"code":0' in answers) == (1, True, True)


def test_a_broker_answers_a_mixture_in_one_go(with_broker):
    """Plain sends, a new topic's, and a batch, written to a socket at once."""

    async def scenario(broker, peer):
        await peer.send("Orders", b"first")
        reader, writer = await asyncio.open_connection(*broker.address.rsplit(":", 1))
        opaques = range(100, 160)
        for opaque in opaques:
            fields = PLAIN | {"e": "0"} | ({"b": f"New{opaque}"} if opaque % 7 == 0 else {})
            command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, b"%d" % opaque)
            command.opaque = opaque
            writer.write(frame_of(command))
        answered = []
        while len(answered) < len(opaques):
            size = int.from_bytes(await reader.readexactly(4), "big")
            answer = await reader.readexactly(size)
            assert b'"code":0' in answer
            answered.append(int(answer.partition(b'"opaque":')[2].partition(b",")[0]))
        writer.close()
        assert sorted(answered) == list(opaques)
        stored = [bytes(message.body) for message in broker.store.messages("Orders")]
        assert stored == [b"first", *(b"%d" % opaque for opaque in opaques if opaque % 7)]

    with_broker(scenario)


def test_a_server_with_a_gate_answers_nothing_directly():
    async def asked_directly(gate):
        asked = []

        def direct(buffer, at, limits, peer):
            asked.append(peer)
            return at, b""

        server, client = RemotingServer(gate=gate), RemotingClient()
        server.direct = (direct,)
        await server.start()
        try:
            command = RemotingCommand(RequestCode.HEART_BEAT)
            await client.invoke(f"127.0.0.1:{server.port}", command, TIMEOUT_S * 1000)
        finally:
            await client.close()
            await server.stop()
        return bool(asked)

    assert asyncio.run(asked_directly(None))
    assert not asyncio.run(asked_directly(lambda connection, command: None))
