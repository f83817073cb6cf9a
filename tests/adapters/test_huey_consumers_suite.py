"""huey's own consumer over three processes, which are killed."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from huey import chord
from patience import TIMEOUT_S, until

pytestmark = pytest.mark.peers
PROGRAM = Path(__file__).with_name("huey_program.py")
OPTIONS = "-m huey.bin.huey_consumer huey_program.huey -w 2 -s 1"
#: how often one of three consumers is killed
KILLS = 10


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setenv("HUEY_PROGRAM", str(tmp_path))
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    sys.modules.pop("huey_program", None)
    import huey_program

    yield huey_program
    huey_program.huey.storage.close()


@pytest.fixture
def consumer(tmp_path):
    started = []

    def start(kind):
        log = tmp_path / f"{len(started)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, *OPTIONS.split(), "-k", kind],
                cwd=PROGRAM.parent,
                env={**os.environ, "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{PROGRAM.parent}"},
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        kill(process)


def kill(process):
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_results_chords_and_times(program, consumer, kind):
    for _ in range(3):
        consumer(kind)
    assert program.add(2, 3)(blocking=True, timeout=TIMEOUT_S) == 5
    added = chord([program.add.s(number, number) for number in range(10)], program.total)
    assert program.huey.enqueue(added).get(blocking=True, timeout=TIMEOUT_S) == 90
    began = time.monotonic()
    assert program.add.schedule((1, 1), delay=2)(blocking=True, timeout=TIMEOUT_S) == 2
    # its time has brought it, and not the end of a lease, which is ten minutes
    assert time.monotonic() - began > 1.5


def test_of_three_consumers_one_is_killed_again_and_again_and_every_task_runs(
    program, consumer, tmp_path
):
    done = tmp_path / "done"
    running = [consumer(kind) for kind in ("thread", "process", "thread")]
    count = 0

    def noted():
        return {int(line) for line in done.read_text().split()} if done.exists() else set()

    def await_more(what):
        before = len(noted())
        until(lambda: len(noted()) > before, what)

    for killed in range(KILLS):
        for _ in range(50):
            program.note(count)
            program.note.schedule((count + 1,), delay=2)
            count += 2
        await_more("a task of some more that is done")
        kill(running.pop(0))
        running.append(consumer("process" if killed % 2 else "thread"))
    while noted() != set(range(count)):
        await_more("a task of those that are left")
