"""A record that a service of the broker cannot handle ends nothing: it is counted and left."""

import asyncio
import logging

import pytest
from broker.conftest import records
from broker.test_metrics import get, run_with_status, samples
from broker.test_pop import acknowledge, handed_out, pop, pop_until, send_many
from broker.test_timer import come, taken_in
from broker.test_transactions import GIVEN_UP, producer_of, question, send_half
from patience import until_async

from rmqcore.broker.state.passed_over import REVIVE, TIMER, TRANSACTION, PassedOver
from rmqcore.broker.state.topics import HALF_TOPIC, OP_HALF_TOPIC
from rmqcore.broker.timer import timer
from rmqcore.errors import CorruptRecordError
from rmqcore.files.timer_check import TIMER_TOPIC
from rmqcore.message import Message
from rmqcore.remoting import ResponseCode
from rmqcore.remoting.background import restarted

pytestmark = pytest.mark.engine

REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_DefaultCluster"
LATE = {"TIMER_DELAY_MS": "1000"}


def timed(body, topic, clock, **more):
    """A record of the timer's that is due, as nobody but a broker puts one."""
    slot = clock.now_ms // 1000 * 1000 - 5000
    properties = {"TIMER_OUT_MS": str(slot), "REAL_TOPIC": topic, "REAL_QID": "0", **more}
    return Message(TIMER_TOPIC, body, properties=properties)


def checkpoint(**members):
    """The body of a checkpoint's record, as JSON."""
    known = {"t": '"T"', "c": '"CG"', "n": "1", "d": "[0]", "so": "0", "q": "0", "pt": "1"}
    members = {**known, "it": "1", "bm": "0", **members}
    return ("{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}").encode()


@pytest.mark.parametrize(
    "members", [{"d": "[1e999]"}, {"d": "[null]"}, {"so": "1e5"}, {"t": '"\\ud800"'}, {"d": "{}"}]
)
def test_a_forged_checkpoint_ends_neither_the_timer_nor_a_start(with_broker, clock, members):
    async def forged(broker, peer):
        broker.store.put_message(timed(checkpoint(**members), REVIVE_TOPIC, clock, TAGS="ck"))
        await peer.send("T", b"late", properties=LATE)
        clock.go_on(2000, broker)
        await come(peer, "T", 1)
        assert broker.store.max_queue_offset(REVIVE_TOPIC, 0) == 1
        assert broker.managers.passed_over.counts == {REVIVE: 1}

    async def again(broker, peer):
        await peer.send("T", b"later", properties=LATE)
        clock.go_on(2000, broker)
        await come(peer, "T", 2)

    with_broker(forged)
    with_broker(again)


def test_a_checkpoint_of_no_topic_keeps_no_other_from_coming_again(with_broker, clock, caplog):
    async def scenario(broker, peer):
        await send_many(peer, 2, queues=1)
        handed_out(await pop(peer, invisible_ms=1000))
        # nothing of one whose messages are all acknowledged is waited for
        for members in (
            {"bm": "1"},
            {"n": "0"},
            {"t": '"no topic"'},
            {"q": "-5"},
            {"q": "999999999999"},
            {"d": "[77]"},
        ):
            body = checkpoint(**members)
            put = Message(REVIVE_TOPIC, body, queue_id=7, properties={"TAGS": "ck"})
            broker.store.put_message(put)
        broker.managers.checkpoints.read_back(7)
        clock.go_on(60_000, broker)
        found = await pop_until(peer, 2)
        assert {m.body for m, _ in found} == {b"0", b"1"}
        await until_async(
            lambda: broker.managers.passed_over.counts.get(REVIVE) == 4, "four are passed over"
        )
        for each in found:
            assert (await acknowledge(peer, *each)).code == ResponseCode.SUCCESS
        assert len(broker.managers.checkpoints) == 0

    with caplog.at_level(logging.ERROR):
        with_broker(scenario)
    assert sum("is passed over" in line for line in caplog.messages) == 4


@pytest.mark.parametrize("topic", [TIMER_TOPIC, "SCHEDULE_TOPIC_XXXX", HALF_TOPIC, OP_HALF_TOPIC])
def test_what_waits_for_the_timer_itself_is_refused_and_delivered_nowhere(
    with_broker, clock, topic
):
    async def scenario(broker, peer):
        sent = await peer.send(topic, b"loop", properties=LATE)
        assert sent.code != ResponseCode.SUCCESS
        before = broker.store.max_queue_offset(topic, 0)
        broker.store.put_message(timed(b"loop", topic, clock))
        await peer.send("T", b"late", properties=LATE)
        clock.go_on(2000, broker)
        await come(peer, "T", 1)
        assert broker.managers.passed_over.counts == {TIMER: 1}
        wanted = before + (2 if topic == TIMER_TOPIC else 0)
        assert broker.store.max_queue_offset(topic, 0) == wanted

    with_broker(scenario)


def test_whatever_one_message_does_to_the_timer_the_next_one_comes(with_broker, clock, monkeypatch):
    real = timer._delivered

    def failing(record, now_ms):
        if record.body == b"bad":
            raise RuntimeError("whatever it is")
        return real(record, now_ms)

    async def scenario(broker, peer):
        monkeypatch.setattr(timer, "_delivered", failing)
        for body in (b"bad", b"good"):
            await peer.send("T", body, properties=LATE)
        await taken_in(broker, 2)
        clock.go_on(2000, broker)
        (message,) = await come(peer, "T", 1)
        assert message.body == b"good"
        assert broker.managers.passed_over.counts == {TIMER: 1}

    with_broker(scenario)


def test_a_half_message_that_cannot_be_asked_for_is_kept_and_the_next_one_asked_for(with_broker):
    async def scenario(broker, peer):
        producer, asked = await producer_of(broker)
        bad = {"REAL_TOPIC": "T" * 300, "REAL_QID": "0", "PGROUP": "PG"}
        broker.store.put_message(Message(HALF_TOPIC, b"bad", properties=bad))
        broker.store.put_message(Message(OP_HALF_TOPIC, b"1" * 5000, tags="d"))
        await send_half(peer, b"good")
        request = await question(asked)
        assert records(request.body)[0].body == b"good"
        (kept,) = broker.store.messages(GIVEN_UP)
        assert kept.body == b"bad"
        await question(asked)
        assert broker.managers.passed_over.counts == {TRANSACTION: 1}
        await producer.client.close()

    with_broker(scenario, transactionCheckInterval=50, transactionTimeOut=1)


def test_what_is_passed_over_is_counted_in_the_metrics(tmp_path, clock):
    async def scenario(broker, peer, port):
        await broker.start()
        broker.store.put_message(timed(b"loop", TIMER_TOPIC, clock))
        parked = {"REAL_TOPIC": "SCHEDULE_TOPIC_XXXX", "REAL_QID": "0", "DELAY": "1"}
        broker.store.put_message(Message("SCHEDULE_TOPIC_XXXX", b"loop", properties=parked))
        clock.go_on(5000, broker)

        async def both():
            found = samples((await get(port, "/metrics"))[1])
            name = "rocketmq_records_passed_over_total"
            return [
                found.get((name, "DefaultCluster", service)) for service in ("timer", "delay")
            ] == [1, 1]

        await until_async(both, "a timer and a delayed message are counted")

    run_with_status(tmp_path, scenario)


def test_damaged_records_alone_are_passed_over():
    class Result:
        def __init__(self, offsets):
            self.offsets, self.next_queue_offset = offsets, offsets.stop

        @property
        def messages(self):
            if 5 in self.offsets:
                raise CorruptRecordError("log", 0, "bad")
            return list(self.offsets)

    class Store:
        def get_message(self, topic, queue_id, offset, max_messages):
            return Result(range(offset, max(offset, min(10, offset + max_messages))))

    passed_over, found, offset, before = PassedOver(Store()), [], 0, -1
    while offset > before:
        before = offset
        some, offset = passed_over.read(TIMER, "T", 0, offset, 8)
        found += some
    assert found == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert passed_over.counts == {TIMER: 1}


def test_what_memory_does_not_suffice_for_is_tried_again():
    passed_over = PassedOver(None)
    with pytest.raises(MemoryError), passed_over.guard(TIMER, "message 1"):
        raise MemoryError
    assert passed_over.counts == {}


def test_work_in_the_background_begins_again_when_something_has_ended_it(monkeypatch):
    monkeypatch.setattr("rmqcore.remoting.background._PAUSE_S", 0)
    begun = []

    async def work():
        begun.append(None)
        if len(begun) == 3:
            raise asyncio.CancelledError
        raise RuntimeError

    async def main():
        with pytest.raises(asyncio.CancelledError):
            await restarted(work)

    asyncio.run(main())
    assert len(begun) == 3
