"""A wait for a bell ends when it is rung, and when its time is over, whatever comes between."""

import signal
import threading
import time

import pytest
from patience import TIMEOUT_S, give_up, until

from rmqcore.services.bell import Bell
from rmqcore.store.consume.arrivals import Sleeper

pytestmark = pytest.mark.engine


def test_it_is_rung_until_somebody_has_waited_or_forgets_it():
    bell = Bell()
    assert not bell.rung
    bell.ring()
    bell.ring()
    assert bell.rung
    assert bell.wait(TIMEOUT_S)
    assert not bell.rung
    bell.ring()
    bell.silence()
    bell.silence()
    assert not bell.rung
    assert not bell.wait(0)


def test_a_wait_may_be_as_long_as_the_longest_interval_that_can_be_set():
    bell = Bell()
    bell.ring()
    assert bell.wait((2**63 - 1) / 1000)


def test_who_listens_hears_only_the_first_ring():
    bell, heard = Bell(), []
    bell.on_ring = lambda: heard.append(bell.rung)
    bell.ring()
    bell.ring()
    assert heard == [True]
    bell.wait(0)
    bell.ring()
    assert heard == [True, True]


def test_a_ring_ends_a_wait():
    bell = Bell()
    waiter = threading.Thread(target=bell.wait, args=(10 * TIMEOUT_S,), daemon=True)
    waiter.start()
    until(lambda: bell.ring() or not waiter.is_alive(), "the wait ends")


@pytest.fixture
def interrupted():
    """`interrupted(bell, seconds)`: a signal handler runs inside its wait, for longer than that."""
    before = signal.getsignal(signal.SIGALRM)

    def wait(wait_for, seconds):
        came = []

        def handler(_signal, frame):
            if came:
                give_up("the end of a wait whose time is over")
            if frame.f_code is not Bell.wait.__code__:
                signal.setitimer(signal.ITIMER_REAL, seconds / 4)
                return
            came.append(True)
            end = time.monotonic() + 2 * seconds
            while time.monotonic() < end:
                pass
            signal.setitimer(signal.ITIMER_REAL, TIMEOUT_S)

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, seconds / 4)
        while not came:
            wait_for(seconds)

    yield wait
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.process
@pytest.mark.parametrize("waits", [lambda: Bell().wait, lambda: Sleeper().sleep])
def test_a_wait_whose_time_runs_out_in_a_signal_handler_ends(interrupted, waits):
    interrupted(waits(), 0.02)
