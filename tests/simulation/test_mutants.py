"""The simulation finds deliberate breaks, each by a plan that holds without it."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulation.test_runs import plan_of

from rmqcore.doctor.selftest import _system_calls
from rmqcore.simulation.plan import Befalls, ConsumerPlan, Fault, Group, Way
from rmqcore.simulation.runner import simulate

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A break: a text of a file, and what it becomes; the plan that finds it, and by what."""

    file: str
    old: str
    new: str
    plan: object
    found: str


def with_slave():
    plan = plan_of()
    group = Group("broker0", 1, settings={"brokerRole": "SYNC_MASTER"})
    return dataclasses.replace(plan, groups=(group,))


def with_leaving():
    leaving = ConsumerPlan("client1", "group", Way.PUSH, ("T0",), work_s=1.0, leaves_s=3.0)
    return dataclasses.replace(plan_of(), consumers=(leaving,))


def with_a_late_crash():
    crash = Befalls(100.0, Fault.CRASH, "client1", for_s=0.2)
    return dataclasses.replace(plan_of(crash), for_s=110.0)


MUTANTS = {
    "a sync is left out": Mutant(
        "rmqcore/services/flush.py",
        "            flushed = self._flusher.flush()\n        except OSError as error:\n",
        "            flushed = self._flusher.put_offset\n        except OSError as error:\n",
        plan_of(
            # each draws what it leaves of the pages that were not synced: it may be all
            *(Befalls(1.2 + 0.5 * n, Fault.POWER_CUT, "broker0", for_s=0.3) for n in range(5)),
            flushDiskType="SYNC_FLUSH",
        ),
        "lost",
    ),
    "the checkpoint is ahead": Mutant(
        "rmqcore/services/flush.py",
        "        checkpoint = self._checkpoint\n        logics, whole = (\n",
        "        checkpoint = self._checkpoint\n"
        "        checkpoint.physic_msg_timestamp_ms += 3_600_000\n"
        "        checkpoint.flush()\n"
        "        logics, whole = (\n",
        plan_of(
            *(Befalls(at, Fault.POWER_CUT, "broker0", for_s=0.1) for at in (1.2, 2.2, 3.2)),
            flushDiskType="SYNC_FLUSH",
        ),
        "verify",
    ),
    "a slave acknowledges before it appends": Mutant(
        "rmqcore/ha/client.py",
        "                await self._append(body, offset)\n"
        "                expected = offset + len(body)\n",
        "                await self._report(sock, offset + len(body))\n"
        "                await asyncio.sleep(0.01)\n"
        "                await self._append(body, offset)\n"
        "                expected = offset + len(body)\n",
        with_slave(),
        "confirmed",
    ),
    "a sync that the disk refuses counts": Mutant(
        "rmqcore/files/commit_log_writer.py",
        "                    raise\n                self.flushed_offset = max(",
        "                    self._flush_failure = None\n"
        "                    position = file.wrote_position\n"
        "                self.flushed_offset = max(",
        plan_of(
            *(Befalls(at, Fault.FAIL, "broker0", for_s=1.0) for at in (0.82, 1.82, 2.82)),
            *(Befalls(at, Fault.POWER_CUT, "broker0", for_s=0.1) for at in (1.28, 2.28, 3.28)),
            flushDiskType="SYNC_FLUSH",
        ),
        "lost",
    ),
    "an offset is committed before its message": Mutant(
        "rmqcore/client/assigned.py",
        "        return next(iter(self._unacked), self.next_offset)\n",
        "        return self.next_offset\n",
        with_leaving(),
        "not delivered",
    ),
    "offsets are committed when a consumer leaves only": Mutant(
        "rmqcore/client/assignment.py",
        "_COMMIT_INTERVAL_S = 5.0\n",
        "_COMMIT_INTERVAL_S = 1e9\n",
        with_a_late_crash(),
        "came again",
    ),
}


def found_by(mutant, **seeds):
    """Run a plan, or drawn seeds, with a break; what has found it, and what was found."""
    told = {"file": mutant.file, "old": mutant.old, "new": mutant.new, **seeds}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("mutated.py")), json.dumps(told)],
        env=os.environ
        | _system_calls.preload()
        | {"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout, "nothing was found"
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_break_is_found_by_a_plan_that_holds_without_it(name, tmp_path):
    mutant = MUTANTS[name]
    assert mutant.found in found_by(mutant, plan=mutant.plan.to_json())["broken"]
    path = tmp_path / "plan.json"
    path.write_text(mutant.plan.to_json(), "utf-8")
    report = simulate(plan=path)
    assert report.clean, report.rows
