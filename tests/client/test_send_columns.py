"""Tables are sent row by row, in batches, to a broker as any RocketMQ's."""

import asyncio

import pyarrow as pa
import pytest
from patience import TIMEOUT_S

from rmqcore import ArgumentError, MessageIllegalError, RowIllegalError
from rmqcore.client import NoRouteError, Producer, blocking

pytestmark = pytest.mark.engine

MAP = pa.map_(pa.string(), pa.string())


def received(namesrv, topic, count):
    with blocking.Consumer(namesrv, f"CG-{topic}", {topic: "*"}, start="first") as consumer:
        return [consumer.receive(TIMEOUT_S) for _ in range(count)]


def test_rows_arrive_with_all_that_a_batch_has(rocketmq_broker, rocketmq_topic):
    namesrv = rocketmq_broker.namesrv_addr
    table = pa.table(
        {
            "body": ["one", "two", "three"],
            "queue_id": [1, 0, 1],
            "tags": ["t", None, None],
            "keys": [["a", "b"], None, []],
            "unique_key": ["OWN", None, None],
            "flag": [7, 0, None],
            "properties": pa.array([[("x", "y")], None, []], MAP),
        }
    )
    with blocking.Producer(namesrv) as producer:
        results = producer.send_columns(table, topic=rocketmq_topic)
    assert {(result.topic, result.queue_id) for result in results} == {
        (rocketmq_topic, 0),
        (rocketmq_topic, 1),
    }
    found = {message.body: message for message in received(namesrv, rocketmq_topic, 3)}
    one = found[b"one"]
    assert (one.queue_id, one.tags, one.keys, one.flag) == (1, "t", ("a", "b"), 7)
    assert (one.message_id, one.properties["x"]) == ("OWN", "y")
    assert [found[body].queue_id for body in (b"two", b"three")] == [0, 1]
    assert [found[body].queue_offset for body in (b"one", b"three")] == [0, 1]
    named = {name for result in results for name in result.message_id.split(",")}
    assert named == {message.message_id for message in found.values()}


def test_rows_without_a_queue_go_to_any_and_large_tables_in_many_requests(
    rocketmq_broker, rocketmq_topic
):
    namesrv, count = rocketmq_broker.namesrv_addr, 3000
    table = pa.table({"body": [f"{number:01000d}" for number in range(count)]})

    async def scenario():
        async with Producer(namesrv) as producer:
            return await producer.send_columns(table, topic=rocketmq_topic)

    results = asyncio.run(scenario())
    assert len(results) > 2
    found = received(namesrv, rocketmq_topic, count)
    assert sorted(int(message.body) for message in found) == list(range(count))


@pytest.mark.parametrize(
    ("columns", "error", "text"),
    [
        ({"body": ["a"], "sys_flag": [0]}, ArgumentError, "column sys_flag cannot be sent"),
        ({"body": ["a", "b"], "tags": ["t", ""]}, RowIllegalError, "row 1, column tags"),
        ({"body": ["a", ""]}, MessageIllegalError, "no empty"),
        ({"boddy": ["a"]}, ArgumentError, "did you mean body"),
    ],
)
def test_what_cannot_be_sent_is_refused(rocketmq_broker, rocketmq_topic, columns, error, text):
    with blocking.Producer(rocketmq_broker.namesrv_addr) as producer:
        with pytest.raises(error, match=text):
            producer.send_columns(pa.table(columns), topic=rocketmq_topic)
        assert producer.send(rocketmq_topic, b"after").queue_offset == 0


def test_a_failure_says_how_many_rows_had_been_sent(rocketmq_broker, rocketmq_topic, monkeypatch):
    with blocking.Producer(rocketmq_broker.namesrv_addr) as producer:
        topics = pa.array([rocketmq_topic, "NoSuchTopicAnywhere"])
        send = Producer._send

        async def failing(self, message, queue_id):
            if message.topic != rocketmq_topic:
                raise NoRouteError(message.topic, "nobody has it")
            return await send(self, message, queue_id)

        monkeypatch.setattr(Producer, "_send", failing)
        with pytest.raises(NoRouteError) as caught:
            producer.send_columns(pa.table({"topic": topics, "body": ["a", "b"]}))
        assert caught.value.__notes__ == ["1 rows of the table had been sent"]
