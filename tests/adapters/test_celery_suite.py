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
from patience import TIMEOUT_S, until

pytestmark = pytest.mark.peers
PROGRAM = Path(__file__).with_name("celery_program.py")
OPTIONS = "-m celery -A celery_program worker -c 2 -l INFO"
#: how often one of two workers is killed, whenever they have done some more tasks
KILLS = 20


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setenv("CELERY_PROGRAM", str(tmp_path))
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    sys.modules.pop("celery_program", None)
    import celery_program

    yield celery_program
    celery_program.app.backend.close()
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
        def is_ready():
            assert self.process.poll() is None, self.log.read_text()
            return self.ready

        until(is_ready, f"a worker that is ready, see {self.log}")

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
        assert program.add.delay(2, 3).get(timeout=TIMEOUT_S) == 5
        pairs = [program.add.s(number, number) for number in range(10)]
        assert chord(pairs)(program.total.s()).get(timeout=TIMEOUT_S) == 90
        began = time.monotonic()
        # at its time: not before it, and not when it is delivered once more
        assert program.seen.apply_async(countdown=2).get(timeout=TIMEOUT_S) is False
        assert time.monotonic() - began > 1.8


def answers(program, question, *names):
    """What some workers, or all, answer: until all of them have in time."""
    to = list(names) or None

    def answered():
        inspect = program.app.control.inspect(to, timeout=3, limit=to and len(to))
        found = getattr(inspect, question)() or {}
        return len(found) >= len(names) and found

    return until(answered, f"an answer of workers to {question}")


def is_scheduled(program, *names):
    return sum(len(tasks) for tasks in answers(program, "scheduled", *names).values()) == 1


def test_workers_are_inspected_and_controlled(program, tmp_path):
    control = program.app.control
    with worker(tmp_path, "one") as one, worker(tmp_path, "two"):
        both = "one@here", "two@here"
        everybody = {name: {"ok": "pong"} for name in both}
        until(lambda: answers(program, "ping") == everybody, "a pong of both workers")
        registered = answers(program, "registered", "one@here")
        assert "celery_program.add" in registered["one@here"]
        assert set(answers(program, "stats", *both)) == set(both)
        program.add.apply_async((1, 1), countdown=600)
        until(lambda: is_scheduled(program, *both), "a worker that has the task")
        control.rate_limit("celery_program.add", "5/m", reply=True)
        control.broadcast("shutdown", destination=["one@here"])
        assert one.process.wait(TIMEOUT_S) == 0
        assert answers(program, "ping") == {"two@here": {"ok": "pong"}}


def test_a_worker_whose_pool_shrinks_runs_what_it_is_given(program, tmp_path):
    control = program.app.control
    with worker(tmp_path, "one"):
        for number in range(10):
            assert control.pool_grow(4, reply=True, timeout=TIMEOUT_S, limit=1)
            assert program.add.delay(number, 1).get(timeout=TIMEOUT_S) == number + 1
            assert control.pool_shrink(4, reply=True, timeout=TIMEOUT_S, limit=1)
            tasks = [program.add.delay(number, each) for each in range(10)]
            assert [task.get(timeout=TIMEOUT_S) for task in tasks] == list(
                range(number, number + 10)
            )


def test_a_task_of_a_killed_worker_goes_to_another(program, tmp_path):
    with worker(tmp_path, "one"):
        assert program.seen.delay().get(timeout=TIMEOUT_S) is False
        held = program.seen.apply_async(countdown=15)
        until(lambda: is_scheduled(program, "one@here"), "a worker that has the task")
    with worker(tmp_path, "two"):
        assert held.get(timeout=TIMEOUT_S) is True


def test_of_two_workers_one_is_killed_again_and_again_and_every_task_runs(program, tmp_path):
    published = 0
    ended = threading.Event()

    def publish():
        nonlocal published
        while not ended.is_set():
            program.note.delay(published)
            published += 1
            ended.wait(0.02)

    def done():
        path = tmp_path / "done"
        return {int(line) for line in path.read_text().split()} if path.exists() else set()

    def await_more(count):
        wanted = len(done()) + count
        until(lambda: len(done()) >= min(wanted, published), "tasks that are done")

    publisher = threading.Thread(target=publish)
    workers = [Worker(tmp_path, f"w{number}") for number in range(2)]
    try:
        publisher.start()
        for started in range(2, KILLS + 2):
            for each in workers:
                each.await_ready()
            await_more(20)
            workers.pop(0).kill()
            workers.append(Worker(tmp_path, f"w{started}"))
        ended.set()
        publisher.join()
        while len(done()) < published:
            await_more(1)
    finally:
        ended.set()
        for each in workers:
            each.kill()
    assert done() == set(range(published))
