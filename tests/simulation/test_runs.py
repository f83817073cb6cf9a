"""Whole clusters from one seed: what clients are promised holds, and a seed is one run."""

import asyncio
import dataclasses
import itertools
import logging
from types import SimpleNamespace

import pytest
from patience import TIMEOUT_S

from rmqcore.simulation import promotion
from rmqcore.simulation.history import Outcome
from rmqcore.simulation.plan import (
    Befalls,
    ConsumerPlan,
    Does,
    Fault,
    Group,
    Operation,
    Plan,
    Way,
    draw,
)
from rmqcore.simulation.run import run

pytestmark = [pytest.mark.engine, pytest.mark.seeded]


def plan_of(*faults, sends=30, way=Way.PUSH, **settings):
    """One broker, one producer that sends ten times a second, one consumer, and some faults."""
    return Plan(
        seed="small",
        for_s=5.0,
        names=1,
        groups=(Group("broker0", 0, settings=settings),),
        clients=("client0", "client1"),
        topics=("T0",),
        operations=tuple(
            Operation(0.5 + 0.1 * number, "client0", Does.SEND, number, "T0", 0, 100)
            for number in range(sends)
        ),
        consumers=(ConsumerPlan("client1", "group", way, ("T0",)),),
        faults=faults,
    )


def broken_plan():
    """Two topics have a message of one number, which counts as one that nobody has sent there."""
    plan = plan_of()
    twice = dataclasses.replace(plan.operations[0], at_s=4.0, topic="T1")
    operations = (*plan.operations, twice)
    return dataclasses.replace(plan, operations=operations, topics=("T0", "T1"))


def test_drawn_clusters_keep_their_promises(seed):
    for number in range(3):
        report = run(draw(f"{seed}/{number}", 0.2))
        assert not report.broken
        assert report.counts["delivered"] > 0


def test_a_seed_is_one_run_and_another_seed_another(seed):
    # one that takes an hour is a storm's
    drawn = (draw(f"{seed}/{number}", 0.1) for number in itertools.count())
    plan = next(plan for plan in drawn if plan.for_s < 60)
    first, second = run(plan), run(plan)
    assert (first.trace, first.events, first.counts) == (second.trace, second.events, second.counts)
    assert run(dataclasses.replace(plan, seed=f"{seed}/other")).trace != first.trace


def test_a_plan_is_a_text(seed):
    plan = draw(seed, 0.5)
    assert Plan.from_json(plan.to_json()) == plan


def test_without_faults_nothing_fails_and_nothing_comes_twice():
    report = run(plan_of())
    assert not report.broken
    assert report.counts["send ok"] >= 30
    assert report.counts["delivered again"] == 0
    assert not any(Outcome.UNKNOWN.value in name for name in report.counts)


@pytest.mark.parametrize("way", Way)
def test_a_broker_that_is_killed_loses_nothing_that_it_has_answered(way):
    report = run(plan_of(Befalls(1.55, Fault.KILL, "broker0", for_s=1.0), way=way))
    assert not report.broken
    assert report.counts["send unknown"] > 0
    assert report.counts["delivered"] >= report.counts["send ok"]


@pytest.mark.parametrize("way", Way)
def test_a_client_that_dies_and_comes_again_passes_over_nothing(way):
    faults = [Befalls(1.55, Fault.CRASH, f"client{n}", for_s=0.5) for n in range(2)]
    report = run(plan_of(*faults, way=way))
    assert not report.broken
    assert report.counts["fault crash"] == 2
    # what the producer was to send meanwhile nobody has sent
    assert 20 < report.counts["send ok"] < 32
    assert report.counts["delivered"] >= report.counts["send ok"]


def test_a_run_waits_for_what_is_delayed_though_its_broker_may_lose_it():
    kill = Befalls(0.1, Fault.KILL, "broker0", for_s=0.1)
    plan = plan_of(kill, transientStorePoolEnable=True, flushDiskType="ASYNC_FLUSH")
    late = Operation(4.0, "client0", Does.DELAY, 100, "T0", -1, 100, count=4)
    report = run(dataclasses.replace(plan, operations=(*plan.operations, late)))
    assert not report.broken
    assert report.counts["delay ok"] == 1
    assert report.for_s > 34


@pytest.mark.parametrize("way", Way)
def test_who_goes_on_when_a_topic_is_deleted_gets_all_that_comes_then(way):
    faults = [Befalls(at_s, Fault.DELETE, "client1", "T0") for at_s in (1.55, 2.45)]
    report = run(plan_of(*faults, Befalls(2.5, Fault.RESTART, "broker0", for_s=0.1), way=way))
    assert not report.broken
    assert report.counts["topic deleted"] == 2


@pytest.mark.parametrize("way", Way)
def test_a_group_whose_offsets_are_set_back_reads_again_though_its_broker_is_killed(way):
    faults = (
        Befalls(3.9, Fault.RESET, "group", "T0"),
        Befalls(3.95, Fault.KILL, "broker0", for_s=1.0),
    )
    report = run(plan_of(*faults, way=way))
    assert not report.broken
    assert report.counts["offsets reset"] == 1
    assert report.counts["delivered again"] >= 30


def test_what_has_gone_with_the_oldest_log_files_is_not_missed():
    plan = plan_of(sends=0)
    operations = tuple(
        Operation(0.5 + 0.05 * number, "client0", Does.SEND, number, "T0", 0, 2000)
        for number in range(80)
    )
    group = Group("broker0", 0, quotas=(2 * 40960,))
    report = run(dataclasses.replace(plan, operations=operations, groups=(group,)))
    assert not report.broken
    assert report.counts["a log beyond its quota"] == 1
    assert report.counts["delivered"] == report.counts["send ok"] == 82


def test_a_plan_may_take_an_hour_with_no_more_load(seed):
    plans = [draw(f"{seed}/{number}") for number in range(40)]
    slow = [plan for plan in plans if plan.for_s > 120]
    assert 0 < len(slow) < len(plans)
    assert max(len(plan.operations) for plan in slow) < 2000
    for plan in slow:
        assert plan.operations[-1].at_s < plan.for_s
        assert all(fault.at_s < plan.for_s for fault in plan.faults)


def test_a_run_that_breaks_a_promise_says_which():
    assert {each.name for each in run(broken_plan()).broken} == {"unexpected"}


@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER"])
def test_a_slave_has_its_masters_log_whatever_befalls_either(role):
    group = Group("broker0", 1, settings={"brokerRole": role})
    plan = plan_of(
        Befalls(1.55, Fault.KILL, "broker0", for_s=1.0),
        Befalls(3.55, Fault.KILL, "broker0-slave1", for_s=1.0),
        Befalls(4.0, Fault.PARTITION, "broker0", "broker0-slave1", for_s=2.0),
    )
    report = run(dataclasses.replace(plan, groups=(group,)))
    assert not report.broken
    assert (report.counts.get("send stored", 0) > 0) is (role == "SYNC_MASTER")


@pytest.mark.parametrize("way", Way)
def test_when_a_slave_is_promoted_nothing_is_lost_and_consumers_go_on(way, caplog):
    cut_off = [
        Befalls(1.25, Fault.PARTITION, "broker0", f"broker0-slave{n}", for_s=2.0) for n in (1, 2)
    ]
    plan = plan_of(
        *cut_off,
        Befalls(1.75, Fault.PROMOTE, "broker0", for_s=1.0),
        Befalls(3.95, Fault.PROMOTE, "broker0", for_s=0.1, size=1.0),
        sends=50,
        way=way,
    )
    settings = {"brokerRole": "SYNC_MASTER", "slaveTimeout": 200, "flushConsumerOffsetInterval": 50}
    refusing = dataclasses.replace(plan.consumers[0], refuses=50)
    plan = dataclasses.replace(
        plan, groups=(Group("broker0", 2, settings=settings),), consumers=(refusing,)
    )
    # a record that is kept has the tasks of a dead master in its hands
    with caplog.at_level(logging.CRITICAL):
        report = run(plan)
    assert not report.broken
    assert report.counts["promoted"] == 2
    assert report.counts["send stored"] > 0
    assert report.counts["delivered"] >= report.counts["send ok"]


@pytest.mark.parametrize("way", Way)
def test_a_slave_that_is_promoted_need_not_know_the_groups_that_go_on(way, caplog):
    """It asks for offsets every ten seconds; what was delivered later has come before they do."""
    befalls = (
        Befalls(1.25, Fault.PARTITION, "broker0", "broker0-slave1", for_s=2.0),
        Befalls(1.75, Fault.PROMOTE, "broker0", for_s=1.0),
    )
    plan = plan_of(*befalls, sends=0, way=way)
    operations = [
        *(Operation(0.4 + 0.02 * n, "client0", Does.SEND, n, "T0", n % 4, 100) for n in range(100)),
        *(
            Operation(0.5 + 0.01 * n, "client0", Does.TIMER, 1000 + n, "T0", -1, 100, 2)
            for n in range(40)
        ),
    ]
    settings = {"brokerRole": "SYNC_MASTER", "slaveTimeout": 200}
    plan = dataclasses.replace(
        plan,
        groups=(Group("broker0", 1, settings=settings),),
        operations=tuple(sorted(operations, key=lambda each: each.at_s)),
    )
    # a record that is kept has the tasks of a dead master in its hands
    with caplog.at_level(logging.CRITICAL):
        report = run(plan)
    assert not report.broken
    assert report.counts["promoted"] == 1
    assert report.counts["send stored"] > 0


def test_what_a_promoted_slave_whose_clock_is_behind_has_to_deliver_is_waited_for(caplog):
    """Its master had delivered it already, and the slave has not got that."""
    plan = plan_of(
        Befalls(0.3, Fault.CLOCK, "broker0-slave1", size=-60.0),
        Befalls(1.25, Fault.PARTITION, "broker0", "broker0-slave1", for_s=2.0),
        Befalls(1.75, Fault.PROMOTE, "broker0", for_s=1.0),
        sends=0,
    )
    timer = Operation(0.5, "client0", Does.TIMER, 0, "T0", -1, 100, 1)
    settings = {"brokerRole": "SYNC_MASTER", "slaveTimeout": 200}
    group = Group("broker0", 1, settings=settings)
    with caplog.at_level(logging.CRITICAL):
        report = run(dataclasses.replace(plan, groups=(group,), operations=(timer,)))
    assert not report.broken
    assert (report.counts["promoted"], report.counts["timer ok"]) == (1, 1)
    assert report.for_s > 60


def test_a_slave_is_not_promoted_when_all_faults_have_ended_meanwhile(caplog):
    """Its master has been started again, and would be down for good."""
    plan = plan_of(Befalls(4.5, Fault.PROMOTE, "broker0", for_s=600.0))
    settings = {"brokerRole": "SYNC_MASTER", "slaveTimeout": 200}
    group = Group("broker0", 1, settings=settings)
    with caplog.at_level(logging.CRITICAL):
        report = run(dataclasses.replace(plan, groups=(group,)))
    assert not report.broken
    assert "promoted" not in report.counts


def test_a_cluster_that_has_nothing_to_do_does_little():
    """A minute of a broker, its slave, a name server and a client, none of which is asked."""
    idle = dataclasses.replace(
        plan_of(sends=0), groups=(Group("broker0", 1, settings={}),), consumers=()
    )
    events = [run(dataclasses.replace(idle, for_s=for_s)).events for for_s in (5.0, 65.0)]
    assert events[1] - events[0] < 60 * 60


def test_a_consumer_asks_no_more_often_the_longer_its_broker_is_away():
    """Each topic whose broker did not answer asked for another try, and each try for as many."""
    topics = ("T0", "T1", "T2")
    events = []
    for away_s in (20.0, 40.0, 60.0):
        plan = plan_of(Befalls(1.55, Fault.KILL, "broker0", for_s=away_s))
        consumers = tuple(ConsumerPlan(c, "group", Way.PUSH, topics) for c in plan.clients)
        report = run(
            dataclasses.replace(plan, topics=topics, consumers=consumers, for_s=away_s + 2)
        )
        assert not report.broken
        events.append(report.events)
    assert events[2] - events[1] < 1.1 * (events[1] - events[0])


def test_a_broker_that_is_killed_while_it_is_led_back_is_led_back_again(monkeypatch):
    monkeypatch.setattr(promotion, "_LOOK_EVERY_S", 0)
    plan = Plan("small", 5.0, 1, (Group("broker0", 1, settings={}),), (), (), (), (), ())

    async def scenario():
        lives = []

        def resync(_server, _address):
            life = asyncio.get_running_loop().create_future()
            if lives:
                life.set_result(None)
            lives.append(life)
            return life

        names = "broker0", "broker0-slave1"
        brokers = {name: SimpleNamespace(name=name, address="10.0.0.1") for name in names}
        loop = SimpleNamespace(time=lambda: 0.0)
        masters = promotion.Masters(
            SimpleNamespace(brokers=brokers, settings={}, loop=loop, resync=resync), plan
        )
        masters.promote("broker0", "broker0-slave1")
        killed = brokers["broker0"]
        killed.is_down, killed.end = (lambda: True), (lambda: None)
        async with asyncio.timeout(TIMEOUT_S):
            await masters.rejoin(killed)
        assert len(lives) == 2

    asyncio.run(scenario())
