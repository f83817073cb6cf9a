"""Which tests are collected: those of another program only where `make peers` runs."""

import os
import sys
import tomllib
from pathlib import Path

import pytest
from asleep import when_asleep  # noqa: F401 - a fixture
from consume.conftest import Clock

from rmqcore.store.sharing.opening import open_handle
from rmqcore.world import World

ROOT = Path(__file__).parents[2]

#: they import what they adapt, and its suite
collect_ignore_glob = (
    [] if "RMQCORE_SUITES" in os.environ else ["test_*_suite.py", "test_*_live.py"]
)


@pytest.fixture
def clock(monkeypatch):
    """The time of shared stores that this process opens from now on, as the test sets it."""
    clock = Clock()
    monkeypatch.setitem(open_handle.__kwdefaults__, "world", World(clock, clock.monotonic_s))
    return clock


@pytest.fixture
def installed(tmp_path):
    """The environment of a process for which rmqcore is installed, with its entry points."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    info = tmp_path / "site" / "rmqcore-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rmqcore\nVersion: 0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in named.items())
        for group, named in points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    path = os.pathsep.join([str(info.parent), str(ROOT), *sys.path])
    return {**os.environ, "PYTHONPATH": path}
