"""The lock that a signal cannot leave locked."""

import signal
import threading
import time

import pytest
from patience import TIMEOUT_S

from rmqcore.native.base._lock import ReentrantLock, locks_held

pytestmark = pytest.mark.logic


@pytest.mark.engine
def test_one_at_a_time():
    lock, inside, most = ReentrantLock(), [], []

    def work():
        for _ in range(200):
            with lock.within() as mine:
                assert mine
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1


def test_the_same_thread_gets_it_again():
    lock = ReentrantLock()
    assert (lock.depth, locks_held()) == (0, 0)
    with lock.within() as outer, lock.within(0) as inner:
        assert outer
        assert inner
        assert (lock.depth, locks_held()) == (2, 2)
    assert (lock.depth, locks_held()) == (0, 0)


@pytest.mark.engine
def test_time_runs_out():
    lock, told = ReentrantLock(), []

    def wait(seconds):
        began = time.monotonic()
        with lock.within(seconds) as mine:
            told.append((mine, time.monotonic() - began))

    with lock.within():
        for seconds in (0.0, 0.05, -1):
            thread = threading.Thread(target=wait, args=(seconds,))
            thread.start()
            thread.join()
    assert [mine for mine, _ in told] == [False, False, False]
    assert told[1][1] >= 0.05
    wait(0)
    assert told[-1][0]


@pytest.mark.process
def test_what_a_signal_handler_raises_ends_the_wait():
    lock, ready, done = ReentrantLock(), threading.Event(), threading.Event()

    def hold():
        with lock.within():
            ready.set()
            done.wait(TIMEOUT_S)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()

    def take():
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with lock.within():
            pytest.fail("it was taken")

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            take()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        done.set()
        thread.join()
    with lock.within(0) as mine:
        assert mine


def test_an_error_inside_gives_it_back():
    lock = ReentrantLock()
    with pytest.raises(ValueError, match="inside"), lock.within():
        raise ValueError("inside")
    with lock.within(0) as mine:
        assert mine


def test_an_attempt_that_is_let_go_gives_it_back():
    lock = ReentrantLock()
    attempt = lock.within()
    assert attempt.__enter__()
    assert (lock.depth, locks_held()) == (1, 1)
    del attempt
    assert (lock.depth, locks_held()) == (0, 0)
