"""Leases of a store whose clock is put back."""

import pytest
from consume.conftest import TOPIC, Clock, bodies, put

pytestmark = pytest.mark.engine


class HeldClock(Clock):
    """Beside which no time passes."""

    def real_s(self):
        """Seconds that the test lets pass."""
        return self._passed_s


@pytest.fixture
def clock():
    return HeldClock()


@pytest.mark.parametrize("back_ms", [2000, 3_600_000])
def test_nobody_waits_for_a_clock_that_was_put_back(store, clock, back_ms):
    put(store, 3)
    leased = store.lease("g", TOPIC, max_messages=2, lease_ms=10_000)
    store.give_back("g", [leased[0].place], delay_ms=20_000)
    clock.pass_ms(1000)
    assert bodies(store.lease("g", TOPIC, lease_ms=90_000)) == [b"2"]
    clock.now_ms -= back_ms
    # what is agreed by the clock of now is not shortened with what was agreed before
    assert store.change_lease("g", [leased[1].place], 5000) == 1
    clock.pass_ms(4900)
    assert store.lease("g", TOPIC) == []
    clock.pass_ms(100)
    assert bodies(store.lease("g", TOPIC, lease_ms=90_000)) == [b"1"]
    clock.pass_ms(14_000)
    assert bodies(store.lease("g", TOPIC)) == [b"0"]


def test_nor_for_one_that_was_put_back_while_nobody_asked(store, clock):
    put(store, 1)
    leased = store.lease("g", TOPIC)
    store.give_back("g", [leased[0].place], delay_ms=3_600_000)
    clock.pass_ms(3_000_000)
    clock.now_ms -= 2_900_000
    assert store.lease("g", TOPIC) == []
    clock.pass_ms(599_000)
    assert store.lease("g", TOPIC) == []
    clock.pass_ms(1000)
    assert bodies(store.lease("g", TOPIC)) == [b"0"]


def test_nor_behind_a_reopening(opened, store, clock):
    put(store, 1)
    leased = store.lease("g", TOPIC)
    store.give_back("g", [leased[0].place], delay_ms=20_000)
    clock.now_ms -= 3_600_000
    store.close()
    again = opened()
    clock.pass_ms(19_900)
    assert again.lease("g", TOPIC) == []
    clock.pass_ms(100)
    assert bodies(again.lease("g", TOPIC)) == [b"0"]
