"""Listeners hear of messages when they can be read."""

import threading

import pytest
from interrupts import Interrupt
from patience import TIMEOUT_S

import rmqcore

pytestmark = pytest.mark.engine


def test_a_listener_hears_of_each_queue_that_has_new_messages(store_path):
    heard, done = [], threading.Event()

    def listen(queues):
        heard.extend(queues)
        if ("T", 1) in heard and ("T", 0) in heard:
            done.set()

    with rmqcore.open_store(store_path) as store:
        forget = store.on_arrival(listen)
        store.put("T", b"a")
        store.put("T", b"b", queue_id=1)
        assert done.wait(TIMEOUT_S)
        forget()
        heard.clear()
        store.put("T", b"c")
        assert len(store.get_message("T", 0, 0).messages) == 2
        assert heard == []


def test_a_message_can_be_read_when_its_listener_is_called(store_path):
    seen = []
    with rmqcore.open_store(store_path) as store:
        done = threading.Event()

        def listen(queues):
            seen.extend(store.consume_queues.find(*queue).max_offset for queue in queues)
            done.set()

        store.on_arrival(listen)
        store.put("T", b"a")
        assert done.wait(TIMEOUT_S)
    assert seen == [1]


def test_a_listener_that_fails_does_not_stop_dispatch(store_path):
    with rmqcore.open_store(store_path) as store:
        store.on_arrival(lambda queues: 1 / 0)
        store.put("T", b"a")
        assert len(store.get_message("T", 0, 0).messages) == 1
        assert store.why_not_writable() is None


def test_a_listener_that_comes_while_another_one_goes_is_told(store_path):
    """A thread may go on with its own at each place of the other's call."""
    number = 0
    with rmqcore.open_store(store_path) as store:
        while True:
            number += 1
            heard, others = [], [store.on_arrival(lambda _: None) for _ in range(2)]
            interrupt = Interrupt(number, lambda: store.on_arrival(heard.append))  # noqa: B023
            interrupt.during(others[0])
            if not interrupt.at:
                break
            store.put("T", b"a")
            store.get_message("T", 0, number - 1)
            assert heard == [[("T", 0)]], interrupt.at
