"""Leases and tables after kills at system calls and at random moments, and after power cuts.

After a kill no acknowledged message comes again, no other is lost, and each key has its last value.
After a power cut none is lost of what was on the disk.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmqcore.doctor.selftest import _system_calls

PROGRAM = Path(__file__).with_name("deaths.py")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="watches system calls"),
]


@pytest.mark.parametrize(
    ("what", "count"),
    [
        ("kills", 12),
        ("power cuts", 20),
        pytest.param("kills", 2000, marks=pytest.mark.storm),
        pytest.param("power cuts", 2000, marks=pytest.mark.storm),
    ],
)
def test_nothing_is_lost_and_nothing_comes_back(seed, what, count):
    environment = os.environ | _system_calls.preload() | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), json.dumps([what, count, seed])],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout.split()[0]) >= count
