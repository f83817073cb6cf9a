"""Celery itself on our transport: chords, ETA, remote control, and workers that are killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from celery import chord
from kombu import pools

pytestmark = pytest.mark.peers
PROGRAM = Path(__file__).with_name("celery_program.py")
OPTIONS = "-m celery -A celery_program worker -c 2 -l INFO"
#: how long workers are killed for: one whenever two have been at work for a second
KILLED_FOR_S = 60


@pytest.fixture
def program(tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    monkeypatch.setenv("CELERY_PROGRAM", str(tmp_path))
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    sys.modules.pop("celery_program", None)
    import celery_program

    yield celery_program
    celery_program.app.close()
    pools.reset()


class Worker:
    """A worker in processes of its own."""

    def __init__(self, folder, name):
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *OPTIONS.split(), "-n", f"{name}@here"],
                cwd=PROGRAM.parent,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def ready(self):
        return b" ready." in self.log.read_bytes()

    def await_ready(self):
        until = time.monotonic() + 60
        while not self.ready:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.05)

    def kill(self):
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def worker(folder, name):
    started = Worker(folder, name)
    try:
        started.await_ready()
        yield started
    finally:
        started.kill()


def test_results_chords_and_times(program, tmp_path):
    with worker(tmp_path, "one"):
        assert program.add.delay(2, 3).get(timeout=20) == 5
        pairs = [program.add.s(number, number) for number in range(10)]
        assert chord(pairs)(program.total.s()).get(timeout=60) == 90
        began = time.monotonic()
        assert program.add.apply_async((1, 1), countdown=2).get(timeout=20) == 2
        assert 1.8 < time.monotonic() - began < 6


def test_workers_are_inspected_and_controlled(program, tmp_path):
    control = program.app.control
    with worker(tmp_path, "one") as one, worker(tmp_path, "two"):
        everybody = {"one@here": {"ok": "pong"}, "two@here": {"ok": "pong"}}
        assert control.inspect(timeout=3).ping() == everybody
        assert "celery_program.add" in control.inspect(["one@here"]).registered()["one@here"]
        assert set(control.inspect().stats()) == {"one@here", "two@here"}
        program.add.apply_async((1, 1), countdown=300)
        time.sleep(1)
        scheduled = control.inspect().scheduled()
        assert sum(len(tasks) for tasks in scheduled.values()) == 1
        control.rate_limit("celery_program.add", "5/m", reply=True)
        control.broadcast("shutdown", destination=["one@here"])
        assert one.process.wait(timeout=30) == 0
        assert control.inspect(timeout=3).ping() == {"two@here": {"ok": "pong"}}


def test_a_task_of_a_killed_worker_goes_to_another(program, tmp_path):
    with worker(tmp_path, "one"):
        assert program.seen.delay().get(timeout=20) is False
        held = program.seen.apply_async(countdown=4)
        time.sleep(1)
    with worker(tmp_path, "two"):
        assert held.get(timeout=20) is True


def test_of_two_workers_one_is_killed_again_and_again_and_every_task_runs(program, tmp_path):
    published = 0
    ended = threading.Event()

    def publish():
        nonlocal published
        while not ended.is_set():
            program.note.delay(published)
            published += 1
            ended.wait(0.02)

    publisher = threading.Thread(target=publish)
    workers = [Worker(tmp_path, f"w{number}") for number in range(2)]
    started, kills = 2, 0
    try:
        for each in workers:
            each.await_ready()
        publisher.start()
        until = time.monotonic() + KILLED_FOR_S
        while time.monotonic() < until:
            time.sleep(1)
            workers.pop(0).kill()
            kills += 1
            workers.append(Worker(tmp_path, f"w{started}"))
            started += 1
            workers[0].await_ready()
        ended.set()
        publisher.join()
        done, until = set(), time.monotonic() + 120
        while len(done) < published and time.monotonic() < until:
            time.sleep(0.5)
            done = {int(line) for line in (tmp_path / "done").read_text().split()}
    finally:
        ended.set()
        for each in workers:
            each.kill()
    print(f"{published} tasks, {kills} kills")
    assert kills > KILLED_FOR_S / 5
    assert done == set(range(published))
