"""Callers that wait for the disk share flushes, whatever a flush does."""

import signal
import threading
import time

import pytest

from rmqcore.native.log._commit_group import CommitGroup

pytestmark = pytest.mark.engine


class Disk:
    """What is put, and how far it is flushed; a flush takes a while."""

    def __init__(self, seconds=0.005):
        self.seconds = seconds
        self.put = 0
        self.flushes = []
        self.at_work = 0
        self.is_begun = threading.Event()

    def flush(self, offset):
        self.at_work += 1
        assert self.at_work == 1
        end = self.put
        self.is_begun.set()
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
    disk = Disk(2)
    group, told = CommitGroup(disk.flush), []
    disk.put = 1
    leader = threading.Thread(target=lambda: told.append(group.wait(1, 0)))
    leader.start()
    disk.is_begun.wait(30)
    disk.put = 2
    began = time.monotonic()
    assert not group.wait(2, 0.1)
    assert 0.1 <= time.monotonic() - began < 1.5
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


@pytest.mark.process
def test_what_a_signal_handler_raises_ends_the_wait():
    disk = Disk(2)
    group = CommitGroup(disk.flush)
    disk.put = 1
    leader = threading.Thread(target=group.wait, args=(1, 5))
    leader.start()
    disk.is_begun.wait(30)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            group.wait(2, 5)
        assert time.monotonic() - began < 1.5
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        leader.join()


class Watch:
    """A flush that takes a while, and the seconds between the end of each and the next one."""

    def __init__(self, seconds, meanwhile=lambda: None):
        self.seconds = seconds
        self.meanwhile = meanwhile
        self.put = 0
        self.gaps = []
        self._ended = time.monotonic()

    def flush(self, offset):
        self.gaps.append(time.monotonic() - self._ended)
        end = self.put
        self.meanwhile()
        time.sleep(self.seconds)
        self._ended = time.monotonic()
        return end


def test_one_caller_waits_for_nobody():
    watch = Watch(0.003)
    group = CommitGroup(watch.flush)
    for number in range(1, 41):
        watch.put = number
        assert group.wait(number, 5)
    assert len(watch.gaps) == 40
    assert sorted(watch.gaps)[20] < 0.0005


def test_callers_who_come_back_share_the_next_flush():
    disk = Disk(0.01)
    group, numbers = CommitGroup(disk.flush), iter(range(1, 10**6))

    def work():
        for _ in range(40):
            mine = disk.put = next(numbers)
            assert group.wait(mine, 10)

    in_threads(6, work)
    assert len(disk.flushes) < 55, "one for each group of those who take turns would be 80"


def test_callers_who_do_not_come_back_are_not_waited_for_again_and_again():
    flushes, threads = 60, []

    def come():
        for _ in range(3):
            watch.put += 1
            threads.append(threading.Thread(target=group.wait, args=(watch.put, 10)))
            threads[-1].start()

    def meanwhile():
        if len(watch.gaps) < flushes:
            come()

    watch = Watch(0.005, meanwhile)
    group = CommitGroup(watch.flush)
    come()
    while any(thread.is_alive() for thread in list(threads)):
        time.sleep(0.01)
    assert len(watch.gaps) >= flushes
    waited = sum(gap > 0.0009 for gap in watch.gaps[1:])
    assert waited < flushes // 3
    assert sorted(watch.gaps)[flushes // 2] < 0.0009


def test_all_are_told_though_nobody_comes_back():
    slowest = []
    for _ in range(5):
        disk = Disk(0.04)
        group, back = CommitGroup(disk.flush), []
        disk.put = 1
        leader = threading.Thread(target=group.wait, args=(1, 5))
        leader.start()
        time.sleep(0.02)
        disk.put = 2

        def put_once(group=group, back=back):
            assert group.wait(2, 5)
            back.append(time.monotonic())

        in_threads(24, put_once)
        leader.join()
        assert len(disk.flushes) == 2
        slowest.append(max(back) - min(back))
    assert min(slowest) < 0.03


def test_who_has_failed_is_not_waited_for():
    gaps = [1.0]
    while min(gaps) > 0.0009 and len(gaps) < 50:
        ends = []

        def flush(offset, ends=ends):
            ends.append(time.monotonic())
            if offset == 1:
                time.sleep(0.02)
                ends.append(time.monotonic())
                raise OSError("refused")
            return offset

        group = CommitGroup(flush)

        def fail(group=group):
            with pytest.raises(OSError, match="refused"):
                group.wait(1, 5)

        first = threading.Thread(target=fail)
        first.start()
        time.sleep(0.005)
        assert group.wait(2, 5)
        first.join()
        gaps.append(ends[2] - ends[1])
    assert min(gaps) < 0.0009
