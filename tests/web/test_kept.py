"""What takes long to look up is given at once as it was, and looked up aside."""

import threading

import pytest
from patience import until

from rmqcore.errors import StoreError
from rmqcore.web.kept import Kept

pytestmark = pytest.mark.engine


class Looks:
    """Counts looks; one that is told to waits for `go`, one that is told to fails."""

    def __init__(self):
        self.count = 0
        self.go = threading.Event()
        self.go.set()
        self.fails = False

    def __call__(self):
        self.go.wait()
        if self.fails:
            raise StoreError("not now")
        self.count += 1
        return self.count


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("rmqcore.web.kept.monotonic_s", lambda: now[0])
    return now


def test_readers_get_the_old_value_while_it_is_looked_up_anew(clock):
    looks = Looks()
    kept = Kept(looks, 5.0)
    assert kept.get() == kept.get() == 1
    clock[0] = 5.0
    looks.go.clear()
    assert kept.get() == kept.get() == 1
    looks.go.set()
    until(lambda: kept.get() == 2, "the new value")
    assert looks.count == 2


def test_while_the_stamp_is_the_same_nothing_is_looked_up(clock):
    looks, stamp = Looks(), [1]
    kept = Kept(looks, 5.0, lambda: stamp[0])
    assert kept.get() == 1
    clock[0] = 50.0
    assert kept.get() == 1
    stamp[0] = 2
    until(lambda: kept.get() == 2, "the new value")
    clock[0] = 100.0
    assert kept.get() == looks.count == 2


def test_the_first_reader_hears_what_is_wrong_and_later_ones_get_the_old_value(clock, caplog):
    looks = Looks()
    kept = Kept(looks, 5.0)
    looks.fails = True
    with pytest.raises(StoreError, match="not now"):
        kept.get()
    looks.fails = False
    assert kept.get() == 1
    looks.fails, clock[0] = True, 5.0
    assert kept.get() == 1
    until(lambda: "could not be looked up" in caplog.text, "the warning")
    looks.fails, clock[0] = False, 10.0
    until(lambda: kept.get() == 2, "the new value")


def test_a_stamp_that_cannot_be_told_for_a_while_keeps_no_value_for_good(clock):
    looks, stamps = Looks(), [1]
    kept = Kept(looks, 5.0, lambda: stamps[0])
    assert kept.get() == 1
    stamps.clear()
    clock[0] = 5.0
    for _ in range(2):
        with pytest.raises(IndexError):
            kept.get()
    stamps.append(2)
    until(lambda: kept.get() == 2, "the new value")
