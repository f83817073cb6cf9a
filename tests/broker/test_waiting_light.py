"""Messages for light queues that wait: for their time, or for the end of their transaction."""

import asyncio

import pytest
from broker.conftest import records, served
from patience import until_async

from rmqcore.remoting import RequestCode, ResponseCode

pytestmark = pytest.mark.engine

LIGHT = {"enableLmq": "true", "enableMultiDispatch": "true"}
HALF = {"TRAN_MSG": "true", "PGROUP": "PG"}
WAITING = {"level": {"DELAY": "1"}, "timer": {"TIMER_DELAY_MS": "1000"}, "half": HALF}
NAMED = {"INNER_MULTI_DISPATCH": "%LMQ%a"}


def bodies(broker, topic):
    """What a queue hands out."""
    end = broker.store.max_queue_offset(topic, 0)
    found = [broker.store.get_message(topic, 0, n, max_messages=1).messages for n in range(end)]
    return [message.body for messages in found for message in messages]


async def end_transaction(broker, peer, kind, number=0):
    (half,) = broker.store.get_message(
        "RMQ_SYS_TRANS_HALF_TOPIC", 0, number, max_messages=1
    ).messages
    fields = {
        "producerGroup": "PG",
        "tranStateTableOffset": half.queue_offset,
        "commitLogOffset": half.phy_offset,
        "commitOrRollback": kind,
        "transactionId": half.unique_key,
    }
    assert (await peer.ask(RequestCode.END_TRANSACTION, fields)).code == ResponseCode.SUCCESS


def test_a_half_message_is_in_its_light_queues_once_it_is_committed(with_broker):
    async def scenario(broker, peer):
        for body in (b"committed", b"rolled back"):
            sent = await peer.send("T", body, properties={**HALF, **NAMED, "UNIQ_KEY": "U"})
            assert sent.code == ResponseCode.SUCCESS
        assert bodies(broker, "%LMQ%a") == []
        await end_transaction(broker, peer, 8)
        await end_transaction(broker, peer, 12, 1)
        assert bodies(broker, "%LMQ%a") == [b"committed"]
        assert bodies(broker, "T") == [b"committed"]

    with_broker(scenario, **LIGHT)


def test_one_that_is_given_up_is_in_none(with_broker, clock):
    async def scenario(broker, peer):
        await peer.send("T", b"given up", properties={**HALF, **NAMED})
        clock.go_on(30 * 24 * 3_600_000)
        await broker.managers.transactions.check()
        assert bodies(broker, "TRANS_CHECK_MAX_TIME_TOPIC") == [b"given up"]
        assert bodies(broker, "%LMQ%a") == []

    with_broker(scenario, **LIGHT)


def test_a_dead_letter_is_in_its_light_queues_no_second_time(with_broker):
    async def scenario(broker, peer):
        sent = await peer.send("%RETRY%g", b"dead", properties=NAMED, j=17)
        assert sent.code == ResponseCode.SUCCESS
        assert bodies(broker, "%DLQ%g") == [b"dead"]
        assert bodies(broker, "%LMQ%a") == []

    with_broker(scenario, **LIGHT)


@pytest.mark.parametrize("waits", WAITING.values(), ids=WAITING)
def test_what_could_not_come_is_refused_when_it_is_sent(with_broker, waits):
    many = ",".join(f"%LMQ%{n}" for n in range(1500))

    async def scenario(broker, peer):
        illegal = [(name, "") for name in ("other", "%LMQ%a b", "%LMQ%" + "x" * 300)]
        for names, more in (*illegal, (many, "x" * 10_000)):
            properties = {**waits, "INNER_MULTI_DISPATCH": names, "p": more or "-"}
            sent = await peer.send("T", b"x", properties=properties)
            assert sent.code == ResponseCode.MESSAGE_ILLEGAL
        assert [queue for queue in broker.store.queues() if "REVIVE" not in queue[0]] == []

    with_broker(scenario, **LIGHT)


def test_what_was_taken_without_light_queues_comes_to_its_topic(tmp_path, clock):
    async def serve(scenario, **settings):
        async with served(tmp_path / "store", **settings) as (broker, peer):
            await scenario(broker, peer)

    async def sends(_, peer):
        for name, waits in WAITING.items():
            properties = {**waits, "INNER_MULTI_DISPATCH": "other", "UNIQ_KEY": name}
            sent = await peer.send("T", name.encode(), properties=properties)
            assert sent.code == ResponseCode.SUCCESS

    async def comes(broker, peer):
        await end_transaction(broker, peer, 8)
        clock.go_on(5000, broker)

        async def all_are_there():
            found = [message.body for message in records((await peer.pull("T")).body)]
            return sorted(found) == sorted(name.encode() for name in WAITING)

        await until_async(all_are_there, "all three are there")

    async def main():
        await serve(sends)
        await serve(comes, **LIGHT)

    asyncio.run(main())
