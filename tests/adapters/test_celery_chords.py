"""Chords of Celery's whose tasks run again, as their worker was killed before it acknowledged."""

import itertools
from types import SimpleNamespace

import pytest
from celery import Celery, signature, states
from celery.result import GroupResult

from rmqcore.adapters.celery import RmqBackend

pytestmark = pytest.mark.engine

GROUP = "group"
SIZE = 3
SMALL = {"mapped_file_size_commit_log": 1 << 20}
WRITES = ("kv_put", "kv_swap", "kv_take")


class Killed(BaseException):
    pass


class DyingStore:
    """A store whose process dies in front of its nth write."""

    def __init__(self, store, left):
        self._store, self._left = store, left

    def __getattr__(self, name):
        if name in WRITES:
            self._left -= 1
            if self._left == 0:
                raise Killed
        return getattr(self._store, name)


class Chord:
    """A chord whose tasks a worker ends by hand.

    Attributes:
        sent: what its body was called with, each time.
    """

    def __init__(self, path):
        backend = f"rmqcore.adapters.celery:RmqBackend+rmqcore://{path}"
        self.app = Celery("test", backend=backend)
        self.app.conf.result_backend_transport_options = {"store": SMALL}
        # what is missing is not waited for: the test is over then
        self.app.conf.result_chord_join_timeout = 1e-9
        self.backend = self.app.backend
        results = [self.app.AsyncResult(f"task{number}") for number in range(SIZE)]
        GroupResult(GROUP, results, app=self.app).save(backend=self.backend)
        self.sent = []
        self.app.amqp._retry_publish = lambda _, returned: self.sent.append(returned)
        self.backend.chord_error_from_stack = lambda callback, exc: self.sent.append(exc)

    def end(self, number):
        """End a task as a worker does, whether it has been ended before or not."""
        body = signature("body", app=self.app)
        request = SimpleNamespace(id=f"task{number}", group=GROUP, chord=body)
        self.backend.store_result(request.id, number, states.SUCCESS)
        self.backend.on_chord_part_return(request, states.SUCCESS, number)


@pytest.fixture
def chord(store_path):
    made = Chord(store_path)
    yield made
    made.backend.close()


@pytest.mark.parametrize("order", list(itertools.permutations(range(SIZE))))
@pytest.mark.parametrize("again", range(SIZE))
def test_a_task_that_ends_again_counts_once(chord, order, again):
    for number in order:
        chord.end(number)
        if number == again:
            chord.end(number)
    chord.end(again)
    assert chord.sent == [[0, 1, 2]]


def end_as_killed(chord, monkeypatch, number, left):
    """End a task with a worker that is killed in front of a write; False where it made fewer."""
    store = DyingStore(chord.backend.store, left)
    with monkeypatch.context() as patch:
        patch.setattr(RmqBackend, "store", store)
        try:
            chord.end(number)
        except Killed:
            return True
    return False


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("killed", range(SIZE))
@pytest.mark.parametrize("left", range(1, 12))
def test_wherever_a_worker_is_killed_the_body_comes_with_all(
    chord, monkeypatch, killed, left, late
):
    """It comes twice where the worker was killed when it had sent it, before it was known."""
    again = []
    for number in range(SIZE):
        if number != killed:
            chord.end(number)
        elif end_as_killed(chord, monkeypatch, number, left):
            again.append(number)
            if not late:
                chord.end(again.pop())
    for number in again:
        chord.end(number)
    assert chord.sent
    assert all(returned == [0, 1, 2] for returned in chord.sent)
    assert len(chord.sent) <= 1 + (killed == SIZE - 1)


def test_two_tasks_that_end_again_are_missed_by_no_count(chord, monkeypatch):
    for number in range(2):
        # behind its result, and its name, in front of the count
        assert end_as_killed(chord, monkeypatch, number, 3)
    for number in (0, 1, 0, 2):
        chord.end(number)
    assert chord.sent == [[0, 1, 2]]
