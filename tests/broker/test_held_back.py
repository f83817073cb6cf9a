"""What only its queue's file does not lead to is lost to no service: the next start comes to it."""

import pytest
from broker.test_pop import handed_out, pop, pop_until, send_many
from broker.test_timer import come, taken_in
from broker.test_transactions import COMMIT, decision, producer_of, question, send_half

from rmqcore.broker.state.passed_over import TIMER
from rmqcore.broker.state.topics import HALF_TOPIC
from rmqcore.files.consume_queue import SCHEDULE_TOPIC
from rmqcore.files.timer_check import TIMER_TOPIC
from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.engine

LATE = {"TIMER_DELAY_MS": "1000"}


def damage_unit(broker, topic, offset):
    """Let queue 0 of a topic lead into the middle of a record for one message."""
    assert broker.store.max_queue_offset(topic, 0) > offset
    with (broker.store.path / "consumequeue" / topic / "0" / f"{0:020d}").open("r+b") as queue:
        queue.seek(offset * 20 + 7)
        (low,) = queue.read(1)
        queue.seek(offset * 20 + 7)
        queue.write(bytes([low ^ 8]))


async def comes_but_for_the_second(peer):
    found = await come(peer, "T", 2)
    assert [message.body for message in found] == [b"0", b"2"]


async def second_comes(peer):
    found = await come(peer, "T", 3)
    assert b"1" in [message.body for message in found]


def test_a_timer_message_comes_after_the_next_start(with_broker, clock):
    async def scenario(broker, peer):
        for body in (b"0", b"1", b"2"):
            await peer.send("T", body, properties=LATE)
        await taken_in(broker, 3)
        damage_unit(broker, TIMER_TOPIC, 1)
        clock.go_on(2000, broker)
        await comes_but_for_the_second(peer)
        assert broker.managers.passed_over.counts == {}
        assert broker.managers.passed_over.held_counts == {TIMER: 1}

    async def again(broker, peer):
        assert broker.managers.passed_over.held_counts == {}
        await second_comes(peer)

    with_broker(scenario)
    with_broker(again)


def test_a_delayed_message_comes_after_the_next_start(with_broker, clock):
    async def scenario(broker, peer):
        for body in (b"0", b"1", b"2"):
            await peer.send("T", body, properties={"DELAY": "1"})
        damage_unit(broker, SCHEDULE_TOPIC, 1)
        clock.go_on(2000, broker)
        await comes_but_for_the_second(peer)
        assert broker.store.delay_skipped_count() == 0
        assert broker.store.delay_held_count() == 1

    async def again(broker, peer):
        await second_comes(peer)

    with_broker(scenario)
    with_broker(again)


def test_a_popped_message_comes_again_after_the_next_start(with_broker, clock):
    async def scenario(broker, peer):
        await send_many(peer, 3, queues=1)
        assert len(handed_out(await pop(peer, queue_id=0, invisible_ms=1000))) == 3
        damage_unit(broker, "T", 1)
        clock.go_on(60_000, broker)
        found = await pop_until(peer, 2)
        assert {message.body for message, _ in found} == {b"0", b"2"}
        assert broker.managers.passed_over.counts == {}
        assert len(broker.managers.checkpoints) > 0

    async def again(broker, peer):
        clock.go_on(120_000, broker)
        found = await pop_until(peer, 1)
        assert b"1" in {message.body for message, _ in found}

    with_broker(scenario)
    with_broker(again)


def test_a_half_message_stays_undecided(with_broker):
    sent = []

    async def scenario(broker, peer):
        producer, asked = await producer_of(broker)
        for body in (b"0", b"1", b"2"):
            sent.append(await send_half(peer, body))
            if body == b"1":
                # before it is read
                damage_unit(broker, HALF_TOPIC, 1)
        await question(asked, 2)
        assert broker.managers.passed_over.counts == {}
        answer = await peer.ask(RequestCode.END_TRANSACTION, decision(sent[1], COMMIT))
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert answer.remark == "it is held back: decide it again after the broker's next start"
        await producer.client.close()

    async def again(broker, peer):
        producer, asked = await producer_of(broker)
        await question(asked, 1)
        answer = await peer.ask(RequestCode.END_TRANSACTION, decision(sent[1], COMMIT))
        assert answer.code == ResponseCode.SUCCESS
        (message,) = await come(peer, "T", 1)
        assert message.body == b"1"
        await producer.client.close()

    settings = {"transactionCheckInterval": 50, "transactionTimeOut": 1}
    with_broker(scenario, **settings)
    with_broker(again, **settings)


def test_half_messages_behind_those_that_are_held_back_are_asked_for_at_once(with_broker, clock):
    async def scenario(broker, peer):
        producer, asked = await producer_of(broker)
        for body in (b"0", b"1", b"2"):
            await send_half(peer, body)
        for offset in (0, 1):
            damage_unit(broker, HALF_TOPIC, offset)
        clock.go_on(60_000)
        assert await broker.managers.transactions.check() == 1
        await question(asked, 2)
        await producer.client.close()

    with_broker(scenario, transactionTimeOut=1)


def test_a_topic_that_is_made_anew_has_nothing_held_back(with_broker, clock):
    async def scenario(broker, peer):
        for count in (2, 3):
            await send_many(peer, 3, queues=1)
            assert len(handed_out(await pop(peer, queue_id=0, invisible_ms=1000))) == 3
            if count == 2:
                damage_unit(broker, "T", 1)
            clock.go_on(60_000, broker)
            await pop_until(peer, count)
            deleted = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            assert deleted.code == ResponseCode.SUCCESS

    with_broker(scenario)
