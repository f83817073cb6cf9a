"""Each command of docs/doctor.md prints what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text("utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)


def commands():
    """(command, what it prints) of the page, in order."""
    for block in BLOCKS:
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            yield command, printed


def test_the_story_prints_what_the_page_says(tmp_path):
    rmqcore = tmp_path / "rmqcore"
    rmqcore.write_text(f'#!/bin/sh\nexec {sys.executable} -m rmqcore "$@"\n')
    rmqcore.chmod(0o755)
    path = os.pathsep.join([*sys.path, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": path,
    }
    told = list(commands())
    assert len(told) >= 10
    for command, printed in told:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.stdout.replace(f"{tmp_path}/", "/data/") == printed, command
