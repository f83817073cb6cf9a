"""Puts and reads take what stands for a str, a tuple, a dict or a number as that."""

from __future__ import annotations

import enum

import pytest

from rmqcore import Consumer, GetMessageStatus, Message, MessageIllegalError, open_store
from rmqcore._codec import decode_batch, decode_record, encode_batch, encode_record
from rmqcore.files.config_tables import TopicConfig

pytestmark = pytest.mark.engine

SIZES = {
    "mapped_file_size_commit_log": 8192,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 50,
    "max_index_num": 200,
}


class Key(enum.StrEnum):
    ORDER = "order-17"


class Mixed(str, enum.Enum):  # noqa: UP042 - its format is not its value
    ORDER = "order-17"


class Topic(enum.StrEnum):
    ORDERS = "T"


NAMES = [Key.ORDER, Mixed.ORDER, type("Text", (str,), {})("order-17")]


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "store", **SIZES) as store:
        yield store


@pytest.mark.parametrize("key", NAMES)
def test_a_key_of_a_subclass_is_one_key(store, key):
    message = Message("T", b"x")
    message.keys = key
    store.put("T", b"x", keys=key)
    store.put_message(message)
    store.put_messages([message])
    store.put("T", b"x", keys=(key, "other"), durability="disk")
    assert [found.keys[0] for found in store.messages()] == ["order-17"] * 4
    for asked in ("order-17", key):
        assert len(store.query_message("T", asked)) == 4
        assert len(store.query_message("T", asked, explain=True)) == 4
    record = encode_record(message, queue_offset=0, phy_offset=0, store_timestamp_ms=1)
    assert decode_record(record).keys == ("order-17",)


def test_a_topic_of_a_subclass_is_that_topic(store):
    store.put(Topic.ORDERS, b"x", keys="k", born_host=type("H", (str,), {})("10.1.2.3:1"))
    store.put("T", b"x")
    assert store.queues() == [("T", 0)]
    assert len(store.get_message(Topic.ORDERS, 0, 0)) == 2
    assert store.max_queue_offset(Topic.ORDERS, 0) == 2
    assert len(store.read_units(Topic.ORDERS, 0, 0, 2)) == 40
    assert len(store.query_message(Topic.ORDERS, "k")) == 1
    assert store.queue_offset_by_time(Topic.ORDERS, 0, 2**62, boundary="upper") == 1
    assert len(list(store.messages(Topic.ORDERS))) == 2


class Named(str, enum.Enum):  # noqa: UP042 - neither its format nor its hash is its value's
    ORDERS = "T"
    BILLING = "g"


def test_a_topic_and_a_group_of_an_enum_are_those_of_their_values(store):
    """What a group has consumed, and a table, are found again under the plain name."""
    topic, group = Named.ORDERS, Named.BILLING
    for _ in range(4):
        store.put(topic, b"x")
    with Consumer(store, group, {topic: "*"}) as consumer:
        first, second, third = consumer.receive(3)
        consumer.ack(first)
        assert consumer.nack(third, delay_ms=60_000) == consumer.extend(second) == 1
        assert [tuple(lag[1:]) for lag in consumer.lag()] == [(0, 1, 1, 2)]
    offsets = store.consumer_offsets
    assert (offsets.pairs(), offsets.get("T", "g", 0)) == ([("T", "g")], 1)
    assert store.purge(group, topic) == 2
    offsets.commit(topic, group, 0, 4)
    assert (offsets.pairs(), offsets.queues(topic, group)) == ([("T", "g")], {0: 4})
    store.kv_put(topic, b"k", b"v")
    store.kv_put("T", b"k", b"w")
    assert store.kv_get(topic, (key for key in [b"k"])) == store.kv_get("T", [b"k"]) == [b"w"]
    store.topics.put(TopicConfig(topic_name=topic))
    assert store.topics.get(topic) is store.topics.get("T") is not None
    assert store.delete_topic(topic)
    assert (store.queues(), offsets.get("T", "g", 0)) == ([("%KV%T", 0)], None)


def test_one_name_where_several_are_taken_is_that_name(store):
    store.put("Orders", b"x", keys="k-1")
    assert [lag.topic for lag in store.lag("g", "Orders")] == ["Orders"]
    assert [len(found) for found in store.query_many("Orders", "k-1")] == [1]
    assert len(store.lease("g", {"Orders": "*"})) == 1
    for _ in range(20):
        store.put("%DLQ%g", bytes(900))
    assert store.delete_consumed_files("%DLQ%g") == 0
    store.consumer_offsets.commit("Orders", "g", 0, 1)
    assert store.delete_consumed_files("%DLQ%g") > 0


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 300, "a/b", "a\0b", "\ud800"])
def test_a_name_that_no_message_can_have_finds_nothing(store, name):
    for _ in range(2):
        store.put("0", b"x", keys="k")
    store.flush()
    with open_store(store.path, mode="r") as reader:
        for each in store, reader:
            assert each.max_queue_offset(name, 0) == 0
            assert each.get_message(name, 0, 0).status == GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
            assert list(each.messages(name)) == []
            assert len(each.query_message(name, "k")) == len(each.query_message("0", name)) == 0
            assert [len(found) for found in each.query_many("0", ["k", name])] == [2, 0]


def test_keys_of_an_iterator_survive_the_end_of_a_file(store):
    """A put that finds the file full tries again in the next one, with the same keys."""
    message = Message("T", b"x" * 700)
    for number in range(60):
        store.put("T", b"x" * 700, keys=(key for key in (f"a{number}", "b")))
        message.keys = iter((f"a{number}", "b"))
        store.put_message(message)
    assert len(store.log.queue.files) > 5
    assert [found.keys for found in store.messages()] == [
        (f"a{number}", "b") for number in range(60) for _ in range(2)
    ]
    message.keys = iter(("a", "b"))
    for _ in range(2):
        (found,) = decode_batch(encode_batch([message]))
        assert found.properties["KEYS"] == "a b"


def test_properties_may_be_pairs(store):
    store.put("T", b"x", properties=zip(["a", "b"], ["1", "2"], strict=True))
    store.put_message(Message("T", b"x", properties=iter([("a", "1"), ("b", "2")])))
    assert [found.properties for found in store.messages()] == [{"a": "1", "b": "2"}] * 2
    for pairs in ([("DELAY", "3")], iter([("DELAY", "3")])):
        with pytest.raises(MessageIllegalError, match="delay level 3"):
            store.put("T", b"x", properties=pairs)
    assert store.max_queue_offset("T", 0) == 2


def test_a_limit_beyond_64_bits_is_none(store):
    for _ in range(40):
        store.put("T", b"x", keys="k")
    store.max_queue_offset("T", 0)
    for tags in (None, "*"):
        assert len(store.get_message("T", 0, 0, max_messages=40, max_bytes=2**63, tags=tags)) == 40
        assert len(store.get_message("T", 0, 0, max_messages=2**63, tags=tags)) == 40
        assert len(store.get_message("T", 0, 0, max_messages=2**80, tags=tags)) == 40
    assert store.get_message("T", 0, 2**80).status.name == "OFFSET_OVERFLOW_BADLY"
    assert store.get_message("T", 0, -(2**80)).status.name == "OFFSET_TOO_SMALL"
    for explain in (False, True):
        asked = {"max_messages": 2**40, "explain": explain}
        assert len(store.query_message("T", "k", **asked)) == 40
        assert len(store.query_message("T", "k", end_ms=2**80, **asked)) == 40
        assert len(store.query_message("T", "k", begin_ms=2**80, **asked)) == 0


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_number_in_front_of_all_that_there_are_is_one(tmp_path, mode):
    with open_store(tmp_path / "s", **SIZES) as store:
        store.put("T", b"body", keys="key")
    with open_store(tmp_path / "s", mode=mode, **SIZES) as store:
        for before in (-(2**63) - 1, -(2**70)):
            assert len(store.query_message("T", "key", begin_ms=before).messages) == 1
            assert not store.query_message("T", "key", end_ms=before).messages
            assert len(store.query_many("T", ["key"], begin_ms=before)[0].messages) == 1
            assert not store.query_many("T", ["key"], end_ms=before)[0].messages
            assert not store.get_message("T", 0, before).messages
