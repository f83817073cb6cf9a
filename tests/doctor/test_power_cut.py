"""Whatever a power cut leaves of a repair, an undo brings back every byte of what was there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmqcore.doctor.selftest import _system_calls

PROGRAM = Path(__file__).with_name("power_cuts.py")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="watches system calls"),
]


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.storm)])
def test_a_repair_is_taken_back_after_a_power_cut(seed, count):
    environment = os.environ | _system_calls.preload() | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), json.dumps([count, seed])],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout) > count // 4
