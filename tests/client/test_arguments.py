"""The same arguments are taken, and refused with typed errors, wherever a message is given."""

import array
import enum
import mmap

import numpy as np
import pytest
from client.test_produce_and_consume import receive

from rmqcore import ArgumentError, Message, MessageIllegalError, RmqCoreError, open_store
from rmqcore.client import Admin, Consumer, Producer, TransactionState, blocking

pytestmark = pytest.mark.engine


class Text(str):
    """What is a str, and is not one exactly."""


class Name(str, enum.Enum):  # noqa: UP042 - its format is not its value
    KEY = "order-17"


class Number(enum.IntEnum):
    TWO = 2


def mapped():
    found = mmap.mmap(-1, 3)
    found[:] = b"map"
    return found


TAKEN = {
    "bytearray": {"body": bytearray(b"body")},
    "memoryview": {"body": memoryview(b"body")},
    "memoryview of shorts": {"body": memoryview(array.array("H", [1, 2]))},
    "array": {"body": array.array("H", [1, 2])},
    "mmap": {"body": mapped()},
    "bytes subclass": {"body": type("Body", (bytes,), {})(b"body")},
    "one key": {"keys": "k"},
    "keys in a list": {"keys": ["k", "l"]},
    "keys in a generator": {"keys": lambda: (key for key in ("k", "l"))},
    "keys None": {"keys": None},
    "key of an enum": {"keys": Name.KEY},
    "tags": {"tags": Text("new")},
    "mapping": {"properties": {"colour": "red"}},
    "pairs": {"properties": [("colour", "red"), ("size", "1")]},
    "pairs in a generator": {"properties": lambda: (pair for pair in [("colour", "red")])},
    "properties of subclasses": {"properties": {Text("colour"): Name.KEY}},
    "queue of an enum": {"queue_id": Number.TWO},
}
REFUSED = {
    "body str": {"body": "body"},
    "body int": {"body": 5},
    "body None": {"body": None},
    "body list": {"body": [1, 2]},
    "body with gaps": {"body": memoryview(b"abcdef")[::2]},
    "body of columns": {"body": np.arange(4, dtype=np.uint8).reshape(2, 2).T},
    "body of objects": {"body": np.array([b"body"], dtype=object)},
    "body of dates": {"body": np.array(["2026-11-27"], dtype="M8[D]")},
    "keys int": {"keys": 5},
    "keys bytes": {"keys": b"k"},
    "keys of int": {"keys": [1]},
    "key empty": {"keys": ""},
    "key with a space": {"keys": ["a b"]},
    "key with U+0001": {"keys": "a\x01b"},
    "tags int": {"tags": 5},
    "tags empty": {"tags": ""},
    "tags bytes": {"tags": b"new"},
    "properties int": {"properties": 5},
    "properties str": {"properties": "ab"},
    "property int": {"properties": {"a": 1}},
    "property name int": {"properties": {1: "a"}},
    "property empty": {"properties": {"a": ""}},
    "property with U+0002": {"properties": {"a": "b\x02"}},
    "property no UTF-8": {"properties": {"a": "\ud800"}},
    "properties too long": {"properties": {"a": "x" * 40_000}},
    "topic int": {"topic": 5},
    "topic None": {"topic": None},
    "topic empty": {"topic": ""},
    "topic with a space": {"topic": "a topic"},
    "queue str": {"queue_id": "0"},
    "queue float": {"queue_id": 1.5},
    "queue below 0": {"queue_id": -1},
}


def arguments(topic, given):
    """Topic, body and the others; what is made anew for each call is."""
    made = {name: value() if callable(value) else value for name, value in given.items()}
    return made.pop("topic", topic), made.pop("body", b"body"), made


def stored(message):
    found = {name: message.properties.get(name) for name in ("KEYS", "TAGS", "colour", "size")}
    return message.body, found


@pytest.mark.parametrize("case", TAKEN)
def test_what_a_store_takes_a_producer_takes(rocketmq_broker, rocketmq_topic, tmp_path, run, case):
    namesrv, group = rocketmq_broker.namesrv_addr, "CG-" + rocketmq_topic[-20:]
    with open_store(tmp_path / "s", mapped_file_size_commit_log=1 << 16) as store:
        topic, body, more = arguments("T", TAKEN[case])
        store.put(topic, body, **more)
        wanted = [stored(message) for message in store.messages()]

    async def scenario():
        async with (
            Producer(namesrv) as producer,
            Consumer(namesrv, group, {rocketmq_topic: "*"}, start="first") as consumer,
        ):
            topic, body, more = arguments(rocketmq_topic, TAKEN[case])
            await producer.send(topic, body, **more)
            topic, body, more = arguments(rocketmq_topic, TAKEN[case])
            queue_id = more.pop("queue_id", 0)
            await producer.send_batch(topic, [Message(topic, body, **more)], queue_id=queue_id)
            return [stored(message) for message in await receive(consumer, 2)]

    assert run(scenario()) == wanted * 2


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_store_refuses_every_call_refuses(
    rocketmq_broker, rocketmq_topic, tmp_path, run, case
):
    given = REFUSED[case]

    def batch(producer):
        topic, body, more = arguments(rocketmq_topic, given)
        queue_id = more.pop("queue_id", None)
        return producer.send_batch(topic, [Message(topic, body, **more)], queue_id=queue_id)

    def single(call, *between):
        def send(producer):
            topic, body, more = arguments(rocketmq_topic, given)
            return getattr(producer, call)(topic, body, *between, **more)

        return send

    calls = [single("send"), single("send_oneway"), batch]
    if "queue_id" not in given:
        calls += [single("request"), single("send_in_transaction", lambda _: None)]
    with open_store(tmp_path / "s", mapped_file_size_commit_log=1 << 16) as store:
        topic, body, more = arguments("T", given)
        with pytest.raises(MessageIllegalError):
            store.put(topic, body, **more)
        if "body" in given:
            with pytest.raises(MessageIllegalError):
                store.put_messages([Message(topic, body)])

    async def scenario():
        async with Producer(rocketmq_broker.namesrv_addr) as producer:
            for call in calls:
                with pytest.raises(MessageIllegalError):
                    await call(producer)

    run(scenario())
    with blocking.Producer(rocketmq_broker.namesrv_addr) as producer:
        for call in calls:
            with pytest.raises(MessageIllegalError):
                call(producer)


@pytest.mark.parametrize("messages", ["body", b"body", 5, None, Message("T", b"x")])
def test_a_batch_is_several_messages(rocketmq_broker, rocketmq_topic, messages):
    with (
        blocking.Producer(rocketmq_broker.namesrv_addr) as producer,
        pytest.raises(ArgumentError, match=r"^messages="),
    ):
        producer.send_batch(rocketmq_topic, messages)


def test_what_is_no_transaction_is_refused_before_anything_is_sent(rocketmq_broker, rocketmq_topic):
    with blocking.Producer(rocketmq_broker.namesrv_addr) as producer:
        with pytest.raises(ArgumentError, match=r"^transaction="):
            producer.send_in_transaction(rocketmq_topic, b"x", TransactionState.COMMIT)
        with pytest.raises(ArgumentError, match=r"^transaction='COMMIT'"):
            producer.send_in_transaction(rocketmq_topic, b"x", lambda _: "COMMIT")


CONSTRUCTED = {
    "namesrv_addr": [5, None, [5], "here"],
    "timeout_ms": ["1", None, -1, float("nan")],
    "retries": ["1", 1.5, -1],
    "compress_above": ["1", -1],
    "check_transaction": [5],
}


@pytest.mark.parametrize("kinds", ["asyncio", "blocking"])
@pytest.mark.parametrize("argument", CONSTRUCTED)
def test_a_wrong_argument_of_a_producer_is_named(kinds, argument):
    kind = Producer if kinds == "asyncio" else blocking.Producer
    for value in CONSTRUCTED[argument]:
        with pytest.raises(ArgumentError, match=f"^{argument}="):
            kind(**{"namesrv_addr": "127.0.0.1:9876", argument: value})


@pytest.mark.parametrize("kinds", ["asyncio", "blocking"])
@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("prefetch", 0),
        ("prefetch", "1"),
        ("unacked_max", 1.5),
        ("reconsume_max", None),
        ("timeout_ms", "1"),
        ("subscriptions", {"T": 5}),
        ("subscriptions", {"T": b"*"}),
    ],
)
def test_a_wrong_argument_of_a_consumer_is_named(kinds, argument, value):
    kind = Consumer if kinds == "asyncio" else blocking.Consumer
    given = {"subscriptions": {"T": "*"}, argument: value}
    with pytest.raises(ArgumentError, match=f"^{argument}"):
        kind("127.0.0.1:9876", "G", **given)


def test_a_wrong_argument_of_a_consumers_call_is_named(rocketmq_broker, rocketmq_topic):
    with blocking.Consumer(rocketmq_broker.namesrv_addr, "CG", {rocketmq_topic: "*"}) as consumer:
        for timeout_s in ("1", -1):
            with pytest.raises(ArgumentError, match=r"^timeout_s="):
                consumer.receive(timeout_s)
        for call in (consumer.ack, consumer.nack):
            with pytest.raises(ArgumentError, match=r"^message="):
                call("message")
    with (
        blocking.Producer(rocketmq_broker.namesrv_addr) as producer,
        pytest.raises(ArgumentError, match=r"^message="),
    ):
        producer.reply("message", b"x")


ADMINISTERED = {
    "broker_config": lambda admin, wrong: admin.broker_config(wrong),
    "route": lambda admin, wrong: admin.route(wrong),
    "topic_stats": lambda admin, wrong: admin.topic_stats(wrong),
    "create_topic": lambda admin, wrong: admin.create_topic(wrong),
    "delete_topic": lambda admin, wrong: admin.delete_topic(wrong),
    "create_group": lambda admin, wrong: admin.create_group(wrong),
    "delete_group": lambda admin, wrong: admin.delete_group(wrong),
    "set_read_permission": lambda admin, wrong: admin.set_read_permission(wrong, "T", True),
    "consumer_progress": lambda admin, wrong: admin.consumer_progress(wrong),
    "consumers": lambda admin, wrong: admin.consumers(wrong),
    "producers": lambda admin, wrong: admin.producers("PG", wrong),
    "reset_offsets": lambda admin, wrong: admin.reset_offsets(wrong, "T", 0),
    "message_by_id": lambda admin, wrong: admin.message_by_id(wrong),
    "messages_by_key": lambda admin, wrong: admin.messages_by_key("T", wrong),
    "count": lambda admin, wrong: admin.messages_by_key("T", "k", count=wrong),
    "queues": lambda admin, wrong: admin.create_topic("T", queues=wrong),
}


@pytest.mark.parametrize("call", ADMINISTERED)
@pytest.mark.parametrize("wrong", [None, b"name", 5.5, ["name"]], ids=repr)
def test_a_wrong_argument_of_an_admin_is_a_typed_error(rocketmq_broker, run, call, wrong):
    async def scenario():
        async with Admin(rocketmq_broker.namesrv_addr) as admin:
            with pytest.raises(RmqCoreError):
                await ADMINISTERED[call](admin, wrong)

    run(scenario())
    with blocking.Admin(rocketmq_broker.namesrv_addr) as admin, pytest.raises(RmqCoreError):
        ADMINISTERED[call](admin, wrong)
