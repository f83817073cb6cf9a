"""Leases of records that hold a batch of messages: whole, again, and once acknowledged never."""

import shutil

import pytest
from consume.conftest import places

import rmqcore
from rmqcore import Message
from rmqcore._codec import decode_batch, encode_batch

pytestmark = pytest.mark.engine

BATCHES = {"B": "*"}
SETTINGS = {"topic_queue_types": (("B", "BatchCQ"),)}
INNER_BATCH = 0x80 | 0x40


def put_batches(store, *counts, **more):
    for count in counts:
        first = store.max_queue_offset("B", 0)
        body = encode_batch([Message("B", b"%d" % (first + n)) for n in range(count)])
        properties = {"INNER_NUM": str(count), "UNIQ_KEY": f"u{first}", **more}
        store.put("B", body, sys_flag=INNER_BATCH, properties=properties)


def firsts(messages):
    return [int(decode_batch(bytes(message.body))[0].body) for message in messages]


def test_a_batch_comes_again_when_its_lease_is_over_or_it_is_given_back(opened, clock):
    store = opened(**SETTINGS)
    put_batches(store, 3, 2, 1, 4)
    first = store.lease("g", BATCHES, max_messages=2, lease_ms=1000)
    assert firsts(first) == [0, 3]
    clock.pass_ms(1000)
    again = store.lease("g", BATCHES, max_messages=2)
    assert firsts(again) == [0, 3]
    store.give_back("g", places(again), delay_ms=0)
    assert firsts(store.lease("g", BATCHES)) == [0, 3, 5, 6]


def test_of_a_batch_that_a_group_has_done_with_in_part_the_rest_is_leased(opened):
    store = opened(**SETTINGS)
    put_batches(store, 3, 4)
    store.consumer_offsets.commit("B", "g", 0, 4)
    for _ in range(2):
        found = store.lease("g", BATCHES)
        assert [(place.queue_offset, *firsts(found)) for place in places(found)] == [(4, 3)]
        assert store.consumer_offsets.get("B", "g", 0) == 4
        store.give_back("g", places(found), delay_ms=0)
    assert store.acknowledge("g", places(store.lease("g", BATCHES))) == 1
    assert store.consumer_offsets.get("B", "g", 0) == 7


def test_after_a_kill_a_batch_comes_once_and_one_that_is_acknowledged_never(opened, tmp_path):
    store = opened(**SETTINGS)
    put_batches(store, 3, 2, 4)
    held, acknowledged, _ = store.lease("g", BATCHES)
    store.acknowledge("g", [acknowledged.place])
    shutil.copytree(store.path, tmp_path / "killed")
    with rmqcore.open_store(tmp_path / "killed", **SETTINGS) as killed:
        again = killed.lease("g", BATCHES)
        assert firsts(again) == [0, 5]
        assert held.place.queue_offset == again[0].place.queue_offset
        killed.acknowledge("g", places(again))
        shutil.copytree(killed.path, tmp_path / "again")
    with rmqcore.open_store(tmp_path / "again", **SETTINGS) as store:
        assert store.lease("g", BATCHES) == []


def test_a_batch_that_came_too_often_is_one_dead_letter(opened):
    store = opened(**SETTINGS, deliver_delayed=True)
    put_batches(store, 3, 2)
    (message,) = store.lease("g", BATCHES, max_messages=1)
    assert store.give_back("g", [message.place]) == 1
    assert firsts(store.lease("g", BATCHES)) == [3]
    store.give_back("h", places(store.lease("h", BATCHES)), max_reconsume_times=0)
    letters = store.get_message("%DLQ%h", 0, 0).messages
    assert firsts(letters) == [0, 3]
    assert [letter.properties["INNER_NUM"] for letter in letters] == ["3", "2"]
    assert store.lease("h", BATCHES) == []


def test_a_batch_comes_again_in_a_light_queue_too(opened, clock):
    store = opened(**SETTINGS, enable_lmq=True, enable_multi_dispatch=True)
    put_batches(store, 3)
    put_batches(store, 2, 4, INNER_MULTI_DISPATCH="%LMQ%a")
    for _ in range(2):
        found = store.lease("g", {"%LMQ%a": "*"}, lease_ms=1000)
        assert [place.queue_offset for place in places(found)] == [0, 1]
        assert firsts(found) == [3, 5]
        clock.pass_ms(1000)
