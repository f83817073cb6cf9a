"""`rmqcore selftest simulate`: seeds in processes, power cuts, the same run under other hashes."""

import dataclasses
import json

import pytest
from simulation.test_runs import broken_plan, plan_of

from rmqcore.simulation.plan import Befalls, Fault
from rmqcore.simulation.runner import simulate

pytestmark = [pytest.mark.process, pytest.mark.seeded]


def test_seeds_hold_and_are_the_same_under_other_hashes(seed):
    report = simulate(seeds=2, minutes=0.2, seed=seed)
    assert report.clean, report.rows
    assert [row.cases for row in report.rows] == [2, 1]
    assert report.speed > 0


def test_a_power_cut_takes_nothing_that_is_acknowledged_as_on_the_disk(tmp_path):
    plan = plan_of(
        Befalls(1.55, Fault.POWER_CUT, "broker0", for_s=1.0),
        Befalls(3.55, Fault.POWER_CUT, "broker0", for_s=1.0, size=2.0),
        flushDiskType="SYNC_FLUSH",
    )
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json(), "utf-8")
    report = simulate(plan=path)
    assert report.clean, report.rows
    assert report.counts["fault power cut"] == 2
    assert report.counts["died at a sync"] == 1


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_a_slave_may_have_what_a_cut_took_from_its_master_that_no_sync_had_covered(role, tmp_path):
    """The master's disk refuses the last record, which the slave gets; then its power is cut."""
    plan = plan_of(
        Befalls(0.82, Fault.FAIL, "broker0", for_s=2.0),
        Befalls(1.7, Fault.POWER_CUT, "broker0", for_s=0.2),
        flushDiskType="SYNC_FLUSH",
        brokerRole=role,
    )
    group = dataclasses.replace(plan.groups[0], slaves=1)
    path = tmp_path / "plan.json"
    # with this seed the cut takes it
    path.write_text(dataclasses.replace(plan, groups=(group,), seed="0").to_json(), "utf-8")
    report = simulate(plan=path)
    assert report.clean, report.rows
    assert report.counts["a cut took what a slave has"] == 1


def test_a_plan_that_breaks_a_promise_is_told(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(broken_plan().to_json(), "utf-8")
    report = simulate(plan=path)
    assert not report.clean
    assert "unexpected" in report.rows[0].examples[0]
    assert json.dumps(report.to_dict())
