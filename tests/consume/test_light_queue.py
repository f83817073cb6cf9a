"""Consumers of light queues (LMQ), whose messages have another number in their own queue."""

import pytest
from consume.conftest import bodies, places

pytestmark = pytest.mark.engine

LIGHT = {"%LMQ%a": "*"}
NAMED = {"INNER_MULTI_DISPATCH": "%LMQ%a"}


@pytest.fixture
def store(opened):
    return opened(enable_lmq=True, enable_multi_dispatch=True)


def put_light(store, *numbers):
    for number in numbers:
        store.put("Parent", b"plain")
        store.put("Parent", b"%d" % number, tags="ab"[number % 2], properties=NAMED)


def test_a_consumer_gets_every_message(store, clock):
    for number in range(20):
        store.put("Parent", b"%d" % number)
    put_light(store, 0, 1, 2)
    first = store.lease("g", LIGHT, max_messages=2)
    assert [place.queue_offset for place in places(first)] == [0, 1]
    store.acknowledge("g", places(first[:1]))
    put_light(store, 3, 4)
    assert bodies(store.lease("g", LIGHT)) == [b"2", b"3", b"4"]
    clock.pass_ms(30_000)
    assert bodies(store.lease("g", LIGHT)) == [b"1", b"2", b"3", b"4"]
    assert bodies(store.lease("h", {"%LMQ%a": "b"})) == [b"1", b"3"]
    (lag,) = store.lag("g", LIGHT)
    assert (lag.committed_offset, lag.ready, lag.leased) == (1, 0, 4)


def test_it_goes_on_where_it_was(opened):
    store = opened(enable_lmq=True, enable_multi_dispatch=True)
    put_light(store, 0, 1, 2)
    store.acknowledge("g", places(store.lease("g", LIGHT, max_messages=2)))
    store.close()
    again = opened(enable_lmq=True, enable_multi_dispatch=True)
    put_light(again, 3)
    assert bodies(again.lease("g", LIGHT)) == [b"2", b"3"]


def test_a_dead_letter_does_not_come_to_the_light_queue_again(store):
    put_light(store, 0)
    store.give_back("g", places(store.lease("g", LIGHT)), max_reconsume_times=0)
    assert [bytes(message.body) for message in store.messages("%DLQ%g", 0)] == [b"0"]
    assert store.lease("g", LIGHT) == []


def test_a_light_queue_takes_messages_of_its_own(store):
    put_light(store, 0, 1, 2)
    store.put("%LMQ%a", b"own")
    found = store.get_message("%LMQ%a", 0, 0)
    assert bodies(found.messages) == [b"0", b"1", b"2", b"own"]
    assert bodies(store.lease("g", LIGHT)) == [b"0", b"1", b"2", b"own"]
