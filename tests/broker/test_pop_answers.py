"""How large the answer to a POP or a peek is, and which numbers messages of light queues have."""

import pytest
from broker.conftest import SMALL, records
from broker.test_pop import acknowledge, handed_out, pop, pop_until

from rmqcore.broker.state import queued
from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.engine

LARGE = {**SMALL, "mappedFileSizeCommitLog": 32 << 20}
LIGHT = "%LMQ%a"
WITH_LIGHT = {"enableLmq": "true", "enableMultiDispatch": "true"}


async def send_light(peer, *bodies):
    """Send messages of the light queue, which have other numbers in their topic, and make it."""
    for _ in bodies:
        await peer.send("T", b"of the topic alone")
    for body in bodies:
        sent = await peer.send("T", body, properties={"INNER_MULTI_DISPATCH": LIGHT})
        assert sent.code == ResponseCode.SUCCESS
    topic = {"topic": LIGHT, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    made = {**topic, "defaultTopic": "", "topicFilterType": "SINGLE_TAG", "order": "false"}
    answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, made)
    assert answer.code == ResponseCode.SUCCESS


@pytest.mark.parametrize("code", [RequestCode.POP_MESSAGE, RequestCode.PEEK_MESSAGE])
def test_large_messages_in_many_queues_come_one_after_the_other(with_broker, code):
    """All of them at once are more than a frame holds: they would be handed out to nobody."""
    count, size = 8, 3 << 20

    async def scenario(_, peer):
        for queue_id in range(count):
            sent = await peer.send("T", b"-" * size, queue_id=queue_id, d=count)
            assert sent.code == ResponseCode.SUCCESS
        fields = {"consumerGroup": "CG", "topic": "T", "queueId": -1, "maxMsgNums": 32}
        places = set()
        for left in reversed(range(count)):
            answer = await peer.ask(code, {**fields, "invisibleTime": 60_000})
            assert answer.code == ResponseCode.SUCCESS
            (message,) = records(answer.body)
            assert len(message.body) == size
            places.add(message.queue_id)
            if code == RequestCode.PEEK_MESSAGE:
                assert answer.ext_fields["restNum"] == str(count - 1)
                return
            assert answer.ext_fields["restNum"] == str(left)
        assert len(places) == count

    with_broker(scenario, **LARGE)


def test_large_messages_of_one_queue_are_peeked_as_far_as_an_answer_has_room(with_broker):
    async def scenario(_, peer):
        for _ in range(8):
            await peer.send("T", b"-" * (3 << 20))
        fields = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "maxMsgNums": 32}
        answer = await peer.ask(RequestCode.PEEK_MESSAGE, fields)
        assert answer.code == ResponseCode.SUCCESS
        assert len(records(answer.body)) == 1
        assert answer.ext_fields["restNum"] == "7"

    with_broker(scenario, **LARGE)


def test_a_pop_of_a_light_queue_names_its_numbers_and_what_is_left_comes_again(with_broker, clock):
    async def scenario(broker, peer):
        await send_light(peer, b"done", b"left")
        answer = await pop(peer, topic=LIGHT)
        assert answer.ext_fields["msgOffsetInfo"] == "0 0 0,1"
        done, left = records(answer.body)
        assert (done.body, left.body) == (b"done", b"left")
        receipt = f"0 {answer.ext_fields['popTime']} 60000 {answer.ext_fields['reviveQid']} 0 b 0 0"
        settled = await acknowledge(peer, done, receipt, topic=LIGHT, offset=0)
        assert settled.code == ResponseCode.SUCCESS
        clock.go_on(61_000, broker)
        again = await pop_until(peer, 1, topic=LIGHT)
        assert [message.body for message, _ in again] == [b"left"]

    with_broker(scenario, **WITH_LIGHT)


def test_a_condition_finds_the_messages_of_a_light_queue_one_after_the_other(with_broker):
    """Numbers of their own topic lead behind its end."""

    async def scenario(_, peer):
        await send_light(peer, b"1", b"2", b"3")
        sql = {"exp": "n IS NULL", "expType": "SQL92"}
        found = [await pop(peer, topic=LIGHT, count=1, **sql) for _ in range(3)]
        assert [records(each.body)[0].body for each in found] == [b"1", b"2", b"3"]
        fields = {"maxMsgNums": 1, "subscription": "n IS NULL", "expressionType": "SQL92"}
        pulled = await peer.pull(LIGHT, **fields)
        assert pulled.ext_fields["nextBeginOffset"] == "1"

    with_broker(scenario, enablePropertyFilter="true", **WITH_LIGHT)


def test_a_message_with_as_many_tries_as_a_record_has_room_for_comes_again(with_broker, clock):
    most = 2**31 - 1

    async def scenario(broker, peer):
        await peer.send("T", b"often", j=most)
        assert len(handed_out(await pop(peer))) == 1
        clock.go_on(61_000, broker)
        ((again, _),) = await pop_until(peer, 1)
        assert again.body == b"often"
        assert again.reconsume_times == most

    with_broker(scenario)


def test_a_message_of_a_usual_topic_is_not_asked_which_queues_have_it(with_broker, monkeypatch):
    """That would take longer than all else of its POP."""
    monkeypatch.setattr(queued, "places_of", None)

    async def scenario(_, peer):
        await peer.send("T", b"body", properties={"INNER_MULTI_DISPATCH": LIGHT})
        answer = await pop(peer)
        assert answer.ext_fields["msgOffsetInfo"] == "0 0 0"

    with_broker(scenario, **WITH_LIGHT)
