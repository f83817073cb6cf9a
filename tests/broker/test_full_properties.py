"""Messages whose properties fill a record, or are no text: what is added has no room for them."""

import pytest
from broker.conftest import records
from broker.test_pop import acknowledge, handed_out, pop, pop_until
from broker.test_timer import taken_in
from patience import until_async

from rmqcore._codec import encode_properties
from rmqcore.message import Message
from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.engine

FULL = 32_767
#: what a broker adds to each message that is sent
OWN = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}


def filled(size, properties):
    """Properties that take so many bytes together."""
    room = size - len(encode_properties(properties))
    return {**properties, "p": "x" * (room - len("p\x01\x02"))}


async def come(peer, topic, count):
    """The messages of a topic, once there are so many."""
    found = []

    async def enough():
        found[:] = records((await peer.pull(topic)).body)
        return len(found) == count

    await until_async(enough, f"{count} messages in {topic}")
    return found


@pytest.mark.parametrize("free", [0, 49, 50])
def test_a_timer_message_comes_however_full_its_properties_are(with_broker, clock, free):
    async def scenario(broker, peer):
        slot = (clock.now_ms + 4999) // 1000 * 1000
        stored = {"TIMER_OUT_MS": str(slot), "REAL_TOPIC": "T", "REAL_QID": "0"}
        asked = {"UNIQ_KEY": "U", "TIMER_DELAY_MS": "5000"}
        size = FULL - free - len(encode_properties(stored | OWN))
        sent = await peer.send("T", b"late", properties=filled(size, asked))
        assert sent.code == ResponseCode.SUCCESS
        await taken_in(broker, 1)
        clock.go_on(6000, broker)
        (message,) = await come(peer, "T", 1)
        assert message.body == b"late"
        assert message.properties["p"] == filled(size, asked)["p"]
        assert ("TIMER_DEQUEUE_MS" in message.properties) == (free == 50)

    with_broker(scenario)


@pytest.mark.parametrize("own", [OWN, {}], ids=["sent", "put"])
def test_a_popped_message_comes_again_however_full_its_properties_are(with_broker, clock, own):
    async def scenario(broker, peer):
        await peer.send("T", b"small")
        full = filled(FULL, {"UNIQ_KEY": "U", **own})
        broker.store.put_message(Message("T", b"full", properties=full))
        assert len(handed_out(await pop(peer, queue_id=0, invisible_ms=1000))) == 2
        for attempt in (1, 2):
            clock.go_on(2000, broker)
            found = await pop_until(peer, 2, invisible_ms=1000)
            assert {bytes(m.body): m.reconsume_times for m, _ in found} == {
                b"small": attempt,
                b"full": attempt,
            }
            assert len(found) == 2
        for message, receipt in found:
            if message.body == b"full":
                assert message.properties["p"] == full["p"]
            assert (await acknowledge(peer, message, receipt)).code == ResponseCode.SUCCESS
        clock.go_on(60_000, broker)
        assert (await pop(peer)).code == ResponseCode.POLLING_TIMEOUT
        assert broker.store.max_queue_offset("%RETRY%CG_T", 0) == 4

    with_broker(scenario)


def test_a_full_message_that_names_a_retry_topic_itself_comes_again(with_broker, clock):
    """As one that was a dead letter does: without `ORIGIN_GROUP` it would say whose it is."""

    async def scenario(broker, peer):
        full = filled(FULL, {"UNIQ_KEY": "U", "RETRY_TOPIC": "Other"})
        broker.store.put_message(Message("T", b"full", properties=full))
        await peer.send("T", b"small", properties={"RETRY_TOPIC": "Other"})
        assert len(handed_out(await pop(peer, queue_id=0, invisible_ms=1000))) == 2
        clock.go_on(2000, broker)
        found = {bytes(message.body): message for message, _ in await pop_until(peer, 2)}
        assert found[b"full"].properties["p"] == full["p"]
        assert found[b"small"].properties["RETRY_TOPIC"] == "Other"

    with_broker(scenario)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        (b"a\x01b\x01c\x02", "a", "b?c"),
        (b"a\x01" + 16_000 * b"\xff" + b"\x02", "a", 16_000 * "?"),
        (b"a\x01" + (FULL - 2) * b"x", "a", (FULL - 2) * "x"),
    ],
    ids=["separator", "no text", "no end"],
)
def test_a_popped_message_whose_properties_are_of_another_form_comes_again(
    with_broker, clock, text, name, value
):
    async def scenario(broker, peer):
        item = b"body"
        head = (0).to_bytes(4, "big") + (0).to_bytes(4, "big") + (0).to_bytes(4, "big")
        batch = head + len(item).to_bytes(4, "big") + item + len(text).to_bytes(2, "big") + text
        batch = (len(batch) + 4).to_bytes(4, "big") + batch
        sent = await peer.send("T", batch, code=RequestCode.SEND_BATCH_MESSAGE, m="true")
        assert sent.code == ResponseCode.SUCCESS, sent.remark
        assert len(handed_out(await pop(peer, queue_id=0, invisible_ms=1000))) == 1
        clock.go_on(2000, broker)
        ((message, _),) = await pop_until(peer, 1)
        assert (message.body, message.properties[name]) == (b"body", value)

    with_broker(scenario)


@pytest.mark.parametrize("properties", [{"TIMER_DELAY_SEC": "1"}, {"DELAY": "1"}, {}])
def test_what_is_stored_comes_although_new_messages_must_be_smaller_now(
    with_broker, clock, properties
):
    async def large(broker, peer):
        sent = await peer.send("T", b"x" * 100_000, properties=properties)
        assert sent.code == ResponseCode.SUCCESS
        if not properties:
            assert len(handed_out(await pop(peer, queue_id=0, invisible_ms=1000))) == 1

    async def smaller(broker, peer):
        refused = await peer.send("T", b"x" * 100_000)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        clock.go_on(10_000, broker)
        if not properties:
            ((message, _),) = await pop_until(peer, 1)
        else:
            (message,) = await come(peer, "T", 1)
        assert len(message.body) == 100_000
        fields = {"offset": message.phy_offset, "group": "CG", "delayLevel": 1}
        back = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        assert back.code == ResponseCode.SUCCESS
        clock.go_on(10_000, broker)
        await come(peer, "%RETRY%CG", 1)

    with_broker(large)
    with_broker(smaller, maxMessageSize=50_000)


@pytest.mark.parametrize(("size", "topic"), [(30_000, "%RETRY%CG"), (FULL, "%DLQ%CG")])
def test_a_message_without_room_for_another_try_is_a_dead_letter(with_broker, clock, size, topic):
    async def scenario(broker, peer):
        full = filled(size, {"UNIQ_KEY": "U"})
        stored = broker.store.put_message(Message("T", b"full", properties=full))
        fields = {"offset": stored.phy_offset, "group": "CG", "delayLevel": 1}
        back = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        assert back.code == ResponseCode.SUCCESS
        clock.go_on(2000, broker)
        (message,) = await come(peer, topic, 1)
        assert (message.body, message.properties["p"]) == (b"full", full["p"])

    with_broker(scenario)


def test_a_half_message_without_room_is_asked_for_again(with_broker):
    async def scenario(broker, peer):
        full = filled(FULL, {"UNIQ_KEY": "U", "PGROUP": "PG", "REAL_TOPIC": "T", "REAL_QID": "0"})
        broker.managers.topics.for_group("TRANS_CHECK_MAX_TIME_TOPIC")
        put = Message("TRANS_CHECK_MAX_TIME_TOPIC", b"half", properties=full)
        kept = broker.store.put_message(put)
        fields = {"msgId": kept.message_id}
        assert (await peer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, fields)).code == 0
        assert broker.store.max_queue_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0) == 1

    with_broker(scenario)
