"""The lag by queue is right, whichever way it is counted, and few queues are asked for it."""

from collections import Counter

import pytest

from rmqcore.spark.queue_lag import QueueLag

pytestmark = pytest.mark.logic

MIB = 1 << 20
MANY, FEW = 10_000, 100
#: a record in each MiB of a log, in the queues 0, 1, 2 by turns
END = 2000


def counted(low, high):
    """What lies between two offsets."""
    assert low % MIB == high % MIB == 0
    return Counter(("T", number % 3) for number in range(low // MIB, high // MIB))


class Log:
    """A log, and what was done to count its messages."""

    def __init__(self, known=END):
        self.known = known * MIB
        self.calls = []
        self.lag = QueueLag(self.walked, self.asked, self.cut)

    def walked(self, low, high):
        self.calls.append(("walked", (high - low) // MIB))
        return counted(low, high)

    def asked(self, low, high):
        self.calls.append(("asked", (high - low) // MIB))
        return counted(low, min(high, max(low, self.known)))

    def cut(self, low, size, high):
        return min(low + size, high)

    def between(self, low, high, queue_count=MANY, seen=None):
        """The lag between two MiB, and what was done for it."""
        self.calls.clear()
        found = self.lag.between(low * MIB, high * MIB, self.known, queue_count, seen)
        return found, list(self.calls)


def test_a_report_counts_what_has_changed_since_the_one_before():
    log = Log()
    assert log.between(0, END) == (counted(0, END * MIB), [("asked", END - 64), ("walked", 64)])
    for low, high in ((10, END), (100, END + 20), (100, END + 20), (150, END + 30)):
        found, calls = log.between(low, high)
        assert found == counted(low * MIB, high * MIB)
        assert {how for how, _ in calls} == {"walked"}
    assert log.between(160, END + 40)[1] == [("walked", 10), ("walked", 10)]


def test_what_queues_may_not_know_yet_is_walked():
    log = Log(known=1900)
    found, calls = log.between(0, END)
    assert found == counted(0, END * MIB)
    assert calls == [("asked", 1900 - 64), ("walked", END - 1900 + 64)]
    assert log.between(10, END)[0] == counted(10 * MIB, END * MIB)


@pytest.mark.parametrize(
    ("low", "high", "calls"),
    [
        # far from the report before
        (1000, END, [("asked", END - 1000 - 64), ("walked", 64)]),
        # the log has become shorter
        (0, 500, [("asked", 500 - 64), ("walked", 64)]),
        # nearly at the end
        (END - 20, END, [("walked", 20)]),
    ],
)
def test_where_much_has_changed_it_is_counted_anew(low, high, calls):
    log = Log()
    log.between(0, END)
    log.known = high * MIB
    assert log.between(low, high) == (counted(low * MIB, high * MIB), calls)


def test_few_queues_are_asked_each_time():
    log = Log()
    assert log.between(0, END, FEW)[1] == [("asked", END)]
    assert log.between(10, END, FEW)[1] == [("asked", END - 10)]


def test_when_a_topic_has_come_or_gone_it_is_counted_anew():
    log = Log()
    log.between(0, END, seen=1)
    assert log.between(10, END, seen=1)[1] == [("walked", 0), ("walked", 10)]
    assert log.between(20, END, seen=2)[1] == [("asked", END - 20 - 64), ("walked", 64)]
