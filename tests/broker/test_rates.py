"""Rates of the last minute, hour and day: by a clock of the test, and as tools ask for them."""

import datetime
import json

import pytest

from rmqcore.broker.state import traffic
from rmqcore.broker.state.rates import SAMPLE_S, DayTotals, Rates
from rmqcore.broker.state.traffic import DELAY, NORMAL, Traffic
from rmqcore.remoting import RequestCode, ResponseCode
from rmqcore.world import World

pytestmark = pytest.mark.logic


class Run:
    """A broker's counters, and a clock that stands until it is moved."""

    def __init__(self):
        self.now_s = 1000.0
        self.traffic = Traffic()
        self.rates = Rates(self.traffic, "C", World(monotonic_s=lambda: self.now_s))

    def go_on(self, seconds, a_second=0):
        for _ in range(int(seconds / SAMPLE_S)):
            if a_second:
                self.traffic.add_stored("T", NORMAL, a_second * int(SAMPLE_S), 1000)
            self.now_s += SAMPLE_S
            self.rates.sample()

    def sums(self, name="TOPIC_PUT_NUMS", key="T"):
        return [span["sum"] for span in self.rates.of(name, key).values()]


def test_a_broker_has_rates_of_all_its_topics_and_groups():
    run = Run()
    assert run.rates.of("BROKER_PUT_NUMS", "C") is None
    run.go_on(60, a_second=5)
    run.traffic.add_stored("U", DELAY, 3, 100)
    for group in "GH":
        run.traffic.add_fetched("T", group, 4, 100)
    assert run.sums("BROKER_PUT_NUMS", "C") == [303, 303, 303]
    assert run.sums("BROKER_GET_NUMS", "C") == [8, 8, 8]
    run.go_on(120)
    assert run.sums("BROKER_PUT_NUMS", "C") == [0, 303, 303]
    assert run.rates.of("BROKER_PUT_NUMS", "another") is None


def test_totals_stand_as_at_the_last_two_midnights():
    run, now = Run(), [datetime.datetime(2026, 1, 1, 12).astimezone()]
    days = DayTotals(run.traffic, lambda: int(now[0].timestamp() * 1000))
    put = ("msgPutTotalYesterdayMorning", "msgPutTotalTodayMorning", "msgPutTotalTodayNow")
    told = []
    for messages in (3, 4, 5):
        run.traffic.add_stored("T", NORMAL, messages, 100)
        run.traffic.add_fetched("T", "G", 1, 100)
        told.append([days.runtime_info()[name] for name in put])
        now[0] += datetime.timedelta(days=1)
        days.sample()
    assert told == [["0", "0", "3"], ["0", "3", "7"], ["3", "7", "12"]]
    assert days.runtime_info()["msgGetTotalTodayMorning"] == "3"


def test_each_span_reaches_back_so_far():
    run = Run()
    run.go_on(1200, a_second=5)
    told = run.rates.of("TOPIC_PUT_NUMS", "T")
    assert list(told) == ["statsMinute", "statsHour", "statsDay"]
    assert told["statsMinute"] == {"sum": 300, "tps": 5.0, "avgpt": 50.0}
    assert (told["statsHour"]["sum"], told["statsHour"]["tps"]) == (6000, 5.0)
    assert run.rates.put_tps("T") == 5.0
    run.go_on(120)
    assert run.sums() == [0, 6000, 6000]
    assert run.rates.put_tps("T") == 0.0
    run.go_on(2 * 3600)
    assert run.sums() == [0, 0, 6000]
    run.go_on(24 * 3600)
    assert run.sums() == [0, 0, 0]


def test_what_came_since_the_last_sample_counts_and_so_does_every_type():
    run = Run()
    run.go_on(600)
    run.traffic.add_stored("T", NORMAL, 3, 300)
    run.traffic.add_stored("T", DELAY, 1, 100)
    run.traffic.add_fetched("T", "G", 2, 200)
    run.now_s += 4
    assert run.sums() == [4, 4, 4]
    assert run.rates.put_tps("T") == 1.0
    assert run.sums("TOPIC_PUT_SIZE") == [400] * 3
    assert run.sums("GROUP_GET_NUMS", "T@G") == [2] * 3
    assert run.sums("GROUP_GET_SIZE", "T@G") == [200] * 3


@pytest.mark.parametrize(
    ("name", "key"), [("TOPIC_PUT_NUMS", "U"), ("GROUP_GET_NUMS", "T"), ("OTHER", "T"), ("", "")]
)
def test_what_was_never_counted_has_no_rates(name, key):
    run = Run()
    run.go_on(60, a_second=1)
    assert run.rates.of(name, key) is None


@pytest.mark.engine
def test_a_broker_tells_what_was_sent_and_pulled(with_broker):
    async def scenario(_, peer):
        for _ in range(20):
            await peer.send("T", b"x")
        await peer.pull("T")
        view = RequestCode.VIEW_BROKER_STATS_DATA
        put = await peer.ask(view, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"})
        got = await peer.ask(view, {"statsName": "GROUP_GET_NUMS", "statsKey": "T@CG"})
        none = await peer.ask(view, {"statsName": "GROUP_GET_NUMS", "statsKey": "T@other"})
        assert [json.loads(bytes(each.body))["statsDay"]["sum"] for each in (put, got)] == [20, 20]
        assert none.code == ResponseCode.SYSTEM_ERROR
        stats = await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
        assert b'"topicPutTps":0.0' not in bytes(stats.body)
        assert b'"topicPutTps":' in bytes(stats.body)

    with_broker(scenario)


def test_as_many_topics_and_groups_are_counted_as_have_room(monkeypatch):
    monkeypatch.setattr(traffic, "PAIRS_COUNTED_MAX", 3)
    run = Run()
    for topic in ("T", "U", "V"):
        run.traffic.add_fetched(topic, "G", 2, 100)
    run.go_on(SAMPLE_S)
    # the one that was counted longest ago makes room
    run.traffic.add_fetched("T", "G", 2, 100)
    run.traffic.add_fetched("W", "G", 2, 100)
    assert list(run.traffic.fetched) == [("V", "G"), ("T", "G"), ("W", "G")]
    run.go_on(SAMPLE_S)
    assert run.rates.of("GROUP_GET_NUMS", "U@G") is None
    assert run.sums("GROUP_GET_NUMS", "T@G") == [4, 4, 4]
    assert run.sums("BROKER_GET_NUMS", "C") == [10, 10, 10]
    assert len(run.rates._histories) == 4
    # and begins anew when it comes again
    run.traffic.add_fetched("U", "G", 1, 100)
    run.go_on(SAMPLE_S)
    assert run.sums("GROUP_GET_NUMS", "U@G") == [1, 1, 1]
    for topic in ("T", "U", "V", "W", "W"):
        run.traffic.add_dead(topic, "G")
    assert dict(run.traffic.dead) == {("U", "G"): 1, ("V", "G"): 1, ("W", "G"): 2}


def test_what_begins_anew_between_two_samples_has_no_rates_below_0(monkeypatch):
    monkeypatch.setattr(traffic, "PAIRS_COUNTED_MAX", 1)
    run = Run()
    for _ in range(3):
        run.traffic.add_fetched("T", "G", 5, 100)
    run.go_on(SAMPLE_S)
    for topic in ("U", "T"):
        run.traffic.add_fetched(topic, "G", 1, 100)
    assert run.sums("GROUP_GET_NUMS", "T@G") == [1, 1, 1]
    run.go_on(SAMPLE_S)
    assert run.sums("GROUP_GET_NUMS", "T@G") == [1, 1, 1]


def test_others_are_served_between_the_counters_that_are_sampled():
    run = Run()
    for number in range(1000):
        run.traffic.add_fetched(f"T{number}", "G", 1, 100)
    assert sum(1 for _ in run.rates.sample_some()) == 3
    assert run.sums("GROUP_GET_NUMS", "T999@G") == [1, 1, 1]
