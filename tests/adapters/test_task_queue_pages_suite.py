"""The programs of the Celery and huey pages as they are printed: run, killed and run again."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from patience import TIMEOUT_S

pytestmark = pytest.mark.peers
PAGES = Path(__file__).parents[2] / "docs" / "adapters"


def blocks(page, language):
    text = (PAGES / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run(commands, folder, environment):
    """Run lines of a shell in a session of its own; what they print. Background jobs are killed."""
    process = subprocess.Popen(
        ["bash", "-c", commands],
        cwd=folder,
        env={**environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=10 * TIMEOUT_S)[0]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("page", ["celery.md", "huey.md"])
def test_the_printed_program_runs_is_killed_and_resumes(page, tmp_path, installed):
    program = blocks(page, "python")[0]
    name = re.match(r"# (\w+\.py)\n", program)[1]
    (tmp_path / name).write_text(program)
    (console,) = blocks(page, "console")
    lines = console.splitlines()
    worker, task = (line[2:] for line in lines if line.startswith("$ "))
    (expected,) = (line for line in lines if not line.startswith("$ "))
    shown = f"{worker.removesuffix('&')} >worker.log 2>&1 &\n{task}\nkill -9 $!\n"
    assert run(shown, tmp_path, installed).splitlines() == [expected]
    # what is sent while no worker runs waits for the next one
    sent = re.sub(r"print\((add.*?\))(\.get)?\(.*\"$", r'\1"', task)
    assert run(sent, tmp_path, installed) == ""
    assert run(shown, tmp_path, installed).splitlines() == [expected]
    log = (tmp_path / "worker.log").read_text()
    assert "Traceback" not in log
    assert len(re.findall(r"succeeded in|executed in", log)) == 2, log


def test_kombu_alone_runs_as_printed(tmp_path, installed):
    program = blocks("celery.md", "python")[1]
    program = program.replace("/tmp/rmqcore-kombu-example", str(tmp_path / "queue"))
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, text=True, env=installed) == "{'to': 'a@example.org'}\n"
