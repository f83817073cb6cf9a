"""Callers that wait for the disk share flushes, whatever a flush does."""

import signal
import threading
import time

import pytest

from rmqcore._commit_group import CommitGroup


class Disk:
    """What is put, and how far it is flushed; a flush takes a while."""

    def __init__(self, seconds=0.005):
        self.seconds = seconds
        self.put = 0
        self.flushes = []
        self.at_work = 0

    def flush(self, offset):
        self.at_work += 1
        assert self.at_work == 1
        end = self.put
        time.sleep(self.seconds)
        self.at_work -= 1
        self.flushes.append(end)
        return end


def in_threads(count, work):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)


def test_many_share_a_flush_and_each_is_covered():
    disk = Disk()
    group = CommitGroup(disk.flush)
    numbers, early = iter(range(1, 10**6)), []

    def work():
        for _ in range(20):
            mine = disk.put = next(numbers)
            assert group.wait(mine, 10)
            if not any(end >= mine for end in disk.flushes):
                early.append(mine)

    in_threads(16, work)
    assert not early
    assert len(disk.flushes) <= 16 * 20 // 4


def test_what_is_flushed_needs_no_flush():
    disk = Disk()
    group = CommitGroup(disk.flush)
    disk.put = 5
    assert group.wait(3, 0)
    assert group.wait(5, 0)
    assert disk.flushes == [5]


def test_time_runs_out_behind_a_slow_flush():
    disk = Disk(0.3)
    group, told = CommitGroup(disk.flush), []
    disk.put = 1
    leader = threading.Thread(target=lambda: told.append(group.wait(1, 0)))
    leader.start()
    time.sleep(0.05)
    disk.put = 2
    began = time.monotonic()
    assert not group.wait(2, 0.1)
    assert 0.1 <= time.monotonic() - began < 0.25
    leader.join()
    assert told == [True]
    assert group.wait(2, 0)


def test_who_leads_gets_the_error_and_the_next_leads():
    failures, told = [OSError("first"), OSError("second")], []

    def flush(offset):
        time.sleep(0.02)
        if failures:
            raise failures.pop(0)
        return offset

    group = CommitGroup(flush)

    def work():
        try:
            told.append(group.wait(1, 5))
        except OSError as error:
            told.append(str(error))

    in_threads(4, work)
    assert sorted(told, key=str) == [True, True, "first", "second"]


def test_a_caller_inside_the_flush_leads_by_itself():
    depths = []

    def flush(offset):
        depths.append(offset)
        if offset == 1:
            assert group.wait(2, 0)
        return offset

    group = CommitGroup(flush)
    assert group.wait(1, 0)
    assert depths == [1, 2]
    assert group.wait(2, 0)
    assert depths == [1, 2]


def test_what_a_signal_handler_raises_ends_the_wait():
    disk = Disk(0.5)
    group = CommitGroup(disk.flush)
    disk.put = 1
    leader = threading.Thread(target=group.wait, args=(1, 5))
    leader.start()
    time.sleep(0.05)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            group.wait(2, 5)
        assert time.monotonic() - began < 0.4
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        leader.join()
