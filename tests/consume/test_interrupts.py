"""Ctrl-C anywhere in calls about leases, and messages that come very often."""

from __future__ import annotations

import signal
import threading

import pytest
from patience import TIMEOUT_S, until

import rmqcore
from rmqcore.store.consume.due_times import DueTimes
from rmqcore.store.consume.lease_queue import TIMES_MAX

pytestmark = pytest.mark.process

TOPIC = {"T": "*"}
#: twenty at each of fifty moments
INTERRUPTS = 1000
#: No message comes often enough for a dead letter.
FOR_EVER = {"max_reconsume_times": 1 << 30}


def test_an_interrupt_leaves_nobody_waiting(store_path):
    armed, interrupts = False, 0

    def interrupt(*_):
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    with rmqcore.open_store(store_path) as store:
        for number in range(4):
            store.put("T", b"%d" % number)
        store.lag("g", TOPIC)
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            while interrupts < INTERRUPTS:
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, 0.00002 + interrupts % 50 / 100_000)
                    # one that a finalizer has swallowed is sent again
                    while armed:
                        leases = store.lease("g", TOPIC, lease_ms=100, **FOR_EVER)
                        store.give_back(
                            "g", [each.place for each in leases], delay_ms=0, **FOR_EVER
                        )
                    armed = False
                except KeyboardInterrupt:
                    interrupts += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        told = []
        asking = threading.Thread(target=lambda: told.append(store.lag("g", TOPIC)), daemon=True)
        asking.start()
        asking.join(TIMEOUT_S)
        ((lag,),) = told
        assert lag.ready + lag.leased == 4
        # and none of them is leased for ever
        came = set()

        def all_came():
            leases = store.lease("g", TOPIC, **FOR_EVER)
            came.update(each.place.queue_offset for each in leases)
            return came == set(range(4))

        until(all_came, "all four messages")


def test_who_is_interrupted_among_leases_that_end_finds_the_others_again():
    due = DueTimes()
    for offset in (5, 6, 7):
        due.add(0, 1, offset)
    due.add(0, 2, 9)
    for pair in due.until(1000):
        assert pair == (1, 5)
        break
    due.add(0, 3, 1)
    assert list(due.until(1000)) == [(1, 5), (1, 6), (1, 7), (2, 9), (3, 1)]
    assert due.next_ms() is None
    due.add(0, 4, 1)
    assert list(due.until(1000)) == [(4, 1)]


def test_a_message_that_has_come_as_often_as_is_counted_comes_again(store_path):
    with rmqcore.open_store(store_path) as store:
        store.put("T", b"0")
        (first,) = store.lease("g", TOPIC)
        queue = store.parts.consuming._leases._table.queues["g", "T", 0]
        store.give_back("g", [first.place], delay_ms=0)
        queue.lease(0, 1, 0, 0, TIMES_MAX - 1)
        for _ in range(3):
            (again,) = store.lease("g", TOPIC, max_reconsume_times=1 << 30)
            assert again.reconsume_times == TIMES_MAX - 1
            again = [again.place]
            assert store.give_back("g", again, delay_ms=0, max_reconsume_times=1 << 30) == 1
