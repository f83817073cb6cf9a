"""What a producer sends, a consumer pulls: at once, by tag, or when it comes."""

import asyncio
import gc
import time

import pytest
from broker.conftest import LONG_MS, Peer, held, records
from patience import until_async

import rmqcore
from rmqcore._codec import encode_batch
from rmqcore.broker.pull.matching import SCANNED_MAX
from rmqcore.message import Message
from rmqcore.native.format._wire_message import WireMessage
from rmqcore.remoting import RemotingClosedError, RemotingCommand, RequestCode, ResponseCode
from rmqcore.remoting.turns import OnlyWaits
from rmqcore.world import World

pytestmark = pytest.mark.engine


def test_a_message_that_was_sent_is_pulled(with_broker):
    async def scenario(broker, peer):
        sent = await peer.send("T", b"hello", properties={"TAGS": "a", "KEYS": "k"})
        assert sent.code == ResponseCode.SUCCESS
        assert sent.ext_fields["queueId"] == "0"
        assert sent.ext_fields["queueOffset"] == "0"
        pulled = await peer.pull("T")
        assert pulled.code == ResponseCode.SUCCESS
        assert pulled.ext_fields["nextBeginOffset"] == "1"
        (message,) = records(pulled.body)
        assert (message.body, message.tags, message.keys) == (b"hello", "a", ("k",))
        assert message.message_id == sent.ext_fields["msgId"]
        assert message.store_host == broker.address

    with_broker(scenario)


def test_an_encoded_batch_takes_consecutive_offsets(with_broker):
    async def scenario(_, peer):
        body = encode_batch([Message("T", b"%d" % n) for n in range(5)])
        sent = await peer.send("T", body, code=RequestCode.SEND_BATCH_MESSAGE, m="true")
        assert len(sent.ext_fields["msgId"].split(",")) == 5
        pulled = await peer.pull("T")
        assert [m.body for m in records(pulled.body)] == [b"0", b"1", b"2", b"3", b"4"]

    with_broker(scenario)


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_the_answer_to_a_batch_names_its_messages_however_many(with_broker, role):
    """A master without its slave says so, and each of them is stored."""

    async def scenario(broker, peer):
        await peer.send("T", b"first")
        body = encode_batch([Message("T", b"") for _ in range(9000)])
        sent = await peer.send(
            "T",
            body,
            code=RequestCode.SEND_BATCH_MESSAGE,
            m="true",
            properties={"UNIQ_KEY": "7F000001"},
        )
        alone = role == "SYNC_MASTER"
        assert sent.code == (ResponseCode.SLAVE_NOT_AVAILABLE if alone else ResponseCode.SUCCESS)
        assert len(set(sent.ext_fields["msgId"].split(","))) == 9000
        assert broker.store.max_queue_offset("T", 0) == 9001

    with_broker(scenario, brokerRole=role, haListenPort=0, mappedFileSizeCommitLog=1 << 22)


@pytest.mark.usefixtures("long_hold")
def test_a_pull_waits_for_the_next_message(with_broker):
    async def scenario(broker, peer):
        await peer.send("T", b"first")
        waiting = asyncio.ensure_future(peer.pull("T", offset=1, suspend_ms=LONG_MS))
        await held(broker.managers.waiting_pulls)
        assert not waiting.done()
        await peer.send("T", b"second")
        (message,) = records((await waiting).body)
        assert message.body == b"second"

    with_broker(scenario)


def test_a_pull_that_waits_in_vain_is_answered_in_time(with_broker):
    # while a pull is taken in no time goes by
    now_s = time.monotonic()

    async def scenario(broker, peer):
        await peer.send("T", b"first")
        hold, left_s = broker.managers.waiting_pulls, []
        let_wait = hold.add

        def noted(pull, timeout_s):
            left_s.append(timeout_s)
            return let_wait(pull, timeout_s)

        hold.add = noted
        began_s = time.monotonic()
        answer = await peer.pull("T", offset=1, suspend_ms=300)
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        # it waits once more when the first message is told of late
        assert left_s == [pytest.approx(0.3)] * len(left_s)
        assert left_s
        assert time.monotonic() - began_s > 0.25

    with_broker(scenario, World(monotonic_s=lambda: now_s))


@pytest.mark.measure
def test_how_long_a_pull_waits_in_vain(with_broker, figure):
    async def scenario(_, peer):
        await peer.send("T", b"first")
        began = time.monotonic()
        answer = await peer.pull("T", offset=1, suspend_ms=300)
        took_s = time.monotonic() - began
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert took_s > 0.25
        figure("a pull that waits 0.3 s is answered after", took_s, "s", at_most=4)

    with_broker(scenario)


@pytest.mark.measure
def test_how_soon_a_pull_has_the_next_message(with_broker, figure):
    async def scenario(broker, peer):
        await peer.send("T", b"first")
        waiting = asyncio.ensure_future(peer.pull("T", offset=1, suspend_ms=9000))
        await held(broker.managers.waiting_pulls)
        began = time.monotonic()
        await peer.send("T", b"second")
        await waiting
        figure("a message reaches who waits after", time.monotonic() - began, "s", at_most=4)

    with_broker(scenario)


@pytest.mark.usefixtures("long_hold")
def test_a_thousand_connections_that_pull_and_close_leave_nothing_held(with_broker):
    async def scenario(broker, peer):
        await peer.send("T", b"first")
        hold = broker.managers.waiting_pulls
        for _ in range(10):
            peers = [Peer(broker) for _ in range(100)]
            asked = [
                asyncio.ensure_future(one.pull("T", offset=1, suspend_ms=LONG_MS)) for one in peers
            ]
            await held(hold, 100)
            await asyncio.gather(*(one.client.close() for one in peers))
            await asyncio.wait(asked)
            assert {type(each.exception()) for each in asked} == {RemotingClosedError}
            await held(hold, 0)

    with_broker(scenario)


@pytest.mark.usefixtures("long_hold")
def test_of_one_connection_only_so_many_pulls_wait_and_others_still_may(with_broker, monkeypatch):
    monkeypatch.setattr("rmqcore.broker.pull.waiting._OF_ONE_CONNECTION_MAX", 100)

    async def scenario(broker, peer):
        await peer.send("T", b"first")
        other = Peer(broker)
        asked = [
            asyncio.ensure_future(peer.pull("T", offset=1, suspend_ms=LONG_MS)) for _ in range(150)
        ]
        await until_async(lambda: sum(each.done() for each in asked) == 50, "50 are answered")
        codes = {(await each).code for each in asked if each.done()}
        assert codes == {ResponseCode.SYSTEM_BUSY}
        waiting = asyncio.ensure_future(other.pull("T", offset=1, suspend_ms=LONG_MS))
        await held(broker.managers.waiting_pulls, 101)
        await peer.send("T", b"second")
        assert [m.body for m in records((await waiting).body)] == [b"second"]
        await asyncio.gather(*asked)
        await other.client.close()

    with_broker(scenario)


def test_a_pull_by_tags_gets_those_and_goes_on_behind_the_others(with_broker):
    async def scenario(_, peer):
        for tag in "abca":
            await peer.send("T", tag.encode(), properties={"TAGS": tag})
        pulled = await peer.pull("T", subscription="a || c")
        assert [m.body for m in records(pulled.body)] == [b"a", b"c", b"a"]
        none = await peer.pull("T", subscription="z")
        assert none.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert none.ext_fields["nextBeginOffset"] == "4"

    with_broker(scenario)


def test_a_pull_by_tags_looks_at_800_messages_and_says_where_to_go_on(with_broker):
    async def scenario(broker, peer):
        await peer.send("T", b"first")
        for _ in range(SCANNED_MAX + 50):
            broker.store.put("T", b"x", tags="a")
        broker.store.put("T", b"last", tags="b")
        pulled = await peer.pull("T", subscription="b", suspend_ms=LONG_MS)
        assert pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert pulled.ext_fields["nextBeginOffset"] == str(SCANNED_MAX)
        pulled = await peer.pull("T", subscription="b", offset=SCANNED_MAX)
        assert [m.body for m in records(pulled.body)] == [b"last"]

    with_broker(scenario)


@pytest.mark.usefixtures("long_hold")
def test_a_held_pull_by_tags_is_answered_when_more_came_than_a_call_looks_at(with_broker):
    async def scenario(broker, peer):
        await peer.send("T", b"first")
        pull = peer.pull("T", subscription="b", offset=1, suspend_ms=LONG_MS)
        waiting = asyncio.ensure_future(pull)
        await held(broker.managers.waiting_pulls)
        several = [Message("T", b"x", properties={"TAGS": "a"}) for _ in range(SCANNED_MAX + 50)]
        broker.store.put_messages([*several, Message("T", b"last", properties={"TAGS": "b"})])
        pulled = await waiting
        while pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            following = int(pulled.ext_fields["nextBeginOffset"])
            pulled = await peer.pull("T", subscription="b", offset=following, suspend_ms=LONG_MS)
        assert [m.body for m in records(pulled.body)] == [b"last"]

    with_broker(scenario)


@pytest.mark.parametrize(
    ("topic", "fields", "code"),
    [
        ("bad/name", {}, ResponseCode.INVALID_PARAMETER),
        ("SCHEDULE_TOPIC_XXXX", {}, ResponseCode.NO_PERMISSION),
        ("T", {"e": 99}, ResponseCode.INVALID_PARAMETER),
        ("T", {"c": "Unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ("T", {"e": "one"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_send_that_cannot_be_is_refused_by_its_code(with_broker, topic, fields, code):
    async def scenario(broker, peer):
        answer = await peer.send(topic, b"x", **fields)
        assert answer.code == code
        assert answer.remark
        assert broker.store.max_phy_offset == 0

    with_broker(scenario)


@pytest.mark.parametrize("name", ["f", "h", "j"])
@pytest.mark.parametrize("number", [str(2**31), "-" + "9" * 18])
def test_a_number_that_does_not_fit_a_record_is_refused_and_nothing_stored(
    with_broker, name, number
):
    async def scenario(broker, peer):
        await peer.send("T", b"x")
        answer = await peer.send("T", b"y", **{name: number})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "no number of 32 bits" in answer.remark
        assert broker.store.max_queue_offset("T", 0) == 1

    with_broker(scenario)


def test_a_body_above_the_limit_is_refused_and_the_connection_stays(with_broker):
    async def scenario(_, peer):
        answer = await peer.send("T", bytes(200_000))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert (await peer.send("T", b"fits")).code == ResponseCode.SUCCESS

    with_broker(scenario, maxMessageSize=100_000)


@pytest.mark.usefixtures("long_hold")
def test_a_message_that_failed_comes_again_and_ends_as_a_dead_letter(with_broker, clock):
    async def scenario(broker, peer):
        sent = await peer.send("T", b"bad")
        offset = int(sent.ext_fields["msgId"][16:], 16)
        back = {"group": "CG", "offset": offset, "delayLevel": 1, "maxReconsumeTimes": 1}
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
        clock.go_on(3_600_000, broker)
        again = await peer.pull("%RETRY%CG", suspend_ms=LONG_MS)
        (message,) = records(again.body)
        assert (message.body, message.reconsume_times) == (b"bad", 1)
        assert message.properties["RETRY_TOPIC"] == "T"
        back["offset"] = message.phy_offset
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
        (dead,) = records((await peer.pull("%DLQ%CG")).body)
        assert (dead.body, dead.reconsume_times) == (b"bad", 2)

    with_broker(scenario)


def test_a_store_that_was_served_holds_what_was_acknowledged(with_broker, tmp_path):
    async def scenario(_, peer):
        for number in range(20):
            assert (await peer.send("T", b"%d" % number)).code == 0
        commit = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "commitOffset": 7}
        await peer.pull("T")
        assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0

    with_broker(scenario, flushDiskType="SYNC_FLUSH")
    with rmqcore.open_store(tmp_path / "store", mode="r") as store:
        assert [m.body for m in store.messages("T")] == [b"%d" % n for n in range(20)]
    with rmqcore.open_store(tmp_path / "store") as store:
        assert store.consumer_offsets.get("T", "CG", 0) == 7
        assert store.topics.get("T").write_queue_nums == 4


def test_a_new_group_begins_with_the_first_message_of_an_empty_queue(with_broker):
    """A message between this answer and the next question, where the queue ends, is not missed."""

    async def scenario(_, peer):
        await peer.send("T", b"x", queue_id=0)

        async def begin(queue_id, **more):
            fields = {"topic": "T", "consumerGroup": "New", "queueId": queue_id, **more}
            answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
            return answer.code, answer.ext_fields.get("offset")

        for queue_id in (0, 1):
            assert await begin(queue_id) == (ResponseCode.SUCCESS, "0")
        unknown = await begin(1, setZeroIfNotFound="false")
        assert unknown == (ResponseCode.QUERY_NOT_FOUND, None)

    with_broker(scenario)


def test_a_send_that_only_waits_for_the_disk_takes_no_turn(with_broker):
    """What a producer has in flight is then appended in one turn, and flushed together."""

    async def scenario(broker, peer):
        await peer.send("T", b"made")
        asked = RemotingCommand(
            RequestCode.SEND_MESSAGE_V2,
            {**{"a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0"}}
            | {"h": "0", "i": "", "j": "0", "k": "false", "m": "false"},
            b"body",
        )
        (connection,) = broker._server._connections
        answer = broker._server.processors[RequestCode.SEND_MESSAGE_V2](connection, asked)
        assert isinstance(answer, OnlyWaits)
        # a thousand clients may wait for a slave at a time: none of their messages is kept
        assert not [each for each in gc.get_objects() if isinstance(each, WireMessage)]
        assert (await answer).code == ResponseCode.SUCCESS

    with_broker(scenario, flushDiskType="SYNC_FLUSH")
