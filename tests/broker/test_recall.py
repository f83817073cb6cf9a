"""Recall: a timer message that its sender has taken back is not delivered."""

import base64

import pytest
from broker.test_timer import come, taken_in

from rmqcore.broker.timer.recall_handle import RecallHandle
from rmqcore.files.timer_check import TIMER_TOPIC
from rmqcore.message import Message
from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.engine

ON = {"recallMessageEnable": "true"}


async def send(peer, body, unique_key, due_ms, topic="T"):
    """Send a timer message; returns the handle by which it can be taken back."""
    properties = {"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": unique_key}
    sent = await peer.send(topic, body, properties=properties)
    assert sent.code == ResponseCode.SUCCESS
    return sent.ext_fields["recallHandle"]


async def recall(peer, handle, topic="T"):
    fields = {"topic": topic, "recallHandle": handle, "producerGroup": "PG"}
    return await peer.ask(RequestCode.RECALL_MESSAGE, fields)


@pytest.mark.parametrize("after_ms", [1, 2, 500, 1000])
def test_what_was_recalled_is_not_delivered_and_the_next_is(with_broker, clock, after_ms):
    async def scenario(broker, peer):
        slot_ms = (clock.now_ms // 1000 + 3) * 1000
        gone = await send(peer, b"gone", "GONE", slot_ms + after_ms)
        await send(peer, b"kept", "KEPT", slot_ms + after_ms)
        answer = await recall(peer, gone)
        assert (answer.code, answer.ext_fields["msgId"]) == (ResponseCode.SUCCESS, "GONE")
        await taken_in(broker, 3)
        counted = await peer.ask(RequestCode.GET_TIMER_METRICS)
        assert b'"count":1' in counted.body
        clock.go_on(4001, broker)
        assert [m.body for m in await come(peer, "T", 1)] == [b"kept"]
        assert (await recall(peer, gone)).code == ResponseCode.ILLEGAL_OPERATION

    with_broker(scenario, **ON)


def test_it_is_not_delivered_either_when_the_broker_ends_between_the_two(with_broker, clock):
    async def first(broker, peer):
        slot_ms = (clock.now_ms // 1000 + 3) * 1000
        gone = await send(peer, b"gone", "GONE", slot_ms + 900)
        await recall(peer, gone)
        await send(peer, b"kept", "KEPT", slot_ms + 950)
        await taken_in(broker, 3)
        clock.go_on(slot_ms + 500 - clock.now_ms, broker)
        # the marker's time has come, and nothing else's
        await taken_in(broker, 2)
        assert broker.store.max_queue_offset("T", 0) == 0

    async def again(broker, peer):
        clock.go_on(1000, broker)
        assert [m.body for m in await come(peer, "T", 1)] == [b"kept"]

    with_broker(first, **ON)
    with_broker(again, **ON)


def test_progress_is_written_while_something_is_recalled(with_broker, clock):
    async def scenario(broker, peer):
        slot_ms = (clock.now_ms // 1000 + 3) * 1000
        await recall(peer, await send(peer, b"gone", "GONE", slot_ms + 1))
        await taken_in(broker, 2)
        clock.go_on(slot_ms + 500 - clock.now_ms, broker)
        await taken_in(broker, 0)
        timer = broker.managers.timer
        assert timer._recalled
        await timer._persist()
        assert timer._stored.read_offset == 2

    with_broker(scenario, **ON)


def test_what_cannot_be_recalled_is_refused_as_by_rocketmq(with_broker, clock):
    async def scenario(broker, peer):
        now_ms = clock.now_ms
        good = RecallHandle("T", "broker-a", now_ms + 5000, "U")
        await peer.send("T", b"x")
        for handle in (
            "no handle",
            base64.urlsafe_b64encode(b"v2 T broker-a 1 U").decode(),
            str(good._replace(topic="Other")),
            str(good._replace(broker_name="other")),
            str(good._replace(due_ms=now_ms)),
            str(good._replace(due_ms=now_ms + 4 * 86_400_000)),
            base64.urlsafe_b64encode(b"v1 T broker-a soon U").decode(),
        ):
            assert (await recall(peer, handle)).code == ResponseCode.ILLEGAL_OPERATION
        unknown = await recall(peer, str(good), topic="Unknown")
        assert unknown.code == ResponseCode.TOPIC_NOT_EXIST
        assert broker.store.max_queue_offset("rmq_sys_wheel_timer", 0) == 0
        broker._change({"brokerPermission": "4", "allowRecallWhenBrokerNotWriteable": "false"})
        assert (await recall(peer, str(good))).code == ResponseCode.SERVICE_NOT_AVAILABLE
        broker._change({"recallMessageEnable": "false"})
        off = await recall(peer, str(good))
        assert off.code == ResponseCode.NO_PERMISSION
        assert off.remark == "recall failed, operation is forbidden"

    with_broker(scenario, **ON)


def test_what_has_no_key_is_not_recalled(with_broker, clock):
    async def scenario(broker, peer):
        slot_ms = (clock.now_ms // 1000 + 3) * 1000
        assert (await peer.send("T", b"now")).code == ResponseCode.SUCCESS
        handle = str(RecallHandle("T", "broker-a", slot_ms + 1, ""))
        refused = await recall(peer, handle)
        assert refused.code == ResponseCode.ILLEGAL_OPERATION
        stored = {"TIMER_OUT_MS": str(slot_ms), "REAL_TOPIC": "T", "REAL_QID": "0"}
        broker.store.put_message(Message(TIMER_TOPIC, b"kept", properties=stored))
        marker = {"TIMER_DEL_UNIQKEY": "T+", "TIMER_DELIVER_MS": str(slot_ms + 1)}
        assert (await peer.send("T", b"marker", properties=marker)).code == ResponseCode.SUCCESS
        await taken_in(broker, 2)
        clock.go_on(4001, broker)
        assert [m.body for m in await come(peer, "T", 2)] == [b"now", b"kept"]

    with_broker(scenario, **ON)


def test_recall_is_off_unless_it_is_asked_for(with_broker):
    async def scenario(_, peer):
        assert (await recall(peer, "x")).code == ResponseCode.NO_PERMISSION

    with_broker(scenario)


def test_a_handle_is_read_as_rocketmq_writes_it():
    text = base64.urlsafe_b64encode(b"v1 Orders broker-a 1700000000001 0A").decode()
    handle = RecallHandle("Orders", "broker-a", 1_700_000_000_001, "0A")
    assert RecallHandle.parse(text) == RecallHandle.parse(text.rstrip("=")) == handle
    assert str(handle) == text
