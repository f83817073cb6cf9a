"""A topic gets fewer queues: what was put off comes to one of those that consumers still read."""

import pytest
from broker.conftest import records
from broker.test_pop import comes_again, pop
from broker.test_waiting_light import end_transaction
from patience import until_async

from rmqcore.broker.state.topics import Topics
from rmqcore.files.config_tables import TopicConfig
from rmqcore.remoting import RequestCode, ResponseCode

HALF = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "U"}
WAITING = {"level": {"DELAY": "1"}, "timer": {"TIMER_DELAY_MS": "1000"}, "half": HALF}


async def set_queues(peer, count, read=None, topic="T"):
    fields = {
        **{"topic": topic, "defaultTopic": "TBW102", "perm": "6", "topicSysFlag": "0"},
        **{"readQueueNums": read or count, "writeQueueNums": count, "order": "false"},
        "topicFilterType": "SINGLE_TAG",
    }
    answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


@pytest.mark.engine
def test_what_was_put_off_comes_to_a_queue_that_is_read(with_broker, clock):
    async def scenario(broker, peer):
        await set_queues(peer, 8)
        for name, waits in WAITING.items():
            for queue_id in (1, 7):
                body = f"{name} to {queue_id}".encode()
                sent = await peer.send("T", body, queue_id=queue_id, properties=waits)
                assert sent.code == ResponseCode.SUCCESS, sent.remark
        await set_queues(peer, 4)
        await end_transaction(broker, peer, 8, 0)
        await end_transaction(broker, peer, 8, 1)
        clock.go_on(5000, broker)

        async def read():
            pulls = [await peer.pull("T", queue_id=queue_id) for queue_id in range(4)]
            return [sorted(message.body for message in records(pull.body)) for pull in pulls]

        async def all_are_there():
            return sum(map(len, await read())) == 6

        await until_async(all_are_there, "all messages are in queues that are read")
        to_1, to_7 = (sorted(f"{name} to {n}".encode() for name in WAITING) for n in (1, 7))
        assert await read() == [[], to_1, [], to_7]

    with_broker(scenario)


@pytest.mark.engine
def test_the_broker_chooses_no_queue_that_nobody_reads(with_broker):
    """A producer may: its message is read when the number is raised."""

    async def scenario(broker, peer):
        await set_queues(peer, 8, read=2)
        for _ in range(40):
            sent = await peer.send("T", b"any", queue_id=-1)
            assert int(sent.ext_fields["queueId"]) < 2
        urgent = await peer.send("T", b"urgent", properties={"_SYS_MSG_PRIORITY_": "7"})
        assert urgent.ext_fields["queueId"] == "1"
        chosen = await peer.send("T", b"chosen", queue_id=7)
        assert chosen.ext_fields["queueId"] == "7"
        assert (await peer.pull("T", queue_id=7)).code == ResponseCode.INVALID_PARAMETER
        await set_queues(peer, 8)
        assert [m.body for m in records((await peer.pull("T", queue_id=7)).body)] == [b"chosen"]

    with_broker(scenario)


@pytest.mark.engine
def test_what_comes_again_to_a_pop_comes_to_a_queue_that_is_read(with_broker, clock):
    async def scenario(broker, peer):
        await set_queues(peer, 4)
        await set_queues(peer, 4, read=2, topic="%RETRY%CG_T")
        await peer.send("T", b"again", queue_id=3)
        for _ in range(2):
            again = await pop(peer, invisible_ms=1000)
            assert [message.body for message in records(again.body)] == [b"again"]
            clock.go_on(1000)
            comes_again(broker)

    with_broker(scenario, useSeparateRetryQueue="true")


@pytest.mark.logic
@pytest.mark.parametrize(
    ("write", "read", "count"), [(8, 2, 2), (2, 8, 2), (4, 0, 4), (0, 4, 1), (0, 0, 1)]
)
def test_among_how_many_queues_the_broker_chooses(write, read, count):
    topic = TopicConfig(topic_name="T", write_queue_nums=write, read_queue_nums=read)
    assert Topics.queues_for_send(topic) == count


@pytest.mark.logic
@pytest.mark.parametrize(
    ("topic", "queue_id", "comes_to"),
    [
        (None, 9, 9),
        (TopicConfig(topic_name="T", read_queue_nums=4), 3, 3),
        (TopicConfig(topic_name="T", read_queue_nums=4), 4, 0),
        (TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=8), 7, 3),
        (TopicConfig(topic_name="T", read_queue_nums=0), 2, 2),
        (TopicConfig(topic_name="%RETRY%G", read_queue_nums=1), 2, 0),
        (TopicConfig(topic_name="rmq_sys_REVIVE_LOG_c", read_queue_nums=8), 12, 12),
    ],
)
def test_which_queue_is_read(topic, queue_id, comes_to):
    assert Topics.queue_at_delivery(topic, queue_id) == comes_to
