"""The lock that no signal can leave behind."""

import signal
import threading
import time

import pytest

from rmqcore.native.base._turn import Turn, turns_held


def test_one_at_a_time():
    turn, inside, most = Turn(), [], []

    def work():
        for _ in range(200):
            with turn.within() as mine:
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
    turn = Turn()
    assert (turn.depth, turns_held()) == (0, 0)
    with turn.within() as outer, turn.within(0) as inner:
        assert outer
        assert inner
        assert (turn.depth, turns_held()) == (2, 2)
    assert (turn.depth, turns_held()) == (0, 0)


def test_time_runs_out():
    turn, told = Turn(), []

    def wait(seconds):
        began = time.monotonic()
        with turn.within(seconds) as mine:
            told.append((mine, time.monotonic() - began))

    with turn.within():
        for seconds in (0.0, 0.05, -1):
            thread = threading.Thread(target=wait, args=(seconds,))
            thread.start()
            thread.join()
    assert [mine for mine, _ in told] == [False, False, False]
    assert told[1][1] >= 0.05
    wait(0)
    assert told[-1][0]


def test_what_a_signal_handler_raises_ends_the_wait():
    turn, ready, done = Turn(), threading.Event(), threading.Event()

    def hold():
        with turn.within():
            ready.set()
            done.wait(10)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt), turn.within():
            pytest.fail("it was taken")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        done.set()
        thread.join()
    with turn.within(0) as mine:
        assert mine


def test_an_error_inside_gives_it_back():
    turn = Turn()
    with pytest.raises(ValueError, match="inside"), turn.within():
        raise ValueError("inside")
    with turn.within(0) as mine:
        assert mine


def test_an_attempt_that_is_let_go_gives_it_back():
    turn = Turn()
    attempt = turn.within()
    assert attempt.__enter__()
    assert (turn.depth, turns_held()) == (1, 1)
    del attempt
    assert (turn.depth, turns_held()) == (0, 0)
