"""Callers that wait for the disk share flushes, whatever a flush does."""

import math
import signal
import threading
import time

import pytest
from patience import TIMEOUT_S, until

from rmqcore.native.log._commit_group import CommitGroup

pytestmark = pytest.mark.engine


class Disk:
    """What is put, and how far it is flushed; a flush takes as long as the test wants."""

    def __init__(self, meanwhile=lambda: None):
        self.meanwhile = meanwhile
        self.put = 0
        self.flushes = []
        self.at_work = 0
        self.is_begun = threading.Event()

    def flush(self, offset):
        self.at_work += 1
        assert self.at_work == 1
        end = self.put
        self.is_begun.set()
        self.meanwhile()
        self.at_work -= 1
        self.flushes.append(end)
        return end


class HeldDisk(Disk):
    """A flush ends when the test lets it."""

    def __init__(self):
        self.let_go = threading.Event()
        super().__init__(lambda: self.let_go.wait(TIMEOUT_S))


class BusyDisk(Disk):
    """A flush ends when every caller that an earlier one has let go has put again, or ended."""

    def __init__(self, callers):
        super().__init__(self.all_wait)
        self.numbers = [0] * callers
        self.changed = threading.Condition()

    def put_next(self, caller):
        """Put for a caller; its number."""
        with self.changed:
            self.put = self.numbers[caller] = self.put + 1
            self.changed.notify_all()
            return self.put

    def end(self, caller):
        with self.changed:
            self.numbers[caller] = math.inf
            self.changed.notify_all()

    def all_wait(self):
        flushed = max(self.flushes, default=0)
        with self.changed:
            assert self.changed.wait_for(lambda: min(self.numbers) > flushed, TIMEOUT_S)


def in_threads(count, work):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert not any(thread.is_alive() for thread in threads)


def test_many_share_a_flush_and_each_is_covered():
    callers, times = 16, 20
    disk = BusyDisk(callers)
    group = CommitGroup(disk.flush)
    ordinals, early = iter(range(callers)), []

    def work():
        caller = next(ordinals)
        for _ in range(times):
            mine = disk.put_next(caller)
            assert group.wait(mine, TIMEOUT_S)
            if not any(end >= mine for end in disk.flushes):
                early.append(mine)
        disk.end(caller)

    in_threads(callers, work)
    assert not early
    # when a flush ends all wait: for those it does not cover the next one is enough
    assert len(disk.flushes) <= 2 * times


@pytest.mark.logic
def test_what_is_flushed_needs_no_flush():
    disk = Disk()
    group = CommitGroup(disk.flush)
    disk.put = 5
    assert group.wait(3, 0)
    assert group.wait(5, 0)
    assert disk.flushes == [5]


def test_time_runs_out_behind_a_slow_flush():
    disk = HeldDisk()
    group, told = CommitGroup(disk.flush), []
    disk.put = 1
    leader = threading.Thread(target=lambda: told.append(group.wait(1, 0)))
    leader.start()
    assert disk.is_begun.wait(TIMEOUT_S)
    disk.put = 2
    began = time.monotonic()
    assert not group.wait(2, 0.1)
    assert time.monotonic() - began >= 0.1
    assert disk.flushes == []
    disk.let_go.set()
    leader.join()
    assert told == [True]
    assert group.wait(2, 0)


def test_who_leads_gets_the_error_and_the_next_leads():
    failures, came, told = [OSError("first"), OSError("second")], [], []

    def flush(offset):
        until(lambda: len(came) == 4, "all have come")
        if failures:
            raise failures.pop(0)
        return offset

    group = CommitGroup(flush)

    def work():
        came.append(1)
        try:
            told.append(group.wait(1, TIMEOUT_S))
        except OSError as error:
            told.append(str(error))

    in_threads(4, work)
    assert sorted(told, key=str) == [True, True, "first", "second"]


@pytest.mark.logic
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
    disk = HeldDisk()
    group = CommitGroup(disk.flush)
    disk.put = 1
    leader = threading.Thread(target=group.wait, args=(1, TIMEOUT_S))
    leader.start()
    assert disk.is_begun.wait(TIMEOUT_S)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    def wait():
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        group.wait(2, TIMEOUT_S)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
        assert disk.flushes == []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        disk.let_go.set()
        leader.join()


def test_all_are_told_by_one_flush_though_nobody_comes_back():
    disk = HeldDisk()
    group, came = CommitGroup(disk.flush), []
    disk.put = 1
    leader = threading.Thread(target=group.wait, args=(1, TIMEOUT_S))
    leader.start()
    assert disk.is_begun.wait(TIMEOUT_S)
    disk.put = 2

    def put_once():
        came.append(1)
        if len(came) == 24:
            disk.let_go.set()
        assert group.wait(2, TIMEOUT_S)

    in_threads(24, put_once)
    leader.join()
    assert disk.flushes == [1, 2]


# ---- how long callers are waited for


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


@pytest.mark.measure
def test_one_caller_waits_for_nobody(figure):
    watch = Watch(0.003)
    group = CommitGroup(watch.flush)
    for number in range(1, 41):
        watch.put = number
        assert group.wait(number, TIMEOUT_S)
    assert len(watch.gaps) == 40
    figure("median gap between two flushes", 1000 * sorted(watch.gaps)[20], "ms", at_most=0.5)


@pytest.mark.measure
def test_callers_who_come_back_share_the_next_flush(figure):
    disk = Disk(lambda: time.sleep(0.01))
    group, numbers = CommitGroup(disk.flush), iter(range(1, 10**6))

    def work():
        for _ in range(40):
            mine = disk.put = next(numbers)
            assert group.wait(mine, TIMEOUT_S)

    in_threads(6, work)
    # one for each group of those who take turns would be 80
    figure("flushes for 6 callers of 40 puts", len(disk.flushes), "flushes", at_most=54)


@pytest.mark.measure
def test_callers_who_do_not_come_back_are_not_waited_for_again_and_again(figure):
    flushes, threads = 60, []

    def come():
        for _ in range(3):
            watch.put += 1
            threads.append(threading.Thread(target=group.wait, args=(watch.put, TIMEOUT_S)))
            threads[-1].start()

    def meanwhile():
        if len(watch.gaps) < flushes:
            come()

    watch = Watch(0.005, meanwhile)
    group = CommitGroup(watch.flush)
    come()
    until(lambda: not any(thread.is_alive() for thread in list(threads)), "all are told")
    assert len(watch.gaps) >= flushes
    waited = sum(gap > 0.0009 for gap in watch.gaps[1:])
    figure("flushes of 60 that waited", waited, "flushes", at_most=flushes // 3 - 1)
    median = sorted(watch.gaps)[flushes // 2]
    figure("median gap between two flushes", 1000 * median, "ms", at_most=0.9)


@pytest.mark.measure
def test_all_are_told_though_nobody_comes_back(figure):
    slowest = []
    for _ in range(5):
        disk = Disk(lambda: time.sleep(0.04))
        group, back = CommitGroup(disk.flush), []
        disk.put = 1
        leader = threading.Thread(target=group.wait, args=(1, TIMEOUT_S))
        leader.start()
        assert disk.is_begun.wait(TIMEOUT_S)
        disk.put = 2

        def put_once(group=group, back=back):
            assert group.wait(2, TIMEOUT_S)
            back.append(time.monotonic())

        in_threads(24, put_once)
        leader.join()
        assert len(disk.flushes) == 2
        slowest.append(max(back) - min(back))
    figure("from the first to the last of 24, best of 5", 1000 * min(slowest), "ms", at_most=30)


@pytest.mark.measure
def test_who_has_failed_is_not_waited_for(figure):
    gaps = []
    for _ in range(50):
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
                group.wait(1, TIMEOUT_S)

        first = threading.Thread(target=fail)
        first.start()
        until(lambda ends=ends: ends, "the first leads")
        assert group.wait(2, TIMEOUT_S)
        first.join()
        gaps.append(ends[2] - ends[1])
    figure("gap behind a failed flush, best", 1000 * min(gaps), "ms", at_most=0.9)
