"""Chords of huey's whose members come again, as their consumer was killed."""

import pytest

pytestmark = pytest.mark.engine

huey_api = pytest.importorskip("huey.api", reason="needs huey: pip install rmqcore[huey]")
adapter = pytest.importorskip("rmqcore.adapters.huey")


class Killed(BaseException):
    pass


@pytest.fixture
def program(tmp_path, clock):
    """A huey with a chord of three members that has been enqueued, and its result."""
    huey = adapter.RmqHuey(
        "app", path=tmp_path / "store", blocking=False, lease_ms=60_000, result_ttl=10
    )
    member = huey.task()(lambda number: number)
    body = huey.task(name="body")(lambda numbers: numbers)
    ran = []
    huey.post_execute()(lambda task, value, _: ran.append(value) if task.name == "body" else None)
    result = huey.enqueue(huey_api.chord([member.s(n) for n in range(3)], body.s()))
    yield huey, result, ran
    huey.storage.close()


def execute_next(huey):
    task = huey.dequeue()
    if task is not None:
        huey.execute(task)
    return task is not None


def execute_all(huey):
    while execute_next(huey):
        pass


def kill_in(huey, monkeypatch, target, step, call):
    """Execute the next task with a consumer that is killed as it begins a step for the nth time."""
    real, calls = getattr(target, step), []

    def die(*arguments, **settings):
        calls.append(arguments)
        if len(calls) == call:
            raise Killed
        return real(*arguments, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(target, step, die)
        with pytest.raises(Killed):
            execute_next(huey)
    huey._leases.clear()
    opened = huey.storage._open
    opened.store.release_leases(opened.holder)


@pytest.mark.parametrize("before", range(3))
@pytest.mark.parametrize("step", ["put_data", "acknowledge"])
def test_a_member_that_comes_again_counts_once(program, monkeypatch, before, step):
    huey, result, ran = program
    for _ in range(before):
        execute_next(huey)
    kill_in(huey, monkeypatch, huey.storage, step, 1)
    execute_all(huey)
    assert result.get() == [0, 1, 2]
    assert ran == [[0, 1, 2]]


# huey deletes what revokes a task first
@pytest.mark.parametrize(("step", "call"), [("enqueue", 1), ("delete", 2), ("delete", 3)])
def test_a_callback_that_is_not_enqueued_yet_is_and_one_that_is_is_not(
    program, monkeypatch, step, call
):
    huey, result, ran = program
    for _ in range(2):
        execute_next(huey)
    kill_in(huey, monkeypatch, huey, step, call)
    execute_all(huey)
    assert result.get() == [0, 1, 2]
    assert ran == [[0, 1, 2]]


def test_a_chord_takes_longer_than_results_live(program, clock):
    huey, result, _ = program
    for _ in range(3):
        execute_next(huey)
        clock.pass_ms(11_000)
    execute_all(huey)
    assert result.get() == [0, 1, 2]
