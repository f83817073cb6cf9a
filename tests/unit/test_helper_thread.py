"""The second thread of recovery: in order, all in one thread, and errors reach the caller once."""

from __future__ import annotations

import runpy
import threading

import pytest
from patience import TIMEOUT_S

from rmqcore.recovery import helper_thread
from rmqcore.recovery.helper_thread import HelperThread

pytestmark = pytest.mark.engine


@pytest.fixture
def beside():
    thread = HelperThread()
    yield thread
    thread.end()


def test_all_work_is_done_in_order_by_one_thread(beside):
    done = []
    for number in range(50):
        beside.start(lambda number=number: done.append((number, threading.get_ident())))
    beside.wait()
    assert [number for number, _ in done] == list(range(50))
    (by,) = {ident for _, ident in done}
    assert by != threading.get_ident()


def test_the_caller_goes_on_beside_the_work(beside):
    gate = threading.Event()
    seen = []
    beside.start(lambda: seen.append(gate.wait(TIMEOUT_S)))
    gate.set()
    beside.wait()
    assert seen == [True]


def test_what_the_work_raises_is_raised_once_and_the_thread_goes_on(beside):
    done = []
    beside.start(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        beside.start(lambda: done.append("not begun"))
    beside.wait()
    beside.start(lambda: done.append("begun"))
    beside.wait()
    assert done == ["begun"]


def test_end_waits_drops_the_error_and_ends_the_thread():
    before, beside, done = threading.active_count(), HelperThread(), []

    def fail():
        done.append(True)
        raise OSError("the disk refused")

    beside.start(fail)
    beside.end()
    assert done == [True]
    assert threading.active_count() == before
    beside.end()
    beside.start(lambda: done.append(False))
    beside.wait()
    assert done == [True, False]
    beside.end()


def test_a_library_that_replaces_queues_but_not_threads_is_no_hindrance(monkeypatch):
    """So gevent's patch_all(thread=False) does."""
    monkeypatch.setattr("queue.SimpleQueue", None)
    beside, done = runpy.run_path(helper_thread.__file__)["HelperThread"](), []
    beside.start(lambda: done.append(True))
    beside.end()
    assert done == [True]
